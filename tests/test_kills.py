"""kill -9 at random moments: of the coordinator, a worker, or all of them at once."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from policysearch.study.journal.records import Records, RunKey
from policysearch.study.journal.storage import read_journal
from policysearch.study.opening import load_results
from policysearch.study.specification import load_spec
from policysearch.study.study import run_study
from tests.studies import write_study

ROOT = Path(__file__).parents[1]
CHANGES = (("trials = 6", "trials = 12"), ("steps = 6", "steps = 150"), ('"random"', '"tpe"'))
SHORT = (("trials = 6", "trials = 4"), ("steps = 6", "steps = 100"))
LONGEST_START_SECONDS = 60.0

pytestmark = pytest.mark.skipif(not Path("/proc").is_dir(), reason="needs /proc to find processes")


def session_of(leader: int) -> list[int]:
    """Return the living processes of the session that `leader` leads."""
    found = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError, ValueError, IndexError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader and fields[0] != "Z":
                found.append(int(entry.name))
    return found


def started(study: Path, storage: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "policysearch", "run", str(study), "--storage", str(storage)]
    return subprocess.Popen(
        [*command, "--out", str(study.parent), "--processes", "2"],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=study.parent,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        # Where the tests run in the background, SIGINT is ignored, and children inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )


def is_tracker(pid: int) -> bool:
    """Return whether it is Python's tracker of semaphores, without which others complain."""
    try:
        return b"resource_tracker" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def killed(process: subprocess.Popen[bytes], storage: Path, rng: random.Random) -> str:
    """Kill what chance says, at a moment it says, once training is under way; return what."""
    began, size = time.monotonic(), storage.stat().st_size if storage.exists() else 0
    while process.poll() is None and time.monotonic() - began < LONGEST_START_SECONDS:
        if storage.exists() and storage.stat().st_size != size:
            break
        time.sleep(0.005)
    time.sleep(rng.expovariate(4.0))
    target = rng.choice(("coordinator", "worker", "group"))
    workers = [pid for pid in session_of(process.pid) if pid != process.pid and not is_tracker(pid)]
    with contextlib.suppress(ProcessLookupError):
        if target == "group":
            os.killpg(process.pid, signal.SIGKILL)
        elif target == "coordinator" or not workers:
            process.kill()
        else:
            os.kill(rng.choice(workers), signal.SIGKILL)
    return target


def gone(leader: int) -> bool:
    """Whether, within ten seconds, no process of the session is left."""
    for _ in range(200):
        if not session_of(leader):
            return True
        time.sleep(0.05)
    return False


def runs_in(storage: Path) -> set[RunKey]:
    content = storage.read_bytes() if storage.exists() else b""
    return set(Records(read_journal(content).lines).runs)


def survived(kills: int, folder: Path, seed: int, *changes: tuple[str, str]) -> int:
    """Run studies under `kills` kills, check each; return how many studies came to their end."""
    rng = random.Random(seed)
    study = write_study(folder, *(changes or CHANGES))
    spec = load_spec(study)
    whole = run_study(spec, folder / "whole.journal", processes=0)
    done, ended = 0, 0
    storage = folder / "0.journal"
    while done < kills or ended == 0:
        kept = (
            set(Records(read_journal(storage.read_bytes()).lines).runs)
            if storage.exists()
            else set()
        )
        process = started(study, storage)
        if done < kills:
            target = killed(process, storage, rng)
            done += 1
        _, errors = process.communicate(timeout=600)
        assert process.returncode in (0, -signal.SIGKILL), (target, errors.decode())
        assert b"Traceback" not in errors, (target, errors.decode())
        assert gone(process.pid), f"{target}: processes left behind"
        reading = read_journal(storage.read_bytes())
        assert not reading.damage and kept <= runs_in(storage)
        if process.returncode == 0:
            assert load_results(spec, storage) == whole
            ended += 1
            storage = folder / f"{ended}.journal"
    return ended


@pytest.mark.slow
def test_killed_studies_resume_to_the_undisturbed_end(tmp_path: Path) -> None:
    assert survived(3, tmp_path, seed=0) >= 1


def test_a_killed_study_resumes_to_the_undisturbed_end(tmp_path: Path) -> None:
    assert survived(1, tmp_path, 0, *SHORT) == 1


def test_ctrl_c_is_one_line_and_the_study_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    study = write_study(tmp_path, *SHORT)
    storage = tmp_path / "x.journal"
    process = started(study, storage)
    while process.poll() is None and not (storage.exists() and b":run:" in storage.read_bytes()):
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    last = errors.decode().splitlines()[-1]
    assert process.returncode == 130
    assert last.startswith("policysearch: interrupted; `policysearch run") and "goes on" in last
    assert b"Traceback" not in errors and gone(process.pid) and not list(temporary.iterdir())
    spec = load_spec(study)
    resumed = run_study(spec, storage, processes=0)
    assert resumed == run_study(spec, tmp_path / "whole.journal", processes=0)


ORPHAN = """
import os, signal, sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import context, util
from policysearch.study.workers import executors

start = util.spawnv_passfds

def start_and_die(*given):
    pid = start(*given)
    if "spawn_main" in str(given[1]):  # and not Python's tracker of semaphores
        os.kill(os.getpid(), signal.SIGKILL)
    return pid

util.spawnv_passfds = start_and_die
how = {"ours": executors._CONTEXT, "the library's": context.SpawnContext()}[sys.argv[1]]
if __name__ == "__main__":
    ProcessPoolExecutor(1, how, initializer=executors._follow_parent).submit(abs, 1)
"""


@pytest.mark.parametrize(("whose", "complains"), [("ours", False), ("the library's", True)])
def test_a_worker_whose_parent_dies_as_it_starts_says_nothing(
    tmp_path: Path, whose: str, complains: bool
) -> None:
    script = tmp_path / "orphan.py"
    script.write_text(ORPHAN, encoding="utf-8")
    process = subprocess.Popen(
        [sys.executable, str(script), whose],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    _, errors = process.communicate(timeout=60)  # the orphan holds the pipe until it ends
    assert process.returncode == -signal.SIGKILL and gone(process.pid)
    assert (b"EOFError" in errors) == complains, errors.decode()
