"""Training runs that are to be started, and the attempts at each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from policysearch.policy.policy import Policy


@dataclass(frozen=True)
class Job:
    """One training run: a policy, a training seed, how far the start is jittered, how long.

    `steps` None means those of the task; `until` and `checkpoint` as in `train.training.train`.
    `width` below 1 trains a net of that share of the widths instead.
    """

    policy: Policy
    seed: int
    jitter: float = 0.0
    steps: int | None = None
    until: int | None = None
    checkpoint: Path | None = None
    width: float = 1.0

    def length(self, steps: int) -> int:
        """Return how many steps it takes, those of the task being `steps`."""
        return self.until or self.steps or steps


@dataclass(frozen=True)
class Attempt:
    """The job at place `index` of those of a run, and the how-manieth attempt at it this is."""

    index: int
    job: Job
    number: int = 1

    @property
    def next(self) -> Attempt:
        """The attempt after this one."""
        return replace(self, number=self.number + 1)


class Queue:
    """The jobs that are still to be started, taken from `jobs` one by one."""

    def __init__(self, jobs: Iterable[Job | None]) -> None:
        self._jobs, self._taken = iter(jobs), 0
        self._waiting: deque[Attempt] = deque()

    @property
    def empty(self) -> bool:
        """Whether there is none to start now."""
        return not (self._waiting or self.look_ahead())

    def take(self) -> Attempt | None:
        """Return the next to start; None where there is none now."""
        self.look_ahead()
        return self.ready()

    def ready(self) -> Attempt | None:
        """Return the next to start, None where it would have to be asked for."""
        return self._waiting.popleft() if self._waiting else None

    def put_back(self, attempt: Attempt) -> None:
        """Let this be the next."""
        self._waiting.appendleft(attempt)

    def look_ahead(self, jobs: int = 1) -> bool:
        """Ask for one more job where fewer than `jobs` are ready; return whether there is one."""
        job = None if len(self._waiting) >= jobs else next(self._jobs, None)
        if job is not None:
            self._waiting.append(Attempt(self._taken, job))
            self._taken += 1
        return job is not None
