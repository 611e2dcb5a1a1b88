"""What the parts share: a command run in this process and how it ended, and a finished study."""

from __future__ import annotations

import contextlib
import io
import signal
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

from policysearch.cli import main
from policysearch.commands import run
from policysearch.study.specification import load_spec
from policysearch.study.study import run_study
from policysearch.study.workers import executors
from policysearch.study.workers.executors import SerialExecutor
from tests.studies import replaced_training, write_study

ATTACK = "a\x1b[2Jb\ac\u202ed\nINJECTED"
RAW = ("\x1b", "\a", "\u202e", "\nINJECTED")
"""What no output may hold: a terminal acts on it, or it passes for a line of the command's own."""

READ = (".html", ".py", ".csv", ".svg", ".yaml", ".json", ".toml", ".md")
"""Endings of the files that commands write for people."""

SOUND = frozenset({"intact", "ran", "refused", "taken", "same", "stopped", "gone"})
"""How a case may end."""

LONGEST_SECONDS, LONGEST_WAIT_SECONDS = 20, 200
"""Of computing, and of the clock: a machine may be busy with other things."""


class TooLong(BaseException):
    """A command takes longer than it may; no handler of errors may catch it."""


@dataclass(frozen=True)
class Ended:
    """How a command ended: a word of SOUND or a fault, what it said, what it raised."""

    end: str
    out: str
    err: str
    raised: str = ""


def ran(arguments: Sequence[str], folder: Path) -> Ended:
    """Run a command in `folder` and return how it ended: "taken", "refused", or a fault.

    A refusal is one line on standard error, beside progress.
    """
    out, err = io.StringIO(), io.StringIO()
    raised = ""
    try:
        here = contextlib.redirect_stdout(out), contextlib.redirect_stderr(err)
        with here[0], here[1], contextlib.chdir(folder), limited():
            code = main(list(arguments))
        end = {0: "taken", 2: "refused"}.get(code, f"exit {code}")
    except SystemExit as left:
        end = "refused" if left.code == 2 else f"exit {left.code}"
    except TooLong:
        end = "hang"
    except Exception as error:
        end, raised = "traceback", traceback.format_exc()
        raised = f"{type(error).__name__}: {error}\n{raised[-1200:]}"
    said = [line for line in err.getvalue().splitlines() if line and not is_progress(line)]
    if end == "refused" and len(said) != 1:
        end = "more than one line"
    return Ended(end, out.getvalue(), err.getvalue(), raised)


def is_progress(line: str) -> bool:
    """Return whether a line says what is being done: a bar, or how long it will take."""
    said = ("trials |", "seconds in all on", "steps, float32 among them", "that confirm the front")
    return any(part in line for part in said)


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Raise TooLong in this context where it computes, or waits, for longer than it may."""

    def over(_signal: int, _frame: FrameType | None) -> None:
        raise TooLong

    timers = (signal.ITIMER_PROF, LONGEST_SECONDS), (signal.ITIMER_REAL, LONGEST_WAIT_SECONDS)
    before = [signal.signal(number, over) for number in (signal.SIGPROF, signal.SIGALRM)]
    for timer, seconds in timers:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for timer, _ in timers:
            signal.setitimer(timer, 0)
        for number, handler in zip((signal.SIGPROF, signal.SIGALRM), before, strict=True):
            signal.signal(number, handler)


@contextlib.contextmanager
def trained_here() -> Iterator[list[tuple[str, int, float]]]:
    """Replace training, its processes by this one, and plots; yields what is trained meanwhile."""
    one = mock.patch.object(executors, "ProcessExecutor", lambda made, _: SerialExecutor(made))
    bare = mock.patch.object(run, "write_plots", lambda results, folder: None)
    with one, bare, replaced_training() as trained:
        yield trained


def said_raw(files: Iterable[Path], *texts: str) -> bool:
    """Return whether a text, or a page, table or exported file among `files`, holds something RAW.

    Journals are none of these: they are JSON, in which such letters are escapes.
    """
    read = [path.read_text(encoding="utf-8") for path in files if path.suffix in READ]
    return any(raw in text for raw in RAW for text in (*texts, *read))


def finished(folder: Path, *changes: tuple[str, str]) -> tuple[Path, list[bytes]]:
    """Make a finished study in `folder`, its training replaced; return its file and journal."""
    study, journal = write_study(folder, *changes), folder / "results" / "tiny.journal"
    journal.parent.mkdir(exist_ok=True)
    with replaced_training():
        run_study(load_spec(study), journal, processes=0)
    return study, journal.read_bytes().splitlines(keepends=True)


def places_in(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every (container, key) in `value`, however deep."""
    keys = value if isinstance(value, dict) else range(len(value))
    for key in list(keys):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places_in(value[key])
