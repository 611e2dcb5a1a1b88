"""Training runs on the workers of a Dask cluster; the coordinator alone asks, tells and records.

A run is pinned to one worker, so that it is known which worker lost it. Workers are looked at
again and again: one that joins is asked what it would train with, and taken on if that gives the
same bits; the run of one that is gone goes elsewhere.
"""

from __future__ import annotations

import contextlib
import logging
import math
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any, Self

from policysearch.objective.objective import Objective
from policysearch.objective.score import Failure, Outcome
from policysearch.study.journal.identity import differences
from policysearch.study.workers.executors import Attempt, Job, Queue
from policysearch.study.workers.worker import Payload, measured, prepared, said_identity
from policysearch.values import InputError

if TYPE_CHECKING:
    from distributed import Client, Future

LOOK_SECONDS = 1.0
"""So often the coordinator asks the scheduler which workers there are."""

ANSWER_SECONDS = 60.0
"""A scheduler that has not answered by then is given up."""

NO_WORKER_SECONDS = 60.0
"""So long without any worker is said, once; the study waits on, for queues may be long."""

SLOW = 5.0
"""A run that takes so many times as long per step as the slowest that ended is started again."""

LEAST_LEASE_SECONDS = 60.0
"""No run is started again before."""
ATTEMPTS = 5
"""So often a run is started that was lost or found no memory: more is lost than on one machine."""

RESULT_SECONDS = 10.0
"""A result that does not arrive by then was lost with its worker."""

WORKERS_PER_JOB_AHEAD = 8
"""For so many workers one job is asked for ahead, so that none waits until a result is told.

More would be asked for from fewer results.
"""

TAKE_ON_SECONDS = 60.0
"""A worker that has not said by then what it trains with is asked again."""


@dataclass(frozen=True)
class _Call:
    """What a worker was given: an attempt at a run or, without, a step of taking the worker on.

    `began` is of `time.monotonic`.
    """

    worker: str
    attempt: Attempt | None = None
    began: float = field(default_factory=time.monotonic)


