"""Every op of the catalogue, from its own example: shapes, finite differences, format claims."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policysearch.emulator.compile import compile_graph
from policysearch.formats import FORMATS
from policysearch.graph import FloatArray, Graph, Node, Op, Role, size
from policysearch.ops.builder import Builder, backward
from policysearch.ops.catalogue import FORWARD_OPS, OPS
from policysearch.ops.elementwise import add
from policysearch.ops.source import data
from policysearch.rounding.rounder import fast_ways, quantise
from tests.emulated_steps import assert_gives_the_bits_of_the_reference

WITH_EXAMPLE = [op for op in OPS.values() if op.example is not None]
DIFFERENTIABLE = [op for op in WITH_EXAMPLE if any(op.gradients) and op.name != "cast"]


def _traced(
    op: Op, arrays: tuple[FloatArray, ...], attrs: object
) -> tuple[Builder, list[int], int]:
    b = Builder()
    role: Role = "input"
    ids = [
        b.emit(data, attrs={"shape": array.shape}, role=role, name=f"x{i}")
        for i, array in enumerate(arrays)
    ]
    return b, ids, b.emit(op, *ids, attrs=attrs)  # type: ignore[arg-type]


def _run(graph: Graph, arrays: dict[str, FloatArray], output: str) -> FloatArray:
    executable = compile_graph(graph)
    for name, array in arrays.items():
        executable.arrays[name][...] = array
    executable.forward_backward()
    return executable.value(output).copy()


def _forward(op: Op, arrays: tuple[FloatArray, ...], attrs: object) -> FloatArray:
    b, _, made = _traced(op, arrays, attrs)
    named = {f"x{i}": array for i, array in enumerate(arrays)}
    return _run(b.graph({"y": made}), named, "y")


@pytest.mark.parametrize("op", WITH_EXAMPLE, ids=lambda op: op.name)
def test_shape_rule_matches_what_is_computed(op: Op) -> None:
    assert op.example is not None
    example = op.example(np.random.default_rng(0))
    shape = op.shape([array.shape for array in example.inputs], example.attrs)
    assert _forward(op, example.inputs, example.attrs).shape == shape


OF_SYMMETRIC = ("cholesky",)
"""Ops that read one triangle of a symmetric matrix; their gradient, as torch's, is symmetric."""


@pytest.mark.parametrize("op", DIFFERENTIABLE, ids=lambda op: op.name)
def test_gradient_equals_finite_differences(op: Op) -> None:
    """Central differences of <g, op(x)> along random directions, in float32 with step 2^-7."""
    rng = np.random.default_rng(1)
    assert op.example is not None
    example = op.example(rng)
    b, ids, made = _traced(op, example.inputs, example.attrs)
    weights = rng.standard_normal(b.shape(made)).astype(np.float32)
    seed = b.emit(data, attrs={"shape": b.shape(made)}, role="input", name="seed")
    wanted = [i for i, rule in zip(ids, op.gradients, strict=False) if rule is not None]
    grads = backward(b, made, seed, wanted, add)
    named = {f"x{i}": array for i, array in enumerate(example.inputs)} | {"seed": weights}
    for i in wanted:
        gradient = _run(b.graph({"y": made, "g": grads[i]}), named, "g")
        assert gradient.shape == example.inputs[i].shape
        for _ in range(4):
            direction = rng.standard_normal(example.inputs[i].shape).astype(np.float32)
            if op.name in OF_SYMMETRIC:
                direction = direction + np.swapaxes(direction, -1, -2)
            sides = []
            for sign in (1.0, -1.0):
                moved = list(example.inputs)
                moved[i] = (moved[i] + np.float32(sign * 2.0**-7) * direction).astype(np.float32)
                y = _forward(op, tuple(moved), example.attrs).astype(np.float64)
                sides.append(float(np.sum(y * weights)))
            slope = (sides[0] - sides[1]) * 2.0**6
            expected = float(np.sum(gradient.astype(np.float64) * direction))
            scale = float(np.sum(np.abs(gradient.astype(np.float64) * direction))) + 1.0
            assert abs(slope - expected) <= 2e-3 * scale, (op.name, i, slope, expected)


