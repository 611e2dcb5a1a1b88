"""A real Dask cluster whose workers, scheduler and wires fail, and how its study then ends."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from benchmarks.faults.kills import LONGEST_SECONDS
from policysearch.study.journal.records import PREFIX
from policysearch.study.journal.storage import read_journal
from policysearch.study.opening import load_results
from policysearch.study.specification import load_spec
from policysearch.study.study import run_study
from tests.studies import write_study
from tests.test_kills import ROOT

CHANGES = (("trials = 6", "trials = 8"), ("steps = 6", "steps = 1500"))
HOST = "127.0.0.1"
DASK = {
    "PYTHONPATH": str(ROOT),
    "DASK_DISTRIBUTED__SCHEDULER__WORKER_TTL": "10s",
}
"""A worker that is cut off is given up sooner than after Dask's five minutes."""

SHORT_SECONDS = 5.0


class Wire:
    """A port that leads to another one of this machine, until it is cut: then nothing passes."""

    def __init__(self, to: int) -> None:
        self._to, self.whole = to, threading.Event()
        self.whole.set()
        self._server = socket.create_server((HOST, 0))
        self.port = self._server.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                threading.Thread(target=self._join, args=(near,), daemon=True).start()

    def _join(self, near: socket.socket) -> None:
        self.whole.wait()
        with contextlib.suppress(OSError), near, socket.create_connection((HOST, self._to)) as far:
            back = threading.Thread(target=self._pass, args=(far, near), daemon=True)
            back.start()
            self._pass(near, far)
            back.join()

    def _pass(self, one: socket.socket, other: socket.socket) -> None:
        """Pass on what comes, and that it ends, while the wire is whole."""
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                self.whole.wait()
                other.sendall(data)
            self.whole.wait()
            other.shutdown(socket.SHUT_WR)


