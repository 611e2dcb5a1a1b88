"""The rules that give the layers of a policy: as few as can be of those that say whole layers."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from policysearch.graph import Graph
from policysearch.nn.model import Model
from policysearch.policy.policy import LayerPolicy, Policy, uniform_layer, usual_storage
from policysearch.rewrite.carried_rules import carried_matches
from policysearch.rewrite.format_rules import LISTS, PARTS, FormatRule, LayerMatch
from policysearch.rewrite.patterns import block_of

MOST_ORDERED = 3
"""Of more different layers one order is tried: that by how many layers are such."""

MOST_CARRIED = 4
"""With more rules than these, and than different layers, blocks and leaves are not said apart."""

LONGEST_MATCH = 60
"""Of more characters a match is a list that nobody would write."""

MOST_PARTS = 3
"""Of more parts that differ from a uniform layer, all are said one by one."""


def rules_of(policy: Policy, base: Policy, fitting: Matches) -> tuple[FormatRule, ...]:
    """Return the rules that make of `base` the layers, and where it can the op lists, of `policy`.

    There is one for each different layer that `base` has not where it is wanted, or up to three
    where these say blocks and leaves of repeated stacks, and so mean the same in a deeper net.
    Of the ways to say which layers it is for, each takes the first that holds: all, a position
    among layers with parameters, types, ops, blocks and leaves of stacks, blocks, a type in some
    blocks, or names. Both policies are of the model of `fitting`, with the same master weights.
    """
    wanted, old = dict(policy.layers), dict(base.layers)
    groups: dict[LayerPolicy, set[str]] = {}
    for name, layer in wanted.items():
        groups.setdefault(layer, set()).add(name)
    needed = [v for v, names in groups.items() if any(old[name] != v for name in names)]
    # the most frequent first: what comes later wins, so that exceptions can be short
    needed.sort(key=lambda layer: -len(groups[layer]))
    summed = any(layer.accumulator != "float32" for layer in (*groups, *old.values()))
    every = sorted(groups, key=lambda layer: -len(groups[layer]))
    orders = [tuple(needed), *_orders(needed), *_orders(every)]
    said = [_said(order, groups, fitting.few) for order in orders]
    best = min(said, key=_unlikeliness)
    if len(best) > max(MOST_CARRIED, len(needed)):
        best = _said(orders[0], groups, lambda *sets: [fitting.one(*sets)])
    rules = [_rule(layer, match, policy.master_weights, summed) for layer, match in best]
    return (*rules, *_moved_ops(policy, base))


def _said(
    order: Iterable[LayerPolicy],
    groups: Mapping[LayerPolicy, set[str]],
    matches_of: Callable[[set[str], set[str]], list[LayerMatch]],
) -> list[tuple[LayerPolicy, LayerMatch]]:
    """Return which layers have which formats, in this order, of which the later wins."""
    needed, pairs = list(order), list[tuple[LayerPolicy, LayerMatch]]()
    # A rule may take in layers that a later one sets anyway, which lets it be said more shortly:
    # "all layers" and then the exceptions.
    for place, layer in enumerate(needed):
        later = set().union(*(groups[other] for other in needed[place + 1 :]))
        matches = matches_of(groups[layer], groups[layer] | later)
        pairs += [(layer, match) for match in matches]
    return pairs


def _orders(layers: Sequence[LayerPolicy]) -> Iterator[tuple[LayerPolicy, ...]]:
    """Yield the orders in which they are tried: none but the given one where they are many."""
    if len(layers) <= MOST_ORDERED:
        yield from itertools.permutations(layers)


def _unlikeliness(pairs: Sequence[tuple[LayerPolicy, LayerMatch]]) -> tuple[bool, int, int]:
    """Return what is least for the rules that people would write: short ones, few, of few words."""
    words = [*map(_length, (match for _, match in pairs))]
    return max(words, default=0) > LONGEST_MATCH, len(pairs), sum(words)


def _length(match: LayerMatch) -> int:
    named = len(match.layer) + len(match.block) + len(match.blocks)
    return named + sum(len(leaf) + 4 for leaf in match.leaf)


def _rule(layer: LayerPolicy, match: LayerMatch, master_weights: bool, summed: bool) -> FormatRule:
    stored = "float32" if master_weights else usual_storage(layer.compute)
    uniform = uniform_layer(layer.compute, param=stored)
    formats = {part: getattr(layer, part) for part in PARTS}
    parts = {part: fmt for part, fmt in formats.items() if fmt != getattr(uniform, part)}
    if len(parts) > MOST_PARTS:
        return FormatRule(match=match, formats=(layer.compute,), **formats)
    if summed:
        parts["accumulator"] = layer.accumulator
    return FormatRule(match=match, formats=(layer.compute,), **parts)


def _moved_ops(policy: Policy, base: Policy) -> Iterator[FormatRule]:
    """Yield one rule per op list that has ops behind those that it keeps of the base's."""
    for run, name in LISTS.items():
        before = set(getattr(base, name))
        new = tuple(op for op in getattr(policy, name) if op not in before)
        if new:
            yield FormatRule(ops=new, run=run, optional=True)  # type: ignore[arg-type]