class ClusterExecutor:
    """Runs jobs on the workers of a Dask client, one at a time each, with one BLAS thread.

    Workers may come and go. A run whose worker is lost, finds no memory or takes far longer than
    others goes to another, ATTEMPTS times in all. Results are told as they come.
    """

    in_order = False

    def __init__(self, client: Client, objective: Objective) -> None:
        self._client, self._steps = client, objective.task.steps
        task = replace(objective.task, data=objective.dataset)
        self._payload = Payload(task, objective.model.fingerprint, objective.fast)
        self._looked, self._last_seen, self._said_none = -math.inf, time.monotonic(), False
        self._living: set[str] = set()
        self._free: deque[str] = deque()
        self._refused: dict[str, str] = {}
        self._calls: dict[Future[Any], _Call] = {}
        self._done: SimpleQueue[Future[Any]] = SimpleQueue()
        self._open: set[int] = set()
        self._doubled: set[_Call] = set()
        self._slowest_step_seconds = 0.0
        self._identity = said_identity()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError, RuntimeError):  # The scheduler may be gone.
            self._client.cancel(list(self._calls), force=True)
        self._calls.clear()

    @property
    def status(self) -> str:
        """How many workers there are and how many runs are under way, in words."""
        under_way = sum(call.attempt is not None for call in self._calls.values())
        refused = f" ({len(self._refused)} refused)" if self._refused else ""
        return f"{len(self._living)} workers{refused}, {under_way} runs in flight"

    def run(self, jobs: Iterable[Job | None]) -> Iterator[tuple[int, Outcome]]:
        queue = Queue(jobs)
        while True:
            self._look()
            while self._free and (attempt := queue.take()) is not None:
                self._start(attempt)
            self._look_ahead(queue)
            if not self._open and queue.empty:
                return
            for attempt, outcome, again in self._results(queue):
                if attempt.index not in self._open:
                    continue  # Another worker was faster.
                if again and attempt.number < ATTEMPTS:
                    queue.put_back(attempt.next)
                else:
                    self._open.discard(attempt.index)
                    yield attempt.index, outcome

    def _look_ahead(self, queue: Queue) -> None:
        """Ask for a job ahead, and for more while no worker is free."""
        ahead = len(self._living) // WORKERS_PER_JOB_AHEAD
        queue.look_ahead()
        while self._done.empty() and queue.look_ahead(ahead):
            pass

    def _look(self) -> None:
        """Find out who joined and who is gone, if that was some time ago."""
        now = time.monotonic()
        if now - self._looked < LOOK_SECONDS:
            return
        there, self._looked = self._known_workers(), time.monotonic()
        self._say_where_none(there)
        for worker in sorted(there - self._living):
            self._call(_Call(worker), said_identity)
        self._living = there
        self._free = deque(worker for worker in self._free if worker in there)
        self._refused = {worker: why for worker, why in self._refused.items() if worker in there}
        if self._refused and self._refused.keys() == there:
            worker, why = next(iter(self._refused.items()))
            raise InputError(f"worker {worker}: {why}; expected what the coordinator has")

    def _known_workers(self) -> set[str]:
        """Return the workers that the scheduler knows; InputError where it says nothing."""
        ask, limit = self._client.scheduler.ncores, f"{ANSWER_SECONDS:g} s"
        try:
            return set(self._client.sync(ask, callback_timeout=ANSWER_SECONDS))
        except TimeoutError:
            why = f"the scheduler has said nothing for {limit}: it is stopped, or out of reach"
        except (OSError, RuntimeError) as error:
            why = f"the scheduler is gone ({' '.join(str(error).split())})"
        raise InputError(
            f"cluster: {why}; expected one that answers: the same command goes on with another, "
            "and every run that ended is kept"
        ) from None

    def _say_where_none(self, there: set[str]) -> None:
        """Warn once where there has been no worker for so long that some may be awaited in vain."""
        now = time.monotonic()
        if there:
            self._last_seen, self._said_none = now, False
        elif now - self._last_seen > NO_WORKER_SECONDS and not self._said_none:
            self._said_none = True
            logging.getLogger(__name__).warning(
                "cluster: no worker for %.0f s; this waits until one joins (dask worker ADDRESS), "
                "or stop it: the same command goes on",
                now - self._last_seen,
            )

    def _call(self, call: _Call, function: Callable[..., Any], *arguments: Any) -> None:
        future = self._client.submit(function, *arguments, workers=[call.worker], pure=False)
        self._calls[future] = call
        future.add_done_callback(self._done.put)

    def _start(self, attempt: Attempt) -> None:
        if attempt.number > 1 and attempt.index not in self._open:
            return  # It ended late, but it ended.
        self._open.add(attempt.index)
        call = _Call(self._free.popleft(), attempt)
        self._call(call, measured, self._payload.key, attempt.job)

    def _late(self, call: _Call) -> bool:
        """Whether the run takes so long that it is to be started elsewhere as well."""
        if call.attempt is None or call in self._doubled or not self._slowest_step_seconds:
            return False
        usual = self._slowest_step_seconds * call.attempt.job.length(self._steps)
        patience = max(LEAST_LEASE_SECONDS, SLOW * usual) * 2.0 ** (call.attempt.number - 1)
        return time.monotonic() - call.began > patience

    def _results(self, queue: Queue) -> Iterator[tuple[Attempt, Outcome, bool]]:
        """Yield attempts that ended, how, and whether another may end otherwise; wait for some.

        A worker whose run ended is given the next one before anything is made of the result.
        """
        ended: list[tuple[_Call, Future[Any]]] = []
        with contextlib.suppress(Empty):
            while True:
                future = self._done.get(timeout=0.0 if ended else LOOK_SECONDS)
                if (call := self._calls.pop(future, None)) is not None:
                    self._go_on(call, queue)
                    ended.append((call, future))
        for each in ended:
            yield from self._outcomes_of(*each)
        yield from self._lost()

    def _go_on(self, call: _Call, queue: Queue) -> None:
        """Let the worker of a run that ended train what is ready."""
        if call.attempt is not None and call.worker in self._living:
            self._free.append(call.worker)
            while self._free and (attempt := queue.ready()) is not None:
                self._start(attempt)

    def _lost(self) -> Iterator[tuple[Attempt, Outcome, bool]]:
        """Yield attempts on workers that are gone, and those that take too long."""
        for future, call in list(self._calls.items()):
            if call.worker not in self._living:
                del self._calls[future]
                future.cancel()
                if call.attempt is not None:
                    yield call.attempt, Failure(f"worker lost {ATTEMPTS} times (no memory?)"), True
            elif call.attempt is None:
                if time.monotonic() - call.began > TAKE_ON_SECONDS:
                    self._living.discard(call.worker)  # The next look takes it on anew.
            elif self._late(call):
                self._doubled.add(call)  # It may still end, and first.
                yield call.attempt, Failure(f"no result, on {ATTEMPTS} workers"), True

    def _outcomes_of(
        self, call: _Call, future: Future[Any]
    ) -> Iterator[tuple[Attempt, Outcome, bool]]:
        attempt = call.attempt
        try:
            result = future.result(timeout=RESULT_SECONDS)
        except Exception as error:  # Of the cluster or the worker: training itself raises none.
            said = f"{type(error).__name__}: {' '.join(str(error).split())}"
            if attempt is None:
                if isinstance(error, SystemError):  # Of an interpreter whose ast threads disturb.
                    self._living.discard(call.worker)  # The next look takes it on anew.
                else:
                    self._refuse(call.worker, said)
                return
            result = Failure(said), True
        if attempt is None:
            self._take_on(call.worker, result)
            return
        if not isinstance(result[0], Failure):
            step_seconds = (time.monotonic() - call.began) / attempt.job.length(self._steps)
            self._slowest_step_seconds = max(self._slowest_step_seconds, step_seconds)
        yield attempt, *result

    def _take_on(self, worker: str, said: dict[str, Any] | str) -> None:
        """Go on with a worker that said its identity, then, in words, what it cannot train."""
        if isinstance(said, str):
            why = said
            if not why and worker in self._living:
                self._free.append(worker)
        else:
            why = "; ".join(differences(self._identity, said))
            if not why:
                self._call(_Call(worker), prepared, self._payload)
        if why:
            self._refuse(worker, why)

    def _refuse(self, worker: str, why: str) -> None:
        self._refused[worker] = why
        logging.getLogger(__name__).warning("worker %s refused: %s", worker, why)