class Machines:
    """A scheduler and its workers, each a process of its own, behind wires."""

    def __init__(self) -> None:
        self.port = _free_port()
        self.wire = Wire(self.port)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.wires: dict[str, tuple[Wire, Wire]] = {}
        self.begin_scheduler()
        self.add_worker("first")
        self.add_worker("second")

    def _begin(self, name: str, *command: str) -> None:
        self.processes[name] = subprocess.Popen(
            [sys.executable, "-m", *command],
            env={**os.environ, **DASK},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def begin_scheduler(self) -> None:
        where = ("--host", HOST, "--port", str(self.port), "--no-dashboard")
        self._begin("scheduler", "distributed.cli.dask_scheduler", *where)
        while True:
            with contextlib.suppress(ConnectionError):
                return socket.create_connection((HOST, self.port)).close()
            time.sleep(0.2)

    def add_worker(self, name: str, *options: str) -> None:
        """Start a worker; with `options` of a nanny, which starts it again where it ends."""
        port = _free_port()
        there, back = self.wires[name] = Wire(self.port), Wire(port)
        own = ("--listen-address", f"tcp://{HOST}:{port}", "--no-dashboard", "--nthreads", "1")
        seen = ("--contact-address", f"tcp://{HOST}:{back.port}", *(options or ("--no-nanny",)))
        to = f"tcp://{HOST}:{there.port}"
        self._begin(name, "distributed.cli.dask_worker", to, *own, *seen)

    def cut(self, *wires: Wire) -> None:
        for wire in wires:
            wire.whole.clear()

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
        for wire in (self.wire, *(wire for pair in self.wires.values() for wire in pair)):
            wire.whole.set()


def _free_port() -> int:
    with socket.create_server((HOST, 0)) as server:
        port: int = server.getsockname()[1]
        return port


Fault = Callable[[Machines], None]


def worker_killed(there: Machines) -> None:
    there.processes["first"].kill()
    there.add_worker("third")


def worker_stopped_a_while(there: Machines) -> None:
    _paused(there.processes["first"])


def worker_slowed(there: Machines) -> None:
    """It computes for a tenth of the time, until it ends."""

    def slow(process: subprocess.Popen[bytes]) -> None:
        while process.poll() is None:
            process.send_signal(signal.SIGSTOP)
            time.sleep(0.9)
            process.send_signal(signal.SIGCONT)
            time.sleep(0.1)

    threading.Thread(target=slow, args=(there.processes["first"],), daemon=True).start()


def worker_without_memory(there: Machines) -> None:
    """Its nanny kills it whenever it has imported what it needs, and starts it again."""
    there.processes["first"].kill()
    there.add_worker("third", "--nanny", "--memory-limit", "120MB")


def worker_cut_off(there: Machines) -> None:
    there.cut(*there.wires["first"])


def worker_cut_off_a_while(there: Machines) -> None:
    there.cut(*there.wires["first"])
    time.sleep(SHORT_SECONDS)
    for wire in there.wires["first"]:
        wire.whole.set()


def every_worker_cut_off_and_new_ones(there: Machines) -> None:
    there.cut(*there.wires["first"], *there.wires["second"])
    there.add_worker("third")


def scheduler_stopped_a_while(there: Machines) -> None:
    _paused(there.processes["scheduler"])


def coordinator_cut_off_a_while(there: Machines) -> None:
    there.cut(there.wire)
    time.sleep(SHORT_SECONDS)
    there.wire.whole.set()


def coordinator_cut_off(there: Machines) -> None:
    there.cut(there.wire)


def scheduler_killed(there: Machines) -> None:
    there.processes["scheduler"].kill()


def _paused(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGSTOP)
    time.sleep(SHORT_SECONDS)
    process.send_signal(signal.SIGCONT)


FAULTS: tuple[Fault, ...] = (
    worker_killed,
    worker_stopped_a_while,
    worker_slowed,
    worker_without_memory,
    worker_cut_off,
    worker_cut_off_a_while,
    every_worker_cut_off_and_new_ones,
    scheduler_stopped_a_while,
    coordinator_cut_off_a_while,
    coordinator_cut_off,
    scheduler_killed,
)
ENDING = (coordinator_cut_off, scheduler_killed)
"""After these the command ends in one line, and goes on with another scheduler."""


def clusters(
    folder: Path, count: int, seed: int, said: Callable[[str], None] = print
) -> Counter[str]:
    """Let `count` clusters fail while a study runs, each fault in its turn; return how it ended.

    "same": no run is lost or recorded twice, and each has the result of a run on this machine.
    """
    rng, ends = random.Random(seed), Counter[str]()
    study = write_study(folder, *CHANGES)
    alone = run_study(load_spec(study), folder / "alone.journal", processes=2)
    scores = {trial.digest: trial.scores for trial in alone.trials}
    for number in range(count):
        fault, storage = FAULTS[number % len(FAULTS)], folder / f"{number}.journal"
        end, errors = _ended(fault, study, storage, rng.randint(2, 14))
        if not end:
            results = load_results(load_spec(study), storage)
            known = [t for t in results.trials if scores.get(t.digest, t.scores) == t.scores]
            whole = len(results.trials) == len(known) == len(scores) and not results.failed
            keys = _runs(storage)
            end = "same" if whole and len(keys) == len(set(keys)) else "another end"
        if end != "same":
            said(f"{fault.__name__}, case {number}: {end}\n{errors}")
        ends[f"{fault.__name__.replace('_', ' ')}: {end}"] += 1
    return ends


def _ended(fault: Fault, study: Path, storage: Path, after: int) -> tuple[str, str]:
    """Let `fault` happen after so many runs; return "" or what went wrong, and what was said."""
    with contextlib.ExitStack() as stack:
        there = Machines()
        stack.callback(there.end)
        process = _coordinator(study, storage, there.wire.port)
        stack.callback(process.kill)
        for _ in _watched(process, storage, after):
            pass
        if process.poll() is None:
            fault(there)
        errors = process.communicate(timeout=LONGEST_SECONDS)[1]
        if fault in ENDING and process.returncode == 2:
            *_, line = errors.strip().splitlines()
            if not line.startswith("policysearch: cluster: the scheduler"):
                return "another refusal", errors
            there.end()
            there = Machines()
            stack.callback(there.end)
            process = _coordinator(study, storage, there.wire.port)
            errors += process.communicate(timeout=LONGEST_SECONDS)[1]
        wrong = f"exit {process.returncode}" if process.returncode else ""
        return wrong or ("traceback" if "Traceback" in errors else ""), errors


def _coordinator(study: Path, storage: Path, port: int) -> subprocess.Popen[str]:
    where = ["--storage", str(storage), "--out", str(study.parent), "--no-confirm"]
    address = ["--cluster", f"tcp://{HOST}:{port}"]
    return subprocess.Popen(
        [sys.executable, "-m", "policysearch", "run", str(study), *where, *address],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=study.parent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )


def _watched(process: subprocess.Popen[str], storage: Path, runs: int) -> Iterator[int]:
    """Yield how many runs are recorded, until they are so many or the process has ended."""
    while process.poll() is None:
        there = len(_runs(storage))
        if there >= runs:
            return
        yield there
        time.sleep(0.2)


def _runs(storage: Path) -> list[str]:
    reading = read_journal(storage.read_bytes() if storage.exists() else b"")
    keys = [key for line in reading.lines for key in line.record.get("system_attr", ())]
    return [key for key in keys if key.startswith(PREFIX + "run:")]