class Matches:
    """The ways to say layers of one model, and which layers each of them fits."""

    def __init__(self, graph: Graph, model: Model) -> None:
        self.names = model.layer_names
        self.owners = [name for name in self.names if model.parameters_of(name)]
        self.types = _keys_by_member(
            {name: (model.layer_types.get(name, ""),) for name in self.names}
        )
        ops: dict[str, set[str]] = {name: set() for name in self.names}
        for node in graph.nodes:
            if node.role == "fprop" and node.layer in ops:
                ops[node.layer].add(node.op.name)
        self.traced = {name for name in self.names if ops[name]}
        self.ops = _keys_by_member(ops)
        self.blocks = _keys_by_member({name: (block_of(name),) for name in self.names})
        self._few: dict[tuple[frozenset[str], frozenset[str]], list[LayerMatch]] = {}
        self.types.pop("", None)
        self.blocks.pop("", None)

    def one(self, wanted: set[str], allowed: set[str]) -> LayerMatch:
        """Return the first way that fits all of `wanted` and nothing but `allowed`."""
        for match, layers in self.ways(wanted, allowed):
            if wanted <= layers <= allowed:
                return match
        named = [name for name in self.names if name in wanted]
        return LayerMatch(layer="|".join(re.escape(name) for name in named))

    def few(self, wanted: set[str], allowed: set[str]) -> list[LayerMatch]:
        """Return that way, or where it names blocks or layers a few by blocks and leaves."""
        key = frozenset(wanted), frozenset(allowed)
        if key not in self._few:
            match = self.one(wanted, allowed)
            several: tuple[LayerMatch, ...] = ()
            if match.block or match.layer:
                names = tuple(name for name in self.names if name in self.traced)
                several = carried_matches(names, *key)
            self._few[key] = [*several] or [match]
        return self._few[key]

    def ways(self, wanted: set[str], allowed: set[str]) -> Iterator[tuple[LayerMatch, set[str]]]:
        yield LayerMatch(), self.traced
        if self.owners:
            first, last = self.owners[0], self.owners[-1]
            yield LayerMatch(position="first"), {first}
            yield LayerMatch(position="last"), {last}
            yield LayerMatch(position="ends"), {first, last}
        types = _touching_keys(self.types, wanted, allowed)
        yield LayerMatch(layer_type=tuple(types)), _union(self.types, types)
        blocks = _touching_keys(self.blocks, wanted, allowed)
        yield LayerMatch(block=_either(blocks)), _union(self.blocks, blocks)
        ops = _touching_keys(self.ops, wanted, allowed)
        yield LayerMatch(op=tuple(ops)), _union(self.ops, ops)
        for kind, members in self.types.items():
            inside = {b: names & members for b, names in self.blocks.items()}
            blocks = _touching_keys(inside, wanted, allowed)
            match = LayerMatch(layer_type=(kind,), block=_either(blocks))
            yield match, _union(inside, blocks)


def _keys_by_member(members: Mapping[str, Iterable[str]]) -> dict[str, set[str]]:
    by_key: dict[str, set[str]] = {}
    for name, keys in members.items():
        for key in keys:
            by_key.setdefault(key, set()).add(name)
    return by_key


def _touching_keys(sets: Mapping[str, set[str]], wanted: set[str], allowed: set[str]) -> list[str]:
    """Return the keys of which every layer is allowed and some are wanted."""
    return [key for key, names in sets.items() if names & wanted and names <= allowed]


def _union(sets: Mapping[str, set[str]], keys: Iterable[str]) -> set[str]:
    return set().union(*(sets[key] for key in keys))


def _either(names: Iterable[str]) -> str:
    return "|".join(re.escape(name) for name in names)
