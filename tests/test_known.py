"""What the planner knows of values to round: where the sign of a zero can change no result, and
where there can be no tiny numbers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policysearch.emulator.executable import compile_graph
from policysearch.emulator.plan import Plan
from policysearch.formats import format_named
from policysearch.graph import Builder, FloatArray, Graph
from policysearch.layout import stored
from policysearch.nn.models import mlp
from policysearch.ops.dense import bias, bias_grad, matmul
from policysearch.ops.elementwise import add, relu, relu_grad
from policysearch.ops.shape import reshape
from policysearch.ops.source import cast, data
from policysearch.policy.presets import preset
from policysearch.policy.scaling import Scaling
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.optimizers import Optimizer
from policysearch.train.step import trace_step
from tests.rounding_oracle import BACKENDS

M, K, N = 40, 30, 20


def _graph(formats: tuple[str, str], accumulator: str = "float32") -> Graph:
    """Return x w^T + shift of cast matrices."""
    b = Builder()
    x, w, shift = (
        b.emit(data, attrs={"shape": shape}, name=name)
        for name, shape in (("x", (M, K)), ("w", (N, K)), ("shift", (N,)))
    )
    left, right = (b.emit(cast, i, format=name) for i, name in zip((x, w), formats, strict=True))
    product = b.emit(matmul, left, right, attrs={"transpose_b": True}, accumulator=accumulator)
    return b.graph({"sum": b.emit(bias, product, shift)})


@pytest.mark.parametrize(
    ("formats", "accumulator", "shows"),
    [
        (("float16", "float16"), "float32", False),
        (("float8_e5m2", "float8_e4m3fn"), "float32", False),
        (("float16", "bfloat16"), "float32", True),
        (("float16", "float32"), "float32", True),
        (("e7m1", "float16"), "float32", False),
        (("e7m1", "e7m20"), "float32", False),
        (("e7m23", "e7m23"), "float32", True),
        (("float16", "float16"), "fp16_sequential", True),
    ],
)
def test_products_hide_them_unless_one_underflows(
    formats: tuple[str, str], accumulator: str, shows: bool
) -> None:
    graph = _graph(formats, accumulator)
    plan = Plan(graph)
    casts = [node.id for node in graph.nodes if node.op is cast]
    assert [plan.zero_signs_show(i) for i in casts] == [shows] * 2


@pytest.mark.parametrize(
    ("formats", "tiny"),
    [
        (("float16", "float8_e5m2"), False),
        (("float16", "bfloat16"), True),
        (("e7m1", "e6m9"), False),
        (("e7m1", "e7m1"), True),
        (("float16", "float32"), True),
    ],
)
def test_sums_of_products_are_not_tiny_if_no_product_is(
    formats: tuple[str, str], tiny: bool
) -> None:
    graph = _graph(formats)
    product = next(node for node in graph.nodes if node.op is matmul)
    plan = Plan(graph)
    assert plan.known(product).tiny == tiny
    assert all(plan.known(node).tiny for node in graph.nodes if node.op is not matmul)
    least = [format_named(name).min_subnormal for name in formats]
    left, right = (np.full((1, 1), value, np.float32) for value in least)
    if not tiny:
        assert (left @ right)[0, 0] == least[0] * least[1] >= 2.0**-104


def test_products_of_scaled_blocks_can_be_tiny() -> None:
    model = mlp((64, 64, 10))
    step = trace_step(model, "softmax_cross_entropy", Optimizer(), 32)
    policy = replace(preset("float8", model.layer_names), scaling=Scaling("mx"))
    plan = Plan(apply_policy(step, policy))
    blocks = [node for node in plan.order if node.op.name == "matmul_blocks"]
    assert blocks and all(plan.known(node).tiny for node in blocks)


def test_ops_hide_pass_or_show_them() -> None:
    b = Builder()
    x = b.emit(data, attrs={"shape": (6, 4)}, name="x")
    low = [b.emit(cast, x, format="float16") for _ in range(5)]
    summed = b.emit(bias_grad, b.emit(relu_grad, low[0], b.emit(relu, low[1])))
    flat = b.emit(reshape, low[2], attrs={"shape": (24,)})
    other = b.emit(reshape, b.emit(relu, b.emit(relu_grad, low[3], x)), attrs={"shape": (24,)})
    total = b.emit(add, low[4], x)
    plan = Plan(b.graph({"a": summed, "b": flat, "c": other, "d": total}))
    assert [plan.zero_signs_show(i) for i in low] == [False, False, True, False, True]


@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 4), (40, 30, 20), (64, 784, 512), (1, 600, 7)])
@pytest.mark.parametrize("layout", ["plain", "left turned", "right turned"])
def test_sums_of_zeros_are_positive(shape: tuple[int, int, int], layout: str) -> None:
    """What the planner counts on, of the BLAS at hand: zeros of any signs sum to +0."""
    m, k, n = shape
    rng = np.random.default_rng(0)
    for left_value in (0.0, 1.5):
        left = np.copysign(np.float32(left_value), rng.standard_normal((m, k)).astype(np.float32))
        right = np.copysign(np.float32(0), rng.standard_normal((k, n)).astype(np.float32))
        left = np.asfortranarray(left) if layout == "left turned" else left
        right = np.asfortranarray(right) if layout == "right turned" else right
        assert not np.matmul(left, right).view(np.uint32).any()
        assert not np.matmul(np.ones(k, np.float32), right).view(np.uint32).any()


@pytest.mark.parametrize("compiled", BACKENDS)
def test_results_are_those_of_signed_zeros(compiled: bool) -> None:
    rng = np.random.default_rng(2)
    x, w = (
        np.where(rng.random(shape) < 0.6, np.copysign(1e-9, rng.standard_normal(shape)), 1.0)
        for shape in ((M, K), (N, K))
    )
    x[:7], w[:5] = -1e-9, -0.0
    executable = compile_graph(_graph(("float16", "float16")), compiled=compiled)
    for name, value in (("x", x), ("w", w), ("shift", np.full(N, -0.0))):
        executable.arrays[name][...] = value
    executable.forward_backward()
    low: list[FloatArray] = [value.astype(np.float16).astype(np.float32) for value in (x, w)]
    expected = stored(np.empty(M * N, np.float32), (M, N))
    np.matmul(low[0], low[1].T, out=expected)
    expected += np.float32(-0.0)
    got = executable.value("sum")
    assert np.array_equal(np.signbit(got), np.signbit(expected))
    assert np.array_equal(got, expected)
