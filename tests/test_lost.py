"""What formats lost in a training, by layer and role, counted again by ml_dtypes and numpy."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace

import ml_dtypes
import numpy as np
import numpy.typing as npt
import pytest

from policysearch.data.datasets import Dataset
from policysearch.graph import FloatArray, Node
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy
from policysearch.policy.presets import preset
from policysearch.rounding.rounder import Fast, fast_ways
from policysearch.train.feeding import initial_parameters
from policysearch.train.lost_values import LostValues, Probe, Tally
from policysearch.train.observations import REPEATED, REPEATED_EVERY
from policysearch.train.tasks import Task
from policysearch.train.trainer import PROBE_INTERVAL, Trainer
from policysearch.train.training import train

TASK = Task(
    model="mlp",
    widths=(16,),
    data="digits",
    batch_size=32,
    steps=45,
    tail_steps=5,
    activation="tanh",
)


def policy_of(digits: Dataset, name: str, scale: float) -> Policy:
    """Return the preset with loss scale 1024, and `scale` from step 25 on."""
    layers = TASK.build_model(digits).layer_names
    later = LossScale("schedule", schedule=((0, 2.0**10), (25, scale)))
    return replace(preset(name, layers), loss_scale=later)


class Again(Probe):
    """Counts beside the probe, in the format of ml_dtypes or numpy itself."""

    def __init__(self) -> None:
        super().__init__()
        self.over: dict[tuple[str, str], list[tuple[int, FloatArray]]] = defaultdict(list)
        self.under: dict[tuple[str, str], list[tuple[int, FloatArray]]] = defaultdict(list)

    def __call__(self, node: Node, before: FloatArray, after: FloatArray) -> None:
        super().__call__(node, before, after)
        dtype = np.float16 if node.format == "float16" else getattr(ml_dtypes, node.format)
        with np.errstate(over="ignore"):
            rounded: npt.NDArray[np.float64] = before.astype(dtype).astype(np.float64)
        key = node.layer, node.role
        over = np.isfinite(before) & ~np.isfinite(rounded)
        self.over[key].append((self.step, np.abs(before[over])))
        self.under[key].append((self.step, np.abs(before[(rounded == 0) & (before != 0)])))


@pytest.mark.parametrize(("name", "scale"), [("float16", 2.0**24), ("apex.O3", 2.0**-10)])
def test_counts_by_layer_and_role_with_first_step_and_largest(
    name: str, scale: float, digits: Dataset, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = policy_of(digits, name, scale)
    monkeypatch.setattr("policysearch.train.observations.Probe", Again)
    trainer = Trainer(TASK.build_model(digits), TASK, policy, 0)
    probe = trainer.observations.probe
    assert isinstance(probe, Again)
    trainer.load(initial_parameters(trainer.model, 0))
    rng = np.random.default_rng(1)
    for _ in range(TASK.steps):
        chosen = rng.integers(0, len(digits.train[1]), TASK.batch_size)
        trainer.step((digits.train[0][0][chosen],), digits.train[1][chosen])
    found = {(row.kind, row.layer, row.role): row for row in probe.lost()}
    roles = set()
    for kind, counted in (("overflow", probe.over), ("underflow", probe.under)):
        for (layer, role), parts in counted.items():
            sizes = np.concatenate([part for _, part in parts])
            row = found.pop((kind, layer, role), None)  # type: ignore[arg-type]
            if row is None:
                assert not len(sizes)
                continue
            roles.add(role)
            assert row.count == len(sizes) < row.seen
            assert row.first_step == next(step for step, part in parts if len(part))
            assert row.largest == sizes.max()
    assert not found and {"float16": {"wgrad"}, "apex.O3": {"wgrad", "dgrad"}}[name] <= roles
    assert max(row.first_step for row in probe.lost()) == {"float16": 25, "apex.O3": 40}[name]


def rows(fast: Fast, policy: Policy, digits: Dataset) -> tuple[LostValues, ...]:
    return train(TASK, policy, 0, dataset=digits, fast=fast).lost


def test_every_way_to_run_loses_the_same(digits: Dataset) -> None:
    policy = policy_of(digits, "apex.O3", 2.0**24)
    policy = policy.with_layers({"fc1": replace(policy.layer("fc1"), output="e2m1")})
    first = rows(fast_ways()[0], policy, digits)
    assert {row.kind for row in first} == {"overflow", "underflow", "swamped"}
    assert all(rows(fast, policy, digits) == first for fast in fast_ways()[1:])


def test_only_probed_steps_are_looked_at(digits: Dataset) -> None:
    lost = rows(fast_ways()[0], policy_of(digits, "apex.O3", 1.0), digits)
    assert lost and all(row.first_step % PROBE_INTERVAL == 0 for row in lost)
    swamped = [row for row in lost if row.kind == "swamped"]
    assert {row.role for row in swamped} == {"update"} and {r.layer for r in swamped} <= {
        "fc1",
        "fc2",
    }


def test_a_run_has_the_sums_by_layer_too(digits: Dataset) -> None:
    run = train(TASK, policy_of(digits, "float16", 2.0**21), 0, dataset=digits)
    for kind, by_layer in (("overflow", run.overflows), ("underflow", run.underflows)):
        sums: dict[str, int] = defaultdict(int)
        for row in run.lost:
            if row.kind == kind:
                sums[row.layer] += row.count
        assert dict(by_layer) == dict(sums)
    assert run.overflows


def test_where_every_step_is_skipped_few_are_run_again_to_be_counted(digits: Dataset) -> None:
    """The first ones, and one more in REPEATED_EVERY: all of them would cost most of a run."""
    low = policy_of(digits, "float16", 1.0)
    policy = replace(low, loss_scale=LossScale("dynamic", 2.0**120))
    trainer = Trainer(TASK.build_model(digits), TASK, policy, 0)
    trainer.load(initial_parameters(trainer.model, 0))
    batch = (digits.train[0][0][:32],), digits.train[1][:32]
    counted, repeated, step = 0, [], 0
    for step in range(TASK.steps):
        *_, skipped = trainer.step(*batch)
        rows = trainer.observations.probe.lost()
        seen = sum(row.seen for row in rows if row.kind == "overflow")
        assert skipped and counted <= seen
        if seen > counted and step % PROBE_INTERVAL:
            repeated.append(step)
        counted = seen
    assert repeated == [1, 2, 3, REPEATED_EVERY + 1]
    assert repeated[-1] < step and len(repeated) == REPEATED + step // REPEATED_EVERY


def test_what_lost_nothing_yet_has_its_first_step_still_to_come() -> None:
    tally, none = Tally(), np.zeros(0, np.float32)
    tally.add("overflow", "a", "dgrad", 0, none, 10)
    assert tally.lost() == () and tally.by_layer("overflow") == ()
    tally.add("overflow", "a", "dgrad", 20, np.array([3.0, 5.0], np.float32), 10)
    tally.add("overflow", "a", "wgrad", 20, np.array([9.0], np.float32), 10)
    tally.add("overflow", "a", "dgrad", 40, np.array([4.0], np.float32), 10)
    assert tally.lost() == (
        LostValues("overflow", "a", "dgrad", 3, 30, 20, 5.0),
        LostValues("overflow", "a", "wgrad", 1, 10, 20, 9.0),
    )
    assert tally.by_layer("overflow") == (("a", 4),) and tally.by_layer("underflow") == ()
