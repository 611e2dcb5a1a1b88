"""The trainer step by step: what a skipped step counts and leaves, what a run keeps."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policysearch.data.datasets import Dataset
from policysearch.formats import Rounding
from policysearch.graph import FloatArray
from policysearch.nn.chain import Chain
from policysearch.nn.layers import Conv2d, Flatten, Linear
from policysearch.nn.model import Model
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Phase, Policy, RoleRounding, uniform_layer
from policysearch.policy.presets import preset
from policysearch.train.feeding import initial_parameters
from policysearch.train.loss_scale import ScaleState, initial_state, next_state
from policysearch.train.tasks import Task
from policysearch.train.trainer import Trainer
from policysearch.train.training import train

TASK = Task(
    model="mlp",
    widths=(16,),
    data="digits",
    learning_rate=0.1,
    batch_size=32,
    steps=12,
    tail_steps=5,
)


def float16(task: Task, dataset: Dataset, scale: LossScale) -> Policy:
    return replace(preset("float16", task.build_model(dataset).layer_names), loss_scale=scale)


def batch(
    dataset: Dataset, number: int
) -> tuple[tuple[FloatArray], np.ndarray[tuple[int], np.dtype[np.int64]]]:
    (images,), labels = dataset.train
    part = slice(32 * number, 32 * (number + 1))
    return (images[part],), labels[part]


def adam(
    gradients: list[dict[str, FloatArray]], params: dict[str, FloatArray], lr: float
) -> dict[str, FloatArray]:
    """Return the parameters after the updates of Kingma and Ba's Algorithm 1, in float64."""
    new = {name: value.astype(np.float64) for name, value in params.items()}
    first = {name: np.zeros_like(value) for name, value in new.items()}
    second = {name: np.zeros_like(value) for name, value in new.items()}
    for t, found in enumerate(gradients, 1):
        for name, grad in found.items():
            g = grad.astype(np.float64)
            first[name] = 0.9 * first[name] + 0.1 * g
            second[name] = 0.999 * second[name] + 0.001 * g**2
            m, v = first[name] / (1 - 0.9**t), second[name] / (1 - 0.999**t)
            new[name] -= lr * m / (np.sqrt(v) + 1e-8)
    return {name: value.astype(np.float32) for name, value in new.items()}


def test_adam_counts_updates_and_not_steps(digits: Dataset) -> None:
    """Steps are skipped before and between the updates; the oracle sees the updates alone."""
    task = replace(TASK, optimizer="adam", learning_rate=1e-3)
    scale = LossScale("dynamic", 2.0**26, backoff_factor=2.0**-9, growth_factor=2.0**9)
    policy = float16(task, digits, replace(scale, growth_interval=2))
    model = task.build_model(digits)
    trainer = Trainer(model, task, policy, 0)
    trainer.load(initial_parameters(model, 0))
    start = trainer.params()
    gradients: list[dict[str, FloatArray]] = []
    skips: list[bool] = []
    for number in range(6):
        before = trainer.params()
        _, _, skipped = trainer.step(*batch(digits, number))
        skips.append(skipped)
        if not skipped:
            gradients.append(gradients_of(model, task, policy, before, trainer, number, digits))
            np.testing.assert_allclose(
                trainer.params()["fc1.weight"],
                adam(gradients, start, 1e-3)["fc1.weight"],
                atol=2e-6,
            )
            assert not np.array_equal(trainer.params()["fc1.weight"], before["fc1.weight"])
    assert skips == [True, False, False, True, False, False]
    assert trainer.updates_done == 4 and trainer.step_index == 6


def gradients_of(
    model: Model,
    task: Task,
    policy: Policy,
    params: dict[str, FloatArray],
    trainer: Trainer,
    number: int,
    dataset: Dataset,
) -> dict[str, FloatArray]:
    """Return the unscaled gradients of a step: what plain SGD at rate 1 takes off."""
    scale = LossScale("fixed", 2.0**17)
    plain = replace(task, optimizer="sgd", learning_rate=1.0)
    twin = Trainer(model, plain, replace(policy, loss_scale=scale), 0)
    twin.load(params)
    _, _, skipped = twin.step(*batch(dataset, number))
    assert not skipped
    return {name: params[name] - value for name, value in twin.params().items()}


