"""Layer norm, softmax, GELU, SiLU and their gradients in C: the bits of numpy, at any rank."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from policysearch.emulator.compile import compile_graph
from policysearch.emulator.kernels.kernel import Kernel
from policysearch.emulator.kernels.registry import kernel_of
from policysearch.emulator.plan import Plan
from policysearch.graph import Attrs, FloatArray, Graph, Op, Shape
from policysearch.layout import empty
from policysearch.ops.activations import silu, silu_grad
from policysearch.ops.builder import Builder, backward
from policysearch.ops.elementwise import add
from policysearch.ops.gelu import gelu, gelu_grad
from policysearch.ops.layer_norm import (
    layer_norm,
    layer_norm_grad,
    layer_norm_weight_grad,
    layer_statistics,
)
from policysearch.ops.softmax import softmax, softmax_grad
from policysearch.ops.source import data

SHAPES: tuple[Shape, ...] = (
    *((1,), (16,), (300,)),
    *((1, 1), (1, 40), (40, 1), (3, 2), (64, 64), (65, 7), (130, 16), (17, 300), (16, 1000)),
    *((2, 5, 7), (70, 33, 32), (3, 1, 17), (1, 2, 300)),
    *((2, 3, 4, 5), (5, 4, 3, 40), (33, 2, 2, 1), (1, 2, 30, 17)),
    *((2, 3, 4, 5, 6), (1, 2, 1, 2, 40)),
)
SPECIAL = (0.0, -0.0, 1.0, -1.0, 1e-40, 3e38, np.inf, -np.inf, np.nan)

# Op, attributes, and of each input: x is of the shape of the tensor, s of that of its statistics,
# f a vector of its last axis.
CASES: tuple[tuple[Op, Attrs, str], ...] = (
    (layer_statistics, {"epsilon": 1e-3}, "x"),
    (layer_statistics, {}, "x"),
    (layer_norm, {}, "xsff"),
    (layer_norm, {}, "xs"),
    (layer_norm_grad, {}, "xxsf"),
    (layer_norm_grad, {}, "xxs"),
    (layer_norm_weight_grad, {}, "xxs"),
    (softmax, {}, "x"),
    (softmax, {"empty_rows": True}, "x"),
    (softmax_grad, {}, "xx"),
    (gelu, {"form": "erf"}, "x"),
    (gelu, {"form": "tanh"}, "x"),
    (gelu_grad, {"form": "erf"}, "xx"),
    (gelu_grad, {"form": "tanh"}, "xx"),
    (silu, {}, "x"),
    (silu_grad, {}, "xx"),
)


def _shapes(shape: Shape, kinds: str) -> list[Shape]:
    each = {"x": shape, "s": (*shape[:-1], 2), "f": shape[-1:]}
    return [each[kind] for kind in kinds]


def _name(case: tuple[Op, Attrs, str]) -> str:
    return " ".join([case[0].name, case[2], *map(str, case[1].values())])


def _filled(rng: np.random.Generator, shape: Shape, *, special: bool) -> FloatArray:
    array = empty(shape)
    array[...] = rng.standard_normal(shape)
    if special:
        taken = rng.random(shape) < 0.02
        array[taken] = rng.choice(np.array(SPECIAL, np.float32), shape)[taken]
    return array


def _run(
    kernel: Kernel, op: Op, inputs: Sequence[FloatArray], attrs: Attrs, place: int | None
) -> npt.NDArray[np.uint32]:
    """Return the bits, NaNs made one, from scratch that held NaNs; into the input at `place`."""
    inputs = [np.copy(array, order="K") for array in inputs]
    shapes = [array.shape for array in inputs]
    out = empty(op.shape(shapes, attrs)) if place is None else inputs[place]
    if place is None:
        out.fill(7.0)
    work = np.full(kernel.work(shapes, out.shape, attrs), np.nan, np.float32)
    with np.errstate(all="ignore"):
        kernel.bind(inputs, out, attrs, work)()
    same = np.where(np.isnan(out), np.float32(np.nan), out)
    return np.ascontiguousarray(same).view(np.uint32)


@pytest.mark.parametrize("special", [False, True], ids=["gaussian", "special"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("case", CASES, ids=_name)
def test_compiled_ops_have_the_bits_of_numpy(
    case: tuple[Op, Attrs, str], shape: Shape, special: bool
) -> None:
    pytest.importorskip("policysearch.emulator.kernels._softmax")
    op, attrs, kinds = case
    rng, shapes = np.random.default_rng(0), _shapes(shape, kinds)
    inputs = [_filled(rng, each, special=special) for each in shapes]
    if attrs.get("empty_rows"):
        inputs[0][(0,) * (len(shape) - 1)] = -np.inf
    kernel = kernel_of(op, shapes, op.shape(shapes, attrs), attrs)
    assert kernel is not None
    for place in (None, *op.in_place):
        expected = _run(Kernel(op.bind, op.work), op, inputs, attrs, place)
        assert np.array_equal(_run(kernel, op, inputs, attrs, place), expected), place


def _traced(op: Op, shape: Shape, vectors: int, attrs: Attrs) -> Graph:
    b = Builder()
    x = b.emit(data, attrs={"shape": shape}, role="input", name="x")
    owned = [
        b.emit(data, attrs={"shape": shape[-1:]}, role="input", name=f"owned{i}")
        for i in range(vectors)
    ]
    statistics = [b.emit(layer_statistics, x)] if op is layer_norm else []
    y = b.emit(op, x, *statistics, *owned, attrs=attrs)
    seed = b.emit(data, attrs={"shape": shape}, role="input", name="seed")
    found = backward(b, y, seed, [x, *owned], add)
    return b.graph({"y": y, **{b.nodes[i].name: grad for i, grad in found.items()}})


def _values(graph: Graph, fast: str) -> dict[str, FloatArray]:
    executable, rng = compile_graph(graph, fast=fast), np.random.default_rng(2)  # type: ignore[arg-type]
    for array in executable.arrays.values():
        array[...] = rng.standard_normal(array.shape)
    executable.forward_backward()
    found = {name: executable.value(name).copy() for name, _ in graph.outputs}
    return found | {f"given {name}": array.copy() for name, array in executable.arrays.items()}


STEPS: tuple[tuple[Op, int, Attrs], ...] = (
    (layer_norm, 2, {}),
    (layer_norm, 0, {}),
    (softmax, 0, {}),
    (gelu, 0, {"form": "erf"}),
    (gelu, 0, {"form": "tanh"}),
)


@pytest.mark.parametrize("shape", [(70, 600), (5, 70, 120), (2, 3, 40, 200)], ids=str)
@pytest.mark.parametrize("case", STEPS, ids=lambda case: f"{case[0].name} {case[1]} {case[2]}")
def test_steps_have_the_same_bits_however_they_run(
    case: tuple[Op, int, Attrs], shape: Shape
) -> None:
    """The elementwise ones are cut into spans, the last of them shorter."""
    pytest.importorskip("policysearch.emulator.kernels._softmax")
    op, vectors, attrs = case
    graph = _traced(op, shape, vectors, attrs)
    nodes = [n for n in graph.nodes if n.op.name.startswith((op.name, "layer_"))]
    assert len(nodes) > 1
    assert all(Plan(graph).kernels[n.id].bind is not n.op.bind for n in nodes)
    expected = _values(graph, "off")
    for fast in ("numpy", "c"):
        for name, value in _values(graph, fast).items():
            assert np.array_equal(value, expected[name]), (fast, name)


@pytest.mark.parametrize("rounded", ["float32", "float16"])
@pytest.mark.parametrize("shape", [(300, 70), (70, 600), (5, 70, 120), (16, 3, 4, 40)], ids=str)
def test_the_gradients_of_a_layer_norm_come_in_one_pass(shape: Shape, rounded: str) -> None:
    """That of the weight is in the arena before its turn: the plan keeps its place free for it."""
    pytest.importorskip("policysearch.emulator.kernels._layer_norm")
    graph = _traced(layer_norm, shape, 2, {})
    graph = replace(
        graph,
        nodes=tuple(
            replace(n, format=rounded) if n.op.name.endswith("_grad") else n for n in graph.nodes
        ),
    )
    plan = Plan(graph)
    ((lead, node),) = plan.beside.items()
    names = [graph.nodes[i].op.name for i in (lead, node)]
    assert names == ["layer_norm_grad", "layer_norm_weight_grad"]
    assert plan.home[node].first == plan.home[lead].first
    expected, found = _values(graph, "off"), _values(graph, "c")
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    assert np.any(expected["owned0"] != 0)


def test_rows_that_start_between_lanes_have_their_gradients_apart() -> None:
    pytest.importorskip("policysearch.emulator.kernels._layer_norm")
    assert not Plan(_traced(layer_norm, (2, 3, 40, 200), 2, {})).beside
    assert not Plan(_traced(layer_norm, (300, 70), 0, {})).beside


@pytest.mark.torch
@pytest.mark.parametrize("shape", [(40, 64), (30, 768), (6, 20, 32), (4, 3, 200), (2, 3, 5, 40)])
@pytest.mark.parametrize("case", STEPS, ids=lambda case: f"{case[0].name} {case[1]} {case[2]}")
def test_errors_are_no_larger_than_those_of_torch(
    case: tuple[Op, int, Attrs], shape: Shape
) -> None:
    """Root mean squares of the errors against torch in float64, ours beside torch's in float32.

    numpy's exp and tanh are a little less exact than torch's: 1.03 to 1.13 times its errors.
    """
    torch = pytest.importorskip("torch")
    op, vectors, attrs = case
    functional = torch.nn.functional

    def apply(x: Any, *owned: Any) -> Any:
        if op is layer_norm:
            return functional.layer_norm(x, shape[-1:], *owned)
        if op is softmax:
            return torch.softmax(x, -1)
        return functional.gelu(x, approximate={"erf": "none"}.get(attrs["form"], "tanh"))

    ours = _values(_traced(op, shape, vectors, attrs), "c")

    def theirs(dtype: Any) -> dict[str, Any]:
        named = ["x", *(f"owned{i}" for i in range(vectors))]
        given = [torch.from_numpy(ours[f"given {n}"].copy()).to(dtype) for n in named]
        y = apply(*(each.requires_grad_() for each in given))
        y.backward(torch.from_numpy(ours["given seed"].copy()).to(dtype))
        found = [y.detach(), *(each.grad for each in given)]
        return {name: v.numpy() for name, v in zip(["y", *named], found, strict=True)}

    exact, float32 = theirs(torch.float64), theirs(torch.float32)
    for name, value in exact.items():
        own = np.sqrt(np.mean((ours[name] - value) ** 2))
        assert own <= (1.1 if op is layer_norm else 1.25) * np.sqrt(
            np.mean((float32[name] - value) ** 2)
        ), name


def test_the_extensions_refuse_arrays_that_do_not_fit() -> None:
    norm = pytest.importorskip("policysearch.emulator.kernels._layer_norm")
    soft = pytest.importorskip("policysearch.emulator.kernels._softmax")
    inner = pytest.importorskip("policysearch.emulator.kernels._gelu").inner_tanh
    x, w = np.zeros((6, 8), np.float32), np.zeros(6, np.float32)
    statistics, work = np.zeros((2, 8), np.float32), np.zeros(16 * 518, np.float32)
    good = [None, x, statistics, w, w, x.copy(), w.copy(), work, 1, 6, 8, 1e-5]
    norm.layer_norm(*good)
    doubles, fixed = x.astype(np.float64), x.copy()
    fixed.flags.writeable = False
    for place, wrong in (
        *((1, None), (1, doubles), (1, x[:3]), (1, x.T), (2, None), (2, w), (3, None), (3, x)),
        *((5, fixed), (5, w), (6, w[:-1]), (7, work[:-1]), (8, 2), (9, 0), (10, -1)),
    ):
        with pytest.raises((ValueError, BufferError)):
            norm.layer_norm(*(wrong if i == place else given for i, given in enumerate(good)))
    with pytest.raises(TypeError):
        norm.layer_norm(*good[:-1])
    soft.shift(x, np.zeros(16, np.float32), 6, 8, 1, 1, 3)
    for sizes in ((6, 8, 1, 1, 4), (6, 8, 1, 5, 7), (6, 7, 1, 1, 3), (6, 8, 0, 1, 3)):
        with pytest.raises(ValueError, match="of these extents"):
            soft.shift(x, np.zeros(16, np.float32), *sizes)
    with pytest.raises(TypeError):
        soft.shift(x, x)
    with pytest.raises(ValueError, match="constants"):
        inner(w, w.copy(), b"short")
