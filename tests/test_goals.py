"""Goals: in words, in a study file, as what a searcher asks for, and against filtering."""

from __future__ import annotations

import math
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

import policysearch
from benchmarks.search.goals import Counted, counted
from benchmarks.search.tables import load, mean_problem
from policysearch.cost.devices import DEVICES
from policysearch.objective.score import Measurement
from policysearch.policy.policy import Policy
from policysearch.search.acquisition import Yardstick
from policysearch.search.goals import Goal, separating
from policysearch.search.posterior import Belief
from policysearch.study.aim import Aim, aim_of
from policysearch.study.goal import goal_from_words, goal_table, with_goal
from policysearch.study.optuna_view import TrialView
from policysearch.study.results.results import Results
from policysearch.study.sections import GoalSection
from policysearch.study.specification import StudySpec, load_spec, spec_from_text
from policysearch.study.study import run_study
from policysearch.values import InputError, from_plain
from tests.studies import TINY, WITHOUT_TF32, replaced_training, write_study
from tests.turns import case

GAIN = ('sampler = "random"', 'sampler = "gain"')
FREE = ("least_gain = 0\n", "")
WIDE = (
    FREE,
    ("widths = [8]", "widths = [96, 64, 48]"),
    ("batch_size = 4096", "batch_size = 65536"),
    ('ops = ["tanh"]\nmaster_weights = [true, false]', "master_weights = [true]"),
    ('["none", "fixed", "dynamic"]\ngrowth_intervals = [10, 100]', '["none"]'),
    ('["bfloat16", "mindspore.O0", "apex.O3"]', '["bfloat16"]'),
)
TEXT = TINY.replace(*FREE)
NATS = {"float32": 0.0, "bfloat16": 1e-4, "float8_e4m3fn": 4e-3}


def summed(policy: Policy, seed: int) -> Measurement:
    """Return a run whose gap is the sum of what its layers' formats cost, more in later layers."""
    lost = sum((i + 1) * NATS[layer.compute] for i, (_, layer) in enumerate(policy.layers))
    return Measurement(0.5 + lost + 1e-6 * seed, 0.9, None, 0, (), ())


def spread(outputs: np.ndarray, labels: np.ndarray) -> float:
    return float(outputs.std())


RIGHT = {
    "fastest": GoalSection(),
    "smallest gap<=0.01": GoalSection("smallest", gap=0.01),
    "closest memory<=0.6": GoalSection("closest", memory=0.6),
    "fastest gap<=0.01 memory<=0.6": GoalSection("fastest", gap=0.01, memory=0.6),
    "fastest gap<=1e-3": GoalSection("fastest", gap=1e-3),
    "smallest speedup>=1": GoalSection("smallest", speedup=1.0),
    "closest speedup>=1.5 over=float32": GoalSection("closest", speedup=1.5, over="float32"),
    "any gap<=0.01 speedup>=1.3": GoalSection("any", gap=0.01, speedup=1.3),
    "fastest accuracy>=0.97": GoalSection("fastest", accuracy=0.97),
    "fastest metric>=0.8": GoalSection("fastest", metric=">=0.8"),
    "closest metric<=12 speedup>=1": GoalSection("closest", metric="<=12", speedup=1.0),
    "closest fits=RTX-4090": GoalSection("closest", fits="RTX-4090"),
    "fastest fits=L4@4096": GoalSection("fastest", fits="L4@4096"),
    "  fastest   trainings<=40 hours<=2": GoalSection("fastest", trainings=40, hours=2.0),
}
WRONG = {
    "": "--goal: ''; expected one of fastest, smallest, closest, any",
    "fastst": "--goal: 'fastst'; expected one of .*; did you mean 'fastest'?",
    "gap<=0.01": "--goal: 'gap<=0.01'; expected one of fastest",
    "fastest gap <= 0.01": "--goal: 'gap'; expected a limit as gap<=0.01, without spaces",
    "fastest gap<0.01": "--goal: 'gap<0.01'; expected a limit",
    "fastest gap>=0.01": "--goal: 'gap>=0.01'; expected gap<=0.01",
    "fastest speedup<=2": "--goal: 'speedup<=2'; expected speedup>=2",
    "fastest gaps<=0.01": "--goal: gaps<=0.01: 'gaps'; expected one of .*; did you mean 'gap'?",
    "fastest gap<=small": "--goal: 'gap<=small'; expected a number after gap<=",
    "fastest gap<=-1": "--goal.gap: -1.0; expected a number from 0 to",
    "fastest gap<=nan": "--goal.gap: nan; expected a finite number",
    "fastest gap<=1 gap<=2": "--goal: gap: given twice",
    "fastest trainings<=2.5": "--goal: 'trainings<=2.5'; expected a whole number",
    "fastest trainings<=0": "--goal.trainings: 0; expected a number from 1",
    "fastest accuracy>=97": "--goal.accuracy: 97.0; expected a number from 0 to 1",
    "fastest metric=0.8": r"--goal.metric: '=0.8'; expected a limit as >=0.8 or <=12",
    "fastest metric<=few": r"--goal.metric: '<=few'; expected a limit as",
    "fastest metric>=nan": r"--goal.metric: '>=nan'; expected a limit as",
    "fastest fits=RTX4090": "--goal.fits: 'RTX4090'; did you mean 'RTX-4090'. expected one that",
    "fastest fits=L4@many": "--goal.fits: 'L4@many'; expected DEVICE or DEVICE@BATCH",
    "fastest speedup>=1 over=tf32": "--goal.over: 'tf32'; expected",
    "fastest over=float32": "--goal.over: 'float32' without speedup",
    "any gap<=0.1": "--goal.want: 'any' without a limit; expected speedup, memory or fits",
}