@pytest.mark.parametrize("op", [op for op in WITH_EXAMPLE if op.keeps_format], ids=lambda o: o.name)
@pytest.mark.parametrize("name", ["float16", "float8_e4m3fn", "float4_e2m1fn"])
def test_ops_that_keep_a_format_stay_on_its_grid(op: Op, name: str) -> None:
    assert op.example is not None
    example = op.example(np.random.default_rng(2))
    row = FORMATS[name]
    arrays = tuple(quantise(array, row) for array in example.inputs)
    y = _forward(op, arrays, example.attrs)
    assert np.array_equal(y, quantise(y, row), equal_nan=True)


@pytest.mark.parametrize("op", WITH_EXAMPLE, ids=lambda op: op.name)
def test_flops_are_counted(op: Op) -> None:
    assert op.example is not None
    example = op.example(np.random.default_rng(3))
    shapes = [array.shape for array in example.inputs]
    assert op.flops(shapes, op.shape(shapes, example.attrs), example.attrs) >= 0


@pytest.mark.parametrize("op", WITH_EXAMPLE, ids=lambda op: op.name)
@pytest.mark.parametrize("name", ["float32", "float16", "float8_e5m2"])
def test_every_way_gives_the_bits_of_the_reference(op: Op, name: str) -> None:
    """The op and its gradients, their results in format `name`."""
    assert op.example is not None
    example = op.example(np.random.default_rng(4))
    b, ids, made = _traced(op, example.inputs, example.attrs)
    seed = b.emit(data, attrs={"shape": b.shape(made)}, role="input", name="seed")
    rules = op.gradients or (None,) * len(ids)
    wanted = [i for i, rule in zip(ids, rules, strict=False) if rule is not None]
    grads = backward(b, made, seed, wanted, add)
    graph = b.graph({"y": made} | {f"g{i}": grads[i] for i in wanted})
    nodes = tuple(
        node if node.op.kind == "source" else replace(node, format=name) for node in graph.nodes
    )
    start = {f"x{i}": array for i, array in enumerate(example.inputs)}
    start["seed"] = np.random.default_rng(5).standard_normal(b.shape(made)).astype(np.float32)
    for fast in fast_ways():
        assert_gives_the_bits_of_the_reference(replace(graph, nodes=nodes), start, fast, steps=1)


def test_every_forward_op_has_an_example() -> None:
    assert [name for name in FORWARD_OPS if OPS[name].example is None] == []


def test_convolution_flops_count_by_hand() -> None:
    op = OPS["conv2d"]
    shapes = [(2, 1, 32, 32), (6, 1, 5, 5)]
    assert op.shape(shapes, {}) == (2, 6, 28, 28)
    assert op.flops(shapes, (2, 6, 28, 28), {}) == 2 * 2 * 28 * 28 * 6 * 25


@pytest.mark.parametrize(
    ("name", "by_hand"),
    [
        ("log", 10),  # as any function that no unit has, exp among them
        ("sigmoid", 10),
        ("silu", 10 + 1),  # a sigmoid and a product
        ("hardswish", 5),  # a sum, two bounds, a product, a quotient
        ("hardsigmoid", 4),
        ("hardtanh", 2),
        ("leaky_relu", 2),  # a bound and a product
        ("sqrt", 1),
    ],
)
def test_flops_of_a_function_count_by_hand(name: str, by_hand: int) -> None:
    shape = (3, 5)
    assert OPS[name].flops([shape], shape, {}) == by_hand * 15
    if name != "sigmoid":  # of which the gradient reads the result
        # the function anew, what makes it a slope, and the product with that
        assert OPS[f"{name}_grad"].flops([shape, shape], shape, {}) == (by_hand + 2) * 15