def overflowing() -> tuple[Chain, dict[str, FloatArray], Dataset]:
    """A net and two examples, of which the second alone overflows float16, in its kernel."""
    layers = (Conv2d("conv", 1, 2, 2), Flatten("flatten"), Linear("fc", 2 * 49, 10))
    model = Chain("net", layers, (1, 8, 8), 10)
    params = {spec.name: np.zeros(spec.shape, np.float32) for spec in model.parameters()}
    params["fc.weight"][:] = np.linspace(-1, 1, 10, dtype=np.float32)[:, np.newaxis]
    images = np.zeros((4, 1, 8, 8), np.float32)
    images[1] = 60000.0
    return model, params, Dataset("two", (images,), np.zeros(4, np.int64), 3, 1, 10)


def test_the_overflow_of_a_skipped_step_is_counted_between_probes_too() -> None:
    model, params, dataset = overflowing()
    task = replace(TASK, batch_size=2, steps=4, tail_steps=1, learning_rate=1e-6)
    policy = replace(preset("float16", model.layer_names), loss_scale=LossScale("fixed", 8.0))
    for bad_steps in ([], [2], [1, 3]):
        indices = np.array([[int(step in bad_steps)] * 2 for step in range(4)])
        run = train(
            task, policy, 0, dataset=dataset, model=model, initial=params, batch_indices=indices
        )
        assert np.flatnonzero(run.skipped).tolist() == bad_steps
        # Two kernels of 2x2, every weight of them.
        expected = (("conv", 8 * len(bad_steps)),) if bad_steps else ()
        assert run.overflows == expected


def test_a_run_keeps_scales_losses_and_skips_of_every_step(digits: Dataset) -> None:
    scale = LossScale("dynamic", 2.0**20, growth_interval=3, backoff_factor=0.25)
    policy = float16(TASK, digits, scale)
    run = train(TASK, policy, 0, dataset=digits)
    expected = [2.0**20]
    clean = 0
    for skipped in run.skipped[:-1]:
        clean = 0 if skipped else clean + 1
        factor = 0.25 if skipped else 2.0 if clean % 3 == 0 else 1.0
        expected.append(expected[-1] * factor)
    assert run.skipped.any() and not run.skipped.all()
    assert run.scales.tolist() == expected
    assert run.losses.shape == run.scales.shape == run.skipped.shape == (12,)
    assert [run.losses.dtype, run.scales.dtype] == [np.dtype(np.float64)] * 2
    assert run.skipped.dtype == np.dtype(np.bool_)
    # Losses are unscaled: those of float32, as nearly as float16 gives them.
    plain = train(TASK, replace(policy, loss_scale=LossScale()), 0, dataset=digits)
    assert run.losses[0] == pytest.approx(plain.losses[0], abs=1e-6)
    assert run.tail_loss == pytest.approx(float(np.mean(run.losses[-5:])), rel=1e-12)
    assert run != plain and run == run


def test_a_schedule_of_scales_is_followed_step_by_step(digits: Dataset) -> None:
    scale = LossScale("schedule", 4.0, schedule=((2, 8.0), (5, 2.0)))
    run = train(TASK, float16(TASK, digits, scale), 0, dataset=digits)
    assert run.scales.tolist() == [4.0] * 2 + [8.0] * 3 + [2.0] * 7


def test_batches_given_are_those_taken_and_no_more_than_the_steps(digits: Dataset) -> None:
    policy = preset("float32", TASK.build_model(digits).layer_names)
    rng = np.random.default_rng(3)
    indices = rng.integers(0, len(digits.train[1]), (15, 32))
    run = train(TASK, policy, 0, dataset=digits, batch_indices=indices)
    assert len(run.losses) == TASK.steps
    trainer = Trainer(TASK.build_model(digits), TASK, policy, 0)
    trainer.load(initial_parameters(trainer.model, 0))
    (images,), labels = digits.train
    own = [trainer.step((images[i],), labels[i])[0] for i in indices[: TASK.steps]]
    assert run.losses.tolist() == own


def test_a_phase_is_entered_at_its_step_and_once(digits: Dataset) -> None:
    plain = preset("float32", TASK.build_model(digits).layer_names)
    low = tuple((name, uniform_layer("float16", param="float16")) for name, _ in plain.layers)
    phases = (Phase(3, low), Phase(5, plain.layers))
    policy = replace(plain, phases=phases, master_weights=False)
    trainer = Trainer(TASK.build_model(digits), TASK, policy, 0)
    trainer.load(initial_parameters(trainer.model, 0))
    stored = []
    for number in range(7):
        trainer.step(*batch(digits, number))
        weights = trainer.params()["fc1.weight"]
        stored.append(bool((weights == weights.astype(np.float16)).all()))
    assert stored == [False, False, False, True, True, False, False]


