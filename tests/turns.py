"""Cases that differ in the code they take, instead of the product of all rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


def turns(first: Iterable[A], second: Sequence[B], third: Sequence[C]) -> list[tuple[A, B, C]]:
    """Return every pair of the first two, with the values of the third in turn.

    The third meets every value of the others where it is no longer than they are.
    """
    return [
        (a, b, third[(i + j) % len(third)])
        for i, a in enumerate(first)
        for j, b in enumerate(second)
    ]
