"""Gradients of parts and of weights that time steps share are priced as libraries make them."""

from __future__ import annotations

import pytest

from policysearch.cost.devices import DEVICES
from policysearch.cost.stacks import STACKS
from policysearch.cost.time import Part, parts_of
from policysearch.graph import Graph
from policysearch.ops.activations import sigmoid
from policysearch.ops.builder import Builder, backward
from policysearch.ops.dense import matmul
from policysearch.ops.elementwise import add, relu
from policysearch.ops.indexing import concatenate, take_slice
from policysearch.ops.source import LOSS_SCALE, data, parameter

ROWS, WIDTH = 64, 256


def of(graph: Graph, op: str, role: str = "wgrad") -> list[Part]:
    """Return what an eager stack asks of a V100 for the kernels of one op."""
    parts = parts_of(graph, DEVICES["V100-SXM2"], STACKS["torch.eager"])
    return [part for part in parts if part.op == op and part.kernel.lead.role == role]


def cut(bounds: list[tuple[int, int]]) -> Graph:
    """Return a tensor whose parts go through an op each, and its gradient."""
    b = Builder()
    x = b.emit(parameter, attrs={"shape": (ROWS, WIDTH)}, role="input", name="x")
    ends = [{"axis": 0, "start": start, "stop": stop} for start, stop in bounds]
    made = [b.emit(relu, b.emit(take_slice, x, attrs=end)) for end in ends]
    whole = b.emit(concatenate, *made, attrs={"axis": 0})
    seed = b.emit(data, attrs={"shape": b.shape(whole)}, role="input", name=LOSS_SCALE)
    return b.graph({"x": backward(b, whole, seed, [x], add)[x]})


@pytest.mark.parametrize("count", [2, 8, 32])
def test_the_gradient_of_a_cut_tensor_moves_it_once_however_many_parts(count: int) -> None:
    step = ROWS // count
    graph = cut([(at, at + step) for at in range(0, ROWS, step)])
    assert sum(part.work.bytes for part in of(graph, "slice_grad")) == 2 * 4 * ROWS * WIDTH
    assert not of(graph, "add")


def test_parts_that_overlap_are_summed() -> None:
    graph = cut([(0, ROWS), (ROWS // 2, ROWS)])
    assert [part.work.bytes for part in of(graph, "add")] == [3 * 4 * ROWS * WIDTH]


@pytest.mark.parametrize("count", [2, 8, 32])
def test_who_reads_a_part_reads_no_more(count: int) -> None:
    step = ROWS // count
    graph = cut([(at, at + step) for at in range(0, ROWS, step)])
    assert sum(part.work.bytes for part in of(graph, "relu", "fprop")) == 2 * 4 * ROWS * WIDTH


def unrolled(steps: int) -> Graph:
    """Return a weight's product with the state of every time step, and its gradient."""
    b = Builder()
    with b.scope(layer="cell"):
        shape = {"shape": (WIDTH, WIDTH)}
        weight = b.emit(parameter, attrs=shape, role="input", name="w", layer="cell")
        state = b.emit(data, attrs={"shape": (ROWS, WIDTH)}, role="input", name="x")
        for _ in range(steps):
            state = b.emit(sigmoid, b.emit(sigmoid, b.emit(matmul, state, weight)))
        seed = b.emit(data, attrs={"shape": (ROWS, WIDTH)}, role="input", name=LOSS_SCALE)
        grads = backward(b, state, seed, [weight], add)
    return b.graph({"w": grads[weight]})


def test_a_weight_is_contracted_over_all_time_steps_at_once() -> None:
    (alone,), (whole,) = (of(unrolled(steps), "matmul") for steps in (1, 7))
    first, all_steps = alone.work.product, whole.work.product
    assert first is not None and all_steps is not None
    assert (first.depth, all_steps.depth) == (ROWS, 7 * ROWS)
    assert whole.work.flops == 7 * alone.work.flops
    written = 4 * WIDTH * WIDTH
    assert whole.work.bytes - written == 7 * (alone.work.bytes - written)
    assert not of(unrolled(7), "add")


def test_the_elementwise_ops_of_a_cell_are_one_launch_a_step() -> None:
    parts = of(unrolled(7), "sigmoid", "fprop")
    assert sum(part.work.launches for part in parts) == pytest.approx(7)
