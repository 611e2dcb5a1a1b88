"""JSON files of published rows, whose errors name the file and the place of the row."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar

from policysearch.files import read_text
from policysearch.values import InputError

T = TypeVar("T")

EXPECTED = "a JSON list of published rows"


@dataclass(frozen=True)
class Entry:
    """One item of a file of rows, the `index`-th from 0, as JSON has it."""

    file: str
    index: int
    data: Any

    @property
    def kind(self) -> object:
        """What the row says it is a row of; None where it does not."""
        return self.data.get("kind") if isinstance(self.data, Mapping) else None

    def read(self, make: Callable[[Mapping[str, Any]], T]) -> T:
        """Return what `make` makes of the row, whose "id" is its index unless it has its own.

        InputError names the place where a field is missing or is not what `make` takes.
        """
        where = f"{self.file}: row {self.index}"
        try:
            return make({"id": self.index, **self.data})
        except KeyError as error:
            raise InputError(f"{where}: no {error.args[0]!r}") from None
        except (TypeError, ValueError, AttributeError) as error:
            raise InputError(f"{where}: {error}") from None


def read_entries(path: Path | None, shipped: str) -> tuple[Entry, ...]:
    """Return the rows of the JSON file at `path`, or of `shipped`, which comes with the package.

    InputError where the file cannot be read or holds no list.
    """
    file = str(path or shipped)
    text = read_text(path, EXPECTED) if path else _shipped(shipped)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"{file}: {error}; expected {EXPECTED}") from None
    if not isinstance(data, list):
        raise InputError(f"{file}: a JSON {type(data).__name__}; expected a list of rows")
    return tuple(Entry(file, index, row) for index, row in enumerate(data))


def _shipped(name: str) -> str:
    return (files("policysearch.cost") / name).read_text(encoding="utf-8")
