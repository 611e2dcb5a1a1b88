"""Training runs that a benchmark asks for, and their gaps."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.objective.objective import Objective
from policysearch.objective.score import Measurement, gap
from policysearch.space.decided.base import Params
from policysearch.space.space import Space
from policysearch.study.workers.executors import Job, make_executor
from policysearch.values import InputError


def random_params(space: Space, rng: np.random.Generator) -> Params:
    """Return a value for every decision of the space, all alike likely."""
    return {name: each[rng.integers(len(each))] for name, each in space.choices().items()}


def measured(
    objective: Objective, jobs: Sequence[Job], processes: int | None = None
) -> list[Measurement]:
    """Return what each of the jobs measured; InputError names a policy whose run failed."""
    runs: dict[int, Measurement] = {}
    with make_executor(objective, processes, len(jobs)) as executor:
        for index, outcome in executor.run(jobs):
            if not isinstance(outcome, Measurement):
                raise InputError(f"{jobs[index].policy.name}: {outcome.reason}; expected a result")
            runs[index] = outcome
    return [runs[index] for index in range(len(jobs))]


def gap_rows(runs: Sequence[Measurement], seeds: int) -> list[list[float]]:
    """Return a row of gaps in nats for every `seeds` runs beside the first of them, float32's."""
    return [
        [gap(runs[start + i], runs[i]) for i in range(seeds)]
        for start in range(seeds, len(runs), seeds)
    ]
