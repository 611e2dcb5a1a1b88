"""Whether a recipe can rank policies: a chaotic one that cannot, a calm one that can."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from policysearch import api
from policysearch.cli import main
from policysearch.objective.objective import JITTER
from policysearch.report.noise_page import noise_page
from policysearch.report.one_trial import standing
from policysearch.report.plots import VIEWS, figure
from policysearch.report.table import csv_text, front_table
from policysearch.study.results.learning import Learned
from policysearch.study.results.noise import MOST_SEEDS, Interval, seeds_needed
from policysearch.study.results.ranking import (
    ERRORS,
    FEWEST,
    WANTED_SHARE,
    cannot_rank,
    split_half,
    undecided,
)
from policysearch.study.results.results import Results
from policysearch.train.tasks import Task
from policysearch.values import InputError
from tests.studies import write_study

SAID = "this recipe cannot rank policies"
LONGER = (("steps = 6", "steps = 100"), ("tail_steps = 3", "tail_steps = 10"))
CHAOTIC = (*LONGER, ('"tanh"\n', '"relu"\n'), ("rate = 0.1", "rate = 0.2"), ("[8]", "[64, 64]"))
CALM = (*LONGER, ("[8]", "[32]"), ('"random"', '"gain"'))


def studied(folder: Path, *changes: tuple[str, str]) -> tuple[Results, list[str]]:
    """Return a small study's results, really trained, and how a command names it."""
    path = write_study(folder, *changes)
    storage = folder / "x.journal"
    results = api.run_study(api.load_study(path), storage, processes=0)
    return results, [str(path), "--storage", str(storage)]


@pytest.fixture(scope="module")
def chaotic(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, list[str]]:
    return studied(tmp_path_factory.mktemp("chaotic"), *CHAOTIC)


@pytest.fixture(scope="module")
def calm(tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, list[str]]:
    return studied(tmp_path_factory.mktemp("calm"), *CALM)


def test_one_study_is_chaotic_and_the_other_is_not(
    chaotic: tuple[Results, list[str]], calm: tuple[Results, list[str]]
) -> None:
    """A change of JITTER, below any format's rounding, grows to a share of what is learned."""
    for (results, _), wild in ((chaotic, True), (calm, False)):
        assert results.learned is not None and results.noise_gap is not None
        assert results.learned.first_loss == pytest.approx(math.log(10), rel=0.25)
        assert results.learned.drop > 0.2
        share = results.noise_gap / results.learned.drop
        assert share > 1e3 * JITTER if wild else share < 10 * JITTER
        assert bool(results.cannot_rank) is wild
        assert {row.cannot_rank for row in results.rows()} == {results.cannot_rank}


