"""What is predicted of gaps before anything is trained, beside what training says.

    python -m benchmarks.search.predicted [--tables gpt-sums-masters ...]

Of each table whose task can be run here and each training seed: the rank correlation of predicted
and true gaps over all policies, and how many of the true gaps are in the interval for four in five,
by float32's own run (`policysearch.study.probes`) and without it.
"""

from __future__ import annotations

import argparse

import numpy as np
from scipy.stats import spearmanr

from benchmarks.search.tables import FRESH, NAMES, Table, load
from policysearch.search.hypervolume import Array
from policysearch.search.searcher import Listed, Searcher


def predicted(table: Table, hints: Array | None) -> Array:
    """Return what is believed of every policy that is no float32: [n, 3], and of which."""
    pool = Listed(table.rows, table.costs)
    searcher = Searcher(table.decisions, pool, table.measure, hints=hints)
    return searcher.predicted([tuple(row) for row in table.rows[~table.exact].tolist()])


def scored(table: Table, seed: int, hints: Array | None) -> tuple[float, float]:
    """Return rank correlation and coverage of one training seed."""
    found, gaps = predicted(table, hints), table.gaps[seed, ~table.exact]
    held = (found[:, 1] <= gaps) & (gaps <= found[:, 2])
    return float(spearmanr(found[:, 0], gaps)[0]), float(held.mean())


def main() -> None:
    """Print a row for each table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--tables", nargs="*", default=[*NAMES, *FRESH])
    options = parser.parse_args()
    print("rank correlation and coverage of an interval for .8: probed, and by the prior alone")
    for table in map(load, options.tables):
        if table.errors is None:
            continue
        rows = [
            [*scored(table, seed, table.errors[seed]), *scored(table, seed, None)]
            for seed in range(len(table.gaps))
        ]
        rho, held, plain, plainly = np.mean(rows, axis=0)
        print(f"{table.name:18} {rho:.2f} {held:.2f} | {plain:.2f} {plainly:.2f}", flush=True)


if __name__ == "__main__":
    main()
