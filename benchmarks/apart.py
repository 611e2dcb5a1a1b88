"""`python -m benchmarks.apart NET`: the calls of torch in bfloat16 that no node of the step equals.

One step of a net of the census, under bfloat16 autocast beside the exported file. Every result of
a call of ATen is looked for among the values of the emulated step, in any order of its elements. A
call is named whose own operands are all there and whose result is not, with the nearest node: the
share of its values that differ, and the largest difference over the largest value. A few values
that differ are sums in another order; most of them are a rounding in another place.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils._python_dispatch import TorchDispatchMode

import policysearch
from benchmarks.census.__main__ import nets
from benchmarks.census.measure import HALF, LOSS, feed, labels_of, loss_of, shaken, vectors
from benchmarks.census.net import Net
from policysearch.emulator.reference import Reference
from policysearch.export.torch import export
from policysearch.export.torch_runs import runs
from policysearch.nn.model import Model
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import trace_step
from policysearch.values import InputError
from policysearch.verify.gpu_rounding import AsAGpu, written_out

BATCH, MOST = 4, 12
LOW = ("torch.bfloat16", "torch.float16")
NOISE = 0.0
"""Share of values that differ where sums are in another order."""
Values = NDArray[np.float32]
SILENT = ("detach", "view", "_unsafe_view", "expand", "t", "transpose", "permute", "alias")


class Calls(TorchDispatchMode):
    """While it is entered, notes the calls of torch: name, operands, results and their dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[str, list[Values], Values, str]] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        operands = [_array(x) for x in _tensors((args, kwargs or {}))]
        result = function(*args, **(kwargs or {}))
        name = function.overloadpacket.__name__
        if name not in SILENT:
            for x in _tensors(result):
                self.rows.append((name, operands, _array(x), str(x.dtype)))
        return result


def _tensors(value: Any) -> Iterator[Any]:
    if isinstance(value, torch.Tensor):
        if value.is_floating_point() and value.numel():
            yield value
    elif isinstance(value, Mapping):
        yield from _tensors(tuple(value.values()))
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part)


def _array(x: Any) -> Values:
    values: Values = x.detach().float().numpy().copy()
    return values


def _key(x: Values) -> bytes:
    """Return what is the same for the same values in any order and either sign."""
    return np.sort(np.abs(x), axis=None).tobytes()


def apart(net: Net) -> Iterator[str]:
    """Yield a line for each call of torch that has its operands in the step and no result."""
    torch.manual_seed(0)
    module = shaken(net.make())
    inputs = net.inputs(torch.Generator().manual_seed(1), BATCH)
    model: Model = policysearch.from_torch(module, inputs, loss=net.loss, labels=net.labels)
    with contextlib.suppress(InputError):
        model = model.with_attention("flash")
    labels, policy = labels_of(net, module, inputs), preset(HALF, model.layer_names)
    space: dict[str, Any] = {"__name__": "exported"}
    calls = Calls()
    with mock.patch.object(torch._VF, "lstm", written_out(torch._VF.lstm)), AsAGpu(), calls:
        exec(export(policy, model), space)
        loss = loss_of(net, space["apply_policy"](module.train())(*inputs), labels)
        loss.backward()
    graph = apply_policy(trace_step(model, LOSS, Optimizer("sgd"), BATCH), runs(policy, model))
    step = Reference(graph, 0, {}, None)
    feed(step, model, inputs, labels)
    with vectors():
        step.forward_backward()
    values = {i: x for i, x in step._values.items() if x.dtype == np.float32 and x.size}
    known = {_key(x) for x in values.values()}
    known |= {_key(_array(x)) for x in (*inputs, *module.parameters()) if x.is_floating_point()}
    known |= {_key(_array(p.bfloat16())) for p in module.parameters()}
    for name, operands, result, dtype in calls.rows:
        if _key(result) in known or not np.any(result):
            continue
        share, said = _nearest(result, values, step.graph)
        there = all(_key(x) in known or not np.any(x) or x.size == 1 for x in operands)
        if share <= NOISE:
            known.add(_key(result))
        elif there and dtype in LOW:
            yield f"{name} {list(result.shape)} {dtype}: {said}"
            known.add(_key(result))


def _nearest(result: Values, values: Mapping[int, Values], graph: Any) -> tuple[float, str]:
    """Return the least share of values that differ by more than float32 does, and where."""
    best, lowest, said = np.inf, 1.0, "nothing of its size"
    wanted = np.sort(result, axis=None)
    largest = float(np.abs(wanted).max())
    for i, x in values.items():
        if x.size != wanted.size:
            continue
        off = np.abs(np.sort(x, axis=None) - wanted)
        if (far := float(off.mean())) < best:
            node, best = graph.nodes[i], far
            lowest = float((off > 1e-6 * largest).mean())
            said = (
                f"node {i} {node.op.name} ({node.role} of {node.source}, {node.layer}, "
                f"{node.format}) differs in {lowest:.0%}, by {float(off.max()) / largest:.1e}"
            )
    return lowest, said


def main() -> None:
    """Print the calls of the nets whose name holds the word given."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.apart", description=__doc__)
    parser.add_argument("net", help="nets whose name holds this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name, net in nets().items():
        if options.net in name:
            print(f"== {name}")
            for count, line in enumerate(apart(net)):
                if count == MOST:
                    print("and more")
                    break
                print(line, flush=True)


if __name__ == "__main__":
    main()
