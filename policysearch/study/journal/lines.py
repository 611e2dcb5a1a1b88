"""The lines of a study's journal: records of Optuna's journal format that prove they are whole.

A line that this package wrote ends in `"n": place, "crc": checksum`, which Optuna reads and
ignores: the place counts the package's own lines, the checksum is the CRC-32 of all bytes before
it. A line without them that holds nothing but what Optuna writes is foreign: a note or a queued
trial that another program put there. It is kept, and no result is read from it. Everything else
is damage.
"""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

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
        record = json.loads(text)
        return Line(record, int(seal[1])) if "op_code" in record else None
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
    seen: set[int] = set()
    for text in content.split(b"\n"):
        whole = read_line(text)
        for line in [whole] if whole else [read_line(piece) for piece in _candidates(text)]:
            if line is not None and line.place not in seen:
                if line.place is not None:
                    seen.add(line.place)
                yield line


def _candidates(text: bytes) -> Iterator[bytes]:
    """Yield what may be a sealed record inside `text`: from each start to the seal after it."""
    for start in re.finditer(rb'\{"op_code":', text):
        found = _SEALED.match(text, start.start())
        if found:
            yield found[0]
