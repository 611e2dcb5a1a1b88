"""Updates that vanish, counted by numpy in float64 on a net that is one matrix and a bias."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from policysearch.data.datasets import Dataset, batches
from policysearch.formats import FORMATS, Rounding, format_named
from policysearch.nn.model import Model
from policysearch.optimizers.optimizer import OptimizerKind
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Phase, Policy, RoleRounding
from policysearch.policy.presets import preset
from policysearch.rounding.rounder import Fast, quantise
from policysearch.train import observations
from policysearch.train import trainer as trainer_module
from policysearch.train.feeding import initial_parameters
from policysearch.train.run import Run
from policysearch.train.schedule import Schedule
from policysearch.train.swamped import NOT_COUNTED, SwampedCounter, half_unit
from policysearch.train.tasks import Task
from policysearch.train.trainer import Trainer
from policysearch.train.training import train
from tests.rounding_oracle import FASTS
from tests.turns import turns

Wide = npt.NDArray[np.float64]
Move = Callable[[int, Wide, dict[str, Wide]], Wide]
"""(updates counted from 1, gradient, state of the parameter) to what is subtracted, at rate 1."""

TASK = Task(model="mlp", data="digits", batch_size=32, steps=30, tail_steps=5)
DTYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


def stored_in(model: Model, name: str, **changes: Any) -> Policy:
    """Return float32 but for the parameters, which are kept in the format `name`, no masters."""
    plain = preset("float32", model.layer_names)
    layers = tuple((layer, replace(formats, param=name)) for layer, formats in plain.layers)
    return replace(plain, layers=layers, master_weights=False, **changes)


def sgd(count: int, grad: Wide, state: dict[str, Wide]) -> Wide:
    return grad


def momentum(count: int, grad: Wide, state: dict[str, Wide]) -> Wide:
    state["v"] = 0.9 * state.get("v", np.zeros_like(grad)) + grad
    return state["v"]


def nesterov(count: int, grad: Wide, state: dict[str, Wide]) -> Wide:
    return grad + 0.9 * momentum(count, grad, state)


def adam(count: int, grad: Wide, state: dict[str, Wide]) -> Wide:
    state["m"] = 0.9 * state.get("m", np.zeros_like(grad)) + 0.1 * grad
    state["v"] = 0.999 * state.get("v", np.zeros_like(grad)) + 0.001 * grad**2
    first, second = state["m"] / (1 - 0.9**count), state["v"] / (1 - 0.999**count)
    return first / (np.sqrt(second) + 1e-8)


def gradients(
    params: dict[str, npt.NDArray[np.float32]], images: Wide, labels: npt.NDArray[np.int64]
) -> dict[str, Wide]:
    """Return those of softmax regression."""
    wide = {name: array.astype(np.float64) for name, array in params.items()}
    logits = images @ wide["fc1.weight"].T + wide["fc1.bias"]
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    wrong = odds / odds.sum(axis=1, keepdims=True) - np.eye(10)[labels]
    found = {"fc1.weight": wrong.T @ images / len(labels), "fc1.bias": wrong.mean(axis=0)}
    return {name: found[name] for name in params}


def unit(values: npt.NDArray[np.float32], dtype: type) -> Wide:
    """Return the distance to the next larger number, by the dtype's own arithmetic of bits."""
    size: npt.NDArray[Any] = np.abs(values).astype(dtype)
    above: npt.NDArray[Any] = (size.view(np.uint16) + np.uint16(1)).view(dtype)
    return above.astype(np.float64) - size.astype(np.float64)


def by_hand(
    policy: Policy, task: Task, digits: Dataset, move: Move, dtype: type
) -> Iterator[tuple[int, Wide, Wide, npt.NDArray[np.bool_], Trainer]]:
    """Yield (step, updates, units, what moved, trainer), exact from the parameters as kept."""
    model = task.build_model(digits)
    trainer = Trainer(model, task, policy, 0)
    trainer.load(initial_parameters(model, 0))
    states: dict[str, dict[str, Wide]] = {"fc1.weight": {}, "fc1.bias": {}}
    drawn = batches(digits, task.batch_size, task.steps, np.random.default_rng([0, 1]))
    for index, chosen in enumerate(drawn):
        images, labels = digits.train[0][0][chosen], digits.train[1][chosen]
        before = trainer.params()
        flat = images.reshape(len(images), -1).astype(np.float64)
        grads = gradients(before, flat, labels)
        trainer.step((images,), labels)
        after = trainer.params()
        ways = [move(index + 1, grad, states[name]) for name, grad in grads.items()]
        updates = np.concatenate([task.rate_at(index) * np.abs(way).ravel() for way in ways])
        units = np.concatenate([unit(array.ravel(), dtype) for array in before.values()])
        moved = np.concatenate([(before[name] != after[name]).ravel() for name in before])
        yield index, updates, units, moved, trainer


