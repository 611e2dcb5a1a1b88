"""A study that searches with the first of its seeds: its front is trained with all of them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from policysearch.objective.score import Measurement
from policysearch.policy.policy import Policy
from policysearch.report.noise_page import noise_page
from policysearch.report.one_trial import beside_baseline, exported_notes
from policysearch.report.table import caption, front_table
from policysearch.study.journal.records import Records
from policysearch.study.journal.storage import read_checked
from policysearch.study.journal.trials import Trial
from policysearch.study.opening import load_results
from policysearch.study.questions.by_hand import try_policy
from policysearch.study.results.results import Results
from policysearch.study.session import Progress
from policysearch.study.specification import StudySpec, load_spec
from policysearch.study.study import run_study
from policysearch.values import InputError
from tests.studies import replaced_training, write_study

SEEDS = (3, 0, 5)
CHANGES = (
    ("trials = 6", "trials = 17"),
    ("seeds = [0, 1]", "seeds = [3, 0, 5]\nsearch_seeds = 1"),
    ("widths = [8]", "widths = [2048]"),
    ("[space]", "[objectives]\nmatters = 0.0\n\n[space]"),  # gaps here are a hundredth
)


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    return load_spec(write_study(tmp_path_factory.mktemp("study"), *CHANGES))


def lucky(policy: Policy, seed: int) -> Measurement:
    """Gaps of up to a hundredth by chance; what is stored low has luck with the first seed."""
    if all(layer.compute == "float32" for _, layer in policy.layers):
        return Measurement(0.5, 0.9, None, 0, (), (), first_loss=2.3)
    # of the formats of layers alone: what ops and other fields there are is no part of it
    formats = re.sub(r", backward=.*?\)\)(?=[,)])", ")", repr(policy.layers))
    digest = hashlib.sha256(formats.encode()).hexdigest()
    gap = 0.001 + 0.009 * int(digest[:6], 16) / 2**24 + 1e-5 * seed
    if any(layer.compute == "tfloat32" for _, layer in policy.layers):
        gap = 0.02  # the rival would meet the goal before anything is searched
    if not policy.master_weights:
        gap = 0.02 + gap if seed != SEEDS[0] else 0.1 * gap
    return Measurement(0.5 + gap, 0.9, None, 0, (), (), first_loss=2.3)


@pytest.fixture(scope="module")
def finished(
    spec: StudySpec, tmp_path_factory: pytest.TempPathFactory
) -> tuple[list[tuple[str, int, float]], Path]:
    path = tmp_path_factory.mktemp("finished") / "j"
    with replaced_training(lucky) as trained:
        run_study(spec, path, processes=0)
    return list(trained), path


def stopping(most: int, trained: list[tuple[str, int, float]]) -> Progress:
    """Return what stops a study once so many runs were trained."""

    def stop(done: float, _: Callable[[], Results]) -> None:
        assert 0.0 <= done <= 17.0
        if len(trained) >= most:
            raise KeyboardInterrupt

    return stop


def searched(path: Path) -> list[str]:
    return [asked.digest for asked in Records(read_checked(path).lines).searched]


def test_the_front_has_all_seeds_and_what_it_beats_the_first(
    spec: StudySpec, finished: tuple[list[tuple[str, int, float]], Path]
) -> None:
    trained, path = finished
    results = load_results(spec, path)
    runs = [(digest, seed) for digest, seed, jitter in trained if not jitter]
    assert len(runs) == len(set(runs)) < len(SEEDS) * spec.study.trials
    for trial in results.trials:
        assert trial.seeds == tuple(s for s in SEEDS if (trial.digest, s) in runs)
        assert trial.seeds in (SEEDS, SEEDS[:1]) and len(trial.scores) == len(trial.seeds)
        assert (results.interval(trial) is None) == (len(trial.seeds) == 1)
    by_seeds = {n: [t for t in results.trials if len(t.seeds) == n] for n in (1, 3)}
    assert len(by_seeds[1]) >= 3 and set(results.front) <= set(by_seeds[3])
    # Some had luck with the first seed, and were found out.
    beaten = [t for t in by_seeds[3] if t not in results.front and not t.presets]
    assert any(trial.scores[0].loss_gap < 0.1 * trial.loss_gap for trial in beaten)
    counts = f"seeds: {len(by_seeds[1])} policies with 1, {len(by_seeds[3])} policies with 3"
    assert counts in front_table(results)
    assert "seeds 3, 0, 5 (the front; others 3 alone; " in caption(results)
    assert {row.trial: row.seeds for row in results.rows()} == {
        trial.number: len(trial.seeds) for trial in results.trials
    }
    assert f"how sure the gaps of {len(by_seeds[3])} policies are" in noise_page(results)


def test_it_asks_for_what_it_would_with_that_seed_alone(
    spec: StudySpec, finished: tuple[list[tuple[str, int, float]], Path], tmp_path: Path
) -> None:
    one, path = tmp_path / "one", tmp_path / "all"
    study = replace(spec.study, sampler="tpe")  # which hears what it is told
    alone = replace(study, seeds=SEEDS[:1], search_seeds=None)
    with replaced_training(lucky):
        run_study(replace(spec, study=alone), one, processes=0)
        run_study(replace(spec, study=study), path, processes=0)
    assert searched(path) == searched(one)
    # Also where it goes on after its front has all seeds.
    with replaced_training(lucky):
        run_study(replace(spec, study=alone).with_trials(20), one, processes=0)
        run_study(replace(spec, study=study).with_trials(20), path, processes=0)
    assert searched(path) == searched(one)


def test_stopped_anywhere_it_trains_and_finds_the_same(
    spec: StudySpec,
    finished: tuple[list[tuple[str, int, float]], Path],
    tmp_path: Path,
) -> None:
    """In float32, in the search, at its end and twice among the seeds of the front."""
    wanted, path = finished
    with replaced_training(lucky) as trained:
        for most in (2, 9, 24, 27, 31):
            before = len(trained)
            with pytest.raises(KeyboardInterrupt):
                run_study(spec, tmp_path / "j", processes=0, progress=stopping(most, trained))
            assert before < len(trained) < len(wanted)
        resumed = run_study(spec, tmp_path / "j", processes=0)
    assert trained == wanted
    assert resumed == load_results(spec, path)


def test_a_policy_tried_by_hand_has_all_seeds(
    spec: StudySpec, finished: tuple[list[tuple[str, int, float]], Path], tmp_path: Path
) -> None:
    path = tmp_path / "j"
    path.write_bytes(finished[1].read_bytes())
    results = load_results(spec, path)
    one = next(trial for trial in results.trials if len(trial.seeds) == 1)
    with replaced_training(lucky) as trained:
        again, number, new = try_policy(spec, path, one.policy, processes=0)
    assert not new and again.trial(number).seeds == SEEDS
    assert [seed for _, seed, _ in trained] == list(SEEDS[1:])


def test_more_seeds_than_there_are_are_refused(tmp_path: Path) -> None:
    for wrong in (0, 4):
        path = write_study(tmp_path, *CHANGES, ("search_seeds = 1", f"search_seeds = {wrong}"))
        with pytest.raises(InputError, match=f"search_seeds: {wrong}; expected .* 1 .* 3"):
            load_spec(path)


def test_an_export_says_which_of_two_has_fewer_seeds(
    spec: StudySpec, finished: tuple[list[tuple[str, int, float]], Path]
) -> None:
    results = load_results(spec, finished[1])
    found = next(trial for trial in results.trials if len(trial.seeds) == 1)
    few = replace(found, presets=("float16",))
    trials = tuple(few if trial is found else trial for trial in results.trials)
    based = replace(spec, study=replace(spec.study, baseline="float16"))
    results = replace(results, spec=based, trials=trials)
    pick = next(trial for trial in trials if trial.seeds == SEEDS)
    _, own, base = beside_baseline(results, pick).splitlines()[:3]
    assert base.endswith("(with 1 of 3 seeds)") and "seeds" not in own
    assert exported_notes(results, few)[0].endswith("(with 1 of 3 seeds)")
    assert "seeds" not in exported_notes(results, pick)[0]


def with_goal(spec: StudySpec, gap: float) -> StudySpec:
    return replace(spec, study=replace(spec.study, goal_gap=gap, goal_speedup=1.3))


def meets(spec: StudySpec, trial: Trial) -> bool:
    gap, speedup = spec.study.goal_gap, spec.study.goal_speedup
    assert gap is not None and speedup is not None
    return trial.loss_gap <= gap and trial.cost.speedup >= speedup


@pytest.mark.parametrize(("gap", "reached"), [(2e-3, False), (8e-3, True)])
def test_a_goal_is_met_by_all_seeds_and_not_by_the_luck_of_one(
    gap: float, reached: bool, spec: StudySpec, tmp_path: Path
) -> None:
    goal = with_goal(spec, gap)
    with replaced_training(lucky) as trained:
        results = run_study(goal, tmp_path / "j", processes=0)
    lucky_ones = [t for t in results.trials if t.scores[0].loss_gap <= gap < t.loss_gap]
    assert any(trial.cost.speedup >= 1.3 for trial in lucky_ones)
    met = [trial for trial in results.trials if meets(goal, trial)]
    assert results.stopped.startswith("goal met" if reached else "budget") and bool(met) == reached
    assert all(trial.seeds == SEEDS for trial in met)
    wanted = list(trained)
    with replaced_training(lucky) as trained:
        for most in (6, 12):  # stopped there, and gone on with
            with pytest.raises(KeyboardInterrupt):
                run_study(goal, tmp_path / "x", processes=0, progress=stopping(most, trained))
        assert run_study(goal, tmp_path / "x", processes=0) == results
    assert trained == wanted
