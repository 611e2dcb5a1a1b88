"""The emulator: planned buffers change no value, and every value lies on its format's grid."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policysearch.emulator.executable import Executable, compile_graph
from policysearch.emulator.plan import Plan, needs_rounding
from policysearch.formats import Rounding, format_named
from policysearch.graph import Builder, FloatArray, Graph, size
from policysearch.layout import stored
from policysearch.nn.models import Model, lenet5, mlp
from policysearch.ops.catalogue import FORWARD_OPS, OPS
from policysearch.ops.source import data
from policysearch.ops.update import all_finite, unscale
from policysearch.policy.policy import LossScale, Policy, RoleRounding, uniform_layer
from policysearch.products import product as products
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.rounding.rounder import compiled_available, quantise
from policysearch.train.optimizers import Optimizer
from policysearch.train.step import trace_step

LOW = ("matmul", "conv2d", "bias")
HIGH = ("softmax_cross_entropy", "mean_squared_error")
REST = tuple(op for op in FORWARD_OPS if op not in LOW + HIGH)
NETS = {"lenet5": lenet5(), "mlp": mlp((400, 300, 12, 10), activation="tanh")}


def _graph(model: Model, name: str, optimizer: str, mode: str = "nearest_even") -> Graph:
    layers = tuple((layer, uniform_layer(name)) for layer in model.layer_names)
    each = Rounding(mode)  # type: ignore[arg-type]
    policy = Policy(
        name,
        layers,
        LOW,
        HIGH,
        REST,
        loss_scale=LossScale("fixed", 64.0),
        rounding=RoleRounding(each, each, each, each),
    )
    step = trace_step(model, "softmax_cross_entropy", Optimizer(optimizer), 8)  # type: ignore[arg-type]
    return apply_policy(step, policy)


def _fill(executable: Executable, model: Model, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    for name, values in model.init(rng).items():
        executable.arrays[name][...] = values
    images = executable.arrays["images"]
    images[...] = rng.standard_normal(images.shape)
    executable.arrays["targets"][...] = np.eye(10)[rng.integers(0, 10, len(images))]
    for name, value in (("loss_scale", 64), ("inverse_scale", 1 / 64), ("learning_rate", 0.05)):
        executable.arrays[name][...] = value
    executable.arrays["step"][...] = 1


def _unplanned(graph: Graph, sources: dict[str, FloatArray]) -> dict[int, FloatArray]:
    """Run every node into an array of its own, in the order of ids: nothing is reused."""
    values: dict[int, FloatArray] = {}
    for node in graph.nodes:
        if node.op.kind == "source":
            values[node.id] = sources[node.name]
            continue
        inputs = [values[i] for i in node.inputs]
        out = stored(np.empty(size(node.shape), np.float32), node.shape)
        work = np.empty(
            max(
                size(node.shape),
                node.op.work([i.shape for i in inputs], node.shape, node.attributes),
            ),
            np.float32,
        )
        with np.errstate(all="ignore"):
            node.op.bind(inputs, out, node.attributes, work)()
        rounded = quantise(out, format_named(node.format), node.rounding)
        out[...] = rounded
        values[node.id] = out
    return values


def assert_separate_buffers_give_the_same(graph: Graph, executable: Executable) -> None:
    """Two steps: every output and every update, bit for bit."""
    for _ in range(2):
        before = {key: np.copy(array, order="K") for key, array in executable.arrays.items()}
        expected = _unplanned(graph, before)
        executable.forward_backward()
        for key, i in graph.outputs:
            np.testing.assert_array_equal(executable.value(key), expected[i], err_msg=key)
        executable.apply_updates()
        for old, new in graph.updates:
            key = graph.nodes[old].name
            np.testing.assert_array_equal(executable.arrays[key], expected[new], err_msg=key)


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("name", ["float32", "float16", "float8_e4m3fn"])
@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw"])
def test_planned_buffers_give_the_bits_of_separate_ones(
    net: str, name: str, optimizer: str
) -> None:
    model = NETS[net]
    graph = _graph(model, name, optimizer)
    executable = compile_graph(graph)
    _fill(executable, model)
    assert_separate_buffers_give_the_same(graph, executable)


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("mode", ["nearest_even", "stochastic"])
@pytest.mark.skipif(not compiled_available(), reason="the C extension is not built")
def test_compiled_and_numpy_roundings_train_alike(net: str, mode: str) -> None:
    model = NETS[net]
    graph = _graph(model, "float16", "momentum", mode)
    losses: list[list[float]] = []
    for compiled in (False, True):
        executable = compile_graph(graph, seed=3, compiled=compiled)
        _fill(executable, model)
        losses.append([])
        for _ in range(3):
            executable.forward_backward()
            executable.apply_updates()
            losses[-1].append(float(executable.value("loss")))
    assert losses[0] == losses[1]


def test_every_observed_value_lies_on_its_grid_and_casts_are_seen() -> None:
    model = NETS["lenet5"]
    graph = _graph(model, "float8_e4m3fn", "momentum")
    seen: dict[int, str] = {}

    def observe(node: object, before: FloatArray, after: FloatArray) -> None:
        row = format_named(node.format)  # type: ignore[attr-defined]
        np.testing.assert_array_equal(after, quantise(before, row))
        np.testing.assert_array_equal(after, quantise(after, row))
        seen[node.id] = node.op.name  # type: ignore[attr-defined]

    executable = compile_graph(graph, observer=observe)
    _fill(executable, model)
    executable.forward_backward()
    executable.apply_updates()
    assert set(seen) == {n.id for n in graph.nodes if n.inputs and needs_rounding(graph, n)}
    assert "cast" in seen.values()


@pytest.mark.parametrize("net", NETS)
def test_buffers_alive_together_do_not_overlap(net: str) -> None:
    plan = Plan(_graph(NETS[net], "float16", "adam"))
    for i, one in enumerate(plan.buffers):
        for other in plan.buffers[:i]:
            together = one.first <= other.last and other.first <= one.last
            apart = (
                one.offset + one.elements <= other.offset
                or other.offset + other.elements <= one.offset
            )
            assert apart or not together


def test_shared_sources_are_trained_in_place() -> None:
    model = NETS["mlp"]
    graph = _graph(model, "float32", "momentum")
    first = compile_graph(graph)
    _fill(first, model)
    second = compile_graph(graph, sources=first.arrays)
    before = first.arrays["fc1.weight"].copy()
    second.forward_backward()
    second.apply_updates()
    assert not np.array_equal(first.arrays["fc1.weight"], before)


def test_an_update_that_overwrites_a_source_read_later_keeps_the_old_value() -> None:
    b = Builder()
    w = b.emit(OPS["parameter"], attrs={"shape": (4,)}, role="input", name="w")
    x = b.emit(data, attrs={"shape": (4,)}, role="input", name="x")
    new = b.emit(OPS["add"], w, x, role="update")
    late = b.emit(OPS["multiply"], w, x, role="update")
    graph = b.graph({}, [(w, new), (x, late)])
    executable = compile_graph(graph)
    executable.arrays["w"][...] = 3.0
    executable.arrays["x"][...] = 2.0
    executable.apply_updates()
    assert executable.arrays["w"].tolist() == [5.0] * 4
    assert executable.arrays["x"].tolist() == [6.0] * 4


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("accumulator", ["chunked:16:float16", "tensor_core.h100"])
def test_accumulators_reach_every_product(net: str, accumulator: str) -> None:
    """Other sums give other bits, close to those of float32 BLAS."""
    if not products.compiled_available():
        pytest.skip("the exact model in numpy takes minutes here")
    model = NETS[net]
    losses = []
    for name in ("float32", accumulator):
        base = _graph(model, "float8_e4m3fn", "momentum")
        nodes = tuple(
            replace(node, accumulator=name) if node.op.kind == "gemm" else node
            for node in base.nodes
        )
        executable = compile_graph(replace(base, nodes=nodes))
        _fill(executable, model)
        for _ in range(2):
            executable.forward_backward()
            executable.apply_updates()
        losses.append(float(executable.value("loss")))
    assert losses[0] != losses[1]
    assert losses[1] == pytest.approx(losses[0], rel=2e-2)


@pytest.mark.parametrize(
    ("value", "finite"), [(3.0, 1.0), (1e30, 1.0), (np.inf, 0.0), (-np.inf, 0.0), (np.nan, 0.0)]
)
@pytest.mark.parametrize("place", [0, 39_999])
def test_the_finite_check_sees_every_block_and_takes_large_numbers(
    value: float, finite: float, place: int
) -> None:
    """1e30 is finite, but its square is not."""
    b = Builder()
    grad = b.emit(data, attrs={"shape": (200, 200)}, name="grad")
    factor = b.emit(data, attrs={"shape": ()}, name="factor")
    unscaled = b.emit(unscale, grad, factor, role="update")
    other = b.emit(unscale, factor, factor, role="update")
    checked = b.emit(all_finite, unscaled, role="update")
    both = b.emit(all_finite, unscaled, other, role="update")
    executable = compile_graph(b.graph({"one": checked, "both": both}))
    executable.arrays["factor"][...] = 0.5
    executable.arrays["grad"][...] = 1.0
    executable.forward_backward()
    assert executable.value("one") == executable.value("both") == 1.0
    executable.arrays["grad"][np.unravel_index(place, (200, 200))] = value
    executable.forward_backward()
    assert executable.value("one") == executable.value("both") == finite
