"""What every kind of decision of a space is made of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Protocol

from policysearch.formats import format_named
from policysearch.policy.policy import Policy
from policysearch.policy.product_words import SAME as SAME
from policysearch.rewrite.format_rules import LayerMatch, PlacedRule
from policysearch.values import InputError

Params = dict[str, Any]
"""What was decided, by the name of the decision."""

Choices = dict[str, tuple[Any, ...]]
"""The values of each decision, by its name; a decision with one value is none."""


ANY = LayerMatch()


@dataclass(frozen=True)
class Group:
    """Layers that share what is decided for a layer, and the `name` of them in decisions.

    They are the `layers` named, or those with parameters that fit `match`.
    """

    name: str
    layers: tuple[str, ...] = ()
    match: LayerMatch = ANY


@dataclass(frozen=True)
class Setting:
    """What a space is made for.

    `groups` hold every layer of `layers` once, in each those with parameters first. `base` says
    all that is not decided.
    `rules` are applied to every policy. `steps` are those of the run, None where they are not
    known. `op_layers` are the layers that use an op of the section, by op; None where that is not
    known.
    """

    layers: tuple[str, ...]
    groups: tuple[Group, ...]
    base: Policy
    rules: tuple[PlacedRule, ...] = ()
    steps: int | None = None
    op_layers: Mapping[str, tuple[str, ...]] | None = None

    @property
    def open_groups(self) -> tuple[Group, ...]:
        """The groups with a layer whose formats no rule says for every policy."""
        said = {
            layer
            for each in self.rules
            if len(each.rule.options) == 1
            for layer, formats in each.layers
            if formats is not None or each.rule.formats
        }
        return tuple(group for group in self.groups if set(group.layers) - said)


class Decided(Protocol):
    """One kind of decision: what it offers, how a policy takes it, how a policy shows it.

    A decision of a layer is made for each group and called "name.group". `keys` is the dataclass
    of the keys that a kind adds to the section, None where it adds none. `shared` names those that
    are made once and change every layer, `modifying` those that change no price and only what
    others cost in gap.
    """

    @property
    def keys(self) -> type | None: ...

    @property
    def shared(self) -> tuple[str, ...]: ...

    @property
    def modifying(self) -> tuple[str, ...]: ...

    def check(self, section: Any) -> None:
        """Raise InputError, beginning with the key, for what the section cannot mean."""

    def choices(self, section: Any, at: Setting) -> Choices:
        """Return the values of every decision of this kind, the usual one first."""
        ...

    def applied(self, policy: Policy, params: Params, section: Any, at: Setting) -> Policy:
        """Return the policy with these decisions, the first value where one is not given."""
        ...

    def read(self, policy: Policy, section: Any, at: Setting) -> Params:
        """Return what `policy` decided, whether or not that is among the choices."""
        ...

    def words(self, policy: Policy, section: Any, at: Setting) -> list[str]:
        """Return what a policy's name says of it."""
        ...


def telling(policy: Policy, group: Group) -> str:
    """Return the layer of a group whose formats tell what was decided of it: the narrowest.

    A target may run a norm wider than the products beside it.
    """
    layers = dict(policy.layers)
    return min(group.layers, key=lambda name: format_named(layers[name].compute).bits)


def check_formats(name: str, formats: Sequence[str], spare: str = "") -> None:
    """Raise InputError, beginning with `name`, for a text that is no format and not `spare`."""
    for each in formats:
        try:
            format_named(each if each != spare else "float32")
        except InputError as error:
            raise InputError(f"{name}: {error}") from None


def check_different(name: str, values: Sequence[object]) -> None:
    """Raise InputError unless these are one or more different values."""
    if not values or len(set(values)) < len(values):
        raise InputError(f"{name}: {list(values)}; expected one or more different values")


def with_layers(policy: Policy, at: Setting, **parts: Mapping[str, str]) -> Policy:
    """Return the policy with parts of the layers of some groups set, by group."""
    set_to: dict[str, dict[str, Any]] = {
        layer: {part: given[group.name] for part, given in parts.items() if group.name in given}
        for group in at.groups
        for layer in group.layers
    }
    layers = tuple((name, replace(layer, **set_to[name])) for name, layer in policy.layers)
    return replace(policy, layers=layers)


def short_format(name: str) -> str:
    """Return the name as it is said in tables: fp32, tf32, bf16, fp16, e4m3."""
    known = {"float32": "fp32", "tfloat32": "tf32", "bfloat16": "bf16", "float16": "fp16"}
    return known.get(name) or name.removesuffix("fn").rpartition("_")[2]


MOST_PLACES = 4
"""So many groups, or runs of them, a name says one by one."""


def by_group(said: Sequence[str], groups: Sequence[Group]) -> str:
    """Return what is said of each group as a name has it: "bf16 (fp32 in fc1, fc3 to fc6)".

    First stands what most have, then the others by their groups, of many in a row the ends.
    """
    count = Counter(said)
    usual = max(count, key=count.__getitem__)
    others = [f"{what} in {_places(what, said, groups)}" for what in count if what != usual]
    return f"{usual} ({'; '.join(others)})" if others else usual


def _places(what: str, said: Sequence[str], groups: Sequence[Group]) -> str:
    """Return the groups of which this is said; beyond MOST_PLACES how many more there are."""
    places: list[tuple[str, int]] = []
    for same, run in groupby(zip(said, groups, strict=True), lambda pair: pair[0] == what):
        names = [group.name or "the module itself" for _, group in run] if same else []
        long = len(names) > 2
        places += [(f"{names[0]} to {names[-1]}", len(names))] if long else [(n, 1) for n in names]
    more = sum(count for _, count in places[MOST_PLACES:])
    listed = ", ".join(name for name, _ in places[:MOST_PLACES])
    return f"{listed} and {more} more" if more else listed


def nearest(wanted: Any, values: tuple[Any, ...]) -> Any:
    """Return the value nearest to what a policy has: of numbers by size, of formats by bits."""
    if wanted in values:
        return wanted
    if isinstance(wanted, int | float) and not isinstance(wanted, bool):
        return min(values, key=lambda value: (abs(value - wanted), value))
    try:
        bits = format_named(wanted).bits
        return min(values, key=lambda name: abs(format_named(name).bits - bits))
    except InputError:
        return values[0]