@pytest.fixture
def spec(tmp_path: Path) -> StudySpec:
    return load_spec(write_study(tmp_path, WITHOUT_TF32, GAIN, *WIDE))


@pytest.mark.parametrize("words", RIGHT)
def test_words_are_a_goal_and_back(words: str) -> None:
    goal = goal_from_words(words)
    assert goal == RIGHT[words]
    assert goal_from_words(goal.words) == goal
    assert from_plain(GoalSection, tomllib.loads(goal_table(goal))["goal"], "goal") == goal


@pytest.mark.parametrize("words", WRONG)
def test_wrong_words_are_refused_in_one_line(words: str) -> None:
    with pytest.raises(InputError, match=f"^{WRONG[words]}") as caught:
        goal_from_words(words)
    assert "\n" not in str(caught.value)


def test_a_study_file_has_a_goal_as_the_command_line_has_it(spec: StudySpec) -> None:
    text = f'{TEXT}\n[goal]\nwant = "smallest"\ngap = 0.01\nspeedup = 1.1\ntrainings = 5\n'
    read = spec_from_text(text, "x")
    said = with_goal(spec, "smallest gap<=0.01 speedup>=1.1 trainings<=5")
    assert read.goal == said.goal == said.wanted
    plan = said.study.plan(said.objectives.names, said.task.steps, said.wanted)
    assert plan.budget.trials == 5 < spec.study.trials


REFUSED = {
    '[goal]\nwant = "best"': "goal.want: 'best'; expected",
    "[goal]\ngaps = 1": "unknown key 'gaps'; .*did you mean 'gap'?",
    '[goal]\nfits = "L4@64"': "goal.fits: 'L4@64' where steps are priced at a batch of 4096; expec",
    '[goal]\nmetric = ">=0.8"': "goal.metric: '>=0.8' of a task without one; expected task.metric",
    '[goal]\n[objectives]\nnames = ["loss_gap", "memory_ratio"]': "goal: of speed, without speedup",
    '[goal]\nwant = "closest"\nmemory = 1\n[objectives]\nnames = ["loss_gap", "speedup"]': (
        "goal: of memory, without memory_ratio"
    ),
}


@pytest.mark.parametrize("table", REFUSED)
def test_a_goal_that_the_study_cannot_weigh_is_refused(table: str) -> None:
    with pytest.raises(InputError, match=REFUSED[table]):
        spec_from_text(f"{TEXT}\n{table}\n", "x")


def test_older_keys_are_read_as_the_goal_that_they_mean(spec: StudySpec) -> None:
    old = replace(spec, study=replace(spec.study, goal_gap=0.01, goal_speedup=1.5))
    assert old.wanted == goal_from_words("any gap<=0.01 speedup>=1.5 over=float32")
    assert old.notices == [
        "study.goal_gap, study.goal_speedup: read as [goal] "
        "'any gap<=0.01 speedup>=1.5 over=float32'"
    ]
    assert spec.notices == [] and spec.wanted == goal_from_words("fastest speedup>=1")
    with pytest.raises(InputError, match="goal: given beside study"):
        replace(old, goal=GoalSection())
    assert with_goal(old, "fastest").wanted == GoalSection()


