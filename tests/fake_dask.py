"""Stand-ins for a Dask client and its futures, whose workers do what a test says."""

from __future__ import annotations

import threading
import types
from collections.abc import Callable
from typing import Any

from policysearch.study.workers.executors import Job
from policysearch.study.workers.worker import measured, prepared, said_identity


class FakeFuture:
    """A future that ends when the test says so."""

    def __init__(self, key: Any, function: Any, arguments: tuple[Any, ...], worker: str) -> None:
        self.key, self.function, self.arguments, self.worker = key, function, arguments, worker
        self.status, self._callbacks = "pending", list[Callable[[FakeFuture], None]]()
        self._result: Any = None
        self._lock = threading.Lock()

    def add_done_callback(self, callback: Callable[[FakeFuture], None]) -> None:
        with self._lock:
            self._callbacks.append(callback)
            if self.status == "finished":
                callback(self)

    def end(self, result: Any) -> None:
        with self._lock:
            self.status, self._result = "finished", result
            for callback in self._callbacks:
                callback(self)

    def result(self, timeout: float) -> Any:
        if isinstance(self._result, Exception):
            raise self._result
        return self._result

    def cancel(self) -> None:
        self.status = "cancelled"


class FakeClient:
    """Stand-in for a Dask client: `act` says what becomes of a run on a worker, None never ends."""

    def __init__(self, workers: list[str], act: Callable[[Job, str], Any]) -> None:
        self.workers, self.act, self._first = workers, act, set(workers)
        self.runs: list[tuple[int, str]] = []
        self.sent: list[tuple[str, str]] = []
        self.held: Callable[[Job], bool] = lambda job: False
        self.silent = 0
        self.gone: Exception | None = None
        self.identities: dict[str, Any] = {}
        self._taken_on: set[str] = set()

    @property
    def scheduler(self) -> types.SimpleNamespace:
        return types.SimpleNamespace(ncores=lambda: dict.fromkeys(self.workers, 1))

    def sync(self, ask: Callable[[], dict[str, int]], callback_timeout: float) -> dict[str, int]:
        if self.gone is not None:
            raise self.gone
        return ask()

    def submit(self, function: Any, *arguments: Any, workers: list[str], pure: bool) -> FakeFuture:
        [worker] = workers
        future = FakeFuture(None, function, arguments, worker)
        result: Any = None
        if function is said_identity:
            result = self.identities.get(worker, said_identity())
            self.silent, result = max(0, self.silent - 1), None if self.silent else result
        elif function is prepared:
            self.sent.append((worker, arguments[0].key))
            result = ""
        elif function is measured:
            job = arguments[1]
            self.runs.append((job.seed, worker))
            result = self.act(job, worker)
        if result is not None and worker in self.workers:
            self._end_soon(future, result)
        return future

    def _end_soon(self, future: FakeFuture, result: Any) -> None:
        """No run ends before every worker that was there at first can be given one."""
        if future.function is prepared:
            self._taken_on.add(future.worker)
        early = future.function is measured and (
            not self._taken_on >= self._first or self.held(future.arguments[1])
        )
        end = (self._end_soon, (future, result)) if early else (future.end, (result,))
        threading.Timer(0.01, *end).start()

    def cancel(self, futures: list[FakeFuture], force: bool) -> None:
        for future in futures:
            future.cancel()
