"""Repeated stacks of a net: blocks of the same names but one number, and ways to say some of them.

`first 2`, `last 1`, `from 3 to -2`, `every 2 from 1` and `all` mean as much in a deeper net;
several stand behind one another with a comma. Blocks are counted from 0, below 0 from the end.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from policysearch.rewrite.patterns import block_of
from policysearch.values import InputError

TERM = re.compile(
    r"all|first (?P<first>\d+)|last (?P<last>\d+)|every (?P<every>\d+)( from (?P<start>\d+))?"
    r"|from (?P<low>-?\d+)( to (?P<high>-?\d+))?|to (?P<top>-?\d+)"
)
VALID = "first N, last N, from N, to N, from N to N, every N from N, or all, with commas between"
LONGEST_STEP = 4
"""Of further apart blocks no rule by steps is made."""


@dataclass(frozen=True)
class Stack:
    """Blocks of one name but for a number, in its order, each with its layers by leaf.

    A leaf is what stands behind the name of the block: "attention.q" of "block2.attention.q".
    """

    name: str
    blocks: tuple[Mapping[str, str], ...]

    @property
    def leaves(self) -> tuple[str, ...]:
        """The leaves of all blocks, in the order of the first that has each."""
        return tuple(dict.fromkeys(leaf for block in self.blocks for leaf in block))


def stacks_of(names: Iterable[str]) -> tuple[Stack, ...]:
    """Return the repeated stacks among layers of these names: those of two blocks or more."""
    found: dict[str, dict[int, dict[str, str]]] = {}
    for name in names:
        block = block_of(name)
        number = re.search(r"\d+$", block)
        if number is None:
            continue
        blocks = found.setdefault(block[: number.start()], {})
        blocks.setdefault(int(number[0]), {})[name[len(block) + 1 :]] = name
    return tuple(
        Stack(name.rstrip("."), tuple(blocks[number] for number in sorted(blocks)))
        for name, blocks in found.items()
        if len(blocks) > 1
    )


def placed(text: str, count: int) -> set[int]:
    """Return which of `count` blocks the text means.

    Raises InputError for what is no such text, and for blocks beyond the net.
    """
    return {number for term in terms(text) for number in _of_term(term[0], term, count)}


def terms(text: str) -> list[re.Match[str]]:
    """Return the parts of a text that says blocks; InputError where it is none."""
    found = [TERM.fullmatch(term.strip()) for term in text.split(",")]
    if None in found:
        raise InputError(f"blocks: {text!r}; expected {VALID}")
    return [term for term in found if term is not None]


def _of_term(term: str, match: re.Match[str], count: int) -> range:
    said = {key: int(value) for key, value in match.groupdict().items() if value is not None}
    if term == "all":
        return range(count)
    where = f"blocks: {term!r} of {count} blocks"
    for key in ("first", "last"):
        if key in said:
            if not 1 <= said[key] <= count:
                raise InputError(f"{where}; expected 1 to {count}")
            return range(said[key]) if key == "first" else range(count - said[key], count)
    if "every" in said:
        if not (said["every"] >= 1 and said.get("start", 0) < count):
            raise InputError(f"{where}; expected a step from 1 and a start below {count}")
        return range(said.get("start", 0), count, said["every"])
    low, high = said.get("low", 0), said.get("high", said.get("top", -1))
    ends = [end + count if end < 0 else end for end in (low, high)]
    if not 0 <= ends[0] <= ends[1] < count:
        raise InputError(f"{where}; expected rising numbers from {-count} to {count - 1}")
    return range(ends[0], ends[1] + 1)


def fits(leaf: str, said: Sequence[str]) -> bool:
    """Return whether one of the names says this leaf: all of it, its end, or "x." all inside x."""
    return any(
        leaf == name
        or leaf.endswith(f".{name}")
        or (name.endswith(".") and f".{leaf}".find(f".{name}") >= 0)
        for name in said
    )


def layers_in(names: Iterable[str], leaf: Sequence[str], blocks: str, stack: str = "") -> set[str]:
    """Return the layers of these names that lie in such blocks of a stack and have such leaves.

    Without leaves it is all of a block, without blocks all blocks, without a stack every stack.
    Raises InputError as of `placed`, and where there is no such stack.
    """
    stacks = stacks_of(names)
    if stack and stack not in [each.name for each in stacks]:
        known = ", ".join(repr(each.name) for each in stacks)
        raise InputError(f"stack: {stack!r}; expected one of {known or 'none: no block repeats'}")
    chosen: set[str] = set()
    for each in stacks:
        if stack and each.name != stack:
            continue
        for number in placed(blocks or "all", len(each.blocks)):
            block = each.blocks[number]
            chosen |= {name for key, name in block.items() if not leaf or fits(key, leaf)}
    return chosen


def ways(count: int) -> Iterator[tuple[str, frozenset[int]]]:
    """Yield texts and the blocks that they mean, of `count`: ends first, then steps, then ranges.

    Of texts that mean the same blocks the first one is that which is likelier in a deeper net:
    more than half of the blocks are all but some at the ends.
    """
    seen = set()
    texts = ["all"]
    most = count // 2
    texts += [f"first {a}" for a in range(1, most + 1)]
    texts += [f"last {b}" for b in range(1, most + 1)]
    texts += [
        f"first {a}, last {b}" for a in range(1, count) for b in range(1, count) if a + b < count
    ]
    for step in range(2, LONGEST_STEP + 1):
        starts = [start for start in range(step) if start + step < count]
        texts += [f"every {step} from {start}" for start in starts]
        # two thirds of the blocks are "all but every third one" as likely as two ranges
        texts += [
            f"every {step} from {a}, every {step} from {b}" for a, b in combinations(starts, 2)
        ]
    texts += [f"to -{b + 1}" for b in range(1, count)]
    texts += [f"from {a}" for a in range(1, count)]
    texts += [
        f"from {a} to -{b + 1}" for a in range(1, count) for b in range(1, count) if a + b < count
    ]
    for text in texts:
        blocks = frozenset(placed(text, count))
        if blocks not in seen:
            seen.add(blocks)
            yield text, blocks


def short_leaves(leaves: Sequence[str], wanted: set[str]) -> tuple[str, ...]:
    """Return the fewest names, and of those the shortest, that `fits` exactly the wanted leaves."""
    names: list[str] = []
    left = [leaf for leaf in leaves if leaf in wanted]
    while left:
        options = {end for leaf in left for end in (*_inside(leaf), *_ends(leaf))}
        exact = [x for x in options if {y for y in leaves if fits(y, (x,))} <= wanted]
        best = min(exact, key=lambda x: (-sum(fits(y, (x,)) for y in left), len(x), x))
        names.append(best)
        left = [leaf for leaf in left if not fits(leaf, (best,))]
    return tuple(names)


def _inside(leaf: str) -> Iterator[str]:
    parts = leaf.split(".")
    yield from (".".join(parts[:end]) + "." for end in range(1, len(parts)))


def _ends(leaf: str) -> Iterator[str]:
    parts = leaf.split(".")
    yield from (".".join(parts[start:]) for start in range(len(parts)))
