"""Single steps of parameters in narrow formats: a last bit moves one to its other neighbour."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policysearch.formats import Rounding, format_named
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.rounding.rounder import quantise
from policysearch.train.feeding import batch_order, initial_parameters
from policysearch.train.tasks import Task
from policysearch.train.trainer import Trainer
from policysearch.verify.forced_steps import ForcedSteps, _beyond, forced_steps

TASK = Task(
    model="mlp",
    data="digits",
    widths=(32, 32),
    batch_size=32,
    optimizer="momentum",
    learning_rate=0.05,
).with_steps(8)
DATA = TASK.load_dataset()
MODEL = TASK.build_model(DATA)


def stored(format: str, update: Rounding = Rounding()) -> Policy:
    """Return bfloat16 without masters, parameters in this format."""
    rows = dict.fromkeys(MODEL.layer_names, uniform_layer("bfloat16", param=format))
    policy = preset("bfloat16", MODEL.layer_names).with_layers(rows)
    rounding = replace(policy.rounding, update=update)
    return replace(policy, master_weights=False, optimizer_state="bfloat16", rounding=rounding)


def compared(policy: Policy, there: Policy, task: Task = TASK) -> ForcedSteps:
    """Return steps of `policy` from the values of a training that sums as an H100 does."""
    sums = {n: replace(x, accumulator="tensor_core.h100") for n, x in there.layers}
    trainer = Trainer(MODEL, task, there.with_layers(sums), 0, records=False)
    trainer.load(initial_parameters(MODEL, 0))
    (inputs,), labels = DATA.train
    values, steps = [trainer.params()], []
    for indices in batch_order(task, DATA, 0):
        steps.append(trainer.step([inputs[indices]], labels[indices]))
        values.append(trainer.params())
    return forced_steps(TASK, policy, MODEL, DATA, 0, values, steps)


@pytest.mark.parametrize("mode", ["nearest_even", "stochastic"])
def test_another_kernel_passes(mode: str) -> None:
    """Its sums differ in their last bits, and a parameter now and then by a whole spacing."""
    policy = stored("bfloat16", Rounding(mode))  # type: ignore[arg-type]
    found = compared(policy, policy)
    assert found.faults == () and found.own_updates.max() > 1e-5


WRONG = {
    "stochastic": (stored("bfloat16", Rounding("stochastic")), TASK),
    "a rate 10% too large": (stored("bfloat16"), replace(TASK, learning_rate=0.055)),
    "parameters in float32": (stored("float32"), TASK),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_fails(wrong: str) -> None:
    found = compared(stored("bfloat16"), *WRONG[wrong])
    assert any("of a move apart" in line for line in found.faults) and found.farther > 0.5
    off = "fc1.weight: the target's values are no numbers of bfloat16; expected those"
    assert (off in found.faults) == (wrong == "parameters in float32")


def test_nearest_where_chance_was_asked_for_fails() -> None:
    found = compared(stored("bfloat16", Rounding("stochastic")), stored("bfloat16"))
    assert found.faults and found.farther > 0.5


def test_the_distance_is_that_to_the_boundary() -> None:
    """By brute force: the nearest of many values that rounds to what is stored."""
    fmt = format_named("bfloat16")
    rng = np.random.default_rng(0)
    wide = rng.standard_normal(200).astype(np.float32)
    kept = quantise(wide * (1.0 + 0.01 * rng.standard_normal(200)).astype(np.float32), fmt)
    for value, stored_as, found in zip(wide, kept, _beyond(wide, kept, fmt), strict=True):
        near = np.linspace(value, stored_as, 4001, dtype=np.float32)
        first = near[np.argmax(quantise(near, fmt) == stored_as)]
        step = abs(float(stored_as) - float(value)) / 4000
        assert found == pytest.approx(abs(float(first) - float(value)), abs=2.0 * step + 1e-6)
