"""The front at a longer horizon: what fails there is marked everywhere and never picked."""

from __future__ import annotations

import operator
from dataclasses import replace
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

from policysearch import api
from policysearch.cli import main
from policysearch.objective.objective import Objective
from policysearch.objective.score import CURVE_SHARES, Failure, Measurement, Outcome, curve_of
from policysearch.policy.policy import Policy
from policysearch.study.journal.records import RunKey
from policysearch.study.journal.trials import Confirmation, Trial
from policysearch.study.opening import load_results
from policysearch.study.results.confirmation import confirmations
from policysearch.study.results.picks import candidates, within_budget
from policysearch.study.results.results import Results
from policysearch.study.runs import horizon_of
from policysearch.study.specification import StudySpec, load_spec
from policysearch.study.study import confirm_study, run_study
from policysearch.train.schedule import Schedule
from policysearch.values import InputError
from tests.studies import replaced_training, write_study
from tests.test_failures import is_float32

SHORT_STEPS = 6
MANY = (("trials = 6", "trials = 24"), ("widths = [8]", "widths = [512]"))

# Wide and priced at a large batch, so that low formats are faster by the cost model.
CHANGES = (
    ("trials = 6", "trials = 16"),
    ('"random"', '"tpe"'),
    ("widths = [8]", "widths = [256, 256]"),
    ("batch_size = 4096", "batch_size = 65536"),
)


def decaying(
    _: Objective,
    policy: Policy,
    seed: int,
    jitter: float = 0.0,
    steps: int | None = None,
    *_kept: object,
) -> Measurement:
    """Float32's loss falls tenfold over ten times the steps; without masters it stands still.

    With masters the gap is 2e-4 at first and falls with the loss.
    """
    share = SHORT_STEPS / (steps or SHORT_STEPS)
    loss = 0.05 * share + 1e-6 * seed + 1e-9 * jitter
    gap = 0.0 if is_float32(policy) else 2e-4 * share
    if not policy.master_weights:
        gap = 1e-4 if steps is None else 0.04
    return Measurement(loss + gap, 0.9, None, 0, (), ())


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    return load_spec(write_study(tmp_path_factory.mktemp("study"), *CHANGES))


