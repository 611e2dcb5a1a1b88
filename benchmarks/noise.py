"""Prints, per study, how large the effects of its ladder are against the noise of the objective.

    python -m benchmarks.noise studies/*.toml

Spread: by how much the float32 tail loss moves when the initial parameters are jittered by 1e-6
of themselves, as root mean square over the seeds. Effect: the difference of the mean loss gaps of
two policies of the ladder. Policies nearer to each other than the spread train alike; all other
effects should be ten times the spread. Exits with 1 where the median effect is not.
"""

from __future__ import annotations

import argparse
import itertools
import math
import statistics
import sys
from pathlib import Path

from benchmarks.runs import gap_rows, measured
from policysearch.objective.objective import JITTER
from policysearch.space.model_space import make_space
from policysearch.study.specification import StudySpec, load_spec, objective_of
from policysearch.study.workers.executors import Job
from policysearch.values import InputError

WANTED_RATIO = 10.0
SEEDS = (0, 1, 2)


def measure(spec: StudySpec, processes: int | None) -> tuple[float, dict[str, list[float]]]:
    """Return the spread, and the loss gap of every ladder policy for every seed, in nats."""
    objective = objective_of(spec)
    space = make_space(spec.space, objective.model, spec.rules, steps=spec.task.steps)
    ladder = [policy for policy, _ in space.ladder(spec.study.baseline).values()]  # float32 first
    names = [policy.name for policy in ladder]
    jobs = [Job(policy, seed) for policy in ladder for seed in SEEDS]
    jobs += [Job(ladder[0], seed, JITTER) for seed in SEEDS]
    count = len(SEEDS)
    *gaps, shifts = gap_rows(measured(objective, jobs, processes), count)
    rows = dict(zip(names, [[0.0] * count, *gaps], strict=True))
    return math.sqrt(math.fsum(shift * shift for shift in shifts) / count), rows


def report(spec: StudySpec, processes: int | None) -> bool:
    """Print the spread, the gaps and the effects; return whether the recipe is good enough."""
    spread, rows = measure(spec, processes)
    print(f"{spec.study.name}: spread under jitter {JITTER:g} of float32: {spread:.2e} nats")
    means = {name: statistics.fmean(gaps) for name, gaps in rows.items()}
    for name, gaps in rows.items():
        shown = ", ".join(f"{value:+.2e}" for value in gaps)
        ratio = abs(means[name]) / spread if spread else math.inf
        print(f"  {name:<24} gap {means[name]:+.2e} = {ratio:8.1f} spreads  (seeds {shown})")
    effects = [abs(a - b) for a, b in itertools.combinations(means.values(), 2)]
    apart = [effect for effect in effects if effect > spread]
    below = sum(effect < WANTED_RATIO * spread for effect in apart)
    median = statistics.median(apart) if apart else 0.0
    print(
        f"  {len(effects)} pairs: {len(effects) - len(apart)} train alike, {below} differ by less "
        f"than {WANTED_RATIO:g} spreads, {len(apart) - below} by more"
    )
    ratio = median / spread if spread else math.inf
    print(f"  median effect {median:.2e} nats = {ratio:.0f} spreads (wanted {WANTED_RATIO:g})")
    return ratio >= WANTED_RATIO


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("studies", nargs="+", type=Path, metavar="STUDY.toml")
    parser.add_argument("--processes", type=int, default=None)
    options = parser.parse_args()
    try:
        good = [report(load_spec(path), options.processes) for path in options.studies]
    except InputError as error:
        print(f"noise: {error}", file=sys.stderr)
        return 2
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
