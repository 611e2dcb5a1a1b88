"""Where the first value that is not finite comes from, against numpy and cases made to fail."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policysearch.data.datasets import Dataset
from policysearch.emulator.compile import compile_graph
from policysearch.formats import format_named
from policysearch.graph import FloatArray, Graph, Node
from policysearch.ops.builder import Builder
from policysearch.ops.elementwise import divide
from policysearch.ops.layer_norm import layer_statistics
from policysearch.ops.rounded_norms import ROUNDED_NORMS
from policysearch.ops.source import cast, data
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy
from policysearch.policy.presets import preset
from policysearch.rounding.rounder import Fast, quantise
from policysearch.train.lost_values import Probe
from policysearch.train.origin import LONGEST_CHAIN, Origin, Seen, Traced, chain_to
from policysearch.train.run import Run
from policysearch.train.tasks import Task
from policysearch.train.training import train
from tests.rounding_oracle import FASTS

TASK = Task(
    model="mlp",
    widths=(16, 16),
    data="digits",
    batch_size=32,
    steps=30,
    tail_steps=5,
    activation="tanh",
)


def pure(name: str, digits: Dataset, task: Task = TASK, **changes: object) -> Policy:
    return replace(preset(name, task.build_model(digits).layer_names), **changes)  # type: ignore[arg-type]


def harmful(run: Run) -> Origin:
    (origin,) = (row for row in run.origins if not row.skipped)
    return origin


@pytest.mark.parametrize("fast", FASTS)
def test_an_overflowing_scale_is_found_where_it_overflows_first(
    fast: Fast, digits: Dataset
) -> None:
    """The loss is of order 1, so that a scale beyond the largest float16 overflows at once."""
    scale = LossScale("fixed", 2.0**24, rule="mindspore.FixedLossScaleManager")
    policy = pure("apex.O3", digits, loss_scale=scale)
    run = train(TASK, policy, 0, dataset=digits, fast=fast)
    origin = run.origins[0]
    assert origin.kind == "overflow" and origin.step == 0
    assert origin.link.role in ("dgrad", "wgrad") and origin.link.format == "float16"
    assert origin.link.largest_out > 65504 and origin.link.lost > 0
    assert 1 <= len(origin.chain) <= LONGEST_CHAIN
    assert all(link.lost == 0 for link in origin.chain[:-1])


def test_epsilon_and_second_moment_of_zero_give_a_nan_that_is_born(digits: Dataset) -> None:
    """Both are below half of the smallest float16, 2^-25, so that Adam divides zero by zero."""
    task = replace(TASK, optimizer="adam", learning_rate=1e-3)
    policy = pure("apex.O3", digits, task, optimizer_order="eager", optimizer_scalars="storage")
    policy = replace(policy, optimizer_state="float16", loss_scale=LossScale())
    origin = harmful(train(task, policy, 0, dataset=digits))
    assert origin.kind == "born" and origin.found == "update" and origin.step == 0
    assert origin.link.role == "update" and "adam" in origin.link.op
    lost = train(task, policy, 0, dataset=digits).lost
    assert [row.kind for row in lost if row.kind == "born"] and origin.link.layer


@pytest.mark.parametrize("fast", FASTS)
def test_a_parameter_that_overflows_is_found_by_taking_past_steps_again(
    fast: Fast, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stored in float16, with products in float32 that bear whatever it grows to before."""
    task = replace(TASK, optimizer="momentum", learning_rate=1e5)
    plain = pure("float32", digits)
    stored = tuple((n, replace(layer, param="float16")) for n, layer in plain.layers)
    policy = replace(plain, layers=stored, master_weights=False)
    origin = harmful(train(task, policy, 0, dataset=digits, fast=fast))
    assert origin.found == "update" and origin.link.role == "update" and origin.step > 0
    assert origin.link.largest_out > 65504 and origin.link.format == "float16"
    monkeypatch.setattr("policysearch.train.observations.KEPT_FOR", 1)
    assert harmful(train(task, policy, 0, dataset=digits, fast=fast)) == origin


def test_a_sound_run_has_no_origin_and_a_skipped_step_is_said_to_be_one(digits: Dataset) -> None:
    assert train(TASK, pure("bfloat16", digits), 0, dataset=digits).origins == ()
    scale = LossScale("dynamic", 2.0**24)
    run = train(TASK, pure("float16", digits, loss_scale=scale), 0, dataset=digits)
    assert not run.diverged and run.skipped.any()
    assert run.origins and all(row.skipped for row in run.origins)