@pytest.mark.parametrize("stored", DTYPES)
@pytest.mark.parametrize(
    ("move", "changes"),
    [
        (sgd, {"optimizer": "sgd", "learning_rate": 0.01}),
        (momentum, {"optimizer": "momentum"}),
        (nesterov, {"optimizer": "momentum", "nesterov": True}),
        (adam, {"optimizer": "adam", "learning_rate": 1e-5}),
    ],
    ids=["sgd", "momentum", "nesterov", "adam"],
)
def test_the_share_is_that_of_updates_below_half_a_unit(
    stored: str, move: Move, changes: dict[str, Any], digits: Dataset
) -> None:
    task = replace(TASK, schedule=Schedule("step", period_steps=15), **changes)
    policy = stored_in(task.build_model(digits), stored)
    shares, projected, counts, largest = [], 0.0, [], 0.0
    for index, updates, units, moved, trainer in by_hand(
        policy, task, digits, move, DTYPES[stored]
    ):
        swamped = (updates > 0) & (updates < units / 2)
        assert not moved[updates < units * 0.2499].any()  # a quarter: just above a power of two
        if index % trainer_module.PROBE_INTERVAL == 0:
            shares.append((index, float(swamped.mean())))
            small = updates * (task.rate_at(29) / task.rate_at(index))
            projected = float(((updates > 0) & (small < units / 2)).mean())
            counts.append(int(swamped.sum()))
            largest = max(largest, float(updates[swamped].max(initial=0.0)))
        found, (lost,) = (
            trainer.observations.watch.swamped(),
            trainer.observations.watch.lost() or (None,),
        )
    assert [step for step, _ in shares] == [0, 20] and shares[-1][1] > 0.01
    assert found.shares == tuple(shares)
    assert found.projected == projected > 0.0
    assert found.layer == "fc1" and found.layer_share == found.projected
    assert lost is not None
    assert (lost.kind, lost.layer, lost.role) == ("swamped", "fc1", "update")
    assert (lost.count, lost.seen) == (sum(counts), 2 * 650)
    assert lost.first_step == (0 if counts[0] else 20)
    assert lost.largest == pytest.approx(largest, rel=1e-4)


def test_the_smallest_rate_is_projected_to(digits: Dataset) -> None:
    task = replace(TASK, learning_rate=0.05)
    policy = stored_in(task.build_model(digits), "float16")
    falling = replace(task, schedule=Schedule("step", period_steps=25, factor=0.01))
    runs = [train(each, policy, 0, dataset=digits).swamped for each in (task, falling)]
    assert runs[0].shares == runs[1].shares
    assert runs[0].projected == runs[0].shares[-1][1]
    assert runs[1].projected > 2 * runs[0].projected > 0.0


def test_smallest_rates() -> None:
    assert TASK.smallest_rate == TASK.learning_rate
    warm = replace(TASK, schedule=Schedule(warmup_steps=10, warmup_factor=0.01))
    assert warm.smallest_rate == TASK.learning_rate
    assert replace(TASK, schedule=Schedule("step", 15)).smallest_rate == pytest.approx(1e-3)
    assert replace(TASK, schedule=Schedule("cosine", 10)).smallest_rate == pytest.approx(1e-4)
    all_warm = replace(TASK, schedule=Schedule(warmup_steps=TASK.steps, warmup_factor=0.5))
    assert all_warm.smallest_rate == pytest.approx(0.5 * TASK.learning_rate, rel=0.1)


def test_masters_lose_nothing(digits: Dataset) -> None:
    """Not quite: float32 has a last place too, and dead inputs' velocities decay through it."""
    for name in ("float32", "bfloat16", "float8", "mindspore.O2.fixed128"):
        policy = preset(name, TASK.build_model(digits).layer_names)
        found = train(TASK, policy, 0, dataset=digits).swamped
        assert len(found.shares) == 2 and found.projected < 1e-2


