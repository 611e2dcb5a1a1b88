"""A disk that fills up: the n-th write of a command fails, and after there is room it goes on."""

from __future__ import annotations

import contextlib
import errno
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from unittest import mock

from benchmarks.faults.common import finished, ran, trained_here
from policysearch.study.opening import load_results
from policysearch.study.specification import load_spec
from tests.studies import write_study

COMMANDS = (
    "run tiny.toml --processes 1 --no-confirm",
    "export done.toml --pick knee --storage results/done.journal",
    "report done.toml --storage results/done.journal",
    "repair done.toml --storage results/done.journal",
    "confirm done.toml --storage results/done.journal --processes 1",
)
WRITES = 60
"""The write that fails is one of so many first ones."""

HEAD_BYTES = 4096
"""So much is written by a process whose files may not grow beyond it."""


@contextlib.contextmanager
def full_after(writes: int) -> Iterator[list[int]]:
    """Have every `os.write`, `write` of a file made by `open`, and fsync fail from the n-th on."""
    done = [0]
    write, sync = os.write, os.fsync

    def counted() -> None:
        done[0] += 1
        if done[0] > writes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def limited(fd: int, data: bytes) -> int:
        if fd > 2:
            counted()
        return write(fd, data)

    def synced(fd: int) -> None:
        counted()
        sync(fd)

    with mock.patch.object(os, "write", limited), mock.patch.object(os, "fsync", synced):
        yield done


def disks(folder: Path, count: int, seed: int, said: Callable[[str], None] = print) -> Counter[str]:
    """Let the disk be full in each command in turn; return how that ended.

    "same": one line, nothing half written, and with room again the command ends as on a whole disk.
    """
    rng, ends = random.Random(seed), Counter[str]()
    clean = folder / "clean"
    clean.mkdir()
    _prepared(clean)
    whole = {command: _left(clean, folder / "whole", command) for command in COMMANDS}
    for number in range(count):
        command, place = COMMANDS[number % len(COMMANDS)], folder / "full"
        shutil.rmtree(place, ignore_errors=True)
        shutil.copytree(clean, place)
        with trained_here(), full_after(rng.randrange(WRITES)) as done:
            found = ran(command.split(), place)
        end = found.end
        if end in ("taken", "refused"):
            part = [path.name for path in place.rglob("*") if path.suffix in (".tmp", ".part")]
            with trained_here():
                again = ran(command.split(), place)
            same = again.end == "taken" and _results(place) == whole[command][1]
            names = {str(path.relative_to(place)) for path in place.rglob("*")}
            more = names - whole[command][0]
            end = "same" if same and not more and not part else f"another end {sorted(more)[:2]}"
            end = f"{end}, written whole" if end == "same" and found.end == "taken" else end
        if not end.startswith("same"):
            said(f"{command} full after {done[0]}: {end}: {found.raised or found.err[-400:]}")
        ends[f"{command.split()[0]}: {end.partition(',')[0]}"] += 1
    return ends


def _prepared(folder: Path) -> None:
    """Make a finished study, and one to begin."""
    finished(folder)
    (folder / "results" / "tiny.journal").rename(folder / "results" / "done.journal")
    write_study(folder, name="done.toml")


def _left(clean: Path, place: Path, command: str) -> tuple[set[str], object]:
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(clean, place)
    with trained_here():
        found = ran(command.split(), place)
    assert found.end == "taken", f"{command}: {found}"
    return {str(path.relative_to(place)) for path in place.rglob("*")}, _results(place)


def _results(place: Path) -> object:
    spec = load_spec(place / "tiny.toml")
    journals = [place / "results" / f"{name}.journal" for name in ("tiny", "done")]
    return [load_results(spec, path).trials for path in journals if path.exists()]
