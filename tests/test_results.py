"""Results of a study: seeds averaged, what the front counts, picks, and rows."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from policysearch.objective.objective import Objective
from policysearch.objective.score import DIVERGED_GAP, Score
from policysearch.policy.presets import preset
from policysearch.study.journal.records import compact
from policysearch.study.journal.trials import FailedTrial, Trial
from policysearch.study.results.difference import difference
from policysearch.study.results.ranking import RESOLUTION
from policysearch.study.results.results import Results
from policysearch.study.specification import StudySpec, load_spec
from policysearch.values import InputError
from tests import made_up
from tests.studies import write_study


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    return load_spec(write_study(tmp_path_factory.mktemp("study")))


@pytest.fixture(scope="module")
def blank(spec: StudySpec) -> Score:
    """A score to vary: its cost is that of float32."""
    objective = Objective(spec.task, spec.cost.device, spec.cost.stack)
    cost = objective.price(objective.float32)
    return Score(0.0, 0.5, False, (), (), 0, cost)


def trial_of(
    blank: Score, number: int, gaps: tuple[float, ...], speedup: float = 1.0, memory: float = 1.0
) -> Trial:
    cost = replace(blank.cost, speedup=speedup, memory_ratio=memory)
    scores = tuple(replace(blank, loss_gap=gap, cost=cost) for gap in gaps)
    policy = preset("bfloat16", (f"fc{number}",))
    return Trial(number, policy.digest, compact(policy), (), scores, "")


def test_seeds_are_averaged_and_their_spread_is_said(blank: Score) -> None:
    gaps = (0.1, 0.4, -0.05, 0.2)
    trial = trial_of(blank, 0, gaps)
    assert trial.loss_gap == pytest.approx(statistics.mean(gaps))
    assert trial.gap_range == (min(gaps), max(gaps))
    # The standard error of a mean, as statistics has it.
    assert trial.gap_error == pytest.approx(statistics.stdev(gaps) / math.sqrt(len(gaps)))
    assert trial_of(blank, 0, (0.3,)).gap_error == 0.0


def test_accuracy_is_the_mean_and_skipped_steps_the_most(blank: Score) -> None:
    scores = tuple(
        replace(blank, validation_accuracy=share, skipped_steps=skipped)
        for share, skipped in ((0.5, 3), (0.9, 7), (0.4, 1))
    )
    trial = replace(trial_of(blank, 0, (0.0,)), scores=scores)
    assert trial.validation_accuracy == pytest.approx(0.6)
    assert trial.skipped_steps == 7


def test_one_lost_run_loses_the_policy(blank: Score) -> None:
    sound = trial_of(blank, 0, (0.1, 0.2))
    lost = replace(sound, scores=(sound.scores[0], replace(blank, diverged=True, loss_gap=0.2)))
    assert not sound.diverged and lost.diverged
    assert lost.loss_gap == DIVERGED_GAP > sound.loss_gap


@pytest.mark.parametrize(
    ("gaps", "noise", "counted"),
    [
        ((0.30, 0.30), 0.001, 0.30),  # clear of noise and seeds
        ((0.30, -0.30), 0.001, 0.30),  # the mean is 0, its standard error 0.3
        ((0.20, -0.10), 0.001, 0.15),  # the mean is 0.05, its standard error 0.15
        ((0.002, 0.002), 0.001, 0.01),  # below ten times the noise
        ((-0.5, -0.5), 0.001, 0.01),  # better than float32 gains nothing
        ((-0.5, -0.5), None, 0.0),
    ],
)
def test_the_counted_gap_is_never_below_noise_or_standard_error(
    blank: Score, spec: StudySpec, gaps: tuple[float, ...], noise: float | None, counted: float
) -> None:
    trial = trial_of(blank, 0, gaps)
    assert Results(spec, (trial,), noise).counted_gap(trial) == pytest.approx(counted)


def test_a_lost_policy_counts_as_lost(blank: Score, spec: StudySpec) -> None:
    trial = trial_of(blank, 0, (0.1, 0.1))
    lost = replace(trial, scores=tuple(replace(s, diverged=True) for s in trial.scores))
    results = Results(spec, (lost,), 100.0)
    assert results.resolution_gap == 100.0 * RESOLUTION
    assert results.counted_gap(lost) == DIVERGED_GAP
    assert results.front == ()
    with pytest.raises(InputError, match=r"study tiny: .*\(1 diverged or failed\)"):
        results.knee()
    failed = FailedTrial(1, compact(preset("float16", ("fc1",))), (), "no memory")
    assert failed.name == "float16"
    with pytest.raises(InputError, match=r"\(2 diverged or failed\)"):
        replace(results, failed=(failed,)).fastest()


@pytest.fixture
def many(blank: Score, spec: StudySpec) -> Results:
    """Three on the front, fastest 2, and one that 3 dominates; objectives gap, speedup, memory."""
    rows = [(0.0, 1.0, 1.0), (0.01, 2.0, 0.5), (1.0, 2.5, 0.4), (0.02, 1.5, 0.6)]
    trials = tuple(trial_of(blank, i, (gap, gap), s, m) for i, (gap, s, m) in enumerate(rows))
    return Results(spec, trials, 1e-5)


def test_the_front_is_fastest_first_without_the_dominated(many: Results) -> None:
    assert [trial.number for trial in many.front] == [2, 1, 0]


def test_the_knee_is_near_in_the_logarithm_of_the_gap(many: Results) -> None:
    """By hand: gaps 1e-4 (the resolution), 1e-2, 1; speedups 1, 2, 2.5; ratios 1, 0.5, 0.4.

    Scaled, trial 1 is (0.5, 1/3, 1/6) from the ideal, 0.62; trial 2 is 1 away, trial 0 is 1.41.
    """
    assert many.knee().number == 1
    # With noise of 1e-3 both 0 and 0.01 count as 0.01, so that 1 dominates 0; of the two left
    # on the front 1 is the root of 2 away from the ideal, and 2 is 1 away.
    assert replace(many, noise_gap=1e-3).knee().number == 2


def test_a_gap_one_third_of_the_largest_is_not_near_where_gaps_span_decades(
    blank: Score, spec: StudySpec
) -> None:
    """Gaps 1e-4, 0.3, 1: the middle one is 0.87 of the way in logarithms, 0.3 in nats.

    With 2/3 in speed and 1/6 in memory that is 1.11 away (in nats it were 0.75); the last is 1.
    """
    rows = [(0.0, 1.0, 1.0), (0.3, 1.5, 0.5), (1.0, 2.5, 0.4)]
    trials = tuple(trial_of(blank, i, (gap,), s, m) for i, (gap, s, m) in enumerate(rows))
    assert len(spec.objectives.names) == 3
    assert Results(spec, trials, 1e-5).knee().number == 2


def test_the_fastest_is_within_the_gap_asked(many: Results) -> None:
    assert many.fastest().number == 2
    assert many.fastest(1.0).number == 2
    assert many.fastest(0.5).number == 1
    assert many.fastest(0.0).number == 0
    with pytest.raises(InputError, match=r"max-gap: -1; expected at least 0\b"):
        many.fastest(-1)


def test_ties_in_speed_go_to_the_smaller_gap_then_the_earlier(
    blank: Score, spec: StudySpec
) -> None:
    rows = [(0.30, 2.0, 0.4), (0.20, 2.0, 0.5), (0.0, 1.0, 1.0)]
    trials = tuple(trial_of(blank, i, (gap,), s, m) for i, (gap, s, m) in enumerate(rows))
    results = Results(spec, trials, 0.0)
    names = results.spec.objectives.names
    assert results.point(trials[0]) == tuple(
        {"loss_gap": 0.30, "speedup": -2.0, "memory_ratio": 0.4}[name] for name in names
    )
    assert results.fastest().number == results.front[0].number == 1


def test_a_trial_is_found_by_its_number(many: Results) -> None:
    assert many.trial(3) is many.trials[3]
    with pytest.raises(InputError, match="trial: 9; expected one of 0, 1, 2, 3"):
        many.trial(9)
    with pytest.raises(InputError, match="none yet"):
        replace(many, trials=()).trial(0)


def test_accumulators_are_those_of_the_policies_once(many: Results) -> None:
    text = many.trials[0].text.replace('"accumulator":"float32"', '"accumulator":"float16"')
    trials = (replace(many.trials[0], text=text), *many.trials[1:])
    assert many.accumulators == ("float32",)
    assert replace(many, trials=trials).accumulators == ("float16", "float32")


def test_a_policy_is_read_from_its_text(many: Results, tmp_path: Path) -> None:
    assert many.trials[1].policy == preset("bfloat16", ("fc1",))
    assert many.trials[1].name == "bfloat16"
    with pytest.raises(InputError, match="trial 1 policy"):
        _ = replace(many.trials[1], text="{}").policy


def test_a_difference_without_accuracies_is_in_the_units_of_its_loss() -> None:
    trial = made_up.trial_of(1, preset("bfloat16", ("fc1",)), (1e-3, 3e-3))
    squares = tuple(replace(s, loss_unit="MSE", validation_accuracy=None) for s in trial.scores)
    found = difference(replace(trial, scores=squares), None, 1e-2)
    assert (found.unit, found.seeds, found.accuracy) == ("MSE", 2, None)
    assert found.gap == pytest.approx(2e-3)
