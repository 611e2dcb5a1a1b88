"""Longer runs that are stopped or fail: no verdict is lost, and what failed is said and retried."""

from __future__ import annotations

import shutil
from pathlib import Path
from unittest import mock

import pytest

from policysearch.objective.objective import Objective
from policysearch.objective.score import Failure, Measurement, Outcome
from policysearch.policy.policy import Policy
from policysearch.report.one_trial import trial_page
from policysearch.report.table import confirmed_table
from policysearch.study.journal.records import RunKey
from policysearch.study.journal.trials import Confirmation
from policysearch.study.opening import load_results
from policysearch.study.results.confirmation import confirmations, unconfirmed
from policysearch.study.results.results import Results
from policysearch.study.specification import StudySpec, load_spec
from policysearch.study.study import confirm_study, run_study
from tests.studies import write_study
from tests.test_confirm import CHANGES, SHORT_STEPS, decaying
from tests.test_failures import is_float32

TEN, TWENTY = 10 * SHORT_STEPS, 20 * SHORT_STEPS
DONE = Measurement(0.5, 0.9, None, 0, (), ())


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    return load_spec(write_study(tmp_path_factory.mktemp("study"), *CHANGES))


@pytest.fixture(scope="module")
def searched(spec: StudySpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("journal") / "tiny.journal"
    with mock.patch.object(Objective, "measure", decaying):
        run_study(spec, path, processes=0)
    return path


@pytest.fixture
def storage(searched: Path, tmp_path: Path) -> Path:
    return Path(shutil.copy(searched, tmp_path / "x.journal"))


def failing(results: Results) -> set[int]:
    return {trial.number for trial in results.trials if results.fault(trial)}


def test_a_longer_training_that_is_stopped_takes_no_verdict_away(
    spec: StudySpec, storage: Path
) -> None:
    with mock.patch.object(Objective, "measure", decaying):
        before = confirm_study(spec, storage, processes=0)
    assert failing(before)
    longer: list[str] = []

    def stopped(_: Objective, policy: Policy, *more: float) -> Measurement:
        if len(longer) == 2:
            raise KeyboardInterrupt
        longer.append(policy.digest)
        return decaying(_, policy, *more)  # type: ignore[arg-type]

    with mock.patch.object(Objective, "measure", stopped), pytest.raises(KeyboardInterrupt):
        confirm_study(spec, storage, factor=20, processes=0)
    found = load_results(spec, storage)
    assert {c.steps for _, c in found.confirmed} == {TEN, TWENTY}
    assert {digest for digest, c in found.confirmed if c.steps == TWENTY} == set(longer)
    assert failing(found) == failing(before)
    assert found.fastest().number == before.fastest().number
    page = confirmed_table(found)
    assert 0 <= page.index(f"over {TWENTY} steps") < page.index(f"over {TEN} steps")
    ended = sum(len(at) for _, at in found.horizons)
    assert ended == len(before.confirmed) + len(longer)  # also those that have both
    # the verdict and a line below it, four of each block, one between
    assert len(page.splitlines()) == ended + 11


@pytest.mark.parametrize("of_float32", [True, False])
def test_a_longer_training_that_fails_is_said_and_only_tried_again_when_told(
    spec: StudySpec, storage: Path, of_float32: bool
) -> None:
    def without_memory(_: Objective, policy: Policy, *more: float) -> Measurement:
        if is_float32(policy) == of_float32:
            raise MemoryError("no room")
        return decaying(_, policy, *more)  # type: ignore[arg-type]

    with mock.patch.object(Objective, "measure", without_memory):
        lost = confirm_study(spec, storage, processes=0)
    whose = "float32's" if of_float32 else "its"
    said = f"{whose} run over {TEN} steps failed: MemoryError: no room"
    assert set(dict(lost.unconfirmed).values()) == {said}
    trial = next(t for t in lost.trials if t.digest in dict(lost.unconfirmed))
    assert f"not confirmed: {said}" in trial_page(lost, trial.number)
    assert f"trial {trial.number} not confirmed: {said}" in confirmed_table(lost)
    with mock.patch.object(Objective, "measure", decaying):
        assert confirm_study(spec, storage, processes=0) == lost
        found = confirm_study(spec, storage, processes=0, retry_failed=True)
    assert failing(found) and not found.unconfirmed
    assert found.confirmation(trial)


def test_where_float32_itself_diverges_later_nothing_holds() -> None:
    lost = Measurement(None, 0.1, 40, 0, (), ())
    runs: dict[RunKey, Outcome] = {RunKey("base", 2, 0.0, 60): lost}
    runs |= {RunKey("a", 2, 0.0, 60): DONE, RunKey("b", 2, 0.0, 60): Failure("killed")}
    assert confirmations(runs, "base", ["a", "b", "c"]) == {}
    assert unconfirmed(runs, "base", ["a", "b", "c"]) == {
        "a": "float32 itself diverges within 60 steps",
        "b": "its run over 60 steps failed: killed",
    }
    runs |= {RunKey("base", 2, 0.0, 30): DONE, RunKey("a", 2, 0.0, 30): DONE}
    assert confirmations(runs, "base", ["a"])["a"].steps == 30


def test_a_gap_beside_a_loss_of_zero_is_a_fault() -> None:
    for gap, fails in ((1e-3, True), (0.0, False), (-0.0, False)):
        found = Confirmation(60, (2,), gap, None, 0.0, diverged=False).fault(1e-3)
        assert bool(found) == fails
