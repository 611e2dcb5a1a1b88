"""Whether a confirmed gap is that of a long run: rank correlation with the gaps at 2,000 steps.

    policysearch run studies/mlp-digits.toml
    policysearch confirm studies/mlp-digits.toml --seeds 3
    python -m benchmarks.horizon studies/mlp-digits.toml --seeds 3

Trains every policy that was confirmed over 2,000 steps, on seeds that neither the search nor the
confirmation has used. Prints the rank correlation of the gaps there with the confirmed ones, and
with those of the search: of the gaps as they are, and with those below the study's resolution as
one, which is how its front counts them. Exits with 1 where the confirmed ones of these correlate
by less than 0.95.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

from benchmarks.runs import gap_rows, measured
from policysearch import api
from policysearch.report.text import aligned
from policysearch.study.results.ranking import rank_correlation
from policysearch.study.results.results import Results
from policysearch.study.specification import objective_of
from policysearch.study.workers.executors import Job

STEPS = 2000
WANTED = 0.95
FIRST_SEED = 2000


def long_gaps(results: Results, seeds: int, processes: int | None) -> dict[str, float]:
    """Return the mean gap over STEPS steps of every confirmed policy, by digest, in nats."""
    objective = objective_of(results.spec)
    confirmed = [trial for trial in results.trials if results.confirmation(trial)]
    policies = [objective.float32, *(trial.policy for trial in confirmed)]
    chosen = range(FIRST_SEED, FIRST_SEED + seeds)
    jobs = [Job(policy, seed, 0.0, STEPS) for policy in policies for seed in chosen]
    rows = gap_rows(measured(objective, jobs, processes), seeds)
    return {t.digest: math.fsum(row) / seeds for t, row in zip(confirmed, rows, strict=True)}


def report(results: Results, seeds: int, processes: int | None) -> bool:
    """Print one study's gaps and correlations; return whether the confirmed ones rank alike."""
    found = long_gaps(results, seeds, processes)
    rows, confirmed, short = [], [], []
    for trial in results.trials:
        known = results.confirmation(trial)
        if known is not None:
            confirmed.append(known.loss_gap)
            short.append(trial.loss_gap)
            at_end = f"{found[trial.digest]:+.2e}"
            rows.append((trial.label, f"{short[-1]:+.2e}", f"{confirmed[-1]:+.2e}", at_end))
    late_gaps = list(found.values())
    least = results.resolution_gap
    print(f"{results.spec.study.name}: {len(rows)} confirmed policies, {seeds} seeds of their own")
    titles = ("policy", "short gap", "confirmed", f"at {STEPS} steps")
    print("\n".join(aligned([titles, *rows])))
    for what, floor in (("as they are", -math.inf), (f"those below {least:.1e} as one", least)):
        late, then, first = (
            [max(gap, floor) for gap in gaps] for gaps in (late_gaps, confirmed, short)
        )
        alike, before = rank_correlation(then, late), rank_correlation(first, late)
        print(f"rank correlation, gaps {what}: confirmed {alike:.3f}, short {before:.3f}")
    return alike >= WANTED


def main() -> int:
    """Print every study's table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("studies", nargs="+", type=Path)
    parser.add_argument("--storage", type=Path, default=None, help="journal of the one study")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--processes", type=int, default=None)
    options = parser.parse_args()
    results = [api.load_results(api.load_study(path), options.storage) for path in options.studies]
    good = [report(result, options.seeds, options.processes) for result in results]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
