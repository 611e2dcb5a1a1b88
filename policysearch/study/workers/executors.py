"""Where training runs happen: in this process, or in several on this machine."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import cached_property
from multiprocessing import connection, context, process, reduction, resource_tracker, spawn, util
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from threadpoolctl import threadpool_limits

from policysearch.objective.objective import Objective
from policysearch.objective.score import Failure, Outcome
from policysearch.policy.policy import Policy
from policysearch.rounding.rounder import Fast, check_fast
from policysearch.train.tasks import Task
from policysearch.values import USER_FAULTS, InputError, number


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


ATTEMPTS = 3
"""So often a run is started that was killed or found no memory: another time may go well."""


class Executor(Protocol):
    """Runs jobs; a context manager that gives back what it holds.

    `in_order`: a search is to tell results in the order it asked for them, so that it does not
    depend on how fast each of them came.
    """

    in_order: bool

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def run(self, jobs: Iterable[Job | None]) -> Iterator[tuple[int, Outcome]]:
        """Yield (index of the job, how it ended) as jobs end, in any order.

        A job is taken when it can be started. None says that there is none before one of those
        under way has ended.
        """
        ...


Make = Callable[[Objective], Executor]
"""Makes the executor that trains for an objective."""


class SerialExecutor:
    """Runs jobs in this process, one BLAS thread; a job that kills the process ends the study."""

    in_order = True

    def __init__(self, objective: Objective) -> None:
        self._objective = objective

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def run(self, jobs: Iterable[Job | None]) -> Iterator[tuple[int, Outcome]]:
        for index, job in enumerate(jobs):
            if job is None:  # And none is under way.
                return
            for attempt in range(1, ATTEMPTS + 1):
                outcome, again = attempted(self._objective, job)
                if not again or attempt == ATTEMPTS:
                    break
            yield index, outcome


def attempted(objective: Objective, job: Job) -> tuple[Outcome, bool]:
    """Return how the run ended, and whether another attempt may end otherwise.

    Training is deterministic: only a want of memory or an error of the system can pass.
    """
    try:
        with threadpool_limits(1):
            how = job.seed, job.jitter, job.steps, job.until, job.checkpoint, job.width
            return objective.measure(job.policy, *how), False
    except USER_FAULTS as error:  # Whatever a policy does to its training is a result.
        said = " ".join(str(error).split())
        reason = f"{type(error).__name__}: {said}" if said else type(error).__name__
        return Failure(reason), isinstance(error, MemoryError | OSError)


def unlike(objective: Objective, model: str) -> str:
    """Return why the objective's model is none of the fingerprint `model`; "" where it is."""
    try:
        fingerprint = objective.model.fingerprint
    except (InputError, OSError) as error:
        return str(error)
    return (
        "" if fingerprint == model else "its model is another; expected the file to stay as it was"
    )


if sys.platform != "win32":
    from multiprocessing import popen_spawn_posix

    class _Start(popen_spawn_posix.Popen):
        """The start of a process whose orders lie in its pipe before it is there to read them.

        The library writes them afterwards; a process whose parent is killed in between then ends
        in a traceback of Python's own, on the terminal of a command that is no more.
        """

        def _launch(self, process_obj: process.BaseProcess) -> None:
            tracker, orders = resource_tracker.getfd(), io.BytesIO()
            assert tracker is not None
            self._fds: list[int] = [*self._fds, tracker]
            context.set_spawning_popen(self)
            try:
                reduction.dump(spawn.get_preparation_data(process_obj.name), orders)
                reduction.dump(process_obj, orders)
            finally:
                context.set_spawning_popen(None)
            (self.sentinel, alive), (read, write) = os.pipe(), os.pipe()
            ends = self.sentinel, write
            self.finalizer = util.Finalize(self, util.close_fds, ends)  # type: ignore[attr-defined]
            try:
                os.set_blocking(write, False)  # what is more than a pipe holds has to wait
                sent = os.write(write, orders.getbuffer())
                os.set_blocking(write, True)
                command = spawn.get_command_line(tracker_fd=tracker, pipe_handle=read)
                passed = [*self._fds, read, alive]
                program = os.fsencode(spawn.get_executable())
                self.pid = util.spawnv_passfds(program, command, passed)
                with open(write, "wb", closefd=False) as pipe:
                    pipe.write(orders.getbuffer()[sent:])
            finally:
                os.close(read)
                os.close(alive)

    class _Process(context.SpawnProcess):
        @staticmethod
        def _Popen(process_obj: process.BaseProcess) -> Any:
            return _Start(process_obj)

    class _Context(context.SpawnContext):
        Process = _Process

    _CONTEXT: context.SpawnContext = _Context()
else:
    _CONTEXT = multiprocessing.get_context("spawn")


