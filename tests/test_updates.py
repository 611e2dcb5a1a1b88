"""What the ops of the update are: counted by hand, placed in float32, true to their formulas."""

from __future__ import annotations

import numpy as np
import pytest

from policysearch.emulator.compile import compile_graph
from policysearch.graph import FloatArray, Graph, size
from policysearch.nn.models import mlp
from policysearch.ops.builder import Builder, backward
from policysearch.ops.catalogue import OPS
from policysearch.ops.elementwise import add
from policysearch.ops.source import data
from policysearch.optimizers.optimizer import Optimizer, OptimizerKind, trained
from policysearch.train.gradients import Clipping
from policysearch.train.step import trace_step

N = 12

# Arithmetic operations per element, read off each formula; square roots and divisions count.
PER_ELEMENT = {
    "unscale": 1,  # gradient * inverse
    "clip": 1,  # gradient * factor
    "clip_value": 1,  # a comparison
    "sgd_velocity": 2,  # momentum * velocity + gradient
    "sgd_step": 2,  # parameter - rate * direction
    "sgd_nesterov": 2,  # gradient + momentum * velocity
    "add_damped": 2,  # x + share * gradient
    "weight_decay": 2,  # gradient + decay * parameter
    "adam_m": 3,  # m + share * (gradient - m)
    "adam_v": 4,  # beta * v + share * gradient * gradient
    "root_step": 5,  # parameter - rate * gradient / (sqrt(square) + epsilon)
    "lion_step": 7,  # shrunk parameter - rate * sign(share * m + (1 - share) * gradient)
    "lion_m": 3,  # m + share * (gradient - m)
    "add_square": 3,  # x + share * gradient * gradient
    "adam_root": 1,
    "adam_corrected": 1,  # root / correction
    "adam_epsilon": 1,  # x + epsilon
    "adam_shrunk": 1,  # parameter * factor
    "adam_moved": 3,  # parameter + change * m / denominator
    # sqrt(v), / correction, + epsilon, m / that, * rate, parameter * decayed, minus: and m's own
    "adam_step": 8,
}


@pytest.mark.parametrize("name", PER_ELEMENT)
def test_flops_are_the_operations_of_the_formula(name: str) -> None:
    shapes = [(N,)] * 3 + [()] * 2
    assert OPS[name].flops(shapes, (N,), {}) == PER_ELEMENT[name] * N


def test_flops_of_the_reductions_are_per_element_of_all_inputs() -> None:
    shapes = [(3, 4), (5,)]
    assert OPS["all_finite"].flops(shapes, (), {}) == 17
    assert OPS["global_norm"].flops(shapes, (), {}) == 2 * 17


@pytest.mark.parametrize("name", [*PER_ELEMENT, "all_finite", "global_norm"])
def test_what_updates_compute_in_float32_is_placed_there(name: str) -> None:
    """The pass computes every update in float32, so no definition may say anything else."""
    assert OPS[name].placement == "fp32"


@pytest.mark.parametrize("clipping", [Clipping(), Clipping(1.0), Clipping(value=1.0)])
@pytest.mark.parametrize("kind", trained())
def test_every_op_of_a_traced_update_is_counted_here(
    kind: OptimizerKind, clipping: Clipping
) -> None:
    optimizer = Optimizer(kind, weight_decay=0.1)
    graph = trace_step(mlp((4, 3)), "softmax_cross_entropy", optimizer, 2, clipping)
    update = [n for n in graph.nodes if n.role == "update"]
    used = {n.op.name for n in update if n.op.name in OPS}
    others = [n for n in update if n.op.name not in OPS]  # of the optimizer's own file
    assert len(used | {n.op.name for n in others}) >= 3
    assert used <= {*PER_ELEMENT, "all_finite", "global_norm"}
    for own in others:
        shapes = [graph.nodes[i].shape for i in own.inputs]
        assert own.op.placement == "fp32"
        assert own.op.flops(shapes, own.shape, own.attributes) >= size(own.shape)


def run(name: str, *inputs: FloatArray, attrs: dict[str, float] | None = None) -> FloatArray:
    """Return what the op gives, in a graph of its own."""
    b = Builder()
    names = [f"x{i}" for i in range(len(inputs))]
    nodes = [source(b, name, x.shape) for name, x in zip(names, inputs, strict=True)]
    with b.scope(role="update"):
        out = b.emit(OPS[name], *nodes, attrs=attrs or {})
    return value(b.graph({"y": out}), dict(zip(names, inputs, strict=True)), "y")


def source(b: Builder, name: str, shape: tuple[int, ...] = ()) -> int:
    return b.emit(data, attrs={"shape": shape}, name=name, role="input")


def value(graph: Graph, given: dict[str, FloatArray], name: str) -> FloatArray:
    step = compile_graph(graph, fast="off")
    for key, x in given.items():
        step.arrays[key][...] = x
    step.forward_backward()
    return step.value(name).copy()


def drawn(seed: int, size: int = N) -> FloatArray:
    return np.random.default_rng(seed).standard_normal(size).astype(np.float32)


