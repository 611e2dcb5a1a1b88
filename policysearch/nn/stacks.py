"""Repeated stacks in the names of layers, and which layer of one net stands for one of another.

A layer's name is text and numbers, as "block7.attention.q" is; those with the same text and kind
are one stack along each of their numbers, however long it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

Place = tuple[float, ...]
"""Of each number of a name: 0 for the first of its stack, 1 for the last."""
Stack = tuple[str, str]
"""The text of a name, "{}" for its numbers, and the kind of its layer."""


def counterparts(kinds: Mapping[str, str], others: Mapping[str, str]) -> dict[str, str]:
    """Return the layer of another net that is like a layer of one net, for all that have one.

    Both are given as {layer: kind}. Like it is what has the same stack and stands nearest to its
    place there: the first for the first, the last for the last.
    """
    there = _stacks(others)
    return {
        name: _nearest(place, there[stack])
        for stack, layers in _stacks(kinds).items()
        if stack in there
        for name, place in layers.items()
    }


def _nearest(place: Place, layers: Mapping[str, Place]) -> str:
    """Return the layer nearest to `place`; an outer number weighs more than all within it."""
    return min(
        layers,
        key=lambda name: [
            round(abs(own - other), 9) for own, other in zip(place, layers[name], strict=True)
        ],
    )


def _stacks(kinds: Mapping[str, str]) -> dict[Stack, dict[str, Place]]:
    numbers: dict[Stack, dict[str, tuple[int, ...]]] = {}
    for name, kind in kinds.items():
        pieces = re.split(r"(\d+)", name)
        stack = "{}".join(pieces[::2]), kind
        numbers.setdefault(stack, {})[name] = tuple(map(int, pieces[1::2]))
    return {stack: _places(layers) for stack, layers in numbers.items()}


def _places(layers: Mapping[str, tuple[int, ...]]) -> dict[str, Place]:
    every = set(layers.values())
    return {
        name: tuple(_place(own, depth, every) for depth in range(len(own)))
        for name, own in layers.items()
    }


def _place(own: tuple[int, ...], depth: int, every: Iterable[tuple[int, ...]]) -> float:
    """Return where a number stands among those beside it, which have the same ones before it."""
    beside = sorted({other[depth] for other in every if other[:depth] == own[:depth]})
    return beside.index(own[depth]) / (len(beside) - 1) if len(beside) > 1 else 0.5
