"""kill -9 of workers at random and of the coordinator twice, in one study on a cluster."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from policysearch.study.journal.records import PREFIX, Records
from policysearch.study.journal.storage import read_journal
from policysearch.study.opening import load_results
from policysearch.study.specification import load_spec
from policysearch.study.study import run_study
from policysearch.study.workers.cluster import Cluster, cluster_at
from policysearch.values import InputError
from tests.studies import write_study

pytest.importorskip("distributed")

ROOT = Path(__file__).parents[1]
CHANGES = (("trials = 6", "trials = 14"), ("steps = 6", "steps = 4000"))


def started(study: Path, storage: Path, cluster: Cluster) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "policysearch", "run", str(study), "--storage", str(storage)]
    return subprocess.Popen(
        [*command, "--out", str(study.parent), "--cluster", cluster.client.scheduler.address],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=study.parent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


def facts(storage: Path) -> tuple[Records, list[str]]:
    reading = read_journal(storage.read_bytes() if storage.exists() else b"")
    assert not reading.damage
    keys = [key for line in reading.lines for key in line.record.get("system_attr", ())]
    return Records(reading.lines), [key for key in keys if key.startswith(PREFIX + "run:")]


def waited(process: subprocess.Popen[bytes], storage: Path, runs: int) -> bool:
    """Wait until so many runs are recorded; False where the process ended before."""
    while process.poll() is None:
        if len(facts(storage)[1]) >= runs:
            return True
        time.sleep(0.2)
    return False


def kill_a_worker(cluster: Cluster, rng: random.Random) -> None:
    # Those that have registered: Dask does not start one again that dies before.
    living = list(cluster.client.run(os.getpid, on_error="ignore").values())
    with suppress(ProcessLookupError, IndexError):
        os.kill(rng.choice(living), signal.SIGKILL)


@pytest.mark.slow
def test_a_study_ends_though_workers_and_twice_the_coordinator_are_killed(tmp_path: Path) -> None:
    study, storage = write_study(tmp_path, *CHANGES), tmp_path / "a.journal"
    spec, rng, killed = load_spec(study), random.Random(0), 0
    with cluster_at("local:2") as cluster:
        for coordinator in range(3):
            process, before = started(study, storage, cluster), facts(storage)[0].runs
            goal = len(before) + 8
            for wanted in range(len(before) + 2, goal if coordinator < 2 else 999, 3):
                if not waited(process, storage, wanted):
                    break
                if (coordinator, wanted) == (0, 2):
                    with pytest.raises(InputError, match="in use by another run"):
                        run_study(spec, storage, executor=cluster)
                kill_a_worker(cluster, rng)
                killed += 1
            if coordinator < 2:
                assert waited(process, storage, goal)
                process.kill()
            _, errors = process.communicate(timeout=600)
            assert process.returncode == (0 if coordinator == 2 else -signal.SIGKILL), errors
            records, recorded = facts(storage)
            assert before.keys() <= records.runs.keys()
            assert len(recorded) == len(set(recorded))
    results = load_results(spec, storage)
    print(f"{killed} workers killed, {len(recorded)} runs recorded, {len(results.failed)} failed")
    assert len(results.trials) == 14 and not results.failed and killed > 5
    alone = run_study(spec, tmp_path / "alone.journal", processes=2)
    same = {trial.digest: trial.scores for trial in alone.trials}
    assert {trial.digest: trial.scores for trial in results.trials} == same