@pytest.mark.usefixtures("one_process")
def test_every_view_says_that_nothing_is_ranked(
    chaotic: tuple[Results, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    results, places = chaotic
    sound = [trial for trial in results.trials if not trial.diverged]
    assert results.front == () and len(sound) >= 4
    assert "task.learning_rate (now 0.2)" in results.cannot_rank
    assert "smooth task.activation as tanh (now relu)" in results.cannot_rank
    table = front_table(results)
    assert SAID in table.splitlines()[0] and "0 on the front" in table
    assert all(f"{trial.loss_gap:+.2e}" in table for trial in sound)
    assert SAID in csv_text(results)
    assert SAID in noise_page(results) and SAID in standing(results, sound[0])
    for view in VIEWS:
        (axes,) = figure(results, view).axes
        assert SAID in [text.get_text() for text in axes.texts]
        assert "knee" not in [drawn.get_label() for drawn in axes.collections]
    capsys.readouterr()
    for command in (["run"], ["show"], ["noise"], ["confirm"]):
        assert main([*command, *places, *(["--out", str(tmp_path)] * (command == ["run"]))]) == 0
        assert SAID in capsys.readouterr().out, command


@pytest.mark.parametrize("rule", [["--pick", "knee"], ["--fastest"], ["--max-gap", "1"], []])
def test_nothing_is_picked_where_nothing_is_ranked(
    chaotic: tuple[Results, list[str]],
    rule: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    _, places = chaotic
    assert main(["export", *places, "--out", str(tmp_path), *rule]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1 and SAID in error and "change: " in error
    assert list(tmp_path.iterdir()) == []


def test_a_trial_named_by_number_is_exported_with_the_warning(
    chaotic: tuple[Results, list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, places = chaotic
    assert main(["export", *places, "--out", str(tmp_path), "--trial", "1"]) == 0
    assert SAID in capsys.readouterr().out
    assert SAID in (tmp_path / "tiny-torch.py").read_text(encoding="utf-8").replace("\n# ", " ")


def test_a_calm_recipe_ranks(calm: tuple[Results, list[str]]) -> None:
    results, _ = calm
    assert results.front and results.knee() in results.front
    assert results.fastest() in results.front
    assert SAID not in front_table(results) + noise_page(results)
    assert "this recipe ranks policies whose gaps differ by 1% of" in noise_page(results)


def task(activation: str = "tanh") -> Task:
    return Task(activation=activation, learning_rate=0.25)


def wide(error: float, mean: float = 0.0, count: int = 8) -> list[Interval | None]:
    return [Interval(mean, mean - 3 * error, mean + 3 * error, error, 4.0)] * count


LEARNED = Learned(2.3, 0.3)
LIMIT = 2.0 * WANTED_SHARE


def test_ten_floors_are_held_against_what_float32_learns() -> None:
    assert cannot_rank(LEARNED, LIMIT / 10 * 0.99, [], task(), 3) == ""
    said = cannot_rank(LEARNED, LIMIT / 10 * 1.01, [], task(), 3)
    assert said.startswith(SAID) and "rate (now 0.25)" in said and "activation" not in said
    assert "(now relu)" in cannot_rank(LEARNED, LIMIT, [], task("relu"), 3)
    assert cannot_rank(None, 1.0, wide(1.0), task(), 3) == ""
    assert "does not fall" in cannot_rank(Learned(2.3, 2.3), 0.0, [], task(), 3)


def test_gaps_that_stray_over_the_seeds_ask_for_more_seeds() -> None:
    assert cannot_rank(LEARNED, 0.0, wide(LIMIT / 2 * 0.99), task(), 3) == ""
    said = cannot_rank(LEARNED, 0.0, wide(LIMIT * 0.99), task(), 3)
    # Two standard errors over three seeds are 1.98 times what is wanted: 3.92 times the seeds.
    assert said.startswith(SAID) and "study.seeds: 12 instead of 3" in said
    assert "learning_rate" in cannot_rank(LEARNED, 0.0, wide(10 * LIMIT), task(), 3)
    # Told from float32, or too few to speak for the recipe.
    assert cannot_rank(LEARNED, 0.0, wide(LIMIT, mean=0.5), task(), 3) == ""
    assert cannot_rank(LEARNED, 0.0, wide(LIMIT, count=7), task(), 3) == ""
    half = [*wide(LIMIT, count=4), *wide(LIMIT, mean=0.5, count=4)]
    assert cannot_rank(LEARNED, 0.0, half, task(), 3) == ""


def test_seeds_needed_are_those_a_t_interval_takes() -> None:
    error = 0.5 / math.sqrt(3)  # A spread of 0.5 over three seeds, known to two degrees.
    needed = seeds_needed(error, 2.0, 3, 0.4)
    reach = [stats.t.ppf(0.975, n - 1) * 0.5 / math.sqrt(n) for n in range(2, 30)]
    assert needed == 2 + next(i for i, r in enumerate(reach) if r <= 0.4)
    assert seeds_needed(error, 2.0, 3, 1e-3) == MOST_SEEDS + 1


@pytest.mark.parametrize("seeds", [2, 3, 4])
def test_halves_of_the_seeds_are_compared_by_rank(seeds: int) -> None:
    gaps = np.random.default_rng(seeds).standard_normal((9, seeds)).round(1)
    found = []
    for half in combinations(range(seeds), seeds // 2):
        rest = [seed for seed in range(seeds) if seed not in half]
        first, second = gaps[:, list(half)].mean(axis=1), gaps[:, rest].mean(axis=1)
        found.append(stats.spearmanr(first, second).statistic)
    assert split_half(gaps.tolist()) == pytest.approx(np.mean(found))
    assert split_half(gaps[:, :1].tolist()) is None
    assert split_half(np.ones((5, 2)).tolist()) == 0.0


def test_the_page_says_what_one_seed_cannot(calm: tuple[Results, list[str]]) -> None:
    results, _ = calm
    last = max(results.trials, key=lambda trial: trial.loss_gap)
    cost = replace(last.cost, speedup=3.0)  # so that the front has two, by a gap that matters
    scores = (replace(s, cost=cost, loss_gap=s.loss_gap + 0.1) for s in last.scores)
    fast = replace(last, scores=tuple(scores))
    priced = tuple(fast if trial is last else trial for trial in results.trials)
    results = replace(results, trials=priced)
    assert len(results.front) > 1
    page = noise_page(results)
    for words in ("spread of a gap", "between halves of the seeds", "at 95 %", "a drop of"):
        assert words in page
    few = sum(trial.gap_error > 0.0 for trial in results.trials)
    assert f"stands clear of noise; {few} policies are too few to say of seeds" in page
    twice = tuple(replace(trial, number=trial.number + 100) for trial in results.trials)
    assert few < FEWEST <= 2 * few
    more = noise_page(replace(results, trials=results.trials + twice))
    assert "stands clear of noise and seeds" in more
    trials = tuple(replace(trial, scores=trial.scores[:1]) for trial in results.trials)
    spec = replace(results.spec, study=replace(results.spec.study, seeds=(0,)))
    one = noise_page(replace(results, trials=trials, spec=spec))
    assert "one seed: nothing is known of the spread" in one
    assert "stands clear of noise; 0 policies are too few to say of seeds" in one
    assert "unknown: one seed" in one and "apart" not in one and "a tie" not in one


def test_an_empty_front_is_no_pick(chaotic: tuple[Results, list[str]]) -> None:
    for pick in (chaotic[0].knee, chaotic[0].fastest):
        with pytest.raises(InputError, match=SAID):
            pick()


@pytest.mark.parametrize(
    ("mean", "wanted", "told"),
    [(0.0, 0.25, True), (0.0, 0.2499, False), (0.25, 0.0, True), (-0.2499, 0.0, False)],
)
def test_a_gap_is_decided_from_the_share_that_is_wanted_on(
    mean: float, wanted: float, told: bool
) -> None:
    error = 0.25 / ERRORS
    assert ERRORS * error == 0.25
    assert undecided(Interval(mean, mean - 0.3, mean + 0.3, error, 2.0), wanted) != told
