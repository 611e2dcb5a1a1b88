"""Histograms of exponents as a log keeps them: a step of ten blocks of a transformer in 5 kB.

A row has a direction, layer, op, first exponent, counts from there on, and how many values have no
exponent. A count is one character: exact up to EXACT, and beyond it to the nearest of LEVELS, which
lie a fourth of an octave apart. What a row is of stands in the first step that has it ("names"),
and is a number from then on, left out where it is the next. Rows are lines of text, blanks between
their fields, packed by zlib in base 85.
"""

from __future__ import annotations

import base64
import bisect
import json
import math
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

NOT_FINITE, ZERO = -201, -200
"""What NaN and infinity, and zero, count as: below the exponents of all numbers."""

EXACT, OCTAVE = 8, 4
CHARACTERS = "".join(chr(i) for i in range(35, 127) if chr(i) != "\\")
LEVELS = [
    *range(EXACT + 1),
    *(round(EXACT * 2.0 ** (i / OCTAVE)) for i in range(1, len(CHARACTERS) - EXACT)),
]

TAIL = 1e-3
"""This share of the values, the smallest of them, counts as large as the next."""

LONGEST = 1 << 26
"""Bytes that are unpacked, at most."""

Key = tuple[str, str, str]


class Packer:
    """Packs the rows of one step after another."""

    def __init__(self) -> None:
        self._numbers: dict[Key, int] = {}

    def packed(self, rows: Iterable[Sequence[Any]]) -> dict[str, str]:
        """Return what a line of the log has of the rows of a step."""
        names, lines, following = list[Key](), list[str](), 0
        for direction, layer, op, first, counts, none in rows:
            key = direction, layer, op
            if key not in self._numbers:
                self._numbers[key] = len(self._numbers)
                names.append(key)
            number = self._numbers[key]
            if direction != "pole":  # of which the smallest are what matters
                first, counts = _without_tail(first, counts)
            special = [none.get(str(kind), 0) for kind in (NOT_FINITE, ZERO)]
            before = [] if number == following else [number]
            after = special if any(special) else []
            lines.append(" ".join(map(str, [*before, first, _text(counts), *after])))
            following = number + 1
        said = {"names": _packed_text(json.dumps(names, separators=(",", ":")))} if names else {}
        return {**said, "rows": _packed_text("\n".join(lines))}


class Unpacker:
    """Reads what a Packer has packed, in the same order."""

    def __init__(self) -> None:
        self._names: list[Any] = []

    def rows(self, line: Mapping[str, Any]) -> Iterator[list[Any]]:
        """Yield the rows of a line; ValueError where they are none."""
        if "names" in line:
            self._names += json.loads(_plain_text(line["names"]))
        number = 0
        for row in _plain_text(line["rows"]).splitlines():
            fields = row.split(" ")
            if len(fields) % 2:
                number = int(fields.pop(0))
            if not 0 <= number < len(self._names):
                raise ValueError(f"row {number} of {len(self._names)} names")
            first, text, *special = fields
            counts = [LEVELS[CHARACTERS.index(character)] for character in text]
            none = dict(zip((str(NOT_FINITE), str(ZERO)), map(int, special), strict=False))
            yield [*self._names[number], int(first), counts, none]
            number += 1


def _without_tail(first: int, counts: Sequence[int]) -> tuple[int, Sequence[int]]:
    most, below = TAIL * sum(counts), 0
    for place, count in enumerate(counts):
        if below + count > most:
            return first + place, [below + count, *counts[place + 1 :]]
        below += count
    return first, counts


def _text(counts: Sequence[int]) -> str:
    times = max(1.0, max(counts, default=0) / LEVELS[-1])  # shares are what counts
    return "".join(CHARACTERS[_level(math.ceil(count / times))] for count in counts)


def _level(count: int) -> int:
    """Return the place of the nearest level, by ratio."""
    above = bisect.bisect_left(LEVELS, count, hi=len(LEVELS) - 1)
    return above - (above > EXACT and count * count < LEVELS[above] * LEVELS[above - 1])


def _packed_text(text: str) -> str:
    return base64.b85encode(zlib.compress(text.encode(), 9)).decode()


def _plain_text(packed: Any) -> str:
    if not isinstance(packed, str):
        raise ValueError("no text")
    reader = zlib.decompressobj()
    try:
        text = reader.decompress(base64.b85decode(packed), LONGEST)
    except zlib.error as error:
        raise ValueError(str(error)) from None
    if not reader.eof:
        raise ValueError("cut off")
    return text.decode()
