"""The sampler of the product: rows against real trainings, drawn pools, a study of one's own."""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import optuna
import pytest

from policysearch.objective.objective import Objective
from policysearch.search.candidates import SpacePool
from policysearch.search.objectives import DIRECTIONS
from policysearch.space.decided.base import Group, Params
from policysearch.space.encoding import Encoding
from policysearch.space.space import Space
from policysearch.study.sections import StudySection
from policysearch.study.specification import StudySpec, load_spec, objective_of, space_of
from policysearch.study.study import gain_sampler
from tests.studies import write_study


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    spec = load_spec(write_study(tmp_path_factory.mktemp("study")))
    return replace(spec, space=replace(spec.space, log2_scale=(7, 8)))


@pytest.fixture(scope="module")
def objective(spec: StudySpec) -> Objective:
    return objective_of(spec)


@pytest.fixture(scope="module")
def space(spec: StudySpec, objective: Objective) -> Space:
    return space_of(spec, objective.model)


def every(space: Space) -> list[Params]:
    choices = space.choices()
    return [dict(zip(choices, each, strict=True)) for each in itertools.product(*choices.values())]


def test_parameters_of_one_row_train_alike(space: Space, objective: Objective) -> None:
    found = defaultdict(list)
    effective = Encoding(space)
    for params in every(space):
        found[effective.row(params)].append(params)
    alike = [group for group in found.values() if len(group) > 1]
    # float32 with and without masters, and scales that their kind does not use
    assert any({p["master_weights"] for p in group} == {True, False} for group in alike)
    assert any({p["log2_scale"] for p in group} == {7, 8} for group in alike)
    for group in (alike[0], alike[len(alike) // 2], alike[-1]):
        runs = [objective.measure(space.policy(params), 0) for params in (group[0], group[-1])]
        assert runs[0].tail_loss == runs[1].tail_loss is not None


def test_policies_of_different_rows_are_different(space: Space) -> None:
    effective = Encoding(space)
    rows: dict[str, set[tuple[int, ...]]] = defaultdict(set)
    for params in every(space):
        rows[space.policy(params).digest].add(effective.row(params))
    assert all(len(found) == 1 for found in rows.values())


def test_the_value_of_a_loss_scale_has_no_price(space: Space, objective: Objective) -> None:
    some = {"format.fc1": "bfloat16", "format.fc2": "float8_e4m3fn", "loss_scale": "fixed"}
    prices = [objective.price(space.policy(some | {"log2_scale": power})) for power in (7, 8)]
    assert prices[0] == prices[1]


def test_the_gain_sampler_is_the_default() -> None:
    assert StudySection("any").sampler == "gain"


def test_a_study_of_ones_own_asks_for_new_policies_alone(spec: StudySpec, space: Space) -> None:
    def value(trial: optuna.Trial) -> tuple[float, float, float]:
        policy = space.policy(space.suggest(trial))
        modeled = pricing.price(policy)
        bits = sum(layer.compute != "float32" for _, layer in policy.layers)
        return 1e-3 * bits, modeled.speedup, modeled.memory_ratio

    pricing = objective_of(spec)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    asked = []
    for _ in range(2):
        directions = [DIRECTIONS[name] for name in spec.objectives.names]
        study = optuna.create_study(sampler=gain_sampler(spec), directions=directions)
        study.optimize(value, n_trials=12)
        effective = Encoding(space)
        asked.append([effective.row(trial.params) for trial in study.trials])
    assert len(set(asked[0])) == 12
    assert asked[0] == asked[1]


def large(space: Space, layers: int) -> Space:
    formats = ("float32", "bfloat16", "float16", "float8_e4m3fn", "float8_e5m2")
    groups = tuple(Group(f"l{i}", (f"l{i}",)) for i in range(layers))
    return replace(
        space, section=replace(space.section, formats=formats, ops=()), groups=groups, rules=()
    )


def test_a_large_space_is_drawn_from_by_price_and_gap(space: Space) -> None:
    """Layers keep the cheap formats where they are not sensitive."""
    wide = large(space, 40)
    widths = np.random.default_rng(0).uniform(0.5, 2.0, 40) / 40
    speeds = dict(zip(wide.section.formats, (1.0, 0.5, 0.5, 0.3, 0.3), strict=True))

    def costs(params: Params) -> tuple[float, float]:
        formats = [params[f"format.l{i}"] for i in range(40)]
        times = sum(width * speeds[name] for width, name in zip(widths, formats, strict=True))
        return times, 0.8 if params["master_weights"] else 0.5

    effective = Encoding(wide)
    pool = SpacePool(wide, effective, costs, seed=0)
    counted = effective.decisions.counted()
    theta = np.array([math.log(1e-4 * (1 + place)) for place, _ in counted])
    rows, priced = pool.propose([], theta)
    again, _ = pool.propose([], theta)
    assert rows.tolist() == again.tolist()
    assert len(rows) > 20
    for row, cost in zip(rows.tolist(), priced.tolist(), strict=True):
        assert costs(pool.params_of(tuple(row))) == pytest.approx(tuple(cost))
    mixed = [row for row in rows.tolist() if len({bool(option) for option in row[:40]}) == 2]
    low = np.mean([[bool(option) for option in row[:40]] for row in mixed], axis=0)
    assert len(mixed) > 5 and low[:10].mean() > low[30:].mean() + 0.2


def test_unpriced_policies_are_not_asked_for(space: Space) -> None:
    def costs(params: Params) -> tuple[float, float] | None:
        return None if "float8_e4m3fn" in params.values() else (0.5, 0.5)

    effective = Encoding(space)
    pool = SpacePool(space, effective, costs, seed=0)
    rows, _ = pool.propose([], np.zeros(len(effective.decisions.counted())))
    formats = {v for row in rows.tolist() for v in pool.params_of(tuple(row)).values()}
    assert "bfloat16" in formats and "float8_e4m3fn" not in formats


def test_files_of_studies_take_it(tmp_path: Path) -> None:
    changed = write_study(tmp_path, ('sampler = "random"', 'sampler = "gain"'))
    assert load_spec(changed).study.sampler == "gain"
