"""Cases that differ in the code they take, instead of the product of all rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

Case = type(pytest.param())


def turns(first: Iterable[object], second: Sequence[object], third: Sequence[object]) -> list[Any]:
    """Return every pair of the first two, with the values of the third in turn, as parameters.

    The third meets every value of the others where it is no longer than they are. A value may be a
    `pytest.param`, whose marks its cases have.
    """
    return [
        _case(a, b, third[(i + j) % len(third)])
        for i, a in enumerate(first)
        for j, b in enumerate(second)
    ]


def _case(*values: Any) -> Any:
    marks = [mark for value in values if isinstance(value, Case) for mark in value.marks]
    plain = [value.values[0] if isinstance(value, Case) else value for value in values]
    return pytest.param(*plain, marks=marks)


@contextmanager
def case(*names: object) -> Iterator[None]:
    """Say which case of a loop failed, as the id of a parameter would."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"in the case {'-'.join(map(str, names))}")
        raise
