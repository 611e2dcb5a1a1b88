"""The journal file of a study: opened by one run at a time, checked, appended to, repaired."""

from __future__ import annotations

import contextlib
import copy
import errno
import json
import os
import re
import warnings
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import (
    BaseJournalBackend,
    JournalFileBackend,
    JournalFileOpenLock,
)

from policysearch.files import reason, write_whole
from policysearch.values import InputError

_SEAL = re.compile(rb',"n":(\d{1,12}),"crc":"([0-9a-f]{8})"\}\Z')
_SEALED = re.compile(rb'\{"op_code":.*?,"n":\d{1,12},"crc":"[0-9a-f]{8}"\}')

# What Optuna 4 and 5 write; a damaged name of one of our own keys is none of these.
_OPTUNA_KEYS = frozenset(
    (
        *("op_code", "worker_id", "study_id", "study_name", "directions", "user_attr"),
        *("system_attr", "trial_id", "state", "value", "values", "datetime_start"),
        *("datetime_complete", "distributions", "params", "user_attrs", "system_attrs"),
        *("intermediate_values", "param_name", "param_value_internal", "distribution", "step"),
        *("intermediate_value", "constraints"),
    )
)

# All but 1, which deletes the study: what is left of that is a journal nobody can go on with.
_OPTUNA_OPS = (0, *range(2, 11))


@dataclass(frozen=True)
class Line:
    """One whole line: its record, and its place among the package's own lines (None: foreign)."""

    record: dict[str, Any]
    place: int | None


@dataclass(frozen=True)
class Reading:
    """What the bytes of a journal hold.

    `whole_bytes` is where the last whole line ends; after it comes at most what a writer that was
    killed, or a file that was cut, left of the next. `damage` names what is wrong, in words that
    continue "storage FILE: ", and is empty for a sound journal. `next_place` is that of the next
    line to be written.
    """

    lines: tuple[Line, ...]
    whole_bytes: int
    damage: tuple[str, ...]

    @property
    def next_place(self) -> int:
        """The place of the next line of our own."""
        return max((line.place + 1 for line in self.lines if line.place is not None), default=0)


def sealed(record: dict[str, Any], place: int) -> bytes:
    """Return `record` as a line with its place and checksum."""
    text = json.dumps(record, separators=(",", ":"), allow_nan=False).encode()
    body = text[:-1] + b',"n":%d' % place
    return body + b',"crc":"%08x"}\n' % zlib.crc32(body)


def read_line(text: bytes) -> Line | None:
    """Return the line written in `text` (without its line feed); None where it is damaged."""
    seal = _SEAL.search(text)
    if seal is not None:
        if zlib.crc32(text[: seal.start(2) - len(b',"crc":"')]) != int(seal[2], 16):
            return None
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):  # Sealed by another hand.
            return None
        return Line(record, int(seal[1])) if record.get("op_code") in _OPTUNA_OPS else None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict) or record.get("op_code") not in _OPTUNA_OPS:
        return None
    return Line(record, None) if record.keys() <= _OPTUNA_KEYS else None


def read_journal(content: bytes) -> Reading:
    """Return what `content` holds; lines behind a damaged one are read all the same."""
    lines: list[Line] = []
    damage: list[str] = []
    whole, place = 0, 0
    for number, text in enumerate(content.split(b"\n"), 1):
        ended = whole + len(text) < len(content)
        line = read_line(text)
        if line is None and not ended and not _SEALED.search(text):
            break  # Nothing, or cut short: never more than the start of one record.
        whole += len(text) + ended
        if line is None:
            damage.append(f"line {number} is damaged")
            continue
        lines.append(line)
        if line.place is not None:
            if line.place != place:
                damage.append(f"line {number} is record {line.place} where {place} belongs")
            place = line.place + 1
    return Reading(tuple(lines), whole, tuple(damage))


def salvage(content: bytes) -> Iterator[Line]:
    """Yield every intact line of damaged `content` in its order, each of our own once.

    Also those that lost their line feed, or stand in one line with what is damaged.
    """
    places: set[int] = set()
    for text in content.split(b"\n"):
        whole = read_line(text)
        for line in [whole] if whole else [read_line(piece) for piece in _candidates(text)]:
            if line is not None and line.place not in places:
                if line.place is not None:
                    places.add(line.place)
                yield line


def _candidates(text: bytes) -> Iterator[bytes]:
    """Yield what may be a sealed record inside `text`: from each start to the seal after it."""
    for start in re.finditer(rb'\{"op_code":', text):
        match = _SEALED.match(text, start.start())
        if match:
            yield match[0]


try:
    import fcntl
except ImportError:  # Windows: two runs of one study at once are not caught there.
    fcntl = None  # type: ignore[assignment]

Direction = Literal["minimize", "maximize"]
_CREATE_STUDY = 0
_TAKEN = (errno.EAGAIN, errno.EACCES)
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP)


