"""The trainer: loss scaling, phases, storage formats, pairing, counting and divergence."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from policysearch.data.datasets import Dataset
from policysearch.formats import Rounding, format_named
from policysearch.graph import FloatArray
from policysearch.nn.chain import Chain
from policysearch.nn.layers import Conv2d, Flatten, Linear
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Phase, Policy, RoleRounding, uniform_layer
from policysearch.policy.presets import preset
from policysearch.rounding.rounder import quantise
from policysearch.train import trainer as trainer_module
from policysearch.train.feeding import initial_parameters
from policysearch.train.run import Run
from policysearch.train.tasks import Task
from policysearch.train.trainer import Trainer
from policysearch.train.training import train
from policysearch.values import InputError

TASK = Task(
    model="mlp",
    widths=(16,),
    data="digits",
    learning_rate=0.1,
    batch_size=32,
    steps=30,
    tail_steps=10,
)


def named(name: str, task: Task, dataset: Dataset, **changes: Any) -> Policy:
    layers = task.build_model(dataset).layer_names
    return replace(preset(name, layers), **{"loss_scale": LossScale(), **changes})


def same(first: Run, second: Run) -> bool:
    return np.array_equal(first.losses, second.losses) and all(
        np.array_equal(first.params[name], second.params[name]) for name in first.params
    )


def test_training_learns_the_digits(digits: Dataset) -> None:
    run = train(replace(TASK, steps=150), named("float32", TASK, digits), 0, dataset=digits)
    assert run.losses[0] == pytest.approx(math.log(10), rel=0.2)
    assert run.tail_loss < 0.3
    assert run.validation_accuracy is not None and run.validation_accuracy > 0.9
    assert run.tail_loss == pytest.approx(run.losses[-10:].mean())
    assert not run.diverged and run.diverged_at is None


def test_equal_calls_give_equal_runs_and_the_seed_counts(digits: Dataset) -> None:
    policy = named("float16", TASK, digits)
    first, again = (train(TASK, policy, 3, dataset=digits) for _ in range(2))
    assert same(first, again)
    assert not np.array_equal(first.losses, train(TASK, policy, 4, dataset=digits).losses)


def test_policies_are_paired(digits: Dataset) -> None:
    """Same seed, same first batch and weights: the first losses differ by rounding alone."""
    runs = [train(TASK, named(n, TASK, digits), 1, dataset=digits) for n in ("float32", "bfloat16")]
    assert 0 < abs(runs[0].losses[0] - runs[1].losses[0]) < 0.01
    np.testing.assert_allclose(runs[0].losses, runs[1].losses, atol=0.05)


def test_jitter_is_small_and_relative(digits: Dataset) -> None:
    model = TASK.build_model(digits)
    plain, moved = initial_parameters(model, 2), initial_parameters(model, 2, jitter=1e-3)
    change = np.concatenate([(moved[n] / plain[n] - 1).ravel() for n in plain])
    assert change.std() == pytest.approx(1e-3, rel=0.1)
    policy = named("float32", TASK, digits)
    runs = [train(TASK, policy, 2, dataset=digits, jitter=j) for j in (0.0, 1e-6)]
    assert 0 < np.abs(runs[0].losses - runs[1].losses).max() < 1e-3


def test_without_masters_parameters_stay_on_the_low_grid(digits: Dataset) -> None:
    """Small updates vanish on float16 parameters, not on float32 masters."""
    task = replace(TASK, learning_rate=1e-5, optimizer="sgd", steps=5, tail_steps=5)
    low = {
        masters: train(
            task,
            named("apex.O3", task, digits, master_weights=masters, optimizer_state="float32"),
            0,
            dataset=digits,
        )
        for masters in (False, True)
    }
    start = initial_parameters(task.build_model(digits), 0)
    weight = "fc1.weight"
    kept = low[False].params[weight]
    np.testing.assert_array_equal(kept, quantise(kept, format_named("float16")))
    still = (kept == quantise(start[weight], format_named("float16"))).mean()
    assert still > 0.9
    assert (low[True].params[weight] == start[weight]).mean() < 0.5


def test_without_masters_parameters_enter_the_grid_of_each_phase(digits: Dataset) -> None:
    """At the start, and when a phase stores them in a narrower format; skipped updates or not."""
    task = replace(TASK, learning_rate=0.0)
    policy = named("bfloat16", task, digits, master_weights=False)
    formats = ("float16", "bfloat16")
    layers = [
        tuple((name, uniform_layer(f, param=f)) for name, _ in policy.layers) for f in formats
    ]
    model = task.build_model(digits)
    given = Trainer(
        model, task, replace(policy, layers=layers[0], phases=(Phase(1, layers[1]),)), 0
    )
    start = initial_parameters(model, 0)
    given.load(start)
    (images,), labels = digits.train
    expected = start["fc1.weight"]
    for name in formats:
        expected = quantise(expected, format_named(name))
        given.step((images[:32],), labels[:32])
        np.testing.assert_array_equal(given.params()["fc1.weight"], expected)
    untouched = Trainer(model, task, replace(policy, layers=layers[0]), 0)
    untouched.load(start)
    first = quantise(start["fc1.weight"], format_named("float16"))
    np.testing.assert_array_equal(untouched.params()["fc1.weight"], first)


def test_a_power_of_two_loss_scale_changes_nothing_in_float32(digits: Dataset) -> None:
    policies = [
        named("float32", TASK, digits, loss_scale=scale)
        for scale in (LossScale(), LossScale("fixed", 2.0**20))
    ]
    first, second = (train(TASK, policy, 0, dataset=digits) for policy in policies)
    assert same(first, second)
    assert set(second.scales) == {2.0**20} and set(first.scales) == {1.0}


def test_dynamic_scale_skips_until_gradients_fit(digits: Dataset) -> None:
    scale = LossScale("dynamic", 2.0**24, growth_interval=10)
    policy = named("float16", TASK, digits, loss_scale=scale)
    run = train(replace(TASK, steps=60), policy, 0, dataset=digits)
    first = int(np.argmin(run.skipped))
    assert 0 < first < 20 and run.skipped[:first].all()
    np.testing.assert_array_equal(run.scales[: first + 1], 2.0 ** (24 - np.arange(first + 1)))
    grown = run.scales[1:] > run.scales[:-1]
    assert grown.any() and not run.diverged
    assert run.overflows and sum(count for _, count in run.overflows) > 0


def test_a_skipped_step_leaves_parameters_and_state_alone(digits: Dataset) -> None:
    scale = LossScale("dynamic", 2.0**24, growth_interval=10)
    policy = named("float16", TASK, digits, loss_scale=scale)
    model = TASK.build_model(digits)
    given = Trainer(model, replace(TASK, optimizer="adam"), policy, 0)
    given.load(initial_parameters(model, 0))
    before = given.params()
    (images,), labels = digits.train
    _, _, skipped = given.step((images[:32],), labels[:32])
    assert skipped and given.updates_done == 0
    assert all(np.array_equal(before[name], value) for name, value in given.params().items())


def conv_only_overflow() -> tuple[Chain, dict[str, FloatArray], FloatArray]:
    """Return a net, weights and images where in float16 only the kernel's gradient overflows.

    The kernels are zero, so their outputs and the dense weights' gradients are zero; large images
    times a fair gradient exceed 65504 in the kernels' gradient alone.
    """
    layers = (Conv2d("conv", 1, 2, 2), Flatten("flatten"), Linear("fc", 2 * 49, 10))
    model = Chain("net", layers, (1, 8, 8), 10)
    params = {spec.name: np.zeros(spec.shape, np.float32) for spec in model.parameters()}
    params["fc.weight"][:] = np.linspace(-1, 1, 10, dtype=np.float32)[:, np.newaxis]
    return model, params, np.full((4, 1, 8, 8), 60000.0, np.float32)


def test_an_overflow_in_a_convolution_alone_is_seen() -> None:
    model, params, images = conv_only_overflow()
    dataset = Dataset("large", (images,), np.zeros(4, np.int64), 3, 1, 10)
    task = replace(TASK, batch_size=2, steps=1, tail_steps=1)
    policy = replace(preset("float16", model.layer_names), loss_scale=LossScale("fixed", 8.0))
    run = train(task, policy, 0, dataset=dataset, model=model, initial=params)
    assert run.overflows == (("conv", 8),)
    assert run.skipped.tolist() == [True]


def test_fixed_scale_without_skip_lets_overflow_through() -> None:
    model, params, images = conv_only_overflow()
    dataset = Dataset("large", (images,), np.zeros(4, np.int64), 3, 1, 10)
    task = replace(TASK, batch_size=2, steps=9, tail_steps=2)
    scale = LossScale("fixed", 8.0, skip_on_overflow=False)
    policy = replace(preset("float16", model.layer_names), loss_scale=scale)
    indices = np.zeros((9, 2), np.int64)
    run = train(
        task, policy, 0, dataset=dataset, model=model, initial=params, batch_indices=indices
    )
    assert run.diverged and run.diverged_at == 1 and run.tail_loss == math.inf
    assert len(run.losses) == len(run.scales) == len(run.skipped) == 2
    assert not run.skipped.any()
    assert run.validation_accuracy == 0.0


def test_a_learning_rate_far_too_large_diverges(digits: Dataset) -> None:
    task = replace(TASK, learning_rate=1e4)
    run = train(task, named("float32", task, digits), 0, dataset=digits)
    assert run.diverged and run.diverged_at is not None and len(run.losses) == run.diverged_at + 1


def test_phases_change_formats_and_keep_state(digits: Dataset) -> None:
    """float16 from step 10 on: before it the run is float32, bit for bit, and after it is not."""
    plain = named("float32", TASK, digits)
    low = tuple((name, uniform_layer("float16")) for name, _ in plain.layers)
    runs = [
        train(TASK, policy, 0, dataset=digits)
        for policy in (plain, replace(plain, phases=(Phase(10, low),)))
    ]
    np.testing.assert_array_equal(runs[0].losses[:10], runs[1].losses[:10])
    later = np.abs(runs[0].losses[10:] - runs[1].losses[10:])
    assert later[0] > 0 and later.max() < 0.02
    same_again = replace(plain, phases=(Phase(10, plain.layers), Phase(20, plain.layers)))
    assert same(runs[0], train(TASK, same_again, 0, dataset=digits))


def test_counting_changes_no_bits(digits: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps run by the counting executable and by the plain one agree, stochastic rounding too."""
    stochastic = RoleRounding(*[Rounding("stochastic")] * 4)
    policy = named("bfloat16", TASK, digits, rounding=stochastic, master_weights=False)
    runs = []
    for interval in (1, 1000):
        monkeypatch.setattr(trainer_module, "PROBE_INTERVAL", interval)
        runs.append(train(TASK, policy, 0, dataset=digits))
    assert same(*runs)


