"""How many trainings searches need to find the front of studies that were trained in full.

    python -m benchmarks.search [--tables NAME ...] [--searches NAME ...] [--seeds 10] [--batch 1]

Per table and search: trainings beyond float32 to 95 % and 99 % of the dominated volume, median and
90th percentile over training seeds times sampler seeds; on the mean over training seeds; speed
regret at 16 trainings, mean and worst over the gap budgets; and, searching one seed, the share of
the volume that the front it proposes has on the mean of the seeds, at 20 and at 60 trainings. A
count above --trials is shown as more than that. `own` draws nothing at random, so its sampler seeds
agree. The floor is greedy choice by someone who knows every result.
"""

from __future__ import annotations

import argparse
import sys

import numpy as np
import optuna

from benchmarks.search.samplers import make
from benchmarks.search.tables import NAMES, Problem, floor, load, mean_problem, problems
from policysearch.search.front import non_dominated
from policysearch.search.gain import regret

SHARES = (0.95, 0.99)
SEARCHES = ("own", "random", "tpe", "tpe+ladder", "nsga2", "nsga2+ladder")
NOISY = (20, 60)
REGRET_AT = 16


def trained_by(
    problem: Problem, search: str, seed: int, trials: int, batch: int, share: float = SHARES[-1]
) -> list[int]:
    """Return the places trained, in order, until `share` of the volume is there."""
    running = make(search, problem.table, seed)
    trained: list[int] = []
    while len(trained) < trials and problem.share(trained) < share:
        asked = running.ask(batch)
        for place in asked:
            running.tell(place, float(problem.told[place]))
        trained += asked
        if not asked:
            break
    return trained[:trials]


def counts(problem: Problem, trained: list[int], trials: int) -> list[int]:
    """Return the trainings to each of SHARES; trials + 1 where it was not reached."""
    shares = np.array([problem.share(trained[:n]) for n in range(len(trained) + 1)])
    reached = [np.flatnonzero(shares >= share) for share in SHARES]
    return [int(places[0]) if len(places) else trials + 1 for places in reached]


def proposed_share(problem: Problem, trained: list[int]) -> float:
    """Return the true share of the volume of the front that the told gaps propose."""
    table = problem.table
    points = table.measure.points(problem.told[trained], table.costs[trained])
    kept = non_dominated([tuple(point) for point in points.tolist()])
    return problem.share([trained[i] for i in kept])


def row(name: str, search: str, seeds: int, trials: int, batch: int) -> str:
    """Run one search on one table and return its line."""
    table = load(name)
    seeds = 1 if search == "own" else seeds
    found = [
        counts(each, trained_by(each, search, seed, trials, batch), trials)
        for each in problems(table)
        for seed in range(seeds)
    ]
    mean = mean_problem(table)
    runs = [trained_by(mean, search, seed, trials, batch) for seed in range(seeds)]
    on_mean = [counts(mean, trained, trials) for trained in runs]
    far = [trained_by(mean, search, seed, REGRET_AT, batch, 2.0) for seed in range(seeds)]
    float32 = np.flatnonzero(table.exact).tolist()
    speeds = np.array([regret(mean.true, table.costs, [*t, *float32])[:, 0] for t in far])
    noisy = [Problem(table, gaps, mean.true) for gaps in table.gaps]
    told = [trained_by(each, search, 0, NOISY[-1], batch, 2.0) for each in noisy]
    kept = [
        np.mean([proposed_share(p, run[:n]) for p, run in zip(noisy, told, strict=True)])
        for n in NOISY
    ]
    return (
        f"  {search:<14} {shown(found, trials):<30} mean of seeds {shown(on_mean, trials):<30} "
        f"regret {speeds.mean():6.2%} / {speeds.max():6.2%}  noisy {kept[0]:.3f} {kept[1]:.3f}"
    )


def shown(found: list[list[int]], trials: int) -> str:
    """Return median/90th percentile of the trainings to each share."""
    words = []
    for share, column in zip(SHARES, np.array(found).T, strict=True):
        middle, high = np.quantile(column, [0.5, 0.9], method="median_unbiased")
        said = [
            f">{trials}" if value > trials else f"{value:g}" for value in (middle, high.round())
        ]
        words.append(f"{share:.0%} {'/'.join(said)}")
    return "  ".join(words)


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("--tables", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--searches", nargs="+", default=SEARCHES)
    parser.add_argument("--seeds", type=int, default=10, help="of each sampler")
    parser.add_argument("--trials", type=int, default=200, help="at most")
    parser.add_argument("--batch", type=int, default=1, help="asked for together")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for name in options.tables:
        table = load(name)
        least = [floor(each, SHARES) for each in problems(table)]
        print(f"{name}: {len(table.costs)} policies, {len(table.gaps)} training seeds")
        print(
            f"  {'floor':<14} {shown(least, options.trials):<30} mean of seeds "
            f"{shown([floor(mean_problem(table), SHARES)], options.trials)}",
            flush=True,
        )
        for search in options.searches:
            print(row(name, search, options.seeds, options.trials, options.batch), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
