"""Rules that mean the same in a deeper net: as few as say which layers have one format."""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from policysearch.rewrite.format_rules import LayerMatch
from policysearch.rewrite.stacks import Stack, fits, short_leaves, stacks_of, ways

MOST_RULES = 3
"""Of one format: with more, names are as good."""

MOST_WAYS = 60
"""Of so many ways to say layers every pair and triple is looked at."""


@dataclass(frozen=True)
class Way:
    """A match, what it takes of the wanted layers, and how unlikely it is: the least wins."""

    match: LayerMatch
    layers: frozenset[str]
    cost: float


@lru_cache(maxsize=4096)
def carried_matches(
    names: tuple[str, ...], wanted: frozenset[str], allowed: frozenset[str]
) -> tuple[LayerMatch, ...]:
    """Return the fewest matches that fit all of `wanted` and nothing but `allowed`, of `names`.

    There is none where MOST_RULES do not do.
    """
    candidates = [*_ways(names, wanted, allowed)]
    if len(candidates) > MOST_WAYS:
        candidates.sort(key=lambda way: (-len(way.layers), way.cost))
        candidates = candidates[:MOST_WAYS]
    bits = {name: 1 << place for place, name in enumerate(wanted)}
    taken = [sum(bits[name] for name in way.layers) for way in candidates]
    whole, costs = sum(bits.values()), [way.cost for way in candidates]
    if functools.reduce(operator.or_, taken, 0) != whole:
        return ()
    for count in range(1, MOST_RULES + 1):
        fitting = (
            (sum(costs[i] for i in chosen), chosen)
            for chosen in itertools.combinations(range(len(candidates)), count)
            if functools.reduce(operator.or_, (taken[i] for i in chosen)) == whole
        )
        best = min(fitting, default=None)
        if best is not None:
            return tuple(candidates[i].match for i in best[1])
    return ()


def _ways(names: tuple[str, ...], wanted: frozenset[str], allowed: frozenset[str]) -> Iterator[Way]:
    stacks = stacks_of(names)
    inside = {x for stack in stacks for block in stack.blocks for x in block.values()}
    outside = [name for name in names if name in wanted and name not in inside]
    if outside:
        said = "|".join(re.escape(name) for name in outside)
        yield Way(LayerMatch(layer=said), frozenset(outside), len(outside))
    several = len(stacks) > 1
    for stack in stacks:
        for number, (text, blocks) in enumerate(ways(len(stack.blocks))):
            way = _way(stack, text, blocks, wanted, allowed, stack.name if several else "")
            if way is not None:
                yield Way(way.match, way.layers, way.cost + number / 10)


def _way(
    stack: Stack,
    text: str,
    blocks: frozenset[int],
    wanted: frozenset[str],
    allowed: frozenset[str],
    name: str,
) -> Way | None:
    """Return the rule for these blocks with all leaves that it may have, None for none."""
    chosen = [stack.blocks[number] for number in sorted(blocks)]
    present = [x for x in stack.leaves if any(x in block for block in chosen)]
    free = {
        leaf for leaf in present if {block[leaf] for block in chosen if leaf in block} <= allowed
    }
    useful = {x for x in free if any(block.get(x) in wanted for block in chosen)}
    if not useful:
        return None
    leaf = () if free == set(present) else short_leaves(stack.leaves, useful)
    taken = {
        layer
        for block in chosen
        for key, layer in block.items()
        if layer in wanted and (not leaf or fits(key, leaf))
    }
    said = "" if text == "all" else text
    match = LayerMatch(leaf=leaf, blocks=said, stack="" if not (leaf or said) else name)
    if not (leaf or said):
        match = LayerMatch(blocks="all", stack=name)
    return Way(match, frozenset(taken), len(leaf) + (2 if "from" in text else bool(said)))
