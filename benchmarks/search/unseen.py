"""How the searcher does on tables that nothing was ever tuned on, against the floor and rivals.

    python -m benchmarks.search.unseen [--tables NAME ...]

The protocol, written before any policy of them was trained: the ten tables of UNSEEN are scored
once a release, and nothing is chosen by what they say. Counted are trainings beyond float32 to 95 %
of the volume, on each training seed by itself, and those to 99 % beside them. Searches that draw at
random do so three times per training seed, and all end at 120.

- Against the floor: ours over the floor's on each of the thirty training seeds, median and 90th
  percentile. The bars are 2.5 and 6.
- Against a rival: of each table the median of its trainings over the median of ours. The bars are
  1.5 in the median of the tables, and no table below 1.

Ours is `own`, as a study has it that says nothing else. What reads float32's run first is not
charged for it here, rivals included; `own+probes` is.
"""

from __future__ import annotations

import argparse

import numpy as np
import optuna
from numpy.typing import NDArray

from benchmarks.search.__main__ import DRAWS, SHARES, counts, shown
from benchmarks.search.rivals import RIVALS
from benchmarks.search.tables import UNSEEN, Table, floor, load, problems

OURS, BESIDE = "own", "own+probes"
STOCK = ("random", "tpe", "tpe+ladder", "nsga2", "nsga2+ladder", "nsga3+ladder")
TRIALS, DRAWN = 120, 3
BARS = 2.5, 6.0, 1.5

Counts = NDArray[np.float64]
"""Trainings to each of SHARES: [training seeds times draws, shares]."""


def counted(table: Table, search: str, trials: int = TRIALS) -> Counts:
    """Return the trainings of a search, or of the "floor", on each training seed of a table."""
    if search == "floor":
        return np.array([floor(problem, SHARES) for problem in problems(table)])
    draws = range(DRAWN if search.partition("+")[0] in DRAWS else 1)
    return np.array([counts(p, search, draw, trials) for p in problems(table) for draw in draws])


def against_floor(ours: list[Counts], least: list[Counts]) -> NDArray[np.float64]:
    """Return median and 90th percentile [2, shares] of our trainings over the floor's."""
    ratios = np.concatenate(ours) / np.concatenate(least)
    return np.asarray(np.quantile(ratios, [0.5, 0.9], axis=0, method="median_unbiased"))


def against_rival(rival: list[Counts], ours: list[Counts]) -> NDArray[np.float64]:
    """Return by table [tables, shares] the median trainings of a rival over the median of ours."""
    pairs = zip(rival, ours, strict=True)
    return np.array([np.median(a, axis=0) / np.median(b, axis=0) for a, b in pairs])


def main() -> None:
    """Print the trainings by table and search, and what the bars are held to."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tables", nargs="+", choices=UNSEEN, default=UNSEEN)
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    rivals = (*RIVALS, *STOCK)
    found: dict[str, list[Counts]] = {n: [] for n in ("floor", OURS, BESIDE, *rivals)}
    for table in map(load, options.tables):
        print(f"{table.name}: {len(table.costs)} policies, {len(table.gaps)} training seeds")
        for search, each in found.items():
            each.append(counted(table, search))
            print(f"  {search:<16} {shown(each[-1].tolist(), TRIALS)}", flush=True)
    print(f"over the floor's, median/90th to {SHARES}; bars {BARS[0]}/{BARS[1]}")
    for search in (OURS, BESIDE):
        said = [f"{a:.2f}/{b:.2f}" for a, b in against_floor(found[search], found["floor"]).T]
        print(f"  {search:<16} {'  '.join(said)}")
    print(f"over ours, median of tables and least, to {SHARES}; bars {BARS[2]} and 1")
    for search in rivals:
        ratios = against_rival(found[search], found[OURS])
        pairs = zip(np.median(ratios, axis=0), ratios.min(axis=0), strict=True)
        fewer = [n for n, ratio in zip(options.tables, ratios[:, 0], strict=True) if ratio < 1.0]
        said = [f"{middle:.2f}, {least:.2f}" for middle, least in pairs]
        print(f"  {search:<16} {'  '.join(said)}  {' '.join(fewer)}".rstrip())


if __name__ == "__main__":
    main()
