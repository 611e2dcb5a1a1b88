"""What a search decides, as a searcher sees it: options in places, and modifiers of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Option:
    """What a decision can be.

    `name` is equal for equal decisions in other places. `operand_epsilon` and `storage_epsilon`
    are machine epsilons of what it rounds, 0 for what stays in float32: with both 0 it costs
    nothing.
    """

    name: str
    operand_epsilon: float = 0.0
    storage_epsilon: float = 0.0

    @property
    def exact(self) -> bool:
        """Whether it leaves the gap at zero."""
        return not (self.operand_epsilon or self.storage_epsilon)


@dataclass(frozen=True)
class Decisions:
    """What is decided: `places` hold their options, `modifiers` how many values each takes.

    A policy is one row of integers: the option in each place, then the value of each modifier. A
    modifier (a loss scale) costs nothing by itself; it changes what the others cost. Its value 0
    is the usual one.
    """

    places: tuple[tuple[Option, ...], ...]
    modifiers: tuple[int, ...] = ()

    def exact(self, row: Sequence[int]) -> bool:
        """Whether a policy is float32 throughout, whose gap is known to be zero."""
        return all(options[at].exact for options, at in zip(self.places, row, strict=False))

    def counted(self) -> list[tuple[int, int]]:
        """Return (place, option) of every decision that costs something: the order of theta."""
        return [
            (place, index)
            for place, options in enumerate(self.places)
            for index, option in enumerate(options)
            if not option.exact
        ]


Row = tuple[int, ...]
"""A policy as integers: the option in each place, then the value of each modifier."""
