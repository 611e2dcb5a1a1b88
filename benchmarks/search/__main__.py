"""How many trainings searches need to find the front of studies that were trained in full.

    python -m benchmarks.search [--tables NAME ...] [--searches NAME ...] [--seeds 10] [--batch 1]

Per table and search: trainings beyond float32 to 95 % and 99 % of the dominated volume, median and
90th percentile over training seeds times sampler seeds; on the mean over training seeds; speed
regret at 16 trainings, mean and worst over the gap budgets; and, searching one seed, the share of
the volume that the front it proposes has on the mean of the seeds, at 20 and at 60 trainings. A
count above --trials is shown as more than that; of published methods, also where they end. The
floor is greedy choice by someone who knows every result.

`own` is the searcher of this package, which draws nothing at random. `own+probes` has the gradient
errors of each decision as well, and is charged for their passes. `own+short` tries a quarter of the
steps first, and is counted to where the front that it *proposes* is worth the share; on tables
whose task can be run here it trains. `own+seeds` trains the front with other seeds as it goes.
`random`, `tpe`, `nsga2`, `nsga3` and `gp` are Optuna's, behind the same ladder with "+ladder".
The others are published methods (`rivals.py`). --idle N adds a decision of N values that does
nothing. --curve adds the share of the volume after so many trainings, on the mean of the training
seeds. --without KIND ("grad") adds the trainings to the volume that the policies without such
decisions have: of the search among all, and of the one among those.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

import numpy as np
import optuna

from benchmarks.search import stops
from benchmarks.search.goals import report
from benchmarks.search.rivals import RIVALS, SCORED
from benchmarks.search.searches import OWN, Step, front, steps_within
from benchmarks.search.tables import (
    FRESH,
    NAMES,
    UNSEEN,
    Problem,
    Table,
    floor,
    load,
    mean_problem,
    problems,
    with_idle,
    without,
)
from benchmarks.search.traps import TRAPS
from policysearch.search.acquisition import regret

SHARES = (0.95, 0.99)
SEARCHES = (*OWN, *(f"{n}{by}" for n in ("tpe", "nsga2", "nsga3") for by in ("", "+ladder")))
NOISY = (20, 60)
REGRET_AT = 16
CURVE_AT = (1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 91, 128)
DRAWN = range(10, 34)
"""Of each trap: of six the median alone differs by a quarter from that of six others."""
DRAWS = ("random", "tpe", "nsga2", "nsga3", "gp", "policy-gradient")


def counts(problem: Problem, search: str, seed: int, trials: int, batch: int = 1) -> list[float]:
    """Return the trainings to each of SHARES; trials + 1 where it was not reached."""
    reached = [trials + 1.0] * len(SHARES)
    for step in steps_within(problem, search, seed, trials, batch):
        share = problem.share(list(step.found))
        reached = [
            min(cost, step.cost) if share >= wanted else cost
            for wanted, cost in zip(SHARES, reached, strict=True)
        ]
        if share >= SHARES[-1]:
            break
    return reached


def spent(problem: Problem, search: str, seed: int, most: float, batch: int = 1) -> Step:
    """Return where the search is once it has spent `most` trainings."""
    return [Step(0.0, ()), *steps_within(problem, search, seed, most, batch)][-1]


def noisy_shares(table: Table, search: str) -> list[float]:
    """Return the share that the front found on one seed has on the mean of all, at NOISY."""
    mean = mean_problem(table)
    each = [Problem(table, gaps, mean.true, seed) for seed, gaps in enumerate(table.gaps)]
    found = []
    for most in NOISY:
        ends = [spent(problem, search, 0, most).found for problem in each]
        fronts = [
            list(end) if search == "own+seeds" else front(problem, end)
            for problem, end in zip(each, ends, strict=True)
        ]
        shares = [problem.share(kept) for problem, kept in zip(each, fronts, strict=True)]
        found.append(float(np.mean(shares)))
    return found


def row(table: Table, search: str, seeds: int, trials: int, batch: int, brief: bool) -> str:
    """Run one search on one table and return its line."""
    draws = range(seeds if search.partition("+")[0] in DRAWS else 1)
    each = [counts(p, search, s, trials, batch) for p in problems(table) for s in draws]
    line = f"  {search:<16} {shown(each, trials):<32}"
    if search == "own+short":
        return line
    mean = mean_problem(table)
    on_mean = [counts(mean, search, s, trials, batch) for s in draws]
    line += f" mean of seeds {shown(on_mean, trials):<32}"
    if search in RIVALS:
        end = spent(mean, search, 0, trials)
        line += f" {mean.share(list(end.found)):.3f} after {end.cost:g}"
    if brief:
        return line
    float32 = np.flatnonzero(table.exact).tolist()
    far = [spent(mean, search, s, REGRET_AT, batch).found for s in draws]
    speeds = np.array([regret(mean.true, table.costs, [*t, *float32])[:, 0] for t in far])
    kept = noisy_shares(table, search)
    return (
        f"{line} regret {speeds.mean():6.2%} / {speeds.max():6.2%}"
        f"  noisy {kept[0]:.3f} {kept[1]:.3f}"
    )


def curve(table: Table, search: str, trials: int) -> str:
    """Return the line of the shares of the volume after CURVE_AT trainings, as far as it goes."""
    mean = mean_problem(table)
    found = [(0.0, 0.0)]
    found += [(s.cost, mean.share(list(s.found))) for s in steps_within(mean, search, 0, trials)]
    end = found[-1][0]
    costs, shares = zip(*found, strict=True)
    after = [most for most in CURVE_AT if most < end] + [end]
    said = [(most, shares[int(np.searchsorted(costs, most, side="right")) - 1]) for most in after]
    return f"  {search:<16} " + "  ".join(f"{most:g}: {share:.3f}" for most, share in said)


def beside(table: Table, kind: str, search: str, trials: int) -> list[str]:
    """Return the lines of a search among all policies, and without decisions of a kind.

    Both are counted to the volume that the policies without have. No lines where there is no such
    decision.
    """
    pairs = [(each, without(each, kind)) for each in (*problems(table), mean_problem(table))]
    both = [(replace(p, goal=fewer.volume), fewer) for p, fewer in pairs if fewer is not None]
    if not both:
        return []
    found = [[counts(p, search, 0, trials) for p in each] for each in zip(*both, strict=True)]
    fewer = both[-1][1]
    share = fewer.volume / pairs[-1][0].volume
    names = f"{search}, of all", f"{search}, no {kind}"
    return [
        f"  no {kind}: {len(fewer.true)} policies, {share:.1%} of the volume on the mean of seeds",
        *(
            f"  {name:<16} {shown(each[:-1], trials):<32} mean of seeds {shown(each[-1:], trials)}"
            for name, each in zip(names, found, strict=True)
        ),
    ]


def shown(found: list[list[float]], trials: int) -> str:
    """Return median/90th percentile of the trainings to each share."""
    words = []
    for share, column in zip(SHARES, np.array(found).T, strict=True):
        middle, high = np.quantile(column, [0.5, 0.9], method="median_unbiased")
        said = [f">{trials}" if value > trials else f"{value:.4g}" for value in (middle, high)]
        words.append(f"{share:.0%} {'/'.join(said)}")
    return "  ".join(words)


def trapped(name: str, trials: int) -> str:
    """Return the line of a trap: the trainings of the package's own searcher, and of the floor."""
    each = stops.drawn(name, DRAWN)
    least = shown([floor(problem, SHARES) for problem in each], trials)
    own = shown([counts(problem, "own", 0, trials) for problem in each], trials)
    return f"{name:<18} own {own:<28} floor {least}"


