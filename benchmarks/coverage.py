"""Whether the stated intervals of gaps hold: three seeds against ten fresh ones.

    python -m benchmarks.coverage studies/mlp-digits.toml studies/lenet5-digits.toml

Per study, 30 policies of its space are trained on the study's seeds and on ten others. Prints how
many of the 95 % intervals cover the mean of the ten; the same with the seeds drawn again, because
policies share seeds and so are covered or missed together; and how often the order of adjacent
groups that are shown apart is reversed. Exits with 1 where fewer than 90 % are covered, in either
way, or 5 % or more reversed.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.runs import gap_rows, measured
from policysearch.objective.objective import Objective
from policysearch.objective.score import DIVERGED_GAP
from policysearch.policy.policy import Policy
from policysearch.space.model_space import make_space
from policysearch.study.results.noise import Interval, intervals
from policysearch.study.specification import StudySpec, load_spec, objective_of
from policysearch.study.workers.executors import Job

POLICIES = 30
FRESH = tuple(range(1000, 1010))
DRAWS = 200
WANTED_COVERAGE = 0.90
MOST_REVERSED = 0.05


def drawn(spec: StudySpec, objective: Objective) -> list[Policy]:
    """Return the ladder and random policies of the space, POLICIES of them, no two alike."""
    rng = np.random.default_rng(spec.study.seed)
    space = make_space(spec.space, objective.model, spec.rules, steps=spec.task.steps)
    found = {key: policy for key, (policy, _) in space.ladder(spec.study.baseline).items()}
    while len(found) < POLICIES:
        params = {name: rng.choice(len(v)) for name, v in space.choices().items()}
        policy = space.policy({k: space.choices()[k][i] for k, i in params.items()})
        found.setdefault(policy.digest, policy)
    found.pop(objective.float32.digest, None)
    return list(found.values())[:POLICIES]


def gaps_of(spec: StudySpec, seeds: Sequence[int], processes: int | None) -> list[list[float]]:
    """Return the loss gap of every policy with every seed, diverged policies left out."""
    objective = objective_of(spec)
    policies = [objective.float32, *drawn(spec, objective)]
    jobs = [Job(policy, seed) for policy in policies for seed in seeds]
    rows = gap_rows(measured(objective, jobs, processes), len(seeds))
    return [row for row in rows if max(row) < DIVERGED_GAP]


def reversed_share(few: list[list[float]], fresh: list[list[float]]) -> float:
    """Return how often groups shown apart are reversed when the seeds are drawn again."""
    shown = intervals(few)
    order = sorted(range(len(few)), key=lambda i: _mean(few[i]))
    pairs = [(a, b) for a, b in itertools.pairwise(_heads(order, shown))]
    rng = np.random.default_rng(0)
    flips = 0
    for _ in range(DRAWS):
        chosen = rng.choice(len(FRESH), size=len(few[0]), replace=False)
        means = [_mean([row[i] for i in chosen]) for row in fresh]
        flips += sum(means[a] > means[b] for a, b in pairs)
    return flips / (DRAWS * len(pairs)) if pairs else 0.0


def _heads(order: Sequence[int], shown: Sequence[Interval | None]) -> list[int]:
    heads: list[int] = []
    for place in order:
        here, last = shown[place], shown[heads[-1]] if heads else None
        if here is not None and (last is None or here.apart(last)):
            heads.append(place)
    return heads


def _mean(row: Sequence[float]) -> float:
    return math.fsum(row) / len(row)


def covered(few: list[list[float]], fresh: list[list[float]]) -> float:
    """Return the share of intervals from `few` seeds that hold the mean over the `fresh` ones."""
    inside = [
        interval is not None and interval.low <= _mean(row) <= interval.high
        for interval, row in zip(intervals(few), fresh, strict=True)
    ]
    return sum(inside) / len(inside)


def redrawn(rows: list[list[float]], count: int) -> float:
    """Return the mean of `covered` where `count` seeds of all are drawn again and again."""
    rng = np.random.default_rng(1)
    shares = []
    for _ in range(DRAWS):
        order = rng.permutation(len(rows[0]))
        few = [[row[i] for i in order[:count]] for row in rows]
        shares.append(covered(few, [[row[i] for i in order[count:]] for row in rows]))
    return _mean(shares)


def report(spec: StudySpec, processes: int | None) -> bool:
    """Print one study's coverage and reversals; return whether they are good enough."""
    seeds = spec.study.seeds
    rows = gaps_of(spec, (*seeds, *FRESH), processes)
    few, fresh = [row[: len(seeds)] for row in rows], [row[len(seeds) :] for row in rows]
    own, again, flips = covered(few, fresh), redrawn(rows, len(seeds)), reversed_share(few, fresh)
    print(
        f"{spec.study.name}: {len(rows)} policies; the mean of {len(FRESH)} fresh seeds lies in "
        f"{own:.0%} of the intervals from seeds {', '.join(map(str, seeds))}, in {again:.0%} with "
        f"seeds drawn again; order of groups shown apart reversed {flips:.1%}"
    )
    return min(own, again) >= WANTED_COVERAGE and flips < MOST_REVERSED


def main() -> int:
    """Print every study's row; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("studies", nargs="+", type=Path)
    parser.add_argument("--processes", type=int, default=None)
    options = parser.parse_args()
    good = [report(load_spec(path), options.processes) for path in options.studies]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
