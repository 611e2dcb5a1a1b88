"""Where training runs happen: in this process, or in several on this machine."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import wait
from types import TracebackType
from typing import Protocol, Self

from threadpoolctl import threadpool_limits

from policysearch.objective import Measurement, Objective
from policysearch.policy.policy import Policy
from policysearch.rounding.rounder import Fast
from policysearch.train.tasks import Task
from policysearch.values import InputError


@dataclass(frozen=True)
class Job:
    """One training run: a policy, a training seed, and how far the start is jittered."""

    policy: Policy
    seed: int
    jitter: float = 0.0


class Executor(Protocol):
    """Runs jobs; a context manager that gives back what it holds."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Measurement]]:
        """Yield (index of the job, its measurement) as jobs end, in any order."""
        ...


class SerialExecutor:
    """Runs jobs in this process, one BLAS thread."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Measurement]]:
        for index, job in enumerate(jobs):
            with threadpool_limits(1):
                measured = self._objective.measure(job.policy, job.seed, job.jitter)
            yield index, measured


class ProcessExecutor:
    """Runs jobs in `processes` fresh processes with one BLAS thread each.

    On an exception, Ctrl-C included, running jobs are ended: their results are not wanted.
    """

    def __init__(
        self, task: Task, device: str, stack: str, processes: int, fast: Fast | None = None
    ) -> None:
        self._before = set(multiprocessing.active_children())
        self._pool = ProcessPoolExecutor(
            processes,
            multiprocessing.get_context("spawn"),
            initializer=_prepare,
            initargs=(task, device, stack, fast),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for child in set(multiprocessing.active_children()) - self._before:
                child.terminate()
        self._pool.shutdown(wait=True, cancel_futures=True)

    def run(self, jobs: Sequence[Job]) -> Iterator[tuple[int, Measurement]]:
        futures: dict[Future[Measurement], int] = {
            self._pool.submit(_measure, job): index for index, job in enumerate(jobs)
        }
        try:
            for future in as_completed(futures):
                yield futures[future], future.result()
        except BrokenProcessPool:
            raise InputError(
                "training process: ended from outside (out of memory?); expected it to live; "
                "run again to resume"
            ) from None


def make_executor(objective: Objective, processes: int | None, jobs: int) -> Executor:
    """Return an executor for batches of `jobs`; results do not depend on `processes`.

    `processes` None takes one per usable core.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    count = min(processes or cores or 1, jobs)
    if count == 1:
        return SerialExecutor(objective)
    names = (objective.device.name, objective.stack.name)
    return ProcessExecutor(objective.task, *names, count, objective.fast)


_worker: list[Objective] = []


def _prepare(task: Task, device: str, stack: str, fast: Fast | None) -> None:
    """Make this process a worker: Ctrl-C is the parent's to handle, and its death is ours."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threadpool_limits(1)
    threading.Thread(target=_follow_parent, daemon=True).start()
    _worker.append(Objective(task, device, stack, fast=fast))


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        with contextlib.suppress(OSError):
            wait([parent.sentinel])
        os._exit(1)


def _measure(job: Job) -> Measurement:
    return _worker[0].measure(job.policy, job.seed, job.jitter)