def test_limits_are_over_the_baseline_and_a_device_is_its_memory() -> None:
    def goal(words: str) -> Goal:
        return aim_of(goal_from_words(words), True, 2e-4, 0.5, 10**11).goal

    assert goal("fastest speedup>=2") == Goal("time", 2e-4, 0.25)
    assert goal("fastest speedup>=2 over=float32 gap<=0.1") == Goal("time", 0.1, 0.5)
    assert goal("closest memory<=0.7") == Goal("gap", memory=0.7)
    held = DEVICES["L4"].memory_bytes / 10**11
    assert held < 0.7 and goal("closest memory<=0.7 fits=L4").memory == held
    assert goal("any speedup>=1") == Goal("gap", 2e-4, 0.5)
    assert goal("fastest accuracy>=0.9").gap == math.inf


BELIEFS = [
    Belief(0.3, np.array([1.0, 2.0, 5.0]), np.array([0.5, 2.0, 1.0])),
    Belief(0.7, np.array([1.5, 0.1, 4.0]), np.array([0.7, 0.3, 0.2])),
]
PRICES = np.array([[0.35, 0.7], [0.4, 0.5], [0.3, 0.4]])
SMALL = 1e-4


def expected(value: object, place: int) -> float:
    """Return the mean of a function of the scaled gap under BELIEFS, by quadrature."""
    return sum(
        each.weight
        * quad(
            lambda y: value(y) * norm.pdf(y, each.mean[place], each.sd[place]),  # type: ignore[operator]  # noqa: B023
            -20,
            20,
            points=[0.0, 2.0, 3.0],
            limit=400,
        )[0]
        for each in BELIEFS
    )


def test_expected_improvements_are_those_of_quadrature() -> None:
    gap = SMALL * math.expm1(3.0)
    for place in range(3):
        fast = Goal("time", gap=gap, memory=0.6).expected_improvements(
            BELIEFS, PRICES, math.log(0.45), SMALL
        )
        better = max(0.0, math.log(0.45 / PRICES[place, 0])) * (PRICES[place, 1] <= 0.6)
        assert fast[place] == pytest.approx(better * expected(lambda y: y <= 3.0, place), abs=1e-6)
        close = Goal("gap", memory=0.6).expected_improvements(BELIEFS, PRICES, 2.0, SMALL)
        won = expected(lambda y: max(0.0, 2.0 - max(0.0, y)), place) * (PRICES[place, 1] <= 0.6)
        assert close[place] == pytest.approx(won, abs=1e-6)
    assert fast[0] == close[0] == 0.0 < min(fast[1], close[1])


def test_nothing_found_is_worse_than_what_can_be_and_float32_is_there() -> None:
    measure = Yardstick(0.9, 0.9)
    assert Goal("time", gap=1e-3).worst(PRICES, measure) == 0.0  # float32's own
    assert Goal("time", memory=0.6).worst(PRICES, measure) > math.log(0.4)
    assert Goal("gap", memory=0.6).worst(PRICES, measure) == pytest.approx(math.log1p(500.0))


def test_an_accuracy_is_the_gap_up_to_which_it_holds() -> None:
    gaps = [1e-4, 4e-4, 1.6e-3, 6.4e-3]
    assert separating(gaps, [True] * 4) == math.inf
    assert separating([], []) == math.inf
    assert separating(gaps, [True, True, False, False]) == pytest.approx(8e-4)
    assert separating(gaps[::-1], [False, False, True, True]) == pytest.approx(8e-4)
    assert separating(gaps, [True, False, True, False]) == pytest.approx(3.2e-3)
    assert 0.0 < separating(gaps, [False] * 4) < 1e-4
    aim = Aim(Goal("time"), "fastest accuracy>=0.9", accuracy=0.9)
    views = [
        TrialView({}, gap, 2.0, 0.5, a)
        for gap, a in zip(gaps, (0.95, 0.91, 0.8, math.nan), strict=True)
    ]
    assert [aim.meets(view) for view in views] == [True, True, False, False]
    assert aim.of_search(views).gap == pytest.approx(8e-4)


