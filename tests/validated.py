"""The commands that judge published rows, by the option that a test is about."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.validation.__main__ import validation
from policysearch.cli import main

KINDS = ("--memory", "--narrow", "--ranks")


def validated(arguments: Sequence[str]) -> int:
    """Run `python -m benchmarks.validation` for one of KINDS, else `policysearch validate-cost`."""
    if set(KINDS) & set(arguments):
        return validation(arguments)
    return main(["validate-cost", *arguments])
