"""Takes training steps of the tree on PYTHONPATH as it is asked, for `benchmarks.before`.

    PYTHONPATH=TREE python step_server.py NET BATCH FAST FORMAT...

A line of the input is a format and a number of steps; the answer, the CPU seconds of one step.
It works with trees in which `fast` was still called `compiled`, and in which GELU was the tanh form
alone: the transformer_tanh of here is the transformer of there.
"""

from __future__ import annotations

import inspect
import sys
import time
from dataclasses import replace
from typing import Any

import benchmarks.nets as nets
from benchmarks.timing import pin_one_thread
from policysearch import load_study
from policysearch.policy.presets import preset
from policysearch.policy.scaling import Scaling


def _of_study(name: str) -> Any:
    task = load_study(f"studies/{name}.toml").task
    return task.build_model(task.load_dataset())


def _scaled(model: Any, name: str, *given: Any) -> Any:
    """Return the policy with the recipe of its preset, which older trees timed none of."""
    policy = _policy_of(model, name, *given)
    if "." not in name or policy.scaling != Scaling():
        return policy
    return replace(policy, scaling=preset(name, model.layer_names).scaling)


_policy_of = nets.policy_of
vars(nets)["policy_of"] = _scaled


def main() -> None:
    """Run the command."""
    net, batch, fast, *formats = sys.argv[1:]
    pin_one_thread()
    chosen: dict[str, Any] = {"fast": fast}
    if "fast" not in inspect.signature(nets.our_step).parameters:
        chosen = {"compiled": fast == "c"}
    if not hasattr(nets, "TWINS"):
        net = net.removesuffix("_tanh")
    known = getattr(nets, "TWINS", nets.NETS)
    model = known[net]() if net in known else _of_study(net)
    calls = {name: nets.our_step(model, name, int(batch), **chosen) for name in formats}
    for line in sys.stdin:
        name, steps = line.split()
        calls[name]()
        start = time.process_time()
        for _ in range(int(steps)):
            calls[name]()
        print((time.process_time() - start) / int(steps), flush=True)


if __name__ == "__main__":
    main()