class _NoLock(JournalFileOpenLock):
    """`exclusive` holds the file for the whole run, so single appends need no lock."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


class SealedJournal(JournalFileBackend):
    """Optuna's journal file, each record written in one piece with its place and checksum."""

    def __init__(self, path: Path, next_place: int) -> None:
        self._path, self._next_place = path, next_place
        self._held = os.stat(path)
        super().__init__(str(path), lock_obj=_NoLock(str(path)))

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append the records; raises InputError, with nothing appended, where that fails."""
        places = range(self._next_place, self._next_place + len(logs))
        text = b"".join(sealed(log, place) for log, place in zip(logs, places, strict=True))
        try:
            with open(self._path, "r+b", buffering=0) as file:
                self._check(os.fstat(file.fileno()))
                _append(file, text)
        except OSError as error:
            raise InputError(
                f"storage {self._path}: {error.strerror}; expected room for the results "
                "(run again to resume: what was finished before is kept)"
            ) from None
        self._next_place += len(logs)

    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        """Yield the records from there on; InputError where another file has taken the place."""
        try:
            self._check(os.stat(self._path))
        except OSError as error:
            raise InputError(
                f"storage {self._path}: {error.strerror}; expected it to stay while a study runs"
            ) from None
        yield from super().read_logs(log_number_from)

    def _check(self, file: os.stat_result) -> None:
        """Raise InputError unless this is the file that is held: others may be another run's."""
        if not os.path.samestat(file, self._held):
            raise InputError(
                f"storage {self._path}: another file than the one this run holds; expected it to "
                "stay while a study runs (what was finished before is in the other)"
            )


def _append(file: IO[bytes], text: bytes) -> None:
    before = file.seek(0, os.SEEK_END)
    try:
        left = memoryview(text)
        while left:
            left = left[file.write(left) :]
        os.fsync(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            file.truncate(before)
        raise


def read_checked(path: Path) -> Reading:
    """Return what the journal at `path` holds.

    Raises InputError, naming the line, for a file that is missing, unreadable or damaged.
    """
    reading = read_journal(_content(path))
    if reading.damage:
        more = f" and {len(reading.damage) - 1} more" if len(reading.damage) > 1 else ""
        raise InputError(
            f"storage {path}: {reading.damage[0]}{more}; expected an unchanged journal "
            "(`policysearch repair STUDY.toml` keeps every intact trial and a copy of the file)"
        )
    return reading


def _content(path: Path) -> bytes:
    try:
        _check_file(path)
        return path.read_bytes()
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"storage {path}: {reason(error)}; expected a readable file") from None


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise InputError(f"storage {path}: not a file; expected the journal of a study")


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold the journal at `path`, made if missing, so that no second run writes to it.

    Raises InputError if it cannot be written or is held by another run.
    """
    with contextlib.ExitStack() as stack:
        try:
            if path.exists():
                _check_file(path)
            file = stack.enter_context(open(path, "a+b"))
        except InputError:
            raise
        except (OSError, ValueError) as error:
            raise InputError(f"storage {path}: {reason(error)}; expected a writable file") from None
        _take(file.fileno(), path)
        yield


def _take(descriptor: int, path: Path) -> None:
    if fcntl is None:
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return
        if error.errno in _TAKEN:
            taken = "in use by another run; expected one at a time"
            raise InputError(f"storage {path}: {taken}") from None
        raise InputError(f"storage {path}: {reason(error)}; expected a file to lock") from None


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Keep Optuna's log to warnings meanwhile."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


@dataclass(frozen=True)
class OpenJournal:
    """A held journal, as Optuna sees it and as what it held when it was opened."""

    study: optuna.Study
    storage: JournalStorage
    reading: Reading

    @property
    def study_id(self) -> int:
        """The study's number in the storage."""
        return self.storage.get_study_id_from_name(self.study.study_name)


def open_for_writing(
    path: Path, name: str, directions: list[Direction], metrics: Sequence[str]
) -> OpenJournal:
    """Return the held journal at `path`; if it is new, the study `name` is made in it.

    What a killed writer left of a record is dropped: it never became visible. Raises InputError
    for a damaged journal, and one that holds another study.
    """
    reading = read_checked(path)
    _check_replay(path, reading)
    _end_whole(path, reading)
    storage = JournalStorage(SealedJournal(path, reading.next_place))
    if any(line.record["op_code"] == _CREATE_STUDY for line in reading.lines):
        check_name(reading, name, path)
        if [each.study_name for each in optuna.get_all_study_summaries(storage)][:1] != [name]:
            raise InputError(f"storage {path}: its study is not the first; expected {name!r} alone")
        study = optuna.load_study(study_name=name, storage=storage)
    else:
        study = optuna.create_study(study_name=name, storage=storage, directions=directions)
    if study.metric_names is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names(list(metrics))
    return OpenJournal(study, storage, reading)


class _Remembered(BaseJournalBackend):
    """Records in memory, and the place of the one that Optuna took last."""

    def __init__(self) -> None:
        self.records, self.place = list[dict[str, Any] | None](), -1

    def read_logs(self, log_number_from: int) -> Generator[Any, None, None]:
        for place, record in enumerate(self.records[log_number_from:], log_number_from):
            self.place = place
            yield record
        self.place = len(self.records)

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        self.records += logs


