"""kill -9 in every command that writes or trains, and whether the same command then ends well."""

from __future__ import annotations

import contextlib
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.faults.common import finished
from policysearch.study.opening import load_results
from policysearch.study.results.results import Results
from policysearch.study.specification import load_spec
from tests.test_kills import ROOT, gone, is_tracker, session_of, survived

COMMANDS = (
    "confirm tiny.toml --processes 2",
    "verify preset:bfloat16 --study tiny.toml --steps 12",
    "export tiny.toml --pick knee",
    "repair tiny.toml --storage results/damaged.journal",
    "diagnose preset:bfloat16 --study tiny.toml --out repaired.json",
    "report tiny.toml",
)
AT_ONCE = 3
"""So many kills before a command is left to end."""

LONGEST_SECONDS = 600


@dataclass(frozen=True)
class Left:
    """What a command left behind: what it printed, its files, the results of its study."""

    out: str
    files: dict[str, str]
    results: Results


def prepared(folder: Path) -> None:
    """Make a finished study in `folder`, and one whose journal has a bit turned over."""
    _, lines = finished(folder, ("trials = 6", "trials = 4"))
    at = len(lines) // 2
    lines[at] = lines[at][:40] + b"?" + lines[at][41:]
    (folder / "results" / "damaged.journal").write_bytes(b"".join(lines))


def started(command: str, folder: Path) -> subprocess.Popen[str]:
    """Start a command in `folder`, the leader of a session of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "policysearch", *command.split()],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def left_by(command: str, folder: Path) -> tuple[str, Left, str]:
    """Run a command to its end; return "" or what is wrong, what it left, and what it said."""
    process = started(command, folder)
    out, err = process.communicate(timeout=LONGEST_SECONDS)
    wrong = f"exit {process.returncode}" if process.returncode else ""
    wrong = wrong or ("traceback" if "Traceback" in err else "")
    journal = "damaged" if "damaged" in command else "tiny"
    spec = load_spec(folder / "tiny.toml")
    results = load_results(spec, folder / "results" / f"{journal}.journal")
    files = {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file() and ".journal" not in path.name
    }
    return wrong, Left(out, files, results), err


def killed(command: str, folder: Path, seconds: float, rng: random.Random) -> tuple[bool, str]:
    """Kill a command, one of its processes or all, within `seconds`; whether it was, its stderr."""
    process = started(command, folder)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(rng.uniform(0.02, 1.0) * seconds)
    others = [p for p in session_of(process.pid) if p != process.pid and not is_tracker(p)]
    was = process.poll() is None
    with contextlib.suppress(ProcessLookupError):
        if others and rng.random() < 0.3:
            os.kill(rng.choice(others), signal.SIGKILL)
        elif rng.random() < 0.5:
            process.kill()
        elif was:
            os.killpg(process.pid, signal.SIGKILL)
    _, err = process.communicate(timeout=LONGEST_SECONDS)
    return was and gone(process.pid), err


def kills(folder: Path, count: int, seed: int, said: Callable[[str], None] = print) -> Counter[str]:
    """Kill the commands in turn, `count` times in all; return how what came after them ended.

    "same": it prints, writes and records what an undisturbed one does, and leaves nothing else.
    """
    rng, ends = random.Random(seed), Counter[str]()
    clean = folder / "clean"
    clean.mkdir()
    prepared(clean)
    whole: dict[str, tuple[Left, float]] = {}
    done = 0
    while done < count:
        command = COMMANDS[done // AT_ONCE % len(COMMANDS)]
        if command not in whole:
            place, began = _copied(clean, folder / "whole"), time.monotonic()
            wrong, left, err = left_by(command, place)
            assert not wrong, f"{command}: undisturbed: {wrong}: {err}"
            whole[command] = left, time.monotonic() - began
        undisturbed, seconds = whole[command]
        place, errors = _copied(clean, folder / "killed"), []
        for _ in range(min(AT_ONCE, count - done)):
            _, err = killed(command, place, seconds, rng)
            errors.append(err)
            done += 1
        end, left, err = left_by(command, place)
        errors.append(err)
        end = end or ("traceback" if "Traceback" in "".join(errors) else "")
        end = end or ("same" if _is_same(left, undisturbed) else "another end")
        if end != "same":
            said(
                f"{command}, before kill {done}: {end}\n"
                + "\n".join(errors)
                + _unlike(left, undisturbed)
            )
        ends[f"{command.split()[0]}, {AT_ONCE} kills: {end}"] += 1
    return ends


def _copied(clean: Path, place: Path) -> Path:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(clean, place)
    return place


def _is_same(left: Left, whole: Left) -> bool:
    return not _unlike(left, whole)


def _unlike(left: Left, whole: Left) -> str:
    lines = [
        f"{name}: {'missing' if name not in left.files else 'another'}"
        for name, digest in whole.files.items()
        if left.files.get(name) != digest
    ]
    lines += [f"{name}: left behind" for name in left.files if name not in whole.files]
    if left.results != whole.results:
        lines.append("results: another")
    return "\n".join(lines)


def runs_killed(folder: Path, count: int, seed: int) -> Counter[str]:
    """Kill searches `count` times; return how many came to the undisturbed end."""
    return Counter({"search: same": survived(count, folder, seed)})
