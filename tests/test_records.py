"""Facts of a study: written, read back from the file, and what is made of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from optuna.distributions import CategoricalDistribution, IntDistribution
from optuna.trial import TrialState

from policysearch.cost.price import PolicyCost
from policysearch.objective.objective import JITTER, Objective
from policysearch.objective.score import DIVERGED_GAP, Failure, Measurement, Outcome
from policysearch.policy.policy import from_json
from policysearch.policy.presets import preset
from policysearch.study.float32_runs import float32_fault, noise_gap
from policysearch.study.journal.records import Asked, Records, RunKey, compact
from policysearch.study.journal.storage import (
    OpenJournal,
    exclusive,
    open_for_writing,
    read_journal,
)
from policysearch.study.journal.trials import FailedTrial, Trial
from policysearch.study.scoring import read_results, scored
from policysearch.study.specification import StudySpec, load_spec
from tests.studies import write_study

FLOAT32, LOW = preset("float32", ("fc1",)), preset("bfloat16", ("fc1",))
BASE, OWN = FLOAT32.digest, LOW.digest
RAN = Measurement(0.5, 0.75, None, 3, (("fc1", 2),), (("fc2", 4),))
LOST = replace(RAN, tail_loss=None, diverged_at=9)
PARAMS = {"kind": "bfloat16", "depth": 3}
ASKED = Asked(-1, OWN, compact(LOW), ("bfloat16", "other"), PARAMS, 4, 2, start=True)
KINDS = {"kind": CategoricalDistribution(["float16", "bfloat16"]), "depth": IntDistribution(1, 8)}


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    return load_spec(write_study(tmp_path_factory.mktemp("study")))


@pytest.fixture(scope="module")
def cost(spec: StudySpec) -> PolicyCost:
    objective = Objective(spec.task, spec.cost.device, spec.cost.stack)
    return objective.price(objective.float32)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[OpenJournal]:
    path = tmp_path / "a.journal"
    with exclusive(path):
        yield open_for_writing(path, "tiny", ["minimize", "maximize"], ["loss_gap", "speedup"])


def read_back(journal: OpenJournal, tmp_path: Path) -> Records:
    reading = read_journal((tmp_path / "a.journal").read_bytes())
    assert not reading.damage
    return Records(reading.lines)


def test_every_fact_is_read_back_as_it_was_written(
    journal: OpenJournal, tmp_path: Path, cost: PolicyCost
) -> None:
    records = Records([], journal)
    outcomes: dict[RunKey, Outcome] = {
        RunKey(BASE, 0): RAN,
        RunKey(BASE, 0, JITTER): replace(RAN, tail_loss=0.25),
        RunKey(OWN, 1): LOST,
        RunKey(OWN, 2): Failure("no memory"),
        RunKey(OWN, 3, until=6): RAN,
        RunKey(OWN, 3, width=0.25): replace(RAN, tail_loss=0.75),
    }
    records.add_identity({"float32": BASE})
    for key, outcome in outcomes.items():
        records.add_run(key, outcome)
    records.add_price("here", OWN, cost)
    records.add_identity({"float32": BASE, "code": {}})
    records.add_asked(ASKED)
    for reason in ("budget", "budget", "time"):
        records.add_stop(reason)
    again = read_back(journal, tmp_path)
    for made in (records, again):
        assert made.outstanding == {OWN: ASKED}
        assert made.stops == ["budget", "time"]
        assert made.runs == outcomes
        assert made.prices == {("here", OWN): cost}
        assert made.identities == [{"float32": BASE}, {"float32": BASE, "code": {}}]
        assert made.trials == []


def test_a_policy_is_read_back_with_its_number_decisions_runs_and_cost(
    journal: OpenJournal, tmp_path: Path, cost: PolicyCost
) -> None:
    records = Records([], journal)
    outcomes: dict[int, Outcome] = {0: RAN, 1: LOST}
    records.add_asked(ASKED)
    for number, values in enumerate(({"speedup": 2.0, "memory": 9.0, "loss_gap": 0.25}, None)):
        priced = None if values is None else cost
        asked = replace(ASKED, number=7, place=number + 4, by_hand=number == 1)
        records.add_trial(asked, KINDS, outcomes, "here", priced, values, {"shown": number})
    again = read_back(journal, tmp_path)
    for made in (records, again):
        assert made.trials == [
            replace(ASKED, number=n, place=n + 4, by_hand=n == 1) for n in (0, 1)
        ]
        assert made.outstanding == {}
    assert again.runs == {RunKey(OWN, 0): RAN, RunKey(OWN, 1): LOST}
    assert again.prices == {("here", OWN): cost}
    # As Optuna's own tools see them.
    done, failed = journal.study.trials
    assert (done.state, failed.state) == (TrialState.COMPLETE, TrialState.FAIL)
    assert done.values == [0.25, 2.0] and done.params == ASKED.params
    assert done.user_attrs["shown"] == 0 and done.user_attrs["policy"] == ASKED.text
    assert done.constraints == {"diverged": 1.0}


def test_a_sound_policy_keeps_the_constraint(journal: OpenJournal, cost: PolicyCost) -> None:
    records = Records([], journal)
    runs: dict[int, Outcome] = {0: RAN, 1: Failure("killed")}
    records.add_trial(ASKED, KINDS, runs, "here", cost, {"loss_gap": 0.25, "speedup": 2.0}, {})
    assert journal.study.trials[0].constraints == {"diverged": 0.0}


def test_records_without_a_journal_are_for_reading() -> None:
    with pytest.raises(TypeError, match="for reading only"):
        Records([]).add_run(RunKey(OWN, 0), RAN)


def test_a_policy_on_one_line_is_the_policy() -> None:
    assert "\n" not in compact(LOW) and " " not in compact(LOW).replace(LOW.name, "")
    assert from_json(compact(LOW)) == LOW


SEEDS = (3, 5)


def runs_of(**changes: Outcome) -> dict[RunKey, Outcome]:
    """Runs of float32 and of a policy whose gaps are 0.25 and 0.75, some replaced."""
    runs: dict[str, tuple[RunKey, Outcome]] = {
        "base3": (RunKey(BASE, 3), replace(RAN, tail_loss=1.0)),
        "base5": (RunKey(BASE, 5), replace(RAN, tail_loss=2.0)),
        "own3": (RunKey(OWN, 3), replace(RAN, tail_loss=1.25)),
        "own5": (RunKey(OWN, 5), replace(RAN, tail_loss=2.75)),
    }
    return {key: changes.get(name, outcome) for name, (key, outcome) in runs.items()}


def test_gaps_are_paired_by_seed(cost: PolicyCost) -> None:
    trial = scored(ASKED, runs_of(), BASE, SEEDS, lambda _: cost)
    assert isinstance(trial, Trial)
    assert [score.loss_gap for score in trial.scores] == [0.25, 0.75]
    assert (trial.number, trial.digest, trial.text) == (ASKED.number, OWN, ASKED.text)
    assert trial.presets == ASKED.presets and trial.divergence == "" and not trial.diverged
    assert all(score.cost is cost for score in trial.scores)


@pytest.mark.parametrize("missing", [RunKey(BASE, 3), RunKey(BASE, 5), RunKey(OWN, 5)])
def test_a_policy_with_a_run_outstanding_is_no_result(missing: RunKey, cost: PolicyCost) -> None:
    runs = runs_of()
    del runs[missing]
    assert scored(ASKED, runs, BASE, SEEDS, lambda _: cost) is None


def test_the_first_run_that_was_lost_is_told_with_its_seed(cost: PolicyCost) -> None:
    later = replace(LOST, diverged_at=2)
    for changes, said in (
        ({"own3": LOST, "own5": later}, "diverged in step 9, most overflows in fc1 (seed 3)"),
        ({"own5": later}, "diverged in step 2, most overflows in fc1 (seed 5)"),
    ):
        trial = scored(ASKED, runs_of(**changes), BASE, SEEDS, lambda _: cost)
        assert isinstance(trial, Trial) and trial.diverged and trial.divergence == said
        assert trial.loss_gap == DIVERGED_GAP


def test_a_run_that_failed_fails_the_policy_with_its_reason(cost: PolicyCost) -> None:
    runs = runs_of(own3=Failure("first"), own5=Failure("second"))
    assert scored(ASKED, runs, BASE, SEEDS, lambda _: cost) == FailedTrial(
        ASKED.number, ASKED.text, ASKED.presets, "first"
    )
    priceless = scored(ASKED, runs_of(), BASE, SEEDS, lambda _: None)
    assert isinstance(priceless, FailedTrial)
    assert priceless.reason == "the cost model has no price for it"


@pytest.mark.parametrize("lost", [LOST, Failure("killed")])
def test_without_float32_a_gap_is_that_of_a_lost_run(lost: Outcome, cost: PolicyCost) -> None:
    trial = scored(ASKED, runs_of(base5=lost), BASE, SEEDS, lambda _: cost)
    assert isinstance(trial, Trial)
    assert [score.loss_gap for score in trial.scores] == [0.25, DIVERGED_GAP]


def test_the_noise_is_the_root_mean_square_over_the_seeds() -> None:
    runs = runs_of()
    assert noise_gap(runs, BASE, SEEDS) is None
    runs[RunKey(BASE, 3, JITTER)] = replace(RAN, tail_loss=1.003)
    assert noise_gap(runs, BASE, SEEDS) == pytest.approx(0.003)
    runs[RunKey(BASE, 5, JITTER)] = replace(RAN, tail_loss=1.996)
    expected = math.sqrt((0.003**2 + 0.004**2) / 2)
    assert noise_gap(runs, BASE, SEEDS) == pytest.approx(expected)
    # A seed whose plain run was lost says nothing about noise.
    runs[RunKey(BASE, 5)] = LOST
    assert noise_gap(runs, BASE, SEEDS) == pytest.approx(0.003)


def test_a_fault_of_float32_names_the_seed_and_what_to_change(spec: StudySpec) -> None:
    assert float32_fault(runs_of(), BASE, spec.task, SEEDS) == ""
    failed = float32_fault(runs_of(base5=Failure("killed")), BASE, spec.task, SEEDS)
    assert failed == "float32 itself failed with seed 5: killed; no gap can be measured"
    lost = float32_fault(runs_of(base5=LOST), BASE, spec.task, SEEDS)
    assert lost.startswith("float32 itself diverged in step 9, most overflows in fc1 (seed 5)")
    assert f"(now {spec.task.learning_rate:g})" in lost and spec.task.optimizer in lost


def test_results_hold_trained_and_failed_policies_and_what_was_mixed(
    spec: StudySpec, cost: PolicyCost, journal: OpenJournal
) -> None:
    records = Records([], journal)
    seeded = replace(spec, study=replace(spec.study, seeds=SEEDS))
    assert read_results(records, seeded, lambda _: cost).trials == ()
    libraries = {"numpy": "1"}
    for version in ("1", "2"):
        code: dict[str, str] = {}
        same = {"float32": BASE, "code": code, "libraries": {**libraries, "numpy": version}}
        records.add_identity(same)
    records.runs = runs_of()
    failed = replace(ASKED, number=1, digest="f" * 64)
    outstanding = replace(ASKED, number=2, digest="e" * 64)
    records.trials = [replace(ASKED, number=0), failed, outstanding]
    records.runs |= {RunKey(failed.digest, seed): Failure("why") for seed in SEEDS}
    found = read_results(records, seeded, lambda _: cost)
    assert [trial.number for trial in found.trials] == [0]
    assert [(trial.number, trial.reason) for trial in found.failed] == [(1, "why")]
    assert found.mixed == ("libraries differ: numpy 2 (was 1)",)
    assert found.noise_gap is None and found.float32_fault == ""