def test_rounding_by_chance_swamps_nothing(digits: Dataset) -> None:
    update = RoleRounding(update=Rounding("stochastic"))
    model = TASK.build_model(digits)
    nearest, chance = (stored_in(model, "bfloat16"), stored_in(model, "bfloat16", rounding=update))
    assert train(TASK, nearest, 0, dataset=digits).swamped.projected > 0.05
    assert train(TASK, chance, 0, dataset=digits).swamped.projected == 0.0


@pytest.mark.parametrize("compensation", ["kahan", "remainder"])
def test_what_is_kept_beside_a_parameter_is_not_swamped(compensation: Any, digits: Dataset) -> None:
    task = replace(TASK, optimizer="adamw", learning_rate=1e-5, weight_decay=1.0)
    model = task.build_model(digits)
    bare = stored_in(model, "bfloat16")
    kept = replace(bare, compensation=compensation)
    lost, left = (train(task, policy, 0, dataset=digits) for policy in (bare, kept))
    assert lost.swamped.projected > 0.5
    assert left.swamped.projected == 0.0 and not left.lost
    wide = train(task, stored_in(model, "float32"), 0, dataset=digits)
    moved = [np.abs(run.params["fc1.weight"] - wide.params["fc1.weight"]) for run in (left, lost)]
    assert moved[0].mean() < moved[1].mean()


def test_a_step_that_is_skipped_has_no_update(digits: Dataset) -> None:
    model = TASK.build_model(digits)
    policy = replace(preset("apex.O3", model.layer_names), loss_scale=LossScale("dynamic", 2.0**24))
    run = train(TASK, policy, 0, dataset=digits)
    assert run.skipped[0]
    assert all(not run.skipped[step] for step, _ in run.swamped.shares)
    assert SwampedCounter().swamped() == NOT_COUNTED


def test_the_rate_of_an_update_is_that_of_its_step(digits: Dataset) -> None:
    """Skipped steps count for the schedule, which is at its smallest rate from step 18 on."""
    model = TASK.build_model(digits)
    low = replace(preset("apex.O3", model.layer_names), loss_scale=LossScale("dynamic", 2.0**26))
    task = replace(TASK, learning_rate=0.05, schedule=Schedule("step", 18, factor=0.01))
    run = train(task, low, 0, dataset=digits)
    assert 3 < np.count_nonzero(run.skipped) < 18 and not run.skipped[18:].any()
    assert run.swamped.shares[-1][0] == 20
    assert run.swamped.projected == run.swamped.shares[-1][1] > 0.0


@pytest.mark.parametrize(
    "name", [*(name for name in FORMATS if name != "float32"), "e5m7", "e4m3fn"]
)
def test_half_a_unit_is_where_rounding_turns(name: str) -> None:
    fmt = format_named(name)
    rng = np.random.default_rng(0)
    raw = (rng.standard_normal(4000) * 2.0 ** rng.integers(-30, 10, 4000)).astype(np.float32)
    drawn = quantise(np.concatenate([raw, np.zeros(1, np.float32)]), fmt)
    drawn = drawn[np.isfinite(drawn) & (np.abs(drawn) < fmt.max / 4)]
    half = half_unit(drawn, fmt)
    for factor, stays in ((0.99, True), (1.01, False)):
        away = np.copysign(half * factor, drawn) + drawn
        there = quantise(away.astype(np.float32), fmt)
        assert ((there == drawn) == stays).all()
    assert (half > 0).all()


def test_half_a_unit_of_float32() -> None:
    """As numpy spaces its numbers; below the smallest ones there is no float32 to say half."""
    values = np.array([1.0, -1.5, 3e-39, 1e-30, 3e38, 0.0], np.float32)
    half = np.abs(np.spacing(values)) / 2
    np.testing.assert_array_equal(half_unit(values, format_named("float32")), half)


def test_half_a_unit_of_a_single_value_is_one() -> None:
    """A parameter of torch may have no axes."""
    half = half_unit(np.array(3.0, np.float32), format_named("bfloat16"))
    assert half.shape == () and half == 2.0**-7


