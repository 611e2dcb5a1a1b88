"""Layer norm, softmax and GELU in steps: two gradients in one pass, errors beside torch's."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from policysearch.emulator.compile import compile_graph
from policysearch.emulator.kernels.registry import offered
from policysearch.emulator.plan import Plan
from policysearch.graph import Attrs, FloatArray, Graph, Op, Shape
from policysearch.ops.builder import Builder, backward
from policysearch.ops.elementwise import add
from policysearch.ops.gelu import gelu
from policysearch.ops.layer_norm import (
    layer_norm,
    layer_statistics,
)
from policysearch.ops.softmax import softmax
from policysearch.ops.source import data


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
    executable, rng = compile_graph(graph, fast=fast), np.random.default_rng(2)
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
    shapes = {n.id: [graph.nodes[i].shape for i in n.inputs] for n in nodes}
    assert all(offered("C_KERNELS", n.op, shapes[n.id], n.shape, n.attributes) for n in nodes)
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