def test_gradients_are_clipped_to_the_norm_of_the_task(digits: Dataset) -> None:
    """At rate 1 the whole update is the clipped gradient: its norm is the limit."""
    task = replace(TASK, optimizer="sgd", learning_rate=1.0)
    plain = preset("float32", task.build_model(digits).layer_names)
    lengths = []
    for limit in (None, 0.125):
        trainer = Trainer(task.build_model(digits), replace(task, clip_norm=limit), plain, 0)
        start = initial_parameters(trainer.model, 0)
        trainer.load(start)
        trainer.step(*batch(digits, 0))
        taken = [start[name] - value for name, value in trainer.params().items()]
        lengths.append(float(np.sqrt(sum((part.astype(float) ** 2).sum() for part in taken))))
    assert lengths[0] > 0.25 and lengths[1] == pytest.approx(0.125, rel=1e-5)


def test_parameters_are_copies_and_load_writes_all(digits: Dataset) -> None:
    model = TASK.build_model(digits)
    trainer = Trainer(model, TASK, preset("float32", model.layer_names), 0)
    given = {name: value + 1 for name, value in initial_parameters(model, 5).items()}
    trainer.load(given)
    taken = trainer.params()
    assert all(np.array_equal(taken[name], value) for name, value in given.items())
    taken["fc1.weight"][:] = 0.0
    assert np.array_equal(trainer.params()["fc1.weight"], given["fc1.weight"])


def test_a_new_state_has_seen_nothing() -> None:
    assert ScaleState(8.0) == ScaleState(8.0, good_steps=0, overflows_in_a_row=0)


def test_chance_in_rounding_is_drawn_from_the_seed_in_validation_too(digits: Dataset) -> None:
    """The same parameters, rounded coarsely by chance: another seed, another accuracy."""
    model = TASK.build_model(digits)
    coarse = replace(uniform_layer("bfloat16"), output="float4_e2m1fn")
    plain = preset("bfloat16", model.layer_names)
    policy = replace(
        plain.with_layers(dict.fromkeys(model.layer_names, coarse)),
        rounding=RoleRounding(fprop=Rounding("stochastic")),
    )
    found = []
    for seed in (0, 1, 2, 1):
        trainer = Trainer(model, TASK, policy, seed)
        trainer.load(initial_parameters(model, 0))
        found.append(trainer.accuracy(*digits.validation))
    assert found[1] == found[3]
    assert len(set(found)) > 1


def test_values_out_of_range_are_counted_in_every_twentieth_step(digits: Dataset) -> None:
    """Counts of policies are compared, and a sparser look would change them."""
    coarse = replace(uniform_layer("bfloat16"), output="float4_e2m1fn")
    counts = {}
    for steps in (1, 2, 20, 21, 40, 41):
        task = replace(TASK, steps=steps, tail_steps=1)
        plain = preset("bfloat16", task.build_model(digits).layer_names)
        policy = plain.with_layers(dict.fromkeys(task.build_model(digits).layer_names, coarse))
        run = train(task, policy, 0, dataset=digits)
        counts[steps] = sum(count for _, count in run.underflows)
    assert 0 < counts[1] == counts[2] == counts[20] < counts[21] == counts[40] < counts[41]


def test_a_loss_that_is_not_finite_ends_no_run_where_its_step_was_skipped() -> None:
    """The step itself counts, not the first: one batch is beyond float16 and is left out."""
    model, params, dataset = overflowing()
    images = dataset.images.copy()
    images[1] = 1e30
    wild = replace(dataset, inputs=(images,))
    task = replace(TASK, batch_size=2, steps=4, tail_steps=1, learning_rate=1e-6)
    policy = replace(preset("float16", model.layer_names), loss_scale=LossScale("dynamic", 8.0))
    indices = np.array([[0, 0], [0, 0], [1, 1], [0, 0]])
    run = train(task, policy, 0, dataset=wild, model=model, initial=params, batch_indices=indices)
    assert run.skipped.tolist() == [False, False, True, False]
    assert np.isfinite(run.losses).tolist() == [True, True, False, True]
    assert not run.diverged


def test_overflows_in_a_row_are_those_since_the_last_finite_step() -> None:
    config = LossScale("dynamic", 2.0**20)
    state = initial_state(config)
    seen = []
    for step, finite in enumerate([False, False, True, True, False, True]):
        state = next_state(config, state, finite, step)
        seen.append(state.overflows_in_a_row)
    assert seen == [1, 2, 0, 0, 1, 0]
