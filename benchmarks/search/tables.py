"""Studies of which every policy was trained, so that a search can be scored without training.

- `tanh-mlp`: digits, five tanh layers of 64, 32, 96, 24 and 64, SGD at .05, 160 steps of 64. Each
  layer in float32, bfloat16 (masters in float32), bfloat16 stored in bfloat16, or e4m3 (masters).
  Three training seeds; gap of the mean training loss over the tail.
- `char-transformer`: characters, width 16, 2 heads, 16 tokens, Adam at 4e-3, 120 steps of 8. Five
  groups of layers in float32, bfloat16 stored in bfloat16, e4m3 forward with e5m2 gradients, or
  e4m3. Two training seeds; gap of the validation loss over the tail.
- `mlp-digits-0.1.0`: every policy of `mlp-digits-0.1.0.toml`, made by `tabulate.py`: four layers in
  four formats, masters or not, no loss scale or 128. Three training seeds.
- The others likewise, each of the study file of its name, two training seeds; UNSEEN three.

Times and memory of the first two are of an invented roofline, those of the others modeled.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.search.live import live
from policysearch.objective.score import CURVE_SHARES
from policysearch.search.acquisition import Yardstick
from policysearch.search.fidelity import SHORT
from policysearch.search.hypervolume import Array, improvements
from policysearch.space.options import Decisions, Option

FOLDER = Path(__file__).parent / "data"
SHARES = (0.1, 0.25, 0.5, 1.0)
"""Where along the runs of the first two tables their gaps are known."""

NAMES = (
    "tanh-mlp",
    "char-transformer",
    "mlp-digits-0.1.0",
    "tanh-mlp-masters",
    "tanh-mlp-scales",
    "gpt-sums-groups",
    "transformer-ops",
    "tanh-mlp-roles",
)
FRESH = ("gelu-mlp-masters", "relu-mlp-adam", "gpt-sums-masters", "lenet5-layers")
"""Tables made after the searcher was, to see whether it holds on others."""

UNSEEN = (
    "normed-mlp",
    "gru-rows",
    "tanh-mlp-adamw",
    "relu-mlp-masters",
    "mlp-stochastic",
    "resnet-stages",
    "convnet-cosine",
    "rms-transformer-adamw",
    "gpt-sums-adamw",
    "rms-gpt-masters",
)
"""Tables that nothing is ever tuned on, scored once a release (`benchmarks.search.unseen`)."""


@dataclass(frozen=True)
class Table:
    """All policies of a study: effective decisions, raw ones, costs, gaps by training seed.

    `rows` [n, places + modifiers], `raw` [n, decisions], `costs` [n, 2], `gaps` [seeds, n] in
    nats. `start` are the places of the uniform ladder, of equal rows the first. `curves` [seeds, n,
    shares] are the gaps at the shares SHARES of the run, None where the task can be run here. Of
    such a task alone there are `probes` [seeds, decisions] and `probe_cost` in trainings, as
    `benchmarks.search.probes` gives them, `scores` [seeds, decisions] as `benchmarks.search.scores`
    does, and `errors` [seeds, decisions, 2] and `errors_cost`, the product's own probes.
    """

    name: str
    decisions: Decisions
    rows: NDArray[np.int64]
    raw: NDArray[np.int64]
    costs: Array
    gaps: Array
    measure: Yardstick
    start: tuple[int, ...]
    curves: Array | None
    probes: Array | None
    probe_cost: float
    scores: Mapping[str, Array]
    errors: Array | None = None
    errors_cost: float = 0.0

    def short(self, seed: int) -> float:
        """Return how much of the steps a short run takes; 1 where float32 learns too late."""
        task = live(self.name)
        return SHORT if task is None else task.short(seed)

    def curve(self, seed: int, place: int) -> dict[float, float]:
        """Return the gaps in nats along the run of a policy, by share of the steps."""
        if self.curves is not None:
            return dict(zip(SHARES, self.curves[seed, place].tolist(), strict=True))
        task = live(self.name)
        assert task is not None
        return dict(zip(CURVE_SHARES, task.curve(seed, place), strict=True))

    @property
    def exact(self) -> NDArray[np.bool_]:
        """Which policies [n] are float32 throughout, whose gap is known to be zero."""
        places = zip(self.decisions.places, self.rows.T, strict=False)
        each = [np.array([option.exact for option in options])[row] for options, row in places]
        return np.asarray(np.all(each, axis=0))


@dataclass(frozen=True)
class Problem:
    """A table with one gap [n] per policy: what a search is told, and what it is scored by.

    `seed` is the training seed of what is told, None where that is the mean. `goal` is the volume
    that shares are of, None for that of all policies.
    """

    table: Table
    told: Array
    true: Array
    seed: int | None = None
    goal: float | None = None

    @property
    def volume(self) -> float:
        """The volume that all policies dominate."""
        return self.table.measure.volume(self.true, self.table.costs)

    def share(self, trained: list[int]) -> float:
        """Return the share of the volume, or of `goal`, that the policies trained dominate.

        All of it where there is none.
        """
        costs, measure = self.table.costs, self.table.measure
        found = measure.volume(self.true[trained], costs[trained])
        whole = self.goal or self.volume
        return found / whole if whole else 1.0


def load(name: str) -> Table:
    """Return a table of NAMES, FRESH or UNSEEN."""
    with np.load(FOLDER / f"{name}.npz") as data:
        places = [
            [Option(*option) for option in place] for place in json.loads(str(data["places"]))
        ]
        return Table(
            name,
            Decisions(tuple(map(tuple, places)), tuple(json.loads(str(data["modifiers"])))),
            data["rows"].astype(np.int64),
            data["raw"].astype(np.int64),
            np.column_stack([data["time"], data["memory"]]),
            data["gap"].astype(float),
            Yardstick(*data["yardstick"].tolist()),
            _first_of_rows(data["rows"], data["start"].tolist()),
            data["curve"].astype(float) if "curve" in data else None,
            data.get("probes"),
            float(data["probe_cost"]) if "probe_cost" in data else 0.0,
            {each: data[each] for each in ("loss", "fisher") if each in data},
            data.get("errors"),
            float(data["errors_cost"]) if "errors_cost" in data else 0.0,
        )


def _first_of_rows(rows: NDArray[np.int64], start: list[int]) -> tuple[int, ...]:
    """Return those of `start` whose row no earlier one has: policies that are one are one start."""
    found = {tuple(rows[place].tolist()): place for place in reversed(start)}
    return tuple(sorted(found.values()))


def problems(table: Table) -> list[Problem]:
    """Return each training seed as a problem of its own."""
    return [Problem(table, gaps, gaps, seed) for seed, gaps in enumerate(table.gaps)]


def mean_problem(table: Table) -> Problem:
    """Return the problem of the mean gaps over the training seeds."""
    mean = table.gaps.mean(axis=0)
    return Problem(table, mean, mean)


def with_idle(table: Table, values: int) -> Table:
    """Return the table with one more decision, of so many values, that does nothing."""
    if values == 1:
        return table
    idle = np.tile(np.arange(values), len(table.costs))[:, None]
    modifiers = (*table.decisions.modifiers, values)
    return replace(
        table,
        decisions=replace(table.decisions, modifiers=modifiers),
        rows=np.column_stack([np.repeat(table.rows, values, axis=0), idle]),
        raw=np.column_stack([np.repeat(table.raw, values, axis=0), idle]),
        costs=np.repeat(table.costs, values, axis=0),
        gaps=np.repeat(table.gaps, values, axis=1),
        start=tuple(place * values for place in table.start),
        curves=None if table.curves is None else np.repeat(table.curves, values, axis=1),
    )


def without(problem: Problem, kind: str) -> Problem | None:
    """Return the problem of the policies that leave decisions of a kind ("grad") at their first.

    None where the table has no such decision, or is of a task that cannot be run here.
    """
    table, task = problem.table, live(problem.table.name)
    names = list(task.params[0]) if task else []
    columns = [i for i, name in enumerate(names) if name.startswith(f"{kind}.")]
    if not columns:
        return None
    kept = np.flatnonzero((table.raw[:, columns] == 0).all(axis=1))
    fewer = replace(
        table,
        rows=table.rows[kept],
        raw=table.raw[kept],
        costs=table.costs[kept],
        gaps=table.gaps[:, kept],
        start=tuple(np.flatnonzero(np.isin(kept, table.start)).tolist()),
        curves=None if table.curves is None else table.curves[:, kept],
    )
    return replace(problem, table=fewer, told=problem.told[kept], true=problem.true[kept])


def greedy(problem: Problem) -> Iterator[int]:
    """Yield the places of all policies, each the one that adds most volume to those before it."""
    table = problem.table
    points = table.measure.points(problem.true, table.costs)
    trained: list[int] = []
    while len(trained) < len(points):
        gains = improvements(points, points[trained], table.measure.corner)
        gains[trained] = -1.0
        trained.append(int(gains.argmax()))
        yield trained[-1]


def floor(problem: Problem, shares: tuple[float, ...]) -> list[float]:
    """Return how many trainings greedy choice with perfect knowledge takes to each share."""
    best, trained, counts = greedy(problem), list[int](), list[float]()
    for share in shares:
        while problem.share(trained) < share:
            trained.append(next(best))
        counts.append(len(trained))
    return counts
