"""Trains a net all low, and with ops in float32 one by one and together: which of them repair it?

    python -m benchmarks.op_lists studies/decisions/ops-digits.toml --ops pow mean --steps 1800

Every layer is in `--format` and every op but the loss low (`mindspore.O3`), under no loss scale or,
with `--dynamic`, one from 2^16 that grows after a tenth of the run. For each list it prints the
modeled time over float32's and, for each seed, the gap in nats or that the run diverged.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from policysearch.objective.objective import Objective
from policysearch.objective.score import gap
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.report.text import aligned
from policysearch.study.specification import load_spec, objective_of
from policysearch.values import InputError, one_of

BASE = "mindspore.O3"


def in_float32(policy: Policy, ops: Sequence[str]) -> Policy:
    """Return the policy with low ops of its moved to float32; InputError for another op."""
    for op in ops:
        one_of("--ops", op, policy.low_precision_ops)
    low = tuple(op for op in policy.low_precision_ops if op not in ops)
    return replace(policy, low_precision_ops=low, fp32_ops=(*policy.fp32_ops, *ops))


def lists(low: Policy, ops: Sequence[str]) -> Iterator[tuple[str, Policy]]:
    """Yield what is in float32 and the policy: nothing, each of `ops`, and all of several."""
    yield "nothing", low
    for op in ops:
        yield op, in_float32(low, (op,))
    if len(ops) > 1:
        yield ", ".join(ops), in_float32(low, ops)


def low_policy(objective: Objective, format: str, steps: int, dynamic: bool) -> Policy:
    """Return the policy of which all is low, for a run of `steps`."""
    names = objective.model.layer_names
    policy = preset(BASE, names).with_layers(dict.fromkeys(names, uniform_layer(format)))
    scale = LossScale("dynamic", 2.0**16, growth_interval=max(1, steps // 10))
    return replace(policy, loss_scale=scale) if dynamic else policy


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("study", type=Path, metavar="STUDY.toml")
    parser.add_argument("--ops", nargs="+", required=True, metavar="OP")
    parser.add_argument("--format", default="float16")
    parser.add_argument("--dynamic", action="store_true", help="a dynamic loss scale")
    parser.add_argument("--rate", type=float, help="another learning rate")
    parser.add_argument("--steps", type=int, help="of a longer or shorter run")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    options = parser.parse_args()
    try:
        spec = load_spec(options.study)
        task = spec.task if options.rate is None else replace(spec.task, learning_rate=options.rate)
        task = task.with_steps(options.steps or task.steps)
        objective = objective_of(replace(spec, task=task))
        low = low_policy(objective, options.format, task.steps, options.dynamic)
        found = list(lists(low, options.ops))
    except InputError as error:
        print(f"op_lists: {error}", file=sys.stderr)
        return 2
    losses = [f"{objective.baseline(seed).tail_loss:.3g}" for seed in options.seeds]
    print(f"{spec.study.name}, {task.steps} steps; float32's loss, nats: {', '.join(losses)}")
    rows = [("in float32", "time", *(f"seed {seed}" for seed in options.seeds))]
    for name, policy in found:
        time = f"{1.0 / objective.price(policy).speedup:.3f}"
        rows.append((name, time, *(_gap(objective, policy, seed) for seed in options.seeds)))
    print("\n".join(aligned(rows)))
    return 0


def _gap(objective: Objective, policy: Policy, seed: int) -> str:
    measured = objective.measure(policy, seed)
    return "diverged" if measured.diverged else f"{gap(measured, objective.baseline(seed)):+.2e}"


if __name__ == "__main__":
    sys.exit(main())
