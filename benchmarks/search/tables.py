"""Studies of which every policy was trained, so that a search can be scored without training.

- `tanh-mlp`: digits, five tanh layers of 64, 32, 96, 24 and 64, SGD at .05, 160 steps of 64. Each
  layer in float32, bfloat16 (masters in float32), bfloat16 stored in bfloat16, or e4m3 (masters).
  Three training seeds; gap of the mean training loss over the tail.
- `char-transformer`: characters, width 16, 2 heads, 16 tokens, Adam at 4e-3, 120 steps of 8. Five
  groups of layers in float32, bfloat16 stored in bfloat16, e4m3 forward with e5m2 gradients, or
  e4m3. Two training seeds; gap of the validation loss over the tail.
- `mlp-digits-0.1.0`: every policy of `mlp-digits-0.1.0.toml`, made by `tabulate.py`: four layers in
  four formats, masters or not, no loss scale or 128. Three training seeds.

Times and memory of the first two are of an invented roofline, those of the third the modeled ones.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from policysearch.search.decisions import Decisions, Option
from policysearch.search.gain import Yardstick
from policysearch.search.hypervolume import Array, improvements

FOLDER = Path(__file__).parent / "data"
NAMES = ("tanh-mlp", "char-transformer", "mlp-digits-0.1.0")


@dataclass(frozen=True)
class Table:
    """All policies of a study: effective decisions, raw ones, costs, gaps by training seed.

    `rows` [n, places + modifiers], `raw` [n, decisions], `costs` [n, 2], `gaps` [seeds, n] in
    nats. `start` are the places of the uniform ladder.
    """

    name: str
    decisions: Decisions
    rows: NDArray[np.int64]
    raw: NDArray[np.int64]
    costs: Array
    gaps: Array
    measure: Yardstick
    start: tuple[int, ...]

    @property
    def exact(self) -> NDArray[np.bool_]:
        """Which policies [n] are float32 throughout, whose gap is known to be zero."""
        places = zip(self.decisions.places, self.rows.T, strict=False)
        each = [np.array([option.exact for option in options])[row] for options, row in places]
        return np.asarray(np.all(each, axis=0))


@dataclass(frozen=True)
class Problem:
    """A table with one gap [n] per policy: what a search is told, and what it is scored by."""

    table: Table
    told: Array
    true: Array

    def share(self, trained: list[int]) -> float:
        """Return the share of the volume of all policies that those trained dominate."""
        costs, measure = self.table.costs, self.table.measure
        found = measure.volume(self.true[trained], costs[trained])
        return found / measure.volume(self.true, costs)


def load(name: str) -> Table:
    """Return a table of NAMES."""
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
            tuple(data["start"].tolist()),
        )


def problems(table: Table) -> list[Problem]:
    """Return each training seed as a problem of its own."""
    return [Problem(table, gaps, gaps) for gaps in table.gaps]


def mean_problem(table: Table) -> Problem:
    """Return the problem of the mean gaps over the training seeds."""
    mean = table.gaps.mean(axis=0)
    return Problem(table, mean, mean)


def floor(problem: Problem, shares: tuple[float, ...]) -> list[int]:
    """Return how many trainings greedy choice with perfect knowledge takes to each share."""
    table = problem.table
    points = table.measure.points(problem.true, table.costs)
    trained: list[int] = []
    counts = []
    for share in shares:
        while problem.share(trained) < share:
            gains = improvements(points, points[trained], table.measure.corner)
            trained.append(int(gains.argmax()))
        counts.append(len(trained))
    return counts