def test_underflows_are_counted_where_they_happen(digits: Dataset) -> None:
    scales = (LossScale("fixed", 2.0**-14), LossScale("fixed", 2.0**10))
    counts = [
        sum(n for _, n in run.underflows)
        for run in (
            train(TASK, named("float16", TASK, digits, loss_scale=s), 0, dataset=digits)
            for s in scales
        )
    ]
    assert counts[0] > 20 * max(counts[1], 1)


def test_accuracy_counts_a_last_partial_batch(digits: Dataset) -> None:
    model = TASK.build_model(digits)
    given = Trainer(model, TASK, named("float32", TASK, digits), 0)
    params = initial_parameters(model, 0)
    given.load(params)
    images, labels = digits.validation[0][0][:75], digits.validation[1][:75]
    hidden = np.maximum(images.reshape(75, -1) @ params["fc1.weight"].T + params["fc1.bias"], 0)
    logits = hidden @ params["fc2.weight"].T + params["fc2.bias"]
    expected = (logits.argmax(axis=1) == labels).mean()
    assert given.accuracy((images,), labels) == pytest.approx(expected)


def test_progress_is_called_every_step(digits: Dataset) -> None:
    seen: list[tuple[int, float]] = []
    run = train(
        TASK, named("float32", TASK, digits), 0, dataset=digits, progress=lambda *a: seen.append(a)
    )
    assert seen == list(enumerate(run.losses.tolist(), 1))