def skipped(table: Table, search: str) -> str:
    """Return why a search is left out on a table; "" where it is not."""
    needs = search in SCORED or search == "own+probes"
    return "its task cannot be run here" if needs and table.probes is None else ""


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--tables", nargs="+", choices=(*NAMES, *FRESH, *UNSEEN, *TRAPS))
    parser.add_argument("--searches", nargs="+", default=(*SEARCHES, *RIVALS))
    parser.add_argument("--seeds", type=int, default=10, help="of each sampler")
    parser.add_argument("--trials", type=int, default=200, help="at most")
    parser.add_argument("--batch", type=int, default=1, help="asked for together")
    parser.add_argument("--idle", type=int, default=1, help="values of a decision that is idle")
    parser.add_argument("--without", metavar="KIND", help="of decisions, compared with")
    parser.add_argument("--brief", action="store_true", help="without regret and noise")
    parser.add_argument("--curve", action="store_true", help="shares after so many trainings")
    parser.add_argument("--stops", action="store_true", help="whether what is left is as said")
    parser.add_argument("--goals", action="store_true", help="trainings to goals, on all tables")
    return parser.parse_args()


def main() -> int:
    """Run the command; return its exit code."""
    options = _options()
    if options.goals:
        report(options.tables or [*NAMES, *FRESH], options.trials)
        return 0
    if options.stops:
        stops.report(options.tables or [*NAMES, *FRESH, *TRAPS], options.trials)
        return 0
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    for name in options.tables or NAMES:
        if name in TRAPS:
            print(trapped(name, options.trials), flush=True)
            continue
        table = with_idle(load(name), options.idle)
        least = [floor(each, SHARES) for each in problems(table)]
        print(f"{name}: {len(table.costs)} policies, {len(table.gaps)} training seeds")
        print(
            f"  {'floor':<16} {shown(least, options.trials):<32} mean of seeds "
            f"{shown([floor(mean_problem(table), SHARES)], options.trials)}",
            flush=True,
        )
        for search in options.searches:
            why = skipped(table, search)
            fed = search, options.seeds, options.trials, options.batch, options.brief
            print(f"  {search:<16} {why}" if why else row(table, *fed), flush=True)
            if options.curve and not why:
                print(curve(table, search, options.trials), flush=True)
            if options.without and not why:
                for line in beside(table, options.without, search, options.trials):
                    print(line, flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
