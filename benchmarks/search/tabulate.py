"""Trains every policy of a study file and writes them as a table for `python -m benchmarks.search`.

    python -m benchmarks.search.tabulate benchmarks/search/mlp-digits-0.1.0.toml

1,024 policies on three seeds take about ten minutes of one core. `--scores` renews only
what a few steps of float32's run say of each decision.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.search.live import every
from benchmarks.search.probes import probe_cost, probes
from benchmarks.search.scores import scores
from benchmarks.search.tables import FOLDER
from policysearch.objective.objective import Objective
from policysearch.objective.score import DIVERGED_GAP, Measurement, gap
from policysearch.policy.presets import preset
from policysearch.search.acquisition import yardstick
from policysearch.space.decided.base import Params
from policysearch.space.encoding import Encoding
from policysearch.space.space import Space
from policysearch.study.probes import probe_cost as errors_cost
from policysearch.study.probes import probes as errors
from policysearch.study.specification import StudySpec, load_spec, objective_of, space_of
from policysearch.study.workers.executors import Job, make_executor


def described(space: Space) -> dict[str, Any]:
    """Return what the policies of a table are; nothing is priced or trained."""
    effective, params, choices = Encoding(space), every(space), space.choices()
    digests = [space.policy(each).digest for each in params]
    start = sorted(digests.index(policy.digest) for policy in space.uniform())
    decisions = effective.decisions
    return {
        "places": json.dumps([[astuple(option) for option in place] for place in decisions.places]),
        "modifiers": json.dumps(decisions.modifiers),
        "rows": np.array([effective.row(each) for each in params], dtype=np.int8),
        "raw": np.array([[choices[k].index(v) for k, v in p.items()] for p in params], np.int8),
        "start": np.array(start),
    }


def priced(objective: Objective, space: Space, params: Sequence[Params]) -> dict[str, Any]:
    """Return what the policies of `params` cost, and the yardstick of the ladder's presets."""
    costs = [objective.price(space.policy(each)) for each in params]
    presets = [objective.price(preset(n, space.layers)) for n in space.section.ladder]
    measure = yardstick(np.array([(1.0 / cost.speedup, cost.memory_ratio) for cost in presets]))
    return {
        "time": np.array([1.0 / cost.speedup for cost in costs]),
        "memory": np.array([cost.memory_ratio for cost in costs]),
        "yardstick": np.array(astuple(measure)),
    }


def scored(spec: StudySpec, objective: Objective) -> dict[str, Any]:
    """Return what a few steps of float32's run say of each decision, by training seed."""
    space = space_of(spec, objective.model)
    effective, seeds = Encoding(space), spec.study.seeds
    each = [scores(objective, space, effective, seed) for seed in seeds]
    return {
        "probes": np.array([probes(objective, space, effective, seed) for seed in seeds]),
        "probe_cost": np.array(probe_cost(space, effective, spec.task.steps)),
        "errors": np.array([errors(objective, space, effective, seed) for seed in seeds]),
        "errors_cost": np.array(errors_cost(space, spec.task.steps)),
        **{name: np.array([found[name] for found in each]) for name in each[0]},
    }


def gaps(
    spec: StudySpec, objective: Objective, params: Sequence[Params], seeds: Sequence[int]
) -> np.ndarray:
    """Train the policies of `params` and return their loss gaps in nats: [seeds, policies].

    Parameters that make the same policy are trained once.
    """
    space = space_of(spec, objective.model)
    made = [space.policy(each) for each in params]
    policies = {policy.digest: policy for policy in (objective.float32, *made)}
    keys = [(digest, seed) for seed in seeds for digest in policies]
    jobs = [Job(policies[digest], seed) for digest, seed in keys]
    runs: dict[tuple[str, int], Measurement] = {}
    with make_executor(objective, None if len(jobs) > len(seeds) * 8 else 0, len(jobs)) as executor:
        for index, outcome in executor.run(jobs):
            if isinstance(outcome, Measurement):
                runs[keys[index]] = outcome
    found = []
    for seed in seeds:
        base = runs[objective.float32.digest, seed]
        each = [runs.get((policy.digest, seed)) for policy in made]
        found.append([gap(run, base) if run else DIVERGED_GAP for run in each])
    return np.array(found)


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("study", type=Path, metavar="STUDY.toml")
    parser.add_argument("--scores", action="store_true", help="renew these alone; train nothing")
    options = parser.parse_args()
    spec = load_spec(options.study)
    objective = objective_of(spec)
    path = FOLDER / f"{spec.study.name}.npz"
    if options.scores:
        with np.load(path) as data:
            table = dict(data)
    else:
        space = space_of(spec, objective.model)
        table = described(space) | priced(objective, space, every(space))
        table["gap"] = gaps(spec, objective, every(space), spec.study.seeds).astype(np.float32)
    table |= scored(spec, objective)
    np.savez_compressed(path, **table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