@pytest.fixture(scope="module")
def journal(spec: StudySpec, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("journal") / "tiny.journal"
    with mock.patch.object(Objective, "measure", decaying):
        run_study(spec, path, processes=0)
        confirm_study(spec, path, processes=0)
    return path


@pytest.fixture(scope="module")
def results(spec: StudySpec, journal: Path) -> Results:
    return load_results(spec, journal)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Policies drawn at random, with gaps made up: several on the front, and several behind."""
    folder = tmp_path_factory.mktemp("many")
    with replaced_training():
        return run_study(load_spec(write_study(folder, *MANY)), folder / "j", processes=0)


def test_what_stands_still_is_marked_and_what_has_masters_is_not(results: Results) -> None:
    faults = {trial.number: results.fault(trial) for trial in results.trials}
    marked = {t.number for t in results.trials if faults[t.number]}
    assert marked
    confirmed = [t for t in results.trials if results.confirmation(t) and not t.diverged]
    assert marked == {t.number for t in confirmed if not t.policy.master_weights}
    assert len(marked) < len(confirmed)
    assert all("above float32's at 60 steps" in faults[number] for number in marked)


def test_confirmation_is_on_untouched_seeds_and_a_longer_run(
    spec: StudySpec, results: Results
) -> None:
    for _, confirmed in results.confirmed:
        assert confirmed.steps == 10 * SHORT_STEPS == 10 * spec.task.steps
        assert not set(confirmed.seeds) & set(spec.study.seeds)
        assert confirmed.float32_loss == pytest.approx(0.005, rel=1e-2)
    chosen = {trial.digest for trial in candidates(results)}
    assert chosen <= dict(results.confirmed).keys()
    assert {trial.digest for trial in results.front} <= dict(results.confirmed).keys()


def test_nothing_that_fails_is_picked(results: Results) -> None:
    assert any(results.fault(trial) for trial in results.front)
    assert not results.fault(results.knee())
    for bound in (None, 1.0, 1e-3, 1e-4):
        best = results.fastest(bound)
        assert not results.fault(best)
        assert bound is None or results.final_gap(best) <= bound
    fastest = max(results.front, key=lambda trial: trial.cost.speedup)
    assert results.fault(fastest) and results.fastest() != fastest


def test_confirming_again_trains_nothing(spec: StudySpec, journal: Path, results: Results) -> None:
    with mock.patch.object(Objective, "measure", side_effect=AssertionError):
        assert confirm_study(spec, journal, processes=0) == results


def test_more_seeds_give_a_spread_and_reuse_the_first(
    spec: StudySpec, journal: Path, tmp_path: Path
) -> None:
    path = tmp_path / "copy.journal"
    path.write_bytes(journal.read_bytes())
    with mock.patch.object(Objective, "measure", autospec=True, side_effect=decaying) as measured:
        more = confirm_study(spec, path, seeds=3, processes=0)
    assert {call.args[2] for call in measured.call_args_list} == {3, 4}
    for digest, confirmed in more.confirmed:
        assert confirmed.seeds == (2, 3, 4) and confirmed.gap_spread is not None
        assert dict(load_results(spec, journal).confirmed)[digest].gap_spread is None


@pytest.mark.parametrize("count", [1, 3])
def test_a_budget_takes_the_knee_first_and_all_of_its_share(many: Results, count: int) -> None:
    """float32 is trained beside them, so that one policy by itself is never worth a run."""
    spec = many.spec
    horizon = horizon_of(spec.study.seeds, spec.task.steps, 10.0, count)
    spent = len(many.trials) * len(spec.study.seeds) * spec.task.steps
    each, ordered = horizon.steps * count, candidates(many)
    for share in (0.0, 0.3, 0.7, 1.0, 2 * each / spent, 3 * each / spent, 100.0):
        chosen = within_budget(many, ordered, horizon, share)
        most = max(n for n in range(1, 1000) if n == 1 or n * each <= share * spent)
        assert chosen == ordered[: most - 1]
    assert len(chosen) == len(ordered) > 2
    assert len(within_budget(many, ordered, horizon, 2 * each / spent)) == 1


def test_candidates_are_the_knee_the_front_and_the_front_behind_it(many: Results) -> None:
    """By pairs: who is behind nobody of the rest. Each of the three from the fastest on."""

    def beaten(trial: Trial, others: list[Trial]) -> bool:
        here = many.point(trial)
        points = [many.point(other) for other in others]
        return any(p != here and all(map(operator.le, p, here)) for p in points)

    rest = [t for t in many.trials if not t.diverged and t not in many.front]
    behind = [t for t in rest if not beaten(t, rest)]
    knee = many.knee()
    front = [t for t in many.front if t is not knee]
    fastest = [sorted(ts, key=lambda t: -t.cost.speedup) for ts in (front, behind)]
    expected = [t for t in (knee, *fastest[0], *fastest[1]) if "float32" not in t.presets]
    assert candidates(many) == expected
    assert len(behind) > 1 and [t.number for t in fastest[1]] != sorted(t.number for t in behind)


def test_every_policy_but_float32_and_the_diverged_can_be_confirmed(
    spec: StudySpec, results: Results, journal: Path, tmp_path: Path
) -> None:
    front = candidates(results)
    every = candidates(results, every=True)
    assert every[: len(front)] == front
    assert len(every) > len(front)
    assert {trial.number for trial in every} == {
        trial.number
        for trial in results.trials
        if not trial.diverged and "float32" not in trial.presets
    }
    path = tmp_path / "copy.journal"
    path.write_bytes(journal.read_bytes())
    with mock.patch.object(Objective, "measure", autospec=True, side_effect=decaying):
        more = confirm_study(spec, path, every=True, processes=0)
    assert {trial.digest for trial in every} <= dict(more.confirmed).keys()


@pytest.mark.parametrize(
    ("long", "short", "fault"),
    [
        (4.7e-3, 2.2e-5, "loss 107% above float32's"),
        (4.1e-5, 6.1e-4, ""),
        (2e-4, 2e-5, "gap grew 10-fold"),
        (2e-5, 2e-6, ""),
        (1e-4, 5e-5, ""),
        (-1e-3, 1e-5, ""),
    ],
)
def test_a_fault_is_a_share_of_the_loss_or_growth(long: float, short: float, fault: str) -> None:
    """The first two rows were measured: a level without masters, and FP8 with them."""
    confirmed = Confirmation(2000, (3,), long, None, 4.4e-3, False)
    assert confirmed.fault(short).startswith(fault) and bool(confirmed.fault(short)) == bool(fault)
    lost = replace(confirmed, diverged=True)
    assert lost.fault(short) == "diverges within 2000 steps"
    below = replace(confirmed, float32_loss=-confirmed.float32_loss)
    assert below.fault(short) == confirmed.fault(short)  # a loss of one's own, of the same size


def test_a_gap_that_grew_from_none_fails_without_a_ratio() -> None:
    """Nothing to jitter, as where all parameters start at zero, makes a counted gap of none."""
    confirmed = Confirmation(2000, (3,), 2e-4, None, 4.4e-3, False)
    assert confirmed.fault(0.0) == "gap grew from none by 2000 steps"


def test_views_and_exports_say_so(
    spec: StudySpec, journal: Path, results: Results, tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    places = [str(write_study(tmp_path, *CHANGES)), "--storage", str(journal)]
    assert main(["show", *places]) == 0
    assert "FAILS: loss 8" in capsys.readouterr().out
    assert main(["show", *places, "--csv"]) == 0
    head, *rows = capsys.readouterr().out.splitlines()
    assert {"confirmed_steps", "confirmed_gap", "float32_loss", "fault"} <= set(head.split(","))
    assert sum("above float32's at 60 steps" in row for row in rows) >= 1
    with mock.patch.object(Objective, "measure", decaying):
        assert main(["confirm", *places, "--steps", "60", "--processes", "1"]) == 0
    said = capsys.readouterr().out
    assert "float32's own loss there is 0.005 nats" in said and "holds" in said
    failing = next(trial for trial in results.front if results.fault(trial))
    assert main(["export", *places, "--trial", str(failing.number), "--out", str(tmp_path)]) == 0
    assert "fails later: loss 8" in capsys.readouterr().out
    assert results.fault(failing) in (tmp_path / "tiny-torch.py").read_text()


@pytest.mark.parametrize("option", ["--processes", "--seeds"])
def test_fewer_than_one_are_refused(
    option: str, journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(tmp_path, *CHANGES)
    assert main(["confirm", str(study), "--storage", str(journal), option, "-1"]) == 2
    assert f"{option}: -1; expected at least 1" in capsys.readouterr().err


@pytest.mark.parametrize("steps", ["0.5x", "3", "x", "-10x", "1e6x", "many"])
def test_a_horizon_that_is_none_is_refused(
    steps: str, journal: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    places = [str(write_study(tmp_path)), "--storage", str(journal)]
    assert main(["confirm", *places, f"--steps={steps}"]) == 2
    assert "expected a factor as 10x" in capsys.readouterr().err


@pytest.mark.parametrize("steps", ["1x", "6", "999999x"])
def test_a_horizon_from_the_steps_of_the_study_on_is_taken(steps: str, tmp_path: Path) -> None:
    path, tried = write_study(tmp_path, *CHANGES), []
    storage = tmp_path / "tiny.journal"
    with replaced_training():
        run_study(load_spec(path), storage, processes=0)

    def confirm(_: StudySpec, __: Path, *, factor: float, **___: object) -> None:
        tried.append(factor)
        raise InputError("enough")

    with mock.patch("policysearch.confirm_study", confirm):
        assert main(["confirm", str(path), "--storage", str(storage), "--steps", steps]) == 2
    assert tried == [1.0 if steps != "999999x" else 999999.0]


def test_the_curve_of_a_run_is_kept(tmp_path: Path) -> None:
    spec = api.load_study(write_study(tmp_path, ("steps = 6", "steps = 40")))
    objective = Objective(spec.task, spec.cost.device, spec.cost.stack)
    run = objective.measure(objective.float32, 0)
    assert [step for step, _ in run.curve] == [round(40 * share) for share in CURVE_SHARES]
    assert run.curve[-1][1] == run.tail_loss
    assert run.curve[0][1] > run.curve[-1][1]
    losses = np.arange(16.0)
    assert curve_of(losses, 16, 8) == ((2, 1.0), (4, 2.5), (8, 5.5), (16, 11.5))
    losses[10] = np.nan
    assert curve_of(losses[:11], 16, 8) == ((2, 1.0), (4, 2.5), (8, 5.5))


def test_a_longer_run_is_the_same_recipe_stretched(tmp_path: Path) -> None:
    spec = api.load_study(write_study(tmp_path))
    longer = spec.task.with_steps(60)
    assert (longer.steps, longer.tail_steps) == (60, 30)
    waved = replace(spec.task, schedule=Schedule("cosine", period_steps=4, warmup_steps=2))
    for step in range(0, 60, 10):
        assert waved.with_steps(60).rate_at(step) == pytest.approx(waved.rate_at(step // 10))
    objective = Objective(spec.task, spec.cost.device, spec.cost.stack)
    stretched = objective.measure(objective.float32, 0, steps=60)
    assert stretched == Objective(longer, "H100-SXM5", "torch.compile").measure(
        objective.float32, 0
    )
    assert stretched != objective.measure(objective.float32, 0)


def test_a_confirmation_names_the_seeds_it_has() -> None:
    """A run that failed, or is still to come, leaves its own seed out and no other."""
    done = Measurement(0.5, 0.9, None, 0, (), ())
    runs: dict[RunKey, Outcome] = {RunKey("base", seed, 0.0, 60): done for seed in (2, 3, 4)}
    runs |= {RunKey("mixed", seed, 0.0, 60): done for seed in (2, 4)}
    runs[RunKey("mixed", 3, 0.0, 60)] = Failure("MemoryError")
    assert confirmations(runs, "base", ["mixed"])["mixed"].seeds == (2, 4)
