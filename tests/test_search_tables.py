"""The tables that searches are counted on are what their script makes, and what training gives."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.search.__main__ import beside, counts
from benchmarks.search.live import every, live
from benchmarks.search.seeds import EXACT, TOLD, finalists, one_seed
from benchmarks.search.tables import (
    FOLDER,
    FRESH,
    NAMES,
    UNSEEN,
    floor,
    load,
    mean_problem,
    problems,
    without,
)
from benchmarks.search.tabulate import described, gaps, priced
from policysearch.objective.objective import JITTER, Objective
from policysearch.objective.score import gap
from policysearch.search.hypervolume import covers
from policysearch.study.specification import StudySpec, load_spec, objective_of, space_of

STUDY = Path(__file__).parents[1] / "benchmarks" / "search" / "mlp-digits-0.1.0.toml"


@pytest.fixture(scope="module")
def spec() -> StudySpec:
    return load_spec(STUDY)


@pytest.fixture(scope="module")
def objective(spec: StudySpec) -> Objective:
    return objective_of(spec)


@pytest.fixture(scope="module")
def made(spec: StudySpec, objective: Objective) -> dict[str, Any]:
    """What the policies of the table are."""
    return described(space_of(spec, objective.model))


def test_the_policies_and_the_start_are_those_of_the_study(
    spec: StudySpec, made: dict[str, Any]
) -> None:
    with np.load(FOLDER / f"{spec.study.name}.npz") as data:
        for name in ("places", "modifiers"):
            assert str(data[name]) == made[name]
        for name in ("raw", "start"):
            np.testing.assert_array_equal(data[name], made[name])


def test_policies_are_priced_in_their_order(spec: StudySpec, objective: Objective) -> None:
    space = space_of(spec, objective.model)
    params = every(space)[::200]
    found, costs = (
        priced(objective, space, params),
        [objective.price(space.policy(p)) for p in params],
    )
    assert found["time"].tolist() == [1.0 / cost.speedup for cost in costs]
    assert found["memory"].tolist() == [cost.memory_ratio for cost in costs]
    assert len(set(found["time"].tolist())) > 2 and (found["yardstick"] <= 1.0).all()


def test_scales_that_are_one_row_were_trained_to_the_same_bit(
    spec: StudySpec, made: dict[str, Any]
) -> None:
    """The table was made with a row for each; where they are one now, its gaps are equal."""
    rows, table = made["rows"], load(spec.study.name)
    merged = np.flatnonzero((rows != table.rows).any(axis=1))
    assert len(merged) == 32 and table.raw[merged].max() == 1
    for place in merged:
        twin = np.flatnonzero((table.rows == rows[place]).all(axis=1))[0]
        assert table.gaps[:, twin].tolist() == table.gaps[:, place].tolist()


@pytest.mark.parametrize("path", sorted(STUDY.parent.glob("*.toml")), ids=lambda path: path.stem)
def test_a_table_is_of_its_study_file(path: Path) -> None:
    if "torch" in str(load_spec(path).task.model):
        pytest.importorskip("torch")
    task, table = live(path.stem), load(path.stem)
    assert task is not None and len(task.params) == len(table.costs)
    place = len(table.costs) - 1
    curve = task.curve(0, place)
    np.testing.assert_allclose(curve[-1], table.gaps[0, place], rtol=1e-3)
    assert table.probes is not None and table.probes.shape == table.scores["fisher"].shape


def test_a_gap_of_the_table_is_that_of_a_training(spec: StudySpec, objective: Objective) -> None:
    """But for what a jitter of the initial weights moves: sums of another BLAS move no more."""
    space, places = space_of(spec, objective.model), [700, 1023]
    params = [every(space)[i] for i in places]
    (trained,) = gaps(spec, objective, params, [1])
    float32 = objective.measure(objective.float32, 1)
    runs = [objective.measure(space.policy(each), 1, JITTER) for each in params]
    noise = np.abs(trained - [gap(run, float32) for run in runs])
    assert (np.abs(trained - load(spec.study.name).gaps[1, places]) <= noise).all()
    assert (trained > 3 * noise).all()


def test_formats_of_gradients_cost_at_most_twice_the_trainings_to_the_volume_without() -> None:
    """Three formats of gradients in the place of one; the goal is the volume that both can have."""
    table, task = load("tanh-mlp-roles"), live("tanh-mlp-roles")
    assert task is not None
    for problem in (*problems(table), mean_problem(table)):
        fewer = without(problem, "grad")
        assert fewer is not None and len(fewer.true) == 27 and len(fewer.table.start) == 2
        own = [{p[f"grad.fc{n}"] for n in (1, 2, 3)} for p in task.params]
        kept = [place for place, formats in enumerate(own) if formats == {"same"}]
        np.testing.assert_array_equal(fewer.true, problem.true[kept])
        np.testing.assert_array_equal(fewer.table.costs, table.costs[kept])
        assert {kept[i] for i in fewer.table.start} == set(table.start)
        among_all = replace(problem, goal=fewer.volume)
        assert among_all.share(kept) == fewer.share(list(range(27))) == 1.0
        assert problem.volume > fewer.volume
        alone, every = (counts(each, "own", 0, 40) for each in (fewer, among_all))
        assert max(alone) <= 40 and all(b <= 2 * a for a, b in zip(alone, every, strict=True))


def test_a_table_without_such_a_decision_has_no_simpler_problem() -> None:
    for name in ("tanh-mlp-masters", "tanh-mlp"):
        assert without(mean_problem(load(name)), "grad") is None
        assert beside(load(name), "grad", "own", 40) == []


def test_a_start_is_trained_once() -> None:
    """A loss scale that changes no rounding makes one policy of sixteen rows of parameters."""
    with np.load(FOLDER / "tanh-mlp-scales.npz") as data:
        raw, rows = data["start"], data["rows"][data["start"]]
    table = load("tanh-mlp-scales")
    assert len(raw) == 32 and len(table.start) == 2
    assert {*map(tuple, rows.tolist())} == {*map(tuple, table.rows[list(table.start)].tolist())}


@pytest.mark.parametrize("name", NAMES)
def test_a_table_is_whole(name: str) -> None:
    table = load(name)
    count = len(table.costs)
    assert table.rows.shape[0] == table.raw.shape[0] == table.gaps.shape[1] == count
    assert len(np.unique(table.raw, axis=0)) == count
    assert np.abs(table.gaps[:, table.exact]).max() < 1e-9 and table.exact.any()
    problem = mean_problem(table)
    everything = problem.share(list(range(count)))
    assert everything == 1.0 and 0 < floor(problem, (0.95,))[0] < 10


@pytest.mark.parametrize("name", UNSEEN)
def test_an_unseen_table_is_whole(name: str) -> None:
    """Every policy of its study file, with each of three seeds, and what its probes say."""
    spec, table = load_spec(STUDY.parent / f"{name}.toml"), load(name)
    count = len(table.costs)
    assert spec.study.name == name and spec.study.seeds == (0, 1, 2) == tuple(
        range(len(table.gaps))
    )
    assert table.rows.shape[0] == table.raw.shape[0] == table.gaps.shape[1] == count
    assert len(np.unique(table.raw, axis=0)) == count == np.prod(table.raw.max(axis=0) + 1)
    assert np.isfinite(table.gaps).all() and np.ptp(table.gaps, axis=1).min() > 1e-3
    assert np.abs(table.gaps[:, table.exact]).max() < 1e-9 and table.exact.any()
    counted = len(table.decisions.counted())
    assert table.errors is not None and table.errors.shape == (3, counted, 2)
    assert table.scores["loss"].shape == (3, counted) and 0.0 < table.errors_cost < 1.0
    for problem in problems(table):
        assert problem.volume > 0.0 and problem.share(list(range(count))) == 1.0


def test_the_unseen_tables_are_of_the_kinds_that_were_chosen() -> None:
    tasks = {name: load_spec(STUDY.parent / f"{name}.toml") for name in UNSEEN}
    optimizers = [spec.task.optimizer for spec in tasks.values()]
    assert len(UNSEEN) == 10 and optimizers.count("adamw") == 3
    assert sum(spec.task.data == "sums" for spec in tasks.values()) == 2
    assert sum("stochastic" in spec.space.update_roundings for spec in tasks.values()) == 1
    assert sum(False in spec.space.master_weights for spec in tasks.values()) == 5
    seen = {path.stem for path in STUDY.parent.glob("*.toml")} - set(UNSEEN)
    assert not set(UNSEEN) & {*NAMES, *FRESH} and seen <= {*NAMES, *FRESH}


@pytest.mark.parametrize("told", [EXACT, TOLD])
def test_all_of_a_front_is_trained_with_all_seeds_and_no_more_than_ever_was_on_it(
    told: tuple[float, float, float],
) -> None:
    table, places = load("tanh-mlp"), list(range(0, 1024, 9))
    mean = table.gaps.mean(axis=0)
    found = finalists(table, places, 1, told)
    known = np.where(np.isin(np.arange(len(mean)), list(found)), mean, table.gaps[1])
    points = table.measure.points(known[places], table.costs[places])
    # Pair by pair: what no other covers is on any front.
    for place, point in zip(places, points.tolist(), strict=True):
        others = [tuple(p) for i, p in zip(places, points.tolist(), strict=True) if i != place]
        if point[0] < 1.0 and not any(covers(other, tuple(point), told) for other in others):
            assert place in found
    assert 2 < len(found) < len(places)
    runs, share = list(one_seed(table, 1, told, 3))[-1]
    assert 3 + len(table.gaps) - 1 <= runs <= 3 * len(table.gaps) and 0.0 < share < 1.0
