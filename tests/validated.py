"""The commands that judge published rows, by the option that a test is about."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

from benchmarks.validation import validate_memory
from benchmarks.validation.__main__ import validation
from policysearch.cli import main


@pytest.fixture(autouse=True)
def few_known(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have memory be fitted to some of the rows that are known: all of them take half a minute.

    For tests of how a file is read, and not of how far modeled memory lies from a reading.
    """
    known = validate_memory.known_rows()[1::9]
    monkeypatch.setattr(validate_memory, "known_rows", lambda: known)
    yield


KINDS = ("--memory", "--narrow", "--ranks")


def validated(arguments: Sequence[str]) -> int:
    """Run `python -m benchmarks.validation` for one of KINDS, else `policysearch validate-cost`."""
    if set(KINDS) & set(arguments):
        return validation(arguments)
    return main(["validate-cost", *arguments])
