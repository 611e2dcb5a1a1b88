"""What a policy is worth: gaps paired by seed, noise that moves, and measurements of what ran."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from policysearch.cost.price import PolicyCost
from policysearch.graph import Graph
from policysearch.objective.objective import JITTER, Objective
from policysearch.objective.score import DIVERGED_GAP, Measurement, gap, score
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy
from policysearch.policy.presets import preset
from policysearch.train import step
from policysearch.train.gradients import Clipping
from policysearch.train.step import trace_step
from policysearch.train.tasks import Task
from policysearch.train.training import train

TASK = Task(
    model="mlp",
    activation="tanh",
    widths=(8,),
    data="digits",
    batch_size=32,
    steps=8,
    tail_steps=3,
    optimizer="momentum",
)
RAN = Measurement(0.5, 0.9, None, 3, (("fc1", 2), ("fc2", 7)), (("fc1", 5),))
LOST = replace(RAN, tail_loss=None, diverged_at=4)


@pytest.fixture(scope="module")
def objective() -> Objective:
    return Objective(TASK, "H100-SXM5", "torch.compile", 4096)


def test_the_jitter_moves_the_start(objective: Objective) -> None:
    """Against a training made by hand, from a start that differs by it."""
    moved = objective.measure(objective.float32, 1, JITTER)
    run = train(TASK, objective.float32, 1, dataset=objective.dataset, jitter=JITTER)
    assert moved.tail_loss == run.tail_loss
    assert 0.0 < abs(gap(moved, objective.measure(objective.float32, 1))) < 1e-3


def test_a_measurement_is_what_the_training_showed(objective: Objective) -> None:
    """Every field against the run itself, with a scale that makes steps skip."""
    scale = LossScale("dynamic", 2.0**26, growth_interval=100)
    policy = replace(preset("float16", objective.model.layer_names), loss_scale=scale)
    policy = policy.with_layers({"fc1": replace(policy.layer("fc1"), output="float4_e2m1fn")})
    measured = objective.measure(policy, 0)
    run = train(TASK, policy, 0, dataset=objective.dataset)
    assert measured.skipped_steps == int(run.skipped.sum()) > 0
    assert measured.skips == tuple(np.flatnonzero(run.skipped))
    assert measured.overflows == run.overflows != ()
    assert measured.underflows == run.underflows != ()
    assert measured.overflows != measured.underflows
    assert measured.tail_loss == run.tail_loss == pytest.approx(float(np.mean(run.losses[-3:])))
    assert measured.validation_accuracy == run.validation_accuracy is not None
    assert run.validation_accuracy > 0.0
    assert measured.diverged_at is None and not measured.diverged


def test_jitter_reaches_the_training(objective: Objective) -> None:
    float32 = objective.float32
    assert objective.measure(float32, 0, 1e-3).tail_loss != objective.measure(float32, 0).tail_loss


def test_a_score_compares_with_float32_of_the_same_seed(objective: Objective) -> None:
    policy = preset("bfloat16", objective.model.layer_names)
    found = [objective.evaluate(policy, seed) for seed in (0, 1)]
    for seed, made in enumerate(found):
        own = train(TASK, policy, seed, dataset=objective.dataset).tail_loss
        base = train(TASK, objective.float32, seed, dataset=objective.dataset).tail_loss
        assert made.loss_gap == own - base != 0.0
        assert made.cost == objective.price(policy) != objective.price(objective.float32)
    assert found[0].loss_gap != found[1].loss_gap
    assert objective.evaluate(objective.float32, 0).loss_gap == 0.0


def test_the_baseline_is_trained_once_per_seed(
    objective: Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    fresh = Objective(TASK, "H100-SXM5", "torch.compile")
    seeds: list[int] = []

    def measure(_: Objective, policy: object, seed: int, jitter: float = 0.0) -> Measurement:
        seeds.append(seed)
        return RAN

    monkeypatch.setattr(Objective, "measure", measure)
    for seed in (3, 4, 3, 4):
        fresh.baseline(seed)
    assert seeds == [3, 4]


def test_a_gap_is_signed_and_at_most_that_of_a_lost_run() -> None:
    assert gap(RAN, replace(RAN, tail_loss=0.75)) == -0.25
    assert gap(replace(RAN, tail_loss=0.75), RAN) == 0.25
    assert gap(replace(RAN, tail_loss=1e6), RAN) == DIVERGED_GAP
    for own, base in ((LOST, RAN), (RAN, LOST), (RAN, None), (LOST, None)):
        assert gap(own, base) == DIVERGED_GAP


def test_a_score_keeps_all_the_measurement_says(objective: Objective) -> None:
    cost = objective.price(objective.float32)
    made = score(LOST, RAN, cost)
    assert made.diverged and made.loss_gap == DIVERGED_GAP and made.cost is cost
    for field in dataclasses.fields(made):
        if field.name in {row.name for row in dataclasses.fields(RAN)}:
            assert getattr(made, field.name) == getattr(LOST, field.name), field.name


def test_a_lost_run_says_where_and_the_layer_that_overflowed_most() -> None:
    assert not RAN.diverged and LOST.diverged
    assert LOST.divergence == "diverged in step 4, most overflows in fc2"
    assert replace(LOST, overflows=()).divergence == "diverged in step 4"
    assert replace(RAN, diverged_at=0).diverged


def test_the_priced_batch_is_that_given_or_else_the_tasks() -> None:
    """FLOPs of a step grow with its batch, and are read from the graph that is priced."""
    own = Objective(TASK, "H100-SXM5", "torch.compile")
    large = Objective(TASK, "H100-SXM5", "torch.compile", 4096)
    assert (own.cost_batch_size, large.cost_batch_size) == (32, 4096)
    for given, batch in ((own, 32), (large, 4096)):
        (images,) = (n for n in given.step_graph(given.float32).nodes if n.name == "images")
        assert images.shape[0] == batch
    assert large.price(large.float32).speedup == 1.0
    assert large.price(large.float32).peak_bytes > own.price(own.float32).peak_bytes


def test_a_loss_that_is_not_finite_is_no_tail_loss(objective: Objective) -> None:
    wild = Objective(replace(TASK, learning_rate=1e6), "H100-SXM5", "torch.compile")
    measured = wild.measure(wild.float32, 0)
    assert measured.diverged and measured.tail_loss is None
    assert measured.diverged_at is not None and measured.validation_accuracy is not None


def test_float32_is_traced_once_however_many_policies_are_priced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    traced: list[Clipping] = []

    def counted(*arguments: Any) -> Graph:
        traced.append(arguments[4])
        return trace_step(*arguments)

    monkeypatch.setattr(step, "trace_step", counted)
    step.tracing_of.cache_clear()
    own = Objective(TASK, "H100-SXM5", "torch.compile", 4096)
    layers = own.model.layer_names
    policies = [preset(name, layers) for name in ("float16", "bfloat16", "te.current")]
    costs = [own.price(policy) for policy in policies]
    assert traced == [Clipping()]
    clipping = Objective(replace(TASK, clip_norm=1.0), "H100-SXM5", "torch.compile", 4096)
    clipped = [clipping.price(policy) for policy in policies]
    assert traced == [Clipping(), Clipping(1.0)]
    _ = clipping.task.tracing(clipping.model, 4096).float32
    assert len(traced) == 2
    assert all(c.step_seconds > p.step_seconds for c, p in zip(clipped, costs, strict=True))


def test_equal_policies_are_priced_once(monkeypatch: pytest.MonkeyPatch) -> None:
    priced: list[str] = []
    step_cost = Objective._step_cost

    def counted(self: Objective, policy: Policy) -> PolicyCost:
        priced.append(policy.name)
        return step_cost(self, policy)

    monkeypatch.setattr(Objective, "_step_cost", counted)
    own = Objective(TASK, "H100-SXM5", "torch.compile", 4096)
    low, other = (preset(name, own.model.layer_names) for name in ("bfloat16", "float16"))
    renamed = replace(low, name="the same")
    assert own.price(low) == own.price(renamed) != own.price(other)
    assert priced == ["bfloat16", "float16"]