class Cluster:
    """The workers of a Dask client, for one study after another."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._executor: ClusterExecutor | None = None

    def __call__(self, objective: Objective) -> ClusterExecutor:
        """Return an executor of runs of `objective`."""
        self._executor = ClusterExecutor(self.client, objective)
        return self._executor

    def status(self) -> str:
        """Return how many workers and runs there are now, in words."""
        return self._executor.status if self._executor else ""


def workers_of(executor: Client | Cluster | None) -> Cluster | None:
    """Return the workers of a Dask client as a cluster; None of none.

    Raises InputError for what is neither.
    """
    if executor is None or isinstance(executor, Cluster):
        return executor
    if not hasattr(executor, "scatter"):
        raise InputError(f"executor: {type(executor).__name__}; expected a dask.distributed Client")
    return Cluster(executor)


if TYPE_CHECKING:
    from distributed import LocalCluster

CONNECT_SECONDS = 10.0

LOOPBACK = "127.0.0.1"


@dataclass(frozen=True)
class Tls:
    """Files of a cluster that speaks TLS: whom it trusts, and what the coordinator shows."""

    ca_file: Path
    cert: Path
    key: Path

    def __post_init__(self) -> None:
        for row in fields(self):
            if not getattr(self, row.name).is_file():
                option = f"--tls-{row.name.replace('_', '-')}"
                raise InputError(f"{option}: {getattr(self, row.name)}; expected a PEM file")


@contextlib.contextmanager
def cluster_at(address: str, tls: Tls | None = None) -> Iterator[Cluster]:
    """Yield the cluster whose scheduler has `address`; "local:N" starts one of N workers here.

    All addresses of the latter are of the loopback interface. Raises InputError where dask is not
    installed, where nobody answers, and for an N that is no number from 1 on.
    """
    try:
        from distributed import Client
    except ModuleNotFoundError:
        raise InputError(
            "--cluster: needs dask, which is not installed; expected pip install "
            "'policysearch[dask]'"
        ) from None
    kind, _, count = address.partition(":")
    if kind == "local" and not (count.isdecimal() and 1 <= int(count) <= 1024):
        raise InputError(f"--cluster: {address}; expected local:N with N from 1 to 1024")
    if (kind == "tls") != (tls is not None):
        given = f"--cluster: {address} {'with' if tls else 'without'} --tls-ca-file"
        raise InputError(f"{given}; expected tls://HOST:8786 with files of TLS, or neither")
    with contextlib.ExitStack() as stack:
        try:
            target: Any = address
            if kind == "local":
                target = stack.enter_context(_local(int(count)))
            secured = {} if tls is None else {"security": _security(tls)}
            client = stack.enter_context(Client(target, timeout=CONNECT_SECONDS, **secured))
        except (OSError, ValueError, RuntimeError) as error:
            said = " ".join(str(error).split())
            raise InputError(
                f"--cluster: {address}: {said}; expected the address of a dask scheduler, as "
                "tcp://HOST:8786, or local:N"
            ) from None
        yield Cluster(client)


def _security(tls: Tls) -> Any:
    from distributed import Security

    files = {"tls_ca_file": tls.ca_file, "tls_client_cert": tls.cert, "tls_client_key": tls.key}
    named = {name: str(path) for name, path in files.items()}
    return Security(require_encryption=True, **named)


def _local(workers: int) -> LocalCluster:
    """Return a scheduler with so many workers on the loopback interface."""
    from distributed import LocalCluster

    return LocalCluster(
        n_workers=workers,
        threads_per_worker=1,
        processes=True,
        host=LOOPBACK,
        dashboard_address=f"{LOOPBACK}:0",
        silence_logs=logging.ERROR,
    )
