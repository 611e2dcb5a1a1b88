"""Files of published rows: a JSON list of objects, each read field by field."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from policysearch.files import read_text
from policysearch.objective.published.aliases import Aliases, read_aliases
from policysearch.values import InputError, number, shown

T = TypeVar("T")
B = TypeVar("B")

EXPECTED = "a JSON list of published rows"

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]")
"""What no line can print."""

LARGEST = 1e30
"""No number of a row is larger."""


@dataclass(frozen=True)
class Fields:
    """The fields of one row; `where` is the file and the row, for messages, and
    `folder` that of the file.

    A field that is null is one that the row has not. InputError where the row has not what it
    must have, or something else than it may.
    """

    where: str
    data: Mapping[str, Any]
    folder: Path = Path()

    @property
    def id(self) -> str:
        """The row's own id, else its place in the file."""
        given = self.data.get("id")
        if isinstance(given, str):
            return self.text("id")
        known = isinstance(given, int) and not isinstance(given, bool)
        return shown(given) if known else self.where.rsplit(" ", 1)[1]

    def has(self, key: str) -> bool:
        return self.data.get(key) is not None

    def text(self, key: str, default: str | None = None) -> str:
        """Return a text; `default` where there is none."""
        if default is not None and not self.has(key):
            return default
        given = self._given(key, "a text")
        if not isinstance(given, str) or CONTROL.search(given):
            raise self._wrong(key, given, "a text of one line")
        return given

    def texts(self, key: str) -> tuple[str, ...]:
        """Return a list of texts, empty where there is none."""
        given = self.data.get(key) or []
        if not isinstance(given, list) or not all(isinstance(text, str) for text in given):
            raise self._wrong(key, given, "a list of texts")
        return tuple(given)

    def table(self, key: str) -> Mapping[str, Any]:
        """Return an object of fields, empty where there is none."""
        given = self.data.get(key) or {}
        if not isinstance(given, Mapping):
            raise self._wrong(key, given, "an object")
        return given

    def positive(self, key: str) -> float:
        """Return a number above zero."""
        given = self._given(key, "a number above zero")
        number(f"{self.where}: {key}", given, highest=LARGEST)
        if given <= 0:
            raise self._wrong(key, given, "a number above zero")
        return float(given)

    def whole(self, key: str) -> int:
        """Return a whole number."""
        given = self._given(key, "a whole number")
        number(f"{self.where}: {key}", given, highest=LARGEST)
        if given != int(given):
            raise self._wrong(key, given, "a whole number")
        return int(given)

    def count(self, key: str) -> int | None:
        """Return a whole number from 1 on, None where there is none."""
        if not self.has(key):
            return None
        found = self.whole(key)
        if found < 1:
            raise self._wrong(key, found, "a whole number from 1 on")
        return found

    def _given(self, key: str, valid: str) -> Any:
        if not self.has(key):
            raise InputError(f"{self.where}: no {key!r}; expected {valid}")
        return self.data[key]

    def _wrong(self, key: str, given: object, valid: str) -> InputError:
        return InputError(f"{self.where}: {key}: {shown(given)}; expected {valid}")


@dataclass(frozen=True)
class Read(Generic[T]):
    """The rows of a file that could be read, and for each other one a line with the reason."""

    rows: tuple[T, ...]
    refused: tuple[str, ...]

    @property
    def all(self) -> tuple[T, ...]:
        """The rows; InputError where one could not be read."""
        if self.refused:
            raise InputError(self.refused[0])
        return self.rows


def read_file(
    path: Path | None,
    shipped: str,
    build: Callable[[Fields], T | None],
    aliases: Aliases | None = None,
) -> Read[T]:
    """Return what `build` makes of the rows of a JSON file, or of one of the package; None is none.

    `aliases` are other names of devices and networks, by default the package's. InputError where
    the file cannot be read or is no list.
    """
    rows: list[T] = []
    refused: list[str] = []
    aliases = aliases or read_aliases()
    for where, data in _entries(path, shipped):
        try:
            if not isinstance(data, Mapping):
                raise InputError(f"{where}: {shown(data)}; expected an object of fields")
            row = build(Fields(where, aliases.applied(data), path.parent if path else Path()))
        except InputError as error:
            refused.append(one_line(error))
        else:
            rows += [row] if row is not None else []
    return Read(tuple(rows), tuple(refused))


def _entries(path: Path | None, shipped: str) -> list[tuple[str, object]]:
    where = str(path or shipped)
    text = read_text(path, EXPECTED) if path else _shipped_text(shipped)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{where}: {error}; expected {EXPECTED}") from None
    if not isinstance(data, list):
        raise InputError(f"{where}: a JSON {type(data).__name__}; expected a list of rows")
    return [(f"{where}: row {i}", row) for i, row in enumerate(data)]


def one_line(error: InputError) -> str:
    return " ".join(str(error).split())


def built_of(rows: Iterable[T], build: Callable[[T], B]) -> tuple[list[B], list[tuple[T, str]]]:
    """Return what `build` makes of rows, and those that it refuses with the reason."""
    built: list[B] = []
    unbuilt: list[tuple[T, str]] = []
    for row in rows:
        try:
            built.append(build(row))
        except InputError as error:
            unbuilt.append((row, one_line(error)))
    return built, unbuilt


def _shipped_text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
