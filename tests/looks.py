"""Studies that look at policies first, and an executor that makes up what looks show."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import numpy as np

from policysearch.objective.objective import Objective
from policysearch.objective.score import Measurement, Outcome
from policysearch.policy.policy import Policy
from policysearch.search.hypervolume import non_dominated
from policysearch.study.journal.records import Records
from policysearch.study.journal.storage import read_checked
from policysearch.study.specification import StudySpec, objective_of
from policysearch.study.workers.executors import Job
from tests.studies import Untrained

CHANGES = (
    ('sampler = "random"', 'sampler = "gain"\nshort_runs = true'),
    ("trials = 6", "trials = 18"),
    ("widths = [8]", "widths = [8, 8]"),
    ("steps = 6\ntail_steps = 3", "steps = 24\ntail_steps = 8"),
    ('loss_scales = ["none", "fixed", "dynamic"]\ngrowth_intervals = [10, 100]\n', ""),
)
UNTIL, STEPS, PLACES, SEEDS = 6, 24, 4, 2
LOSSES = {3: 1.5, 6: 1.0, 12: 0.7, STEPS: 0.5}


@dataclass(frozen=True)
class Kind:
    """How a study looks: its key, what a look is and is worth, looks at float32, what is said."""

    key: str
    until: int | None
    width: float
    worth: float
    own: int
    name: str
    said: str


KINDS = (
    Kind("short_runs = true", UNTIL, 1.0, UNTIL / STEPS, 0, "short runs", "16 of 6 steps"),
    Kind("narrow = 0.5", None, 0.5, 0.5, 1, "narrow runs", "17 of a net of 0.5 of the widths"),
)


def records_at(path: Path) -> Records:
    return Records(read_checked(path).lines)


def gap_of(policy: Policy) -> float:
    """Return a made-up gap in nats: a sum over layers of what their formats cost."""
    cost = {"float32": 0.0, "bfloat16": 4e-4, "float16": 2e-4, "float8_e4m3fn": 4e-3}
    total = sum(
        cost[layer.compute] * (1 + 0.37 * place) for place, (_, layer) in enumerate(policy.layers)
    )
    return total * (1.0 if policy.master_weights else 2.1) + 1e-6 * len(policy.fp32_ops)


class Told(Untrained):
    """An executor that trains nothing: three runs at once, whose gaps are those of `gap_of`.

    Looks show twice that where they `rank`, and what is largest as least where they do not. The
    run after `most` of them is interrupted. Without `in_order` the latest that began ends first.
    """

    def __init__(self, rank: bool = True, most: float = math.inf, in_order: bool = True) -> None:
        self.rank, self.most, self.in_order = rank, most, in_order
        self.jobs: list[Job] = []

    def __call__(self, objective: Objective) -> Self:
        self.base = objective.float32.digest
        return self

    def run(self, jobs: Iterable[Job | None]) -> Iterator[tuple[int, Outcome]]:
        under_way: list[tuple[int, Job]] = []
        source, taken = iter(jobs), 0
        while True:
            while len(under_way) < 3 and (job := next(source, None)) is not None:
                under_way.append((taken, job))
                taken += 1
            if not under_way:
                return
            if len(self.jobs) >= self.most:
                raise KeyboardInterrupt
            index, job = under_way.pop(0 if self.in_order else -1)
            self.jobs.append(job)
            yield index, self.measured(job)

    def measured(self, job: Job) -> Measurement:
        size = 0.0 if job.policy.digest == self.base else gap_of(job.policy)
        early = 2.0 * size if self.rank or not size else 0.05 - size
        end = job.until or STEPS
        whole = size if job.width == 1.0 else early
        gaps = {taken: whole if taken == STEPS else early for taken in LOSSES}
        curve = tuple((n, loss + gaps[n]) for n, loss in LOSSES.items() if n <= end)
        return Measurement(curve[-1][1], 0.9, None, 0, (), (), curve=curve, first_loss=2.3)

    @property
    def looks(self) -> list[Job]:
        """The looks at policies, those of float32 beside them left out."""
        return [job for job in self.jobs if is_look(job) and job.policy.digest != self.base]


def is_look(job: Job) -> bool:
    return job.until is not None or job.width < 1.0


def front_of(spec: StudySpec, told: Told) -> set[str]:
    """Return the digests of the policies on the front of what the looks showed."""
    objective, looks = objective_of(spec), told.looks
    costs = [objective.price(job.policy) for job in looks]
    points = [
        (told.measured(job).tail_loss or np.inf, -cost.speedup, cost.memory_ratio)
        for job, cost in zip(looks, costs, strict=True)
    ]
    return {looks[place].policy.digest for place in non_dominated(points)}
