"""English sums, character by character: text that is made on the machine, the same on every one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from policysearch.values import InputError

TIME = 32
"""Characters a model sees at once."""

WINDOWS = 2000
VALIDATION_WINDOWS = 400

_ONES = (
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"),
    *("eleven", "twelve", "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen"),
    "nineteen",
)
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def in_words(number: int) -> str:
    """Return a number from 0 to 199 in English."""
    if not 0 <= number < 200:
        raise InputError(f"in_words: {number}; expected 0 to 199")
    if number >= 100:
        rest = in_words(number - 100)
        return "one hundred" if number == 100 else f"one hundred and {rest}"
    if number < 20:
        return _ONES[number]
    tens, ones = _TENS[number // 10 - 2], number % 10
    return f"{tens}-{_ONES[ones]}" if ones else tens


def sentences(seed: int) -> Iterator[str]:
    """Yield sums of two numbers below 100, for ever: "forty-two plus nine is fifty-one. "."""
    rng = np.random.default_rng(seed)
    while True:
        a, b = (int(n) for n in rng.integers(0, 100, 2))
        yield f"{in_words(a)} plus {in_words(b)} is {in_words(a + b)}. "


def sums(seed: int) -> tuple[NDArray[np.int64], str]:
    """Return the text as numbers [WINDOWS, TIME + 1] of its characters, and those in order."""
    wanted, found = WINDOWS * (TIME + 1), ""
    for sentence in sentences(seed):
        found += sentence
        if len(found) >= wanted:
            break
    characters = "".join(sorted(set(found)))
    place = {character: number for number, character in enumerate(characters)}
    numbers = np.array([place[character] for character in found[:wanted]], np.int64)
    return numbers.reshape(WINDOWS, TIME + 1), characters
