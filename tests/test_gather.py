"""Values taken, written and added at places: torch's bits on a CPU in three formats."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from policysearch.emulator.compile import compile_graph
from policysearch.graph import FloatArray, Op
from policysearch.ops import gather, scatter
from policysearch.ops.builder import Builder, backward
from policysearch.ops.elementwise import add
from policysearch.ops.source import data

pytestmark = pytest.mark.torch

FORMATS = ("float32", "bfloat16", "float16")


def emulated(
    op: Op, arrays: list[FloatArray], attrs: dict[str, Any], seed: FloatArray, name: str
) -> list[FloatArray]:
    """Return the result and the gradients of the values, all of format `name`."""
    b = Builder()
    ids = [
        b.emit(data, attrs={"shape": array.shape}, role="input", name=f"x{place}")
        for place, array in enumerate(arrays)
    ]
    result = b.emit(op, *ids, attrs=attrs)
    grad = b.emit(data, attrs={"shape": seed.shape}, role="input", name="seed")
    wanted = [i for i, rule in zip(ids, op.gradients, strict=False) if rule is not None]
    grads = backward(b, result, grad, wanted, add)
    graph = b.graph({"y": result} | {f"g{i}": grads[i] for i in wanted})
    nodes = tuple(
        n if n.op.kind == "source" or n.role == "input" else replace(n, format=name)
        for n in graph.nodes
    )
    step = compile_graph(replace(graph, nodes=nodes))
    for place, array in enumerate(arrays):
        step.arrays[f"x{place}"][...] = array
    step.arrays["seed"][...] = seed
    step.forward_backward()
    return [step.value(key).copy() for key in ("y", *(f"g{i}" for i in wanted))]


def low(rng: np.random.Generator, shape: tuple[int, ...], dtype: torch.dtype) -> Any:
    return torch.from_numpy(rng.standard_normal(shape).astype(np.float32)).to(dtype)


def assert_bits(op: Op, tensors: list[Any], numbers: list[Any], attrs: Any, result: Any) -> None:
    """Assert that the op gives what torch's `result` of the tensors is, and its gradients."""
    rng = np.random.default_rng(1)
    dtype = result.dtype
    seed = low(rng, tuple(result.shape), dtype)
    expected = [result, *torch.autograd.grad(result, tensors, seed)]
    arrays = [x.detach().float().numpy() for x in (*tensors, *numbers)]
    got = emulated(op, arrays, attrs, seed.float().numpy(), str(dtype).removeprefix("torch."))
    for ours, theirs in zip(got, expected, strict=True):
        np.testing.assert_array_equal(ours, theirs.detach().float().numpy())


shapes = st.lists(st.integers(1, 5), min_size=1, max_size=3).map(tuple)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=25, deadline=None)
@given(shape=shapes, count=st.integers(1, 12), seed=st.integers(0, 9), data_=st.data())
def test_gathered_and_scattered_as_torch(
    name: str, shape: tuple[int, ...], count: int, seed: int, data_: Any
) -> None:
    rng, dtype = np.random.default_rng(seed), getattr(torch, name)
    axis = data_.draw(st.integers(0, len(shape) - 1))
    places = (*shape[:axis], count, *shape[axis + 1 :])
    numbers = torch.from_numpy(rng.integers(0, shape[axis], places))
    x, values = (low(rng, s, dtype).requires_grad_() for s in (shape, places))
    attrs = {"axis": axis}
    assert_bits(gather.gather, [x], [numbers], attrs, x.gather(axis, numbers))
    added = {**attrs, "accumulate": True}
    assert_bits(
        scatter.scatter, [x, values], [numbers], added, x.scatter_add(axis, numbers, values)
    )
    apart = torch.argsort(low(rng, shape, torch.float32), axis)
    other = low(rng, shape, dtype).requires_grad_()
    assert_bits(scatter.scatter, [x, other], [apart], attrs, x.scatter(axis, apart, other))


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=25, deadline=None)
@given(shape=shapes, count=st.integers(1, 12), seed=st.integers(0, 9), data_=st.data())
def test_indexed_as_torch(
    name: str, shape: tuple[int, ...], count: int, seed: int, data_: Any
) -> None:
    rng, dtype = np.random.default_rng(seed), getattr(torch, name)
    axes = data_.draw(st.sets(st.integers(0, len(shape) - 1), min_size=1).map(sorted).map(tuple))
    numbers = [torch.from_numpy(rng.integers(0, shape[axis], count)) for axis in axes]
    x = low(rng, shape, dtype).requires_grad_()
    where = tuple(
        dict(zip(axes, numbers, strict=True)).get(a, slice(None)) for a in range(len(shape))
    )
    attrs = {"axes": axes, gather.STEPS: True}
    taken = x[where]
    assert_bits(gather.index, [x], numbers, attrs, taken)
    values = low(rng, tuple(taken.shape), dtype).requires_grad_()
    indices = [None if isinstance(i, slice) else i for i in where]
    put = torch.ops.aten.index_put(x, indices, values, True)
    assert_bits(scatter.index_put, [x, values], numbers, {**attrs, "accumulate": True}, put)


@pytest.mark.parametrize("name", FORMATS[1:])
def test_sums_in_steps_round_otherwise_than_at_the_end(name: str) -> None:
    """Forty values to a place, as a table of relative positions has them."""
    rng, dtype = np.random.default_rng(0), getattr(torch, name)
    x = low(rng, (3, 4), dtype).requires_grad_()
    numbers = torch.from_numpy(rng.integers(0, 3, 120))
    seed = low(rng, (120, 4), dtype)
    (expected,) = torch.autograd.grad(x[numbers], x, seed)
    arrays = [x.detach().float().numpy(), numbers.float().numpy()]
    attrs: dict[str, Any] = {"axes": (0,)}
    stepwise = {**attrs, gather.STEPS: True}
    grads = [
        emulated(gather.index, arrays, each, seed.float().numpy(), name)[1]
        for each in (stepwise, attrs)
    ]
    np.testing.assert_array_equal(grads[0], expected.float().numpy())
    assert np.any(grads[0] != grads[1])