def _reference_conv(x: FloatArray, w: FloatArray, stride: int, padding: int) -> FloatArray:
    padded = np.pad(x, ((0, 0), (0, 0), (padding, padding), (padding, padding)))
    high = (padded.shape[2] - w.shape[2]) // stride + 1
    wide = (padded.shape[3] - w.shape[3]) // stride + 1
    y = np.zeros((len(x), len(w), high, wide), np.float64)
    for r in range(high):
        for c in range(wide):
            window = padded[:, :, r * stride :, c * stride :][:, :, : w.shape[2], : w.shape[3]]
            y[:, :, r, c] = np.einsum("ncij,ocij->no", window.astype(np.float64), w)
    return y.astype(np.float32)


@pytest.mark.parametrize(("stride", "padding"), [(1, 0), (1, 2), (2, 0), (2, 1), (3, 2)])
def test_convolution_equals_the_sum_over_windows(stride: int, padding: int) -> None:
    rng = np.random.default_rng(4)
    x = rng.standard_normal((3, 2, 9, 8)).astype(np.float32)
    w = rng.standard_normal((4, 2, 3, 3)).astype(np.float32)
    y = _forward(OPS["conv2d"], (x, w), {"stride": stride, "padding": padding})
    np.testing.assert_allclose(y, _reference_conv(x, w, stride, padding), rtol=1e-5, atol=1e-5)


def test_relu_of_negative_zero_is_positive_zero() -> None:
    """The gradient op reads the sign bit, so relu must not let a negative zero through."""
    for count in range(1, 70):
        y = _forward(OPS["relu"], (np.full(count, -0.0, np.float32),), {})
        assert not np.signbit(y).any()


def test_max_pool_gradient_goes_to_the_first_of_equal_values() -> None:
    b = Builder()
    shape = (1, 1, 2, 2)
    x = b.emit(data, attrs={"shape": shape}, role="input", name="x0")
    y = b.emit(OPS["max_pool"], x, attrs={"window": 2})
    seed = b.emit(data, attrs={"shape": b.shape(y)}, role="input", name="seed")
    grads = backward(b, y, seed, [x], add)
    arrays = {"x0": np.ones(shape, np.float32), "seed": np.full((1, 1, 1, 1), 3.0, np.float32)}
    gradient = _run(b.graph({"y": y, "g": grads[x]}), arrays, "g")
    assert gradient.reshape(-1).tolist() == [3.0, 0.0, 0.0, 0.0]


def _sources_before_reads(nodes: tuple[Node, ...]) -> bool:
    return all(i < node.id for node in nodes for i in node.inputs)


def test_traced_nodes_are_in_execution_order() -> None:
    example = OPS["conv2d"].example
    assert example is not None
    b, _, made = _traced(OPS["conv2d"], *_unpack(example(np.random.default_rng(0))))
    graph = b.graph({"y": made})
    assert _sources_before_reads(graph.nodes)
    assert size(graph.output("y").shape) > 0


def _unpack(example: object) -> tuple[tuple[FloatArray, ...], object]:
    return example.inputs, example.attrs  # type: ignore[attr-defined]


def test_reductions_over_gradients_see_image_shaped_ones() -> None:
    """Convolution weights are stored in another order of axes; a reduction must not copy them."""
    b = Builder()
    x = b.emit(data, attrs={"shape": (2, 3, 2, 2)}, role="input", name="x0")
    y = b.emit(data, attrs={"shape": (5,)}, role="input", name="x1")
    outputs = {
        "finite": b.emit(OPS["all_finite"], x, y),
        "norm": b.emit(OPS["global_norm"], x, y),
    }
    executable = compile_graph(b.graph(outputs))
    executable.arrays["x0"][...] = 1.0
    executable.arrays["x1"][...] = 2.0
    executable.forward_backward()
    assert executable.value("finite") == 1.0
    assert executable.value("norm") == pytest.approx(np.sqrt(24.0 + 20.0))
    executable.arrays["x0"][...] = 1e30
    executable.forward_backward()
    assert executable.value("finite") == 1.0
    for bad in (np.inf, -np.inf, np.nan):
        executable.arrays["x0"][1, 2, 1, 0] = bad
        executable.forward_backward()
        assert executable.value("finite") == 0.0
