"""The data of a study is in memory once, whatever processes train on it, and is gone with them."""

from __future__ import annotations

import contextlib
import copy
import os
import pickle
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from policysearch.data.datasets import Dataset, load_dataset
from policysearch.data.shared import SharedDataset, shared
from policysearch.objective.objective import Objective
from policysearch.objective.score import Measurement
from policysearch.policy.presets import preset
from policysearch.study.workers import executors
from policysearch.study.workers.executors import Job, ProcessExecutor, SerialExecutor
from policysearch.train.tasks import Task
from tests.studies import write_study
from tests.test_kills import gone, session_of, started

TASK = Task(model="mlp", widths=(8,), data="digits", batch_size=32, steps=6, tail_steps=3)
COST = ("H100-SXM5", "torch.compile")
ANY = preset("float32", ())
LONGEST_SECONDS = 60.0

in_proc = pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to see mappings")


def own() -> Dataset:
    """Return a data set of two inputs, neither of a size that ends on a cache line."""
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((20, 3), np.float32), rng.integers(0, 9, (20, 5))
    return Dataset("own", inputs, rng.integers(0, 4, 20), 12, 5, 4)


def mapping_of(address: int, process: int | str = "self") -> tuple[str, str, str]:
    """Return permissions, inode and path of the mapping that an address lies in."""
    for line in Path(f"/proc/{process}/maps").read_text().splitlines():
        span, permissions, _, _, inode, *path = line.split(maxsplit=5)
        first, last = (int(part, 16) for part in span.split("-"))
        if first <= address < last:
            return permissions, inode, "".join(path)
    raise AssertionError(f"{address:x} is mapped nowhere")


def of_worker(_: Job) -> tuple[object, bool]:
    """Stand-in for a run: where the worker's data are, and what they are."""
    (worker,) = executors._worker
    data = worker.dataset
    found = [mapping_of(array.ctypes.data) for array in (*data.inputs, data.labels)]
    return (os.getpid(), found, data.fingerprint, data.images.flags.writeable), False


@in_proc
@pytest.mark.parametrize(
    ("data", "in_memory"), [("digits", True), (own(), False)], ids=["named", "given"]
)
def test_processes_map_one_file_without_a_name(
    data: str | Dataset, in_memory: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not in_memory:
        monkeypatch.delattr(os, "memfd_create")
        monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    objective = Objective(replace(TASK, data=data), *COST)
    fingerprint = objective.dataset.fingerprint
    monkeypatch.setattr(executors, "_measure", of_worker)
    with ProcessExecutor(objective, 2 if in_memory else 1) as executor:
        jobs = [Job(ANY, seed) for seed in range(4)]
        outcomes = [outcome for _, outcome in executor.run(jobs)]
        assert not list(tmp_path.iterdir())
    images = objective.dataset.images
    assert isinstance(objective.dataset, SharedDataset) and not images.flags.writeable
    permissions, inode, path = here = mapping_of(images.ctypes.data)
    assert permissions.startswith("r-") and inode != "0" and path.endswith("(deleted)")
    assert ("memfd" in path) == in_memory
    for process, found, seen, writeable in outcomes:  # type: ignore[misc]
        assert process != os.getpid() and (seen, writeable) == (fingerprint, False)
        assert set(found) == {here}


def test_a_copy_made_elsewhere_has_arrays_of_its_own() -> None:
    made = shared(own())
    for copied in (pickle.loads(pickle.dumps(made)), copy.deepcopy(made)):
        assert copied.fingerprint == made.fingerprint == own().fingerprint
        assert copied.train_count == 12 and copied.name == "own"
        assert not np.shares_memory(copied.labels, made.labels)


def test_its_file_is_closed_with_it() -> None:
    made = shared(own())
    assert isinstance(made, SharedDataset)
    file = made._file
    os.fstat(file)
    labels = made.labels
    del made
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(file)
    assert labels.sum() == own().labels.sum()  # a mapping outlives its file


def full(*_: object, **__: object) -> int:
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize(
    ("data", "way"),
    [("digits", "in a file"), (load_dataset("digits"), "in memory"), ("digits", "not at all")],
    ids=["in a file", "given, in memory", "not at all"],
)
def test_results_do_not_depend_on_how_the_data_come(
    data: str | Dataset, way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if way == "in a file":
        monkeypatch.delattr(os, "memfd_create", raising=False)
    if way == "not at all":
        monkeypatch.setattr(os, "memfd_create", full, raising=False)
    objective = Objective(replace(TASK, data=data), *COST)
    jobs = [Job(objective.float32, seed) for seed in range(2)]
    with ProcessExecutor(objective, 1) as executor:
        found = dict(executor.run(jobs))
    assert isinstance(objective.dataset, SharedDataset) == (way != "not at all")
    assert found == dict(SerialExecutor(Objective(TASK, *COST)).run(jobs))
    assert all(isinstance(outcome, Measurement) for outcome in found.values())


@in_proc
def test_nothing_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever ends it: what is shared has no name, so the last process takes it along.

    Here the first, which could least clean up; `test_kills` interrupts a study.
    """
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    changes = (("trials = 6", "trials = 12"), ("steps = 6", "steps = 2000"))
    process = started(write_study(tmp_path, *changes), tmp_path / "x.journal")
    until(lambda: len(workers_with_data(process.pid)) == 2)
    assert len(set(workers_with_data(process.pid).values())) == 1
    process.kill()
    process.communicate(timeout=LONGEST_SECONDS)
    assert process.returncode == -signal.SIGKILL
    assert gone(process.pid) and not list(temporary.iterdir())


def workers_with_data(coordinator: int) -> dict[int, str]:
    """Return, by process, the inode of the shared data of those that the coordinator started."""
    found = {}
    for process in session_of(coordinator):
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{process}/maps").read_text().splitlines()
            nodes = {line.split()[4] for line in lines if "memfd:policysearch-data" in line}
            if process != coordinator and nodes:
                (found[process],) = nodes
    return found


def until(reached: Callable[[], bool]) -> None:
    """Wait for a state that processes come to; an error where they do not."""
    began = time.monotonic()
    while not reached():
        assert time.monotonic() - began < LONGEST_SECONDS
        time.sleep(0.05)