@pytest.mark.parametrize(("limit", "held"), [(">=5", [True, True]), ("<=6", [False, True])])
def test_a_metric_is_a_limit_from_either_side(limit: str, held: list[bool]) -> None:
    gaps, metrics = [1e-4, 4e-4, 1.6e-3], [9.0, 6.0, math.nan]
    views = [TrialView({}, g, 2.0, 0.5, metric=m) for g, m in zip(gaps, metrics, strict=True)]
    aim = aim_of(GoalSection("fastest", metric=limit), True, 2e-4, 0.5, 10**11)
    assert [aim.meets(view) for view in views] == [*held, False] and aim.goal.gap == math.inf
    assert aim.measured and not aim_of(GoalSection(), True, 2e-4, 0.5, 10**11).measured
    assert 0.0 < aim.of_search(views).gap < 1.6e-3


def test_a_search_for_a_metric_ends_with_a_policy_that_has_it(
    spec: StudySpec, tmp_path: Path
) -> None:
    """Of the outputs, which low formats move: the spread of the logits."""
    asked = replace(spec, task=replace(spec.task, metric=spread))
    free = run_study(asked, tmp_path / "free.journal", processes=0)
    values = sorted(trial.metric for trial in free.trials if trial.metric is not None)
    assert len(set(values)) > 2
    bound = (values[0] + values[1]) / 2
    goal = with_goal(asked, f"any metric<={bound!r} memory<=2")
    found = run_study(goal, tmp_path / "goal.journal", processes=0)
    assert found.stopped.startswith("goal met")
    metrics = [trial.metric for trial in found.trials]
    holds = [place for place, value in enumerate(metrics) if value is not None and value <= bound]
    # What was under way beside the policy that has it is trained to its end.
    assert holds and 0 < holds[0] >= len(metrics) - goal.study.workers
    assert holds[0] < len(free.trials)


def test_goals_take_fewer_trainings_than_filtering() -> None:
    found: list[Counted] = []
    for name in ("mlp-digits-0.1.0", "tanh-mlp-masters", "gpt-sums-groups"):
        found += counted(mean_problem(load(name)), 60)
    assert len(found) > 20
    asked, filtered = sum(c.asked for c in found), sum(c.filtered for c in found)
    assert asked <= 0.65 * filtered


def test_a_study_asks_for_its_goal_and_the_same_when_interrupted(
    spec: StudySpec, tmp_path: Path
) -> None:
    small = replace(spec, study=replace(spec.study, trials=9))

    def stop(done: float, _: object) -> None:
        if done > 6:
            raise KeyboardInterrupt

    with replaced_training(summed):
        front = asked_in(run_study(small, tmp_path / "front", processes=0))
        for words in ("closest speedup>=2 over=float32 left<=0", "smallest gap<=0.009 left<=0"):
            goal, again = with_goal(small, words), tmp_path / f"{words[:8]} again"
            with case(words):
                found = asked_in(run_study(goal, tmp_path / words[:8], processes=0))
                with pytest.raises(KeyboardInterrupt):
                    run_study(goal, again, processes=0, progress=stop)
                assert front != found == asked_in(run_study(goal, again, processes=0))
                assert len(found) == 9


def asked_in(results: Results) -> list[str]:
    return [trial.digest for trial in results.trials]


OLD = "any gap<=9 speedup>=0.5 over=float32"


@pytest.mark.usefixtures("one_process")
def test_the_command_line_takes_a_goal_and_says_what_older_keys_mean(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from policysearch.cli import main

    old = ('name = "tiny"', 'name = "tiny"\ngoal_gap = 9.0\ngoal_speedup = 0.5')
    path = write_study(tmp_path, GAIN, FREE, old)
    common = ["--storage", str(tmp_path / "j"), "--out", str(tmp_path), "--processes", "1"]
    assert main(["run", str(path), *common]) == 0
    assert capsys.readouterr().err.count(f"read as [goal] {OLD!r}") == 1
    results = policysearch.load_results(load_spec(path), tmp_path / "j")
    assert results.stopped == f"goal met: {OLD}"
    assert main(["run", str(path), *common, "--goal", "fastest trainings<=5"]) == 0
    said = capsys.readouterr()
    assert "read as" not in said.err
    assert said.out.endswith(f'once {path} has it:\n[goal]\nwant = "fastest"\ntrainings = 5\n')
    assert main(["run", str(path), *common, "--goal", "fastest gap>=1"]) != 0
    assert "--goal: 'gap>=1'; expected gap<=1" in capsys.readouterr().err
