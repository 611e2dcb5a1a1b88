"""Measures how long training runs take: CPU seconds of policies of a study drawn at random.

    python -m benchmarks.scale.measure [--study studies/mlp-digits.toml] [--policies 64]

Writes `run_seconds.json` beside this file. CPU seconds, for they do not depend on what else the
machine does; what `benchmarks.scale` uses is how they spread.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np

from benchmarks.runs import random_params
from benchmarks.timing import machine, pin_one_thread
from policysearch.study.specification import load_spec, objective_of, space_of

FILE = Path(__file__).parent / "run_seconds.json"


def measured(study: Path, policies: int) -> list[float]:
    """Return the CPU seconds of one run of each of so many policies, those at the start too."""
    spec = load_spec(study)
    objective = objective_of(spec)
    space = space_of(spec, objective.model)
    rng = np.random.default_rng(0)
    chosen = [policy for policy, _ in space.ladder(spec.study.baseline).values()]
    while len(chosen) < policies:
        chosen.append(space.policy(random_params(space, rng)))
    objective.measure(chosen[0], 0)  # Loads data and makes plans, once per process.
    seconds = []
    for policy in chosen:
        start = time.process_time()
        objective.measure(policy, 0)
        seconds.append(time.process_time() - start)
    return seconds


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--study", type=Path, default=Path("studies/mlp-digits.toml"))
    parser.add_argument("--policies", type=int, default=64)
    options = parser.parse_args()
    pin_one_thread()
    seconds = measured(options.study, options.policies)
    found = {"machine": machine(), "study": str(options.study), "seconds": seconds}
    FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(f"{len(seconds)} runs, {min(seconds):.3f} to {max(seconds):.3f} s of CPU time")


if __name__ == "__main__":
    main()
