"""A traced piece of graph beside what torch computes: values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from policysearch.emulator.compile import compile_graph
from policysearch.graph import Attrs, FloatArray
from policysearch.ops.builder import Builder, backward
from policysearch.ops.catalogue import OPS
from policysearch.ops.elementwise import add
from policysearch.ops.source import data, parameter


@dataclass(frozen=True)
class Case:
    """`trace` emits the nodes of what `torch` computes; inputs with `fixed` have no gradient."""

    inputs: tuple[FloatArray, ...]
    trace: Callable[[Builder, Sequence[int]], int]
    torch: Callable[..., Any]
    fixed: tuple[int, ...] = field(default=())


def one(name: str, attrs: Attrs | None = None) -> Callable[[Builder, Sequence[int]], int]:
    """Return the trace of one op of the catalogue."""
    return lambda b, ids: b.emit(OPS[name], *ids, attrs=attrs)


def assert_as_torch(case: Case, seed: int) -> None:
    """The value within 1e-5 and every gradient within 1e-4 of torch's, relative to the largest."""
    torch = pytest.importorskip("torch")
    b = Builder()
    ids = []
    for i, array in enumerate(case.inputs):
        op = data if i in case.fixed else parameter
        ids.append(b.emit(op, attrs={"shape": array.shape}, role="input", name=f"x{i}"))
    made = case.trace(b, ids)
    start = b.emit(data, attrs={"shape": b.shape(made)}, role="input", name="seed")
    wanted = [i for place, i in enumerate(ids) if place not in case.fixed]
    grads = backward(b, made, start, wanted, add)
    assert sorted(grads) == wanted
    step = compile_graph(b.graph({"y": made} | {f"g{i}": grads[i] for i in wanted}))
    # a stream of its own: a gradient parallel to the inputs is a special one
    weights = normal(np.random.default_rng((seed, 1)), *b.shape(made))
    for i, array in enumerate((*case.inputs, weights)):
        step.arrays[f"x{i}" if i < len(ids) else "seed"][...] = array
    step.forward_backward()
    tensors = [torch.from_numpy(array.copy()) for array in case.inputs]
    for place, tensor in enumerate(tensors):
        tensor.requires_grad_(place not in case.fixed)
    expected = case.torch(torch, *tensors)
    assert tuple(expected.shape) == b.shape(made)
    expected.backward(torch.from_numpy(weights.copy()))
    _assert_close(step.value("y"), expected.detach().numpy(), 1e-5)
    for i in wanted:
        _assert_close(step.value(f"g{i}"), tensors[ids.index(i)].grad.numpy(), 1e-4)


def _assert_close(got: FloatArray, expected: FloatArray, tolerance: float) -> None:
    assert got.shape == expected.shape and np.abs(expected).max() > 0
    assert np.abs(got - expected).max() <= tolerance * np.abs(expected).max()


def normal(rng: np.random.Generator, *shape: int) -> FloatArray:
    return rng.standard_normal(shape).astype(np.float32)