class ProcessExecutor:
    """Runs jobs in `processes` fresh processes with one BLAS thread each, which share the data.

    Every process is a pool of its own, so that one that is killed takes only its own job along.
    On an exception, Ctrl-C included, running jobs are ended: their results are not wanted. `run`
    raises InputError where a process finds another model in the file that the study names.
    """

    in_order = True

    def __init__(self, objective: Objective, processes: int) -> None:
        self._before = set(multiprocessing.active_children())
        self._objective = objective
        self._processes = processes
        self._idle: list[ProcessPoolExecutor] = []
        self._pools: list[ProcessPoolExecutor] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            for child in set(multiprocessing.active_children()) - self._before:
                child.terminate()
        for pool in self._pools:
            pool.shutdown(wait=True, cancel_futures=True)

    def run(self, jobs: Iterable[Job | None]) -> Iterator[tuple[int, Outcome]]:
        queue = Queue(jobs)
        running: dict[Future[tuple[Outcome, bool]], tuple[Attempt, ProcessPoolExecutor]] = {}
        while True:
            while len(running) < self._processes and (attempt := queue.take()) is not None:
                pool = self._idle.pop() if self._idle else self._started_pool()
                try:
                    future = pool.submit(_measure, attempt.job)
                except BrokenProcessPool:  # Killed while it was idle.
                    queue.put_back(attempt)
                    self._drop(pool)
                    continue
                running[future] = attempt, pool
            if not running:
                return
            queue.look_ahead()
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                attempt, pool = running.pop(future)
                outcome, again = self._outcome(future, pool)
                if again and attempt.number < ATTEMPTS:
                    queue.put_back(attempt.next)
                else:
                    yield attempt.index, outcome

    def _outcome(
        self, future: Future[tuple[Outcome, bool]], pool: ProcessPoolExecutor
    ) -> tuple[Outcome, bool]:
        try:
            result = future.result()
        except BrokenProcessPool:
            self._drop(pool)
            self._idle.append(self._proved_process())
            killed = f"training process killed from outside {ATTEMPTS} times (out of memory?)"
            return Failure(killed), True
        self._idle.append(pool)
        return result

    def _drop(self, pool: ProcessPoolExecutor) -> None:
        self._pools.remove(pool)
        pool.shutdown(wait=False)

    def _proved_process(self) -> ProcessPoolExecutor:
        """Return a new process that has proved to start; InputError where none does.

        Else every policy would be recorded as one that kills its training.
        """
        for _ in range(ATTEMPTS):
            pool = self._started_pool()
            try:
                pool.submit(_ready).result()
            except BrokenProcessPool:
                self._drop(pool)
            else:
                return pool
        raise InputError(
            "training processes: they end as soon as they start; expected them to live (a script "
            'that runs a study needs `if __name__ == "__main__":`)'
        )

    @cached_property
    def _task(self) -> Task:
        return self._objective.shared_task()

    def _started_pool(self) -> ProcessPoolExecutor:
        objective = self._objective
        pool = ProcessPoolExecutor(
            1,
            _CONTEXT,
            initializer=_prepare,
            initargs=(
                *(self._task, objective.model.fingerprint),
                *(objective.device.name, objective.stack.name, objective.fast),
            ),
        )
        self._pools.append(pool)
        return pool


def make_executor(objective: Objective, processes: int | None, jobs: int) -> Executor:
    """Return an executor for batches of `jobs`; results do not depend on `processes`.

    `processes` None takes one per usable core, 0 trains in this process. InputError for fewer, and
    where what emulates is not there. On a GPU one run is under way at a time, in this process.
    """
    number("processes", processes or 0, 0)
    on_gpu = (check_fast(objective.fast).partition(":")[2] or "cpu") != "cpu"
    if on_gpu and processes:
        raise InputError(f"processes: {processes} on one GPU; expected 0, or --cluster for several")
    if processes == 0 or on_gpu:
        return SerialExecutor(objective)
    return ProcessExecutor(objective, min(processes or cores(), jobs))


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_worker: list[Objective] = []
_model: list[str] = []


def _prepare(task: Task, model: str, device: str, stack: str, fast: Fast | None) -> None:
    """Make this process a worker: Ctrl-C is the parent's to handle, and its death is ours."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threadpool_limits(1)
    threading.Thread(target=_follow_parent, daemon=True).start()
    _worker.append(Objective(task, device, stack, fast=fast))
    _model.append(model)


def _ready() -> bool:
    return bool(_worker)


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        with contextlib.suppress(OSError):
            connection.wait([parent.sentinel])
        os._exit(1)


def _measure(job: Job) -> tuple[Outcome, bool]:
    with contextlib.suppress(MemoryError):  # Of which the run itself will tell.
        if _model and (why := unlike(_worker[0], _model[0])):
            raise InputError(f"training processes: {why}")
    _model.clear()
    return attempted(_worker[0], job)
