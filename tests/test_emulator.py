"""The emulator: every way to run a step gives the reference's bits, and all of them its grid's."""

from __future__ import annotations

from dataclasses import replace
from itertools import cycle, product

import numpy as np
import pytest

from policysearch.emulator.compile import compile_graph
from policysearch.emulator.nodes import source_array
from policysearch.formats import format_named
from policysearch.graph import FloatArray
from policysearch.layout import in_storage_order
from policysearch.nn.chain import Chain
from policysearch.nn.models import lenet5, mlp, transformer
from policysearch.ops.builder import Builder
from policysearch.ops.catalogue import OPS
from policysearch.ops.source import data
from policysearch.ops.update import all_finite, unscale
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.presets import PRESETS, preset
from policysearch.products import product as products
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.rounding.rounder import Fast, fast_ways, quantise
from policysearch.train.step import trace_step
from tests.emulated_steps import (
    NETS,
    assert_gives_the_bits_of_the_reference,
    fill,
    graph_of,
    started,
)
from tests.rounding_oracle import FASTS
from tests.turns import turns

SMALL = (mlp((64, 32, 16, 10)), lenet5(), transformer((1, 8, 8), 10, 16, (24,), 2))
WAYS = [*product(SMALL, [way for way in fast_ways() if way != "off"])]
"""Nets and ways to run that presets take in turn."""


@pytest.mark.parametrize(
    ("name", "model", "fast"),
    [(name, *ways) for name, ways in zip(PRESETS, cycle(WAYS), strict=False)],
    ids=lambda row: getattr(row, "name", row),
)
def test_every_preset_gives_the_bits_of_the_reference(model: Chain, name: str, fast: Fast) -> None:
    step = trace_step(model, "softmax_cross_entropy", Optimizer("momentum"), 8)
    graph = apply_policy(step, preset(name, model.layer_names)).wanting("loss", "finite")
    assert_gives_the_bits_of_the_reference(graph, started(graph, model), fast)


@pytest.mark.parametrize("fast", FASTS)
@pytest.mark.parametrize(
    ("optimizer", "name", "way"),
    turns(
        ["sgd", "momentum", "adam", "adamw"],
        ["float32", "float16", "float8_e4m3fn"],
        [*product(NETS, ["nearest_even", "stochastic"])],
    ),
)
def test_every_optimizer_gives_the_bits_of_the_reference(
    optimizer: str, name: str, way: tuple[str, str], fast: Fast
) -> None:
    """With all gradients wanted; the mlp has tensors of more than one span."""
    net, mode = way
    graph = graph_of(NETS[net], name, optimizer, mode)
    assert_gives_the_bits_of_the_reference(graph, started(graph, NETS[net]), fast)


@pytest.mark.parametrize("fast", FASTS)
def test_every_observed_value_lies_on_its_grid_and_casts_are_seen(fast: Fast) -> None:
    model = NETS["lenet5"]
    graph = graph_of(model, "float8_e4m3fn", "momentum")
    seen: dict[int, str] = {}

    def observe(node: object, before: FloatArray, after: FloatArray) -> None:
        row = format_named(node.format)  # type: ignore[attr-defined]
        np.testing.assert_array_equal(after, quantise(before, row))
        np.testing.assert_array_equal(after, quantise(after, row))
        seen[node.id] = node.op.name  # type: ignore[attr-defined]

    executable = compile_graph(graph, fast=fast, observer=observe)
    fill(executable, model)
    executable.forward_backward()
    executable.apply_updates()
    made = [n for n in graph.nodes if n.inputs and n.format != "float32" and not n.op.keeps_format]
    assert {n.id for n in made} <= set(seen)
    assert "cast" in seen.values()


def test_shared_sources_are_trained_in_place() -> None:
    model = NETS["mlp"]
    graph = graph_of(model, "float32", "momentum")
    first = compile_graph(graph)
    fill(first, model)
    second = compile_graph(graph, sources=first.arrays)
    before = first.arrays["fc1.weight"].copy()
    second.forward_backward()
    second.apply_updates()
    assert not np.array_equal(first.arrays["fc1.weight"], before)


def test_sources_that_lie_in_another_order_are_refused() -> None:
    """Kernels read flat numbers: those of a copy in C order are another net's."""
    model = NETS["mlp"]
    graph = graph_of(model, "float32", "momentum")
    shared = compile_graph(graph).arrays
    copies = {name: np.array(array, order="C") for name, array in shared.items()}
    with pytest.raises(AssertionError, match="is not in storage order"):
        compile_graph(graph, sources=copies)
    laid = {name: in_storage_order(array) for name, array in copies.items()}
    assert compile_graph(graph, sources=laid).arrays["fc1.weight"] is laid["fc1.weight"]
    assert np.array_equal(laid["fc1.weight"], shared["fc1.weight"])
    assert in_storage_order(shared["fc1.weight"]) is shared["fc1.weight"]


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
        base = graph_of(model, "float8_e4m3fn", "momentum")
        nodes = tuple(
            replace(node, accumulator=name) if node.op.kind == "gemm" else node
            for node in base.nodes
        )
        executable = compile_graph(replace(base, nodes=nodes))
        fill(executable, model)
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
def test_the_finite_check_sees_every_span_and_takes_large_numbers(
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


def test_a_source_of_no_values_is_as_it_is_given() -> None:
    """A part of none, as that of the first step of a sequence that grows by `cat`."""
    b = Builder()
    node = b.nodes[b.emit(data, attrs={"shape": (0, 3)}, name="x")]
    given = np.zeros((0, 3), np.float32)
    assert source_array(node, {"x": given}) is given
