"""Where a recipe stops ranking policies: a study under other activations and learning rates.

    python -m benchmarks.ranking studies/mlp-digits.toml studies/lenet5-digits.toml
    python -m benchmarks.ranking studies/lenet5-digits.toml --activations relu --factors 2

Per recipe, float32 and some policies of the study's space are trained on four seeds, and float32
again under jitter. Prints ten times the noise floor and two standard errors of the median policy
over two seeds, both as shares of what float32 learns; the rank correlation of the policies between
halves of the seeds; and what `policysearch.study.results.ranking` says of the recipe with all
four seeds.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.coverage import drawn
from benchmarks.runs import gap_rows, measured
from policysearch.objective.objective import JITTER
from policysearch.objective.score import DIVERGED_GAP
from policysearch.study.results.learning import Learned
from policysearch.study.results.noise import intervals
from policysearch.study.results.ranking import RESOLUTION, cannot_rank, split_half
from policysearch.study.specification import StudySpec, load_spec, objective_of
from policysearch.study.workers.executors import Job

SEEDS = (0, 1, 2, 3)
POLICIES = 14
ACTIVATIONS = ("tanh", "relu")
FACTORS = (1.0, 4.0, 20.0)


def line(spec: StudySpec, processes: int | None) -> str:
    """Train under one recipe and return its row of the table."""
    task, objective = spec.task, objective_of(spec)
    policies = [objective.float32, *drawn(spec, objective)[:POLICIES]]
    jobs = [Job(policy, seed) for policy in policies for seed in SEEDS]
    jobs += [Job(objective.float32, seed, JITTER) for seed in SEEDS]
    runs = measured(objective, jobs, processes)
    count = len(SEEDS)
    first = [runs[i].first_loss for i in range(count)]
    tail = [runs[i].tail_loss for i in range(count)]
    name = f"{task.activation}, rate {task.learning_rate:g}"
    if None in first or None in tail:
        return f"  {name:<20} float32 itself diverges"
    means = [math.fsum(x or 0.0 for x in row) / count for row in (first, tail)]
    learned = Learned(means[0], means[1])
    rows = gap_rows(runs, count)
    floor = math.sqrt(math.fsum(shift * shift for shift in rows.pop()) / count)
    kept = [row for row in rows if max(row) < DIVERGED_GAP]
    error = statistics.median(statistics.stdev(row) for row in kept) * math.sqrt(2.0)
    said = cannot_rank(learned, floor, intervals(kept), task, count)
    return (
        f"  {name:<20} {RESOLUTION * floor / learned.drop:9.4%} {error / learned.drop:9.3%} "
        f"{split_half(kept) or 0.0:9.2f}   {said.partition(': ')[0] or 'ranks'}"
    )


def main() -> int:
    """Print every study's table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("studies", nargs="+", type=Path)
    parser.add_argument("--activations", nargs="+", default=ACTIVATIONS)
    parser.add_argument(
        "--factors",
        nargs="+",
        type=float,
        default=FACTORS,
        metavar="X",
        help="learning rates, in multiples of the study's",
    )
    parser.add_argument("--processes", type=int, default=None)
    options = parser.parse_args()
    for path in options.studies:
        spec = load_spec(path)
        print(f"{spec.study.name}, shares of float32's loss drop")
        print(f"  {'recipe':<20} {'10 floors':>9} {'2 errors':>9} {'halves':>9}")
        for activation, factor in itertools.product(options.activations, options.factors):
            rate = spec.task.learning_rate * factor
            task = replace(spec.task, activation=activation, learning_rate=rate)
            print(line(replace(spec, task=task), options.processes), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
