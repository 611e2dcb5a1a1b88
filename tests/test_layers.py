"""Every layer that a file of `nn/` defines, from the examples beside it."""

from __future__ import annotations

import importlib
import pkgutil
from dataclasses import is_dataclass

import numpy as np
import pytest

import policysearch.nn
from policysearch.cost.devices import DEVICES
from policysearch.cost.price import step_price
from policysearch.cost.stacks import STACKS
from policysearch.emulator.compile import compile_graph
from policysearch.graph import FloatArray, Graph, Shape
from policysearch.nn.attention import Embedding
from policysearch.nn.layers import Layer, WithConstants, names_of
from policysearch.nn.model import Fed, ParameterSpec, emit_arrays
from policysearch.ops.builder import Builder, backward
from policysearch.ops.elementwise import add
from policysearch.ops.source import LOSS_SCALE, buffer, data
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.rounding.rounder import fast_ways
from tests.emulated_steps import assert_gives_the_bits_of_the_reference

MODULES = tuple(
    importlib.import_module(f"policysearch.nn.{info.name}")
    for info in pkgutil.iter_modules(policysearch.nn.__path__)
)
EXAMPLES = [pair for module in MODULES for pair in getattr(module, "EXAMPLES", ())]
LAYERS = [
    kind
    for module in MODULES
    for kind in vars(module).values()
    if is_dataclass(kind) and hasattr(kind, "trace") and kind.__module__ == module.__name__
    if "name" in kind.__annotations__ and not kind.__annotations__.keys() & {"input_shape", "kept"}
]
ROWS = 8
WHOLE = (Embedding,)
"""Layers whose input is indices, which have no gradient."""
SEED = LOSS_SCALE
"""The gradient that backward starts from; the policy pass knows it by this name."""
over_examples = pytest.mark.parametrize(
    ("layer", "shape"), EXAMPLES, ids=[layer.name for layer, _ in EXAMPLES]
)


def _traced(
    layer: Layer, shape: Shape, rows: int = ROWS
) -> tuple[Graph, tuple[ParameterSpec, ...]]:
    """Return forward and backward pass: sources "x", SEED and the parameters."""
    b = Builder()
    x = b.emit(data, attrs={"shape": (rows, *shape)}, name="x", role="input")
    specs = layer.parameters(shape)
    params = emit_arrays(b, [spec for spec in specs if not spec.statistic])
    kept = emit_arrays(b, [spec for spec in specs if spec.statistic], buffer)
    y = layer.trace(b, x, Fed({**params, **kept}))
    seed = b.emit(data, attrs={"shape": b.shape(y)}, name=SEED, role="input")
    wanted = {"x": x, **params}
    grads = backward(b, y, seed, list(wanted.values()), add)
    outputs = {"y": y} | {f"grad:{name}": grads[i] for name, i in wanted.items() if i in grads}
    assert "grad:x" in outputs or isinstance(layer, WHOLE)
    return b.graph(outputs), specs


def _start(layer: Layer, graph: Graph) -> dict[str, FloatArray]:
    """Return values for every source; statistics that are variances, indices and constants."""
    rng = np.random.default_rng(5)
    sources = [node for node in graph.nodes if node.op.kind == "source"]
    values = {n.name: rng.standard_normal(n.shape).astype(np.float32) for n in sources}
    values |= {
        name: np.abs(v) + np.float32(0.5) for name, v in values.items() if name.endswith("_var")
    }
    if isinstance(layer, WHOLE):
        values["x"] = np.floor(np.abs(values["x"]) * 10).astype(np.float32)
    return values | (dict(layer.constants()) if isinstance(layer, WithConstants) else {})


@pytest.mark.parametrize("kind", LAYERS, ids=lambda kind: kind.__name__)
def test_every_layer_has_an_example(kind: type) -> None:
    assert any(type(layer) is kind for layer, _ in EXAMPLES)


@over_examples
def test_nodes_and_parameters_carry_the_layers_names(layer: Layer, shape: Shape) -> None:
    graph, specs = _traced(layer, shape)
    made = [node for node in graph.nodes if node.role == "fprop"]
    assert made and {node.layer for node in made} <= set(names_of(layer))
    for spec in specs:
        assert spec.layer in names_of(layer) and spec.name.startswith(f"{spec.layer}.")
        assert graph.source(spec.name).shape == spec.shape


@over_examples
def test_examples_do_not_touch_each_other(layer: Layer, shape: Shape) -> None:
    """Half of a batch gives half of the result: shapes scale, and no row reads another's."""
    results = []
    for rows in (ROWS, ROWS // 2):
        graph, _ = _traced(layer, shape, rows)
        step = compile_graph(graph.wanting("y"))
        for name, values in _start(layer, _traced(layer, shape)[0]).items():
            if name in step.arrays and name != SEED:
                step.arrays[name][...] = values[:rows] if name == "x" else values
        step.forward_backward()
        results.append(step.value("y").copy())
    whole, half = results
    np.testing.assert_allclose(whole[: len(half)], half, rtol=1e-5, atol=1e-6)
    assert 2 * len(half) == len(whole)


@over_examples
def test_gradients_are_finite_differences(layer: Layer, shape: Shape) -> None:
    """Along random directions, in float32 with steps of 2^-6."""
    graph, _ = _traced(layer, shape)
    step, start, rng = compile_graph(graph), _start(layer, graph), np.random.default_rng(6)
    if not isinstance(layer, WHOLE):  # away from the kinks of relu and pooling
        spread = rng.permutation(start["x"].size).reshape(start["x"].shape) * 0.3 - 7.1
        start["x"] = spread.astype(np.float32) / (1.0 if layer.name in ("relu", "max") else 20.0)

    def run(values: dict[str, FloatArray], output: str) -> FloatArray:
        for name, value in values.items():
            step.arrays[name][...] = value
        step.forward_backward()
        return step.value(output).astype(np.float64)

    for name in [name for name in start if f"grad:{name}" in dict(graph.outputs)]:
        gradient = run(start, f"grad:{name}")
        assert gradient.shape == start[name].shape
        direction = rng.standard_normal(start[name].shape).astype(np.float32)
        up, down = (
            run({**start, name: start[name] + np.float32(sign * 2.0**-6) * direction}, "y")
            for sign in (1, -1)
        )
        slope = np.sum((up - down) * start[SEED]) * 2.0**5
        size = np.sum(np.abs(gradient * direction)) + 1.0
        assert abs(slope - np.sum(gradient * direction)) <= 5e-3 * size, name


@over_examples
@pytest.mark.parametrize("name", ["float16", "float8", "te.mxfp8"])
def test_policies_reach_it_and_every_way_gives_the_same_bits(
    layer: Layer, shape: Shape, name: str
) -> None:
    graph = apply_policy(_traced(layer, shape)[0], preset(name, names_of(layer)))
    for fast in fast_ways():
        assert_gives_the_bits_of_the_reference(graph, _start(layer, graph), fast, steps=1)


@over_examples
def test_it_has_a_price(layer: Layer, shape: Shape) -> None:
    graph = apply_policy(_traced(layer, shape)[0], preset("float16", names_of(layer)))
    for device, stack in zip(DEVICES.values(), [*STACKS.values()] * len(DEVICES), strict=False):
        price = step_price(graph, device, stack)
        assert price.time.step_seconds > 0 and price.memory.peak_bytes > 0