def test_wrong_initial_parameters_and_policies_are_input_errors(digits: Dataset) -> None:
    policy = named("float32", TASK, digits)
    with pytest.raises(InputError, match=r"initial fc1\.weight: nothing"):
        train(TASK, policy, 0, dataset=digits, initial={})
    with pytest.raises(InputError, match="fc1"):
        train(TASK, preset("float32", ["conv1"]), 0, dataset=digits)


def test_a_step_whose_loss_is_not_finite_is_taken_with_its_own_gradients(digits: Dataset) -> None:
    """Looking where it began takes earlier steps again, whose gradients are none of this one."""
    model, ends = TASK.build_model(digits), []
    inputs, labels = digits.batch(np.arange(32))
    broken = [np.full_like(x, 3e38) for x in inputs]
    for records in (True, False):
        trainer = Trainer(model, TASK, named("float32", TASK, digits), 0, records=records)
        trainer.load(initial_parameters(model, 0))
        for _ in range(3):
            trainer.step(inputs, labels)
        loss, _, skipped = trainer.step(broken, labels)
        assert math.isnan(loss) and not skipped
        assert bool(trainer.observations.origins.rows) == records
        ends.append(trainer.params())
    for name, array in ends[0].items():
        assert np.isnan(array).any() and np.array_equal(array, ends[1][name], equal_nan=True)