@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize(
    ("bad", "finite"),
    [([], 1.0), ([np.nan], 0.0), ([np.inf], 0.0), ([-np.inf], 0.0), ([3e38, -3e38], 1.0)],
)
def test_finite_is_said_of_all_inputs_together(bad: list[float], finite: float, place: int) -> None:
    """Also of values whose squares overflow."""
    inputs = [drawn(0), drawn(1)]
    inputs[place][: len(bad)] = bad
    assert run("all_finite", *inputs) == finite


def test_moments_are_those_of_adam() -> None:
    """Against float64; the second has the square of the gradient, the first the gradient."""
    m, g = drawn(0), drawn(1)
    first = run("adam_m", m, g, attrs={"beta1": 0.75})
    np.testing.assert_allclose(first, 0.75 * m.astype(float) + 0.25 * g, rtol=1e-5)
    second = run("adam_v", m * m, g, attrs={"beta2": 0.875})
    expected = 0.875 * m.astype(float) ** 2 + 0.125 * g.astype(float) ** 2
    np.testing.assert_allclose(second, expected, rtol=1e-5)


@pytest.mark.parametrize("decay", [0.0, 0.25])
@pytest.mark.parametrize("count", [1.0, 2.0, 50.0])
def test_a_step_is_that_of_adamw(count: float, decay: float) -> None:
    p, m, v = drawn(0), drawn(1), drawn(2) ** 2
    attrs = {"beta1": 0.9, "beta2": 0.999, "epsilon": 1e-3, "weight_decay": decay}
    scalars = (np.array(0.125, np.float32), np.array(count, np.float32))
    m_hat, v_hat = m / (1 - 0.9**count), v / (1 - 0.999**count)
    expected = p * (1 - 0.125 * decay) - 0.125 * m_hat / (np.sqrt(v_hat) + 1e-3)
    found = run("adam_step", p, m, v, *scalars, attrs=attrs)
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)


def test_decay_adds_its_share_of_the_parameter() -> None:
    g, p = drawn(0), drawn(1)
    found = run("weight_decay", g, p, attrs={"weight_decay": 0.25})
    np.testing.assert_allclose(found, g + 0.25 * p, rtol=1e-5)


def test_the_single_operations_are_those_they_are_named_after() -> None:
    """Against float64; steps count from 1, and the first velocity is the gradient itself."""
    x, g, v = drawn(0), drawn(1), drawn(2) ** 2
    one, two = np.array(1.0, np.float32), np.array(2.0, np.float32)
    rate = np.array(0.25, np.float32)
    beta = {"beta1": 0.75, "beta2": 0.875}
    cases: list[tuple[str, tuple[FloatArray, ...], dict[str, float], FloatArray]] = [
        ("add_damped", (x, g, one), {"share": 0.25}, x + g),
        ("add_damped", (x, g, two), {"share": 0.25}, x + 0.25 * g),
        ("sgd_nesterov", (g, x), {"momentum": 0.75}, g + 0.75 * x),
        ("add_square", (x, g), {"share": 0.25}, x + 0.25 * g**2),
        ("adam_root", (v,), {}, np.sqrt(v)),
        ("adam_corrected", (v, two), beta, v / np.sqrt(1 - 0.875**2)),
        ("adam_epsilon", (x,), {"epsilon": 0.5}, x + 0.5),
        ("adam_shrunk", (x, rate), {"weight_decay": 0.5}, x * (1 - 0.25 * 0.5)),
        ("adam_moved", (x, g, v, rate, two), beta, x - 0.25 / (1 - 0.75**2) * g / v),
        ("sgd_velocity", (x, g), {"momentum": 0.75}, 0.75 * x + g),
        ("sgd_step", (x, g, rate), {}, x - 0.25 * g),
        ("unscale", (x, rate), {}, x * 0.25),
    ]
    for name, inputs, attrs, expected in cases:
        found = run(name, *inputs, attrs=attrs)
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("limit", [0.5, 100.0])
def test_clipping_keeps_the_direction_and_limits_the_norm(limit: float) -> None:
    g, h = drawn(0), drawn(1, 5)
    norm = run("global_norm", g, h)
    assert norm == pytest.approx(np.linalg.norm(np.concatenate([g, h]).astype(float)), rel=1e-6)
    found = run("clip", g, norm, attrs={"limit": limit})
    np.testing.assert_allclose(found, g * min(1.0, limit / float(norm)), rtol=1e-5)


def test_the_gradient_of_a_scaled_loss_is_the_scale() -> None:
    """d(scale * loss)/d(loss), where the arriving gradient is not 1."""
    b = Builder()
    loss, scale, root = (source(b, name) for name in ("loss", "scale", "root"))
    with b.scope(role="fprop"):
        scaled = b.emit(OPS["scale_loss"], loss, scale)
    found = backward(b, scaled, root, [loss], add)
    graph = b.graph({"grad": found[loss], "scaled": scaled})
    given = {"loss": 3.0, "scale": 8.0, "root": 5.0}
    arrays = {name: np.array(x, np.float32) for name, x in given.items()}
    assert value(graph, arrays, "scaled") == 24.0
    assert value(graph, arrays, "grad") == 40.0