@pytest.mark.parametrize("steps", [1, 2])
def test_looking_changes_no_bit(steps: int, digits: Dataset) -> None:
    task = replace(TASK, accumulation_steps=steps)
    scale = LossScale("dynamic", 2.0**24)
    policy = pure("float16", digits, task, loss_scale=scale)
    ways = [train(task, policy, 0, dataset=digits, records=on) for on in (True, False)]
    assert ways[0].origins and ways[0].lost and not ways[1].origins and not ways[1].lost
    np.testing.assert_array_equal(ways[0].losses, ways[1].losses)
    for name, array in ways[0].params.items():
        np.testing.assert_array_equal(array, ways[1].params[name])


def rounded_to(name: str) -> Graph:
    b = Builder()
    x = b.emit(data, attrs={"shape": (8,)}, name="x", role="input")
    y = b.emit(cast, x, format=name, layer="fc", source="matmul")
    return b.graph({"y": y})


@pytest.mark.parametrize("fast", FASTS)
@pytest.mark.parametrize("name", ["float4_e2m1fn", "float6_e3m2fn", "float16"])
def test_saturation_is_counted_in_formats_without_infinity(name: str, fast: Fast) -> None:
    probe, largest = Probe(), format_named(name).max
    step = compile_graph(rounded_to(name), fast=fast, observer=probe)
    step.arrays["x"][...] = np.float32(largest) * np.array([0, 0.5, 1, -1, 2, -3, 9, 1e-9])
    step.forward_backward()
    assert np.isfinite(step.value("y")).all() == (name != "float16")
    (row,) = (row for row in probe.lost() if row.kind == "overflow")
    assert (row.count, row.seen, row.op, row.layer) == (3, 8, "matmul", "fc")


@pytest.mark.parametrize("fast", FASTS)
def test_what_overflows_inside_a_norm_is_counted(fast: Fast) -> None:
    """The square of what is above 256 is above float16's largest, while its values fit."""
    b, told = Builder(), list[tuple[FloatArray, FloatArray]]()
    x = b.emit(data, attrs={"shape": (2, 4)}, name="x", role="input", format="float16")
    inner = ROUNDED_NORMS[layer_statistics.name]
    y = b.emit(inner, x, attrs={"inner": "float16"}, layer="norm", format="float16")
    probe = Probe()

    def see(node: Node, before: FloatArray, after: FloatArray) -> None:
        told.append((before.copy(), after.copy()))
        probe(node, before, after)

    step = compile_graph(b.graph({"y": y}), fast=fast, observer=see)
    step.arrays["x"][...] = [[300, -300, 300, -300], [1, -1, 1, -1]]
    step.forward_backward()
    (row,) = (row for row in probe.lost() if row.kind == "overflow")
    assert row.layer == "norm" and row.count >= 4 and row.largest >= 90000.0
    for before, after in told:
        np.testing.assert_array_equal(after, quantise(before, format_named("float16")))


def test_what_led_to_zero_by_zero_is_the_divisor_and_not_what_was_divided() -> None:
    """Of the value that is NaN: elsewhere the divisor is the larger."""
    b = Builder()
    x, y = (b.emit(data, attrs={"shape": (2,)}, name=name, role="input") for name in "xy")
    above, below = b.emit(cast, x, format="float32"), b.emit(cast, y, format="float32")
    graph = b.graph({"z": b.emit(divide, above, below)})
    nodes = {node.id: node for node in graph.nodes}
    arrays = np.array([1.0, 0.5]), np.array([9.0, 0.0]), np.array([0.1, np.nan])
    sizes = {x: arrays[0], above: arrays[0], y: arrays[1], below: arrays[1]}
    values = {i: sizes.get(i, arrays[2]).astype(np.float32) for i in nodes}
    chain = chain_to(Traced(graph, values, {}), graph.nodes[-1])
    assert [node.id for node in chain] == [below, graph.nodes[-1].id]
    over = Traced(graph, values, {graph.nodes[-1].id: Seen(1, 1e5)})
    values[above] = np.array([1e9, 1e9], np.float32)
    assert [node.id for node in chain_to(over, graph.nodes[-1])] == [above, graph.nodes[-1].id]
