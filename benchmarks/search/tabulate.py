"""Trains every policy of a study file and writes them as a table for `python -m benchmarks.search`.

    python -m benchmarks.search.tabulate benchmarks/search/mlp-digits-0.1.0.toml

1,024 policies on three seeds take about ten minutes of one core.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.search.tables import FOLDER
from policysearch.objective import DIVERGED_GAP, Measurement, Objective, gap
from policysearch.policy.presets import preset
from policysearch.search.effective import Effective
from policysearch.search.executors import Job, make_executor
from policysearch.search.gain import yardstick
from policysearch.search.space import Params, Space, make_space
from policysearch.search.spec import StudySpec, load_spec


def every(space: Space) -> list[Params]:
    """Return the parameters of every policy, the last decision fastest."""
    choices = space.choices()
    return [dict(zip(choices, each, strict=True)) for each in itertools.product(*choices.values())]


def described(spec: StudySpec, objective: Objective) -> dict[str, Any]:
    """Return all of a table but its gaps; nothing is trained."""
    space = make_space(spec.space, objective.model, spec.rules, steps=spec.task.steps)
    effective, params, choices = Effective(space), every(space), space.choices()
    costs = [objective.price(space.policy(each)) for each in params]
    presets = [objective.price(preset(n, space.layers)) for n in spec.space.ladder]
    measure = yardstick(np.array([(1.0 / cost.speedup, cost.memory_ratio) for cost in presets]))
    digests = [space.policy(each).digest for each in params]
    start = sorted(digests.index(policy.digest) for policy in space.uniform())
    decisions = effective.decisions
    return {
        "places": json.dumps([[astuple(option) for option in place] for place in decisions.places]),
        "modifiers": json.dumps(decisions.modifiers),
        "rows": np.array([effective.row(each) for each in params], dtype=np.int8),
        "raw": np.array([[choices[k].index(v) for k, v in p.items()] for p in params], np.int8),
        "time": np.array([1.0 / cost.speedup for cost in costs]),
        "memory": np.array([cost.memory_ratio for cost in costs]),
        "yardstick": np.array(astuple(measure)),
        "start": np.array(start),
    }


def gaps(
    spec: StudySpec, objective: Objective, params: Sequence[Params], seeds: Sequence[int]
) -> np.ndarray:
    """Train the policies of `params` and return their loss gaps in nats: [seeds, policies]."""
    space = make_space(spec.space, objective.model, spec.rules, steps=spec.task.steps)
    policies = [objective.float32, *(space.policy(each) for each in params)]
    jobs = [Job(policy, seed) for seed in seeds for policy in policies]
    runs: list[Measurement | None] = [None] * len(jobs)
    with make_executor(objective, None if len(jobs) > len(seeds) * 8 else 0, len(jobs)) as executor:
        for index, outcome in executor.run(jobs):
            runs[index] = outcome if isinstance(outcome, Measurement) else None
    found = []
    for start in range(0, len(jobs), len(policies)):
        base, *others = runs[start : start + len(policies)]
        found.append([gap(run, base) if run else DIVERGED_GAP for run in others])
    return np.array(found)


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("study", type=Path, metavar="STUDY.toml")
    options = parser.parse_args()
    spec = load_spec(options.study)
    cost = spec.cost
    objective = Objective(spec.task, cost.device, cost.stack, cost.batch_size)
    table = described(spec, objective)
    space = make_space(spec.space, objective.model, spec.rules, steps=spec.task.steps)
    table["gap"] = gaps(spec, objective, every(space), spec.study.seeds).astype(np.float32)
    np.savez_compressed(FOLDER / f"{spec.study.name}.npz", **table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
