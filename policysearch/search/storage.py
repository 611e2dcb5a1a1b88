"""The journal file of a study: an Optuna journal that knows how long it should be.

The first line is a journal record that Optuna reads and ignores (a user attribute of a study that
does not exist). It holds, at a fixed place, the number of bytes written for good, and is renewed
after every append. So a file cut short is told from one whose writer was killed in the middle of
a record: the first is refused, the unfinished tail of the second is dropped.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock

from policysearch.values import InputError

try:
    import fcntl
except ImportError:  # Windows: two runs of one study at once are not caught there.
    fcntl = None  # type: ignore[assignment]

Direction = Literal["minimize", "maximize"]

_HEADER = (
    b'{"op_code":2,"worker_id":"policysearch","study_id":-1,'
    b'"user_attr":{"committed_bytes":"%015d"}}\n'
)
HEADER_BYTES = len(_HEADER % 0)


class _NoLock(JournalFileOpenLock):
    """`exclusive` holds the file for the whole run, so single appends need no lock."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


class CountedJournal(JournalFileBackend):
    """A journal file whose first line holds the number of bytes committed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        super().__init__(str(path), lock_obj=_NoLock(str(path)))

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        super().append_logs(logs)
        with open(self._path, "r+b") as file:
            file.write(_HEADER % os.stat(self._path).st_size)


def check_journal(path: Path) -> int:
    """Return the number of committed bytes of the journal at `path`.

    Raises InputError, naming the place, for a file that is missing, cut short or damaged.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"storage {path}: {error.strerror}; expected a readable file") from None
    committed = _committed(content[:HEADER_BYTES])
    if committed is None:
        raise InputError(
            f"storage {path}: line 1 is damaged or foreign; expected a journal that "
            "policysearch run wrote (restore it, or name another file with --storage)"
        )
    if len(content) < committed:
        raise InputError(
            f"storage {path}: cut short to {len(content)} bytes; expected {committed} "
            "(restore it, or name another file with --storage)"
        )
    for number, line in enumerate(content[:committed].splitlines(keepends=True), 1):
        if not _is_record(line):
            raise InputError(
                f"storage {path}: line {number} is damaged; expected a journal record "
                "(restore the file, or name another one with --storage)"
            )
    return committed


def _committed(header: bytes) -> int | None:
    if not _is_record(header):
        return None
    committed = json.loads(header).get("user_attr", {}).get("committed_bytes", "")
    return int(committed) if isinstance(committed, str) and committed.isdigit() else None


def _is_record(line: bytes) -> bool:
    try:
        return line.endswith(b"\n") and "op_code" in json.loads(line)
    except (ValueError, TypeError):
        return False


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the journal at `path`, made if missing, so that no second run writes to it.

    Drops what a killed writer left unfinished. Raises InputError if the file is damaged, cannot
    be written, or is held by another run.
    """
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(open(path, "a+b"))
        except OSError as error:
            raise InputError(
                f"storage {path}: {error.strerror}; expected a writable file"
            ) from None
        _take(file.fileno(), path)
        if file.seek(0, os.SEEK_END) == 0:
            file.write(_HEADER % HEADER_BYTES)
            file.flush()
        else:
            file.truncate(check_journal(path))
        yield


def _take(descriptor: int, path: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise InputError(f"storage {path}: in use by another run; expected one at a time") from None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep Optuna's log to warnings meanwhile."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def open_study(path: Path, name: str) -> optuna.Study:
    """Return the study called `name` in the checked journal at `path`; InputError if not there."""
    check_journal(path)
    return _load(path, name)


def _load(path: Path, name: str) -> optuna.Study:
    try:
        return optuna.load_study(study_name=name, storage=_storage(path))
    except KeyError:
        raise InputError(f"storage {path}: holds no study {name!r}; expected its results") from None
    except Exception as error:  # Optuna replays every record; any failure means a damaged one.
        raise InputError(
            f"storage {path}: records do not fit together ({type(error).__name__}); "
            "expected an unchanged journal"
        ) from None


def create_study(path: Path, name: str, directions: list[Direction]) -> optuna.Study:
    """Return a new study, or the one called `name` that the held journal at `path` has."""
    if path.stat().st_size > HEADER_BYTES:
        return _load(path, name)
    return optuna.create_study(study_name=name, storage=_storage(path), directions=directions)


def _storage(path: Path) -> JournalStorage:
    return JournalStorage(CountedJournal(path))
