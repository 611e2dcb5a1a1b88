"""Times the ops of a transformer one by one, ours in C and in numpy, beside torch's.

    python -m benchmarks.ops

Float32, one thread, interleaved turns, arrays in place. A row of ours is all the nodes that give
what the one call of torch gives: a layer norm is two, its gradients are three. torch works on its
own layout, ours on the one of this package.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

import numpy as np
import torch

from benchmarks.timing import (
    Call,
    interleaved,
    machine,
    parser,
    pin_one_thread,
    show,
    write_csv,
)
from policysearch.emulator.compile import compile_graph
from policysearch.graph import Attrs, Shape
from policysearch.ops.builder import Builder
from policysearch.ops.catalogue import OPS
from policysearch.ops.source import data

TOKENS = ((2048, 64), (1024, 256))
"""Rows and width of the matrices of tokens; attention takes 32 tokens and 16 numbers a head."""
TIME, PART = 32, 16
COLUMNS = ("op", "shape", "ours_c_us", "ours_numpy_us", "torch_us", "c_over_torch")


@dataclass(frozen=True)
class Part:
    """One node of ours: its op, the shapes of its inputs, its attributes."""

    op: str
    inputs: tuple[Shape, ...]
    attrs: Attrs = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """One row of the table: nodes of ours, and the call of torch for the same."""

    name: str
    shape: Shape
    parts: tuple[Part, ...]
    torch: Call


def _normal(shape: Shape) -> Any:
    return torch.from_numpy(np.random.default_rng(0).standard_normal(shape).astype(np.float32))


def _norms(shape: Shape) -> Iterator[Row]:
    x, grad, weight, bias = (_normal(s) for s in (shape, shape, shape[1:], shape[1:]))
    aten, width, rows = torch.ops.aten, [shape[1]], (shape[0], 2)
    _, mean, inverse = aten.native_layer_norm(x, width, weight, bias, 1e-5)
    gradients = (
        Part("layer_norm_grad", (shape, shape, rows, shape[1:])),
        Part("layer_norm_weight_grad", (shape, shape, rows)),
        Part("bias_grad", (shape,)),
    )
    forward = (
        Part("layer_statistics", (shape,)),
        Part("layer_norm", (shape, rows, shape[1:], shape[1:])),
    )
    yield Row(
        "layer norm",
        shape,
        forward,
        lambda: aten.native_layer_norm(x, width, weight, bias, 1e-5),
    )
    every, given = [True] * 3, (mean, inverse, weight, bias)
    yield Row(
        "its gradients",
        shape,
        gradients,
        lambda: aten.native_layer_norm_backward(grad, x, width, *given, every),
    )


def _activations(shape: Shape) -> Iterator[Row]:
    x, grad, aten = _normal(shape), _normal(shape), torch.ops.aten
    for form, named in (("erf", "none"), ("tanh", "tanh")):
        attrs = {"form": form}

        def forward(named: str = named) -> object:
            return aten.gelu(x, approximate=named)

        def backward(named: str = named) -> object:
            return aten.gelu_backward(grad, x, approximate=named)

        yield Row(f"gelu, {form}", shape, (Part("gelu", (shape,), attrs),), forward)
        yield Row(
            f"its gradient, {form}", shape, (Part("gelu_grad", (shape,) * 2, attrs),), backward
        )

    silu = Part("silu", (shape,)), Part("silu_grad", (shape,) * 2)
    yield Row("silu", shape, silu[:1], lambda: aten.silu(x))
    yield Row("its gradient, silu", shape, silu[1:], lambda: aten.silu_backward(grad, x))


def _attention(tokens: Shape) -> Iterator[Row]:
    """Of q, k and v as [batch * heads, time, part], and the way there."""
    count = prod(tokens) // TIME // PART
    heads, batch, aten = tokens[1] // PART, tokens[0] // TIME, torch.ops.aten
    part, square = (count, TIME, PART), (count, TIME, TIME)
    q, alike, grad = _normal(part), _normal(square), _normal(square)
    y, apart = torch.softmax(alike, -1), _normal((batch, TIME, heads, PART))
    yield Row(
        "softmax", square, (Part("softmax", (square,)),), lambda: aten._softmax(alike, -1, False)
    )
    yield Row(
        "its gradient",
        square,
        (Part("softmax_grad", (square, square)),),
        lambda: aten._softmax_backward_data(grad, y, -1, torch.float32),
    )
    there = {"split": (batch, TIME, heads, PART), "axes": (0, 2, 1, 3), "shape": part}
    back = {"split": (batch, heads, TIME, PART), "axes": (0, 2, 1, 3), "shape": tokens}
    yield Row(
        "to heads",
        part,
        (Part("transpose", (tokens,), there),),
        lambda: apart.transpose(1, 2).contiguous(),
    )
    seen = q.view(batch, heads, TIME, PART)
    yield Row(
        "from heads",
        tokens,
        (Part("transpose", (part,), back),),
        lambda: seen.transpose(1, 2).contiguous(),
    )
    products: Sequence[tuple[str, tuple[Shape, Shape], Attrs, Call]] = (
        ("q k^T", (part, part), {"transpose_b": True}, lambda: torch.bmm(q, q.transpose(1, 2))),
        ("a v", (square, part), {}, lambda: torch.bmm(alike, q)),
        ("a^T g", (square, part), {"transpose_a": True}, lambda: torch.bmm(alike.mT, q)),
    )
    for name, inputs, attrs, call in products:
        yield Row(name, OPS["matmul"].shape(inputs, attrs), (Part("matmul", inputs, attrs),), call)


def ours(parts: Sequence[Part], *, compiled: bool) -> Call:
    """Return the call that runs the nodes as a step does, with kernels in C if `compiled`.

    As in a step they read the same arrays: inputs of one shape are one array for the first of each
    node, another for the second.
    """
    b, rng, outputs = Builder(), np.random.default_rng(0), {}
    sources: dict[tuple[Shape, int], int] = {}
    for part in parts:
        keys = [(shape, part.inputs[:i].count(shape)) for i, shape in enumerate(part.inputs)]
        for key in keys:
            if key not in sources:
                name = f"source {len(sources)}"
                sources[key] = b.emit(data, attrs={"shape": key[0]}, role="input", name=name)
        inputs = [sources[key] for key in keys]
        outputs[part.op] = b.emit(OPS[part.op], *inputs, attrs=dict(part.attrs))
    executable = compile_graph(b.graph(outputs), fast="c" if compiled else "numpy")
    for array in executable.arrays.values():
        array[...] = rng.standard_normal(array.shape)
    return executable.forward_backward


def _timed(row: Row, rounds: int) -> list[object]:
    calls: Mapping[str, Callable[[], object]] = {
        "c": ours(row.parts, compiled=True),
        "numpy": ours(row.parts, compiled=False),
        "torch": row.torch,
    }
    found = interleaved(calls, rounds=rounds, turn_seconds=0.01)
    times = [found[name].minimum_seconds * 1e6 for name in calls]
    shape = " x ".join(map(str, row.shape))
    return [row.name, shape, *times, times[0] / times[2]]


def main() -> None:
    """Run the command."""
    options = parser(__doc__)
    given = options.parse_args()
    pin_one_thread()
    lines = []
    for tokens in TOKENS:
        wide = (tokens[0], 4 * tokens[1])
        for rows in (_norms(tokens), _activations(wide), _attention(tokens)):
            lines += [_timed(row, given.rounds) for row in rows]
    columns = ("op", "shape", "C us", "numpy us", "torch us", "C / torch")
    show("Ops of a transformer", columns, lines)
    print(f"\n{machine()}")
    write_csv(given.out / "ops.csv", COLUMNS, lines)


if __name__ == "__main__":
    main()