class Blind(SwampedCounter):
    """Sees nothing."""

    def before(self, step: object) -> None: ...

    def after(self, step: object, index: int, factor: float) -> None: ...


def same(one: Run, other: Run) -> bool:
    """Return whether the two agree in every bit but for what is swamped."""
    params = all(np.array_equal(one.params[n], other.params[n]) for n in one.params)
    arrays = all(
        np.array_equal(getattr(one, n), getattr(other, n)) for n in ("losses", "scales", "skipped")
    )
    counts = one.overflows == other.overflows and one.underflows == other.underflows
    return params and arrays and counts


@pytest.mark.parametrize(
    ("kind", "optimizer", "fast"),
    turns(
        ["apex.O3", "bfloat16", "float8", "phases", "stochastic", "stored"],
        ["sgd", "momentum", "adam", "adamw"],
        FASTS,
    ),
)
def test_watching_changes_no_bits(
    kind: str,
    optimizer: OptimizerKind,
    fast: Fast,
    digits: Dataset,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = replace(
        TASK, widths=(16,), optimizer=optimizer, epsilon=1e-4, weight_decay=0.01, steps=12
    )
    model = task.build_model(digits)
    chance = RoleRounding(*[Rounding("stochastic")] * 4)
    made = kind in ("phases", "stochastic", "stored")
    plain = preset("float32" if made else kind, model.layer_names)
    if kind == "stored":
        plain = stored_in(model, "bfloat16")
    elif kind == "stochastic":
        plain = stored_in(model, "bfloat16", rounding=chance)
    elif kind == "phases":
        plain = replace(plain, phases=(Phase(6, preset("apex.O3", model.layer_names).layers),))
    monkeypatch.setattr(trainer_module, "PROBE_INTERVAL", 3)
    seen = train(task, plain, 0, dataset=digits, fast=fast)
    monkeypatch.setattr(observations, "with_update_sources", lambda graph: graph)
    monkeypatch.setattr(observations, "SwampedCounter", Blind)
    unseen = train(task, plain, 0, dataset=digits, fast=fast)
    assert len(seen.swamped.shares) == 4 and unseen.swamped == NOT_COUNTED
    assert (seen.swamped.projected > 0.001) == (kind in ("apex.O3", "stored"))
    assert same(seen, unseen)


@pytest.mark.parametrize("order", ["fused", "eager"])
def test_decay_and_state_that_vanish_are_counted(order: str, digits: Dataset) -> None:
    """A decay of 1e-5 of a bfloat16 never moves it, a thousandth of it never moves a moment."""
    task = replace(
        TASK, widths=(16,), optimizer="adamw", learning_rate=1e-5, weight_decay=1.0, steps=25
    )
    model = task.build_model(digits)
    low = stored_in(model, "bfloat16", optimizer_state="bfloat16", optimizer_order=order)
    found = {row.kind: row for row in train(task, low, 0, dataset=digits).lost}
    assert found["decay"].count and found["decay"].layer in model.layer_names
    assert found["decay"].largest < 1.0e-5 * 2.0  # the rate times the largest weight
    # moments begin at zero, which any change moves; later a thousandth of a change is added to v
    assert found["state"].count and found["state"].first_step == 20
    wide = replace(stored_in(model, "float32"), optimizer_state="float32")
    kinds = {row.kind for row in train(task, wide, 0, dataset=digits).lost}
    assert not {"decay", "state"} & kinds


@pytest.mark.parametrize("optimizer", ["lion", "muon", "adafactor"])
def test_decay_of_every_optimizer_that_shrinks_is_counted(
    optimizer: OptimizerKind, digits: Dataset
) -> None:
    task = replace(
        TASK, widths=(16,), optimizer=optimizer, learning_rate=1e-5, weight_decay=1.0, steps=5
    )
    model = task.build_model(digits)
    lost = {
        fmt: train(task, stored_in(model, fmt), 0, dataset=digits).lost
        for fmt in ("bfloat16", "float32")
    }
    decays = [row for row in lost["bfloat16"] if row.kind == "decay"]
    assert {row.layer for row in decays} == {"fc1", "fc2"}
    assert all(0.0 < row.largest < 2e-5 for row in decays)
    assert not [row for row in lost["float32"] if row.kind == "decay"]