def not_replayed(records: Iterable[dict[str, Any]]) -> list[int]:
    """Return the places, from 0, of the records that Optuna's own replay cannot apply.

    Optuna goes on behind a record that it failed on, so that each is applied once.
    """
    backend, places = _Remembered(), list[int]()
    storage = JournalStorage(backend)
    backend.records += map(_record_copy, records)
    while backend.place < len(backend.records):
        try:
            storage.get_study_name_from_id(0)
        except Exception:  # Whatever Optuna meets in it: it checks no shapes.
            places.append(backend.place)
    # A replay without a first study fails at its end, behind the last record.
    return [place for place in places if place < len(backend.records)]


def _record_copy(record: dict[str, Any]) -> dict[str, Any] | None:
    """Return a copy, as Optuna takes one of all that it shows; None of what is nested too deep."""
    try:
        return copy.deepcopy(record)
    except RecursionError:
        return None


def _check_replay(path: Path, reading: Reading) -> None:
    """Raise InputError where Optuna could not read the journal."""
    for place in not_replayed(line.record for line in reading.lines):
        raise InputError(
            f"storage {path}: record {place + 1} has another shape; expected one that Optuna reads "
            "(`policysearch repair STUDY.toml` keeps what can be read and a copy of the file)"
        )


def _end_whole(path: Path, reading: Reading) -> None:
    try:
        with open(path, "r+b") as file:
            file.truncate(reading.whole_bytes)
            if reading.whole_bytes:
                file.seek(-1, os.SEEK_END)
                if file.read(1) != b"\n":
                    file.write(b"\n")
    except OSError as error:
        raise InputError(f"storage {path}: {reason(error)}; expected a writable file") from None


def check_name(reading: Reading, name: str, path: Path) -> None:
    """Raise InputError unless the journal is this package's and its study is called `name`."""
    headers = [line for line in reading.lines if line.record["op_code"] == _CREATE_STUDY]
    if headers and headers[0].place is None:
        raise InputError(
            f"storage {path}: made by another program, or by policysearch 0.1.0; expected a "
            "journal of this version (name another file with --storage)"
        )
    if headers and headers[0].record.get("study_name") != name:
        other = headers[0].record.get("study_name")
        raise InputError(f"storage {path}: holds study {other!r}; expected {name!r}")


@dataclass(frozen=True)
class Repair:
    """What a repair did: lines kept and lost, and where the damaged file is kept."""

    kept: int
    damage: tuple[str, ...]
    copy: Path | None


Unreadable = Callable[[Sequence[Line]], Sequence[int]]
"""Returns the places, from 0, of intact lines that say nothing that can be read."""


def repair(
    path: Path, name: str, directions: list[Direction], unreadable: Unreadable = lambda _: ()
) -> Repair:
    """Rewrite a damaged journal with every intact record; a sound one is left alone.

    Lines that are `unreadable` count as damage.

    The damaged file is kept beside it under a new name. Raises InputError where nothing in it is
    a record, and as `exclusive`.
    """
    if not path.exists():
        raise InputError(f"storage {path}: not there; expected the journal of a study")
    with exclusive(path):
        content = _content(path)
        reading = read_journal(content)
        found = list(salvage(content)) if reading.damage else list(reading.lines)
        dropped = frozenset(unreadable(found))
        damage = (*reading.damage, *(f"record {n + 1} has another shape" for n in sorted(dropped)))
        if not damage:
            return Repair(len(reading.lines), (), None)
        intact = [line for place, line in enumerate(found) if place not in dropped]
        if not intact:
            raise InputError(f"storage {path}: no intact record in it; expected a journal")
        copy = _spare_name(path)
        write_whole({copy: content})
        write_whole({path: _rewritten(intact, name, directions)})
        return Repair(len(intact), damage, copy)


def _spare_name(path: Path) -> Path:
    number = 1
    while os.path.lexists(copy := path.with_name(f"{path.name}.damaged{number}")):
        number += 1
    return copy


def _rewritten(intact: list[Line], name: str, directions: list[Direction]) -> bytes:
    """Return a journal of these lines; one that lost its first record gets it again."""
    records = [line.record for line in intact]
    own = [line.place is not None for line in intact]
    if not any(record["op_code"] == _CREATE_STUDY for record in records):
        numbers = [("minimize", "maximize").index(direction) + 1 for direction in directions]
        head = {"op_code": _CREATE_STUDY, "worker_id": "repair"}
        records.insert(0, {**head, "study_name": name, "directions": numbers})
        own.insert(0, True)
    lines, place = [], 0
    for record, ours in zip(records, own, strict=True):
        bare = {key: value for key, value in record.items() if key not in ("n", "crc")}
        lines.append(sealed(bare, place) if ours else _foreign(bare))
        place += ours
    return b"".join(lines)


def _foreign(record: dict[str, Any]) -> bytes:
    return json.dumps(record, separators=(",", ":")).encode() + b"\n"
