"""How many runs a search takes that trains each policy with one seed, and its front with all.

    python -m benchmarks.search.seeds [--tables NAME ...] [--trials 40]

Per table: single runs to 95 % and 99 % of the volume on the mean of the seeds. "all": each policy
is trained with every seed, as a study does that says nothing else. "one": with the first alone
(`search_seeds = 1`), and once it ends members of the front with the others, until all of them have
all; wherever it might end, so counted. A study's front tells policies apart from the resolution of
the cost model on; "one, exact" trains every member of the exact front instead. Whatever was trained
counts, by the mean of its gaps. Each seed was the first once: median/worst; "-" where it takes more
than --trials policies.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence

import numpy as np

from benchmarks.search.searches import steps_within
from benchmarks.search.tables import NAMES, Problem, Table, load, mean_problem
from policysearch.cost.price import MODEL_RESOLUTION
from policysearch.search.hypervolume import thinned

SHARES = (0.95, 0.99)
EXACT = (0.0, 0.0, 0.0)
TOLD = (0.0, MODEL_RESOLUTION["speedup"], MODEL_RESOLUTION["memory_ratio"])


def all_seeds(table: Table, trials: int) -> Iterator[tuple[int, float]]:
    """Yield (runs, share) after each policy that is trained with every seed."""
    problem = mean_problem(table)
    for step in steps_within(problem, "own", 0, trials):
        yield round(step.cost) * len(table.gaps), problem.share(list(step.found))


def one_seed(
    table: Table, first: int, told: Sequence[float], trials: int
) -> Iterator[tuple[int, float]]:
    """Yield (runs, share) for a search on the seed `first` that ends after each of its policies."""
    mean = mean_problem(table)
    problem = Problem(table, table.gaps[first], mean.true, first)
    for step in steps_within(problem, "own", 0, trials):
        places = list(step.found)
        settled = len(finalists(table, places, first, told))
        yield round(step.cost) + (len(table.gaps) - 1) * settled, mean.share(places)


def finalists(table: Table, places: list[int], first: int, told: Sequence[float]) -> set[int]:
    """Return which of the policies are trained with all seeds until the whole front is."""
    gaps, mean = table.gaps[first].copy(), table.gaps.mean(axis=0)
    found: set[int] = set()
    while True:
        points = table.measure.points(gaps[places], table.costs[places])
        kept = thinned([tuple(point) for point in points.tolist()], told)
        new = {places[i] for i in kept if points[i, 0] < 1.0} - found
        if not new:
            return found
        found |= new
        gaps[list(new)] = mean[list(new)]


def reached(curve: Iterator[tuple[int, float]]) -> list[float]:
    """Return the fewest runs to each of SHARES, infinity where it is not reached."""
    known = list(curve)
    return [min((runs for runs, share in known if share >= s), default=np.inf) for s in SHARES]


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tables", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--trials", type=int, default=40, help="at most")
    options = parser.parse_args()
    for name in options.tables:
        table = load(name)
        print(f"{name}: {len(table.gaps)} seeds", flush=True)
        print(f"  {'all':<12} {_shown([reached(all_seeds(table, options.trials))])}", flush=True)
        for words, told in (("one", TOLD), ("one, exact", EXACT)):
            firsts = range(len(table.gaps))
            found = [reached(one_seed(table, s, told, options.trials)) for s in firsts]
            print(f"  {words:<12} {_shown(found)}", flush=True)


def _shown(found: list[list[float]]) -> str:
    words = []
    for share, column in zip(SHARES, np.array(found).T, strict=True):
        said = [f"{v:g}" if np.isfinite(v) else "-" for v in (np.median(column), column.max())]
        words.append(f"{share:.0%} {'/'.join(said if len(column) > 1 else said[:1])}")
    return "  ".join(words)


if __name__ == "__main__":
    main()
