"""The decisions of a space as they act: what a searcher learns from, and policies as its rows.

A raw parameter such as the master-weight switch does nothing for a float32 layer and most of the
gap for an 8-bit one. Here each group decides for its format together with where its parameters are
stored, how they are scaled and summed, and what becomes of it in later phases; a role or a storage
that is decided by itself is a decision beside it. Parameters that make the same policy, or policies
that `canonical` knows to train alike, make the same row.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import LayerPolicy, Policy
from policysearch.policy.presets import layer_presets
from policysearch.space.decided.base import SAME, Params
from policysearch.space.decided.layer_formats import ROLES
from policysearch.space.decision_options import acting, idle_option, layer_options, other_option
from policysearch.space.equivalence import has_short_range, moves_by_powers, over_run
from policysearch.space.options import Decisions, Option, Row
from policysearch.space.parallel import PREFIX, parallel_option
from policysearch.space.section import MODIFYING, SHARED, is_named
from policysearch.space.space import Space
from policysearch.space.target import as_run

PER_LAYER = ("format", *ROLES, "products", "param")
"""What is decided for a layer: its places in a row are called so, with the name of its group."""

USUAL = {"second_moment": SAME, "state_block": 0}
"""What counts as decided where a decision of the optimizer's state acts on nothing."""

ONE = "one"
"""The layer and the group of the space of one layer that options are made in."""


@dataclass(frozen=True, eq=False)
class _Layer:
    """What a group decides: an option per name of PER_LAYER; whether loss scales and ops act.

    `unscaled`: the target of the study scales no loss where parameters are stored so.
    """

    options: Mapping[str, Option]
    short: bool
    low: bool
    unscaled: bool


class Encoding:
    """The decisions of `space`, and the row of any of its parameters."""

    def __init__(self, space: Space) -> None:
        self._choices, self._groups = space.choices(), space.groups
        self._fixed = {name: (*values, None)[0] for name, values in space.offered().items()}
        self._op_layers = space.op_layers or {}
        self._group_of = {layer: g.name for g in space.groups for layer in g.layers}
        self._one = space.of_one_layer(ONE)
        self._space, self._kinds = space, _kinds(space)
        self._shared = [name for name in self._choices if is_named(name, SHARED)]
        self._scaled = [name for name in self._choices if name in MODIFYING]
        self._apart = {name.partition(".")[0] for name in self._choices} & {*PER_LAYER[1:]}
        self._layers: dict[tuple[Any, ...], _Layer] = {}
        self._made_of: dict[tuple[tuple[str, ...], int], list[_Layer]] = {}
        decided = [n for n in self._choices if n not in {*self._shared, *self._scaled}]
        formats = [f"format.{group.name}" for group in space.groups]
        self._places = [*decided, *(name for name in formats if name not in decided)]
        self._place = {name: i for i, name in enumerate(self._places)}
        self._options = [self._every_option(name) for name in self._places]
        self._index = [{each: i for i, each in enumerate(options)} for options in self._options]
        scales = product(*(self._choices[name] for name in self._scaled))
        every = (self._scale(dict(zip(self._scaled, each, strict=True))) for each in scales)
        self._scales = list(dict.fromkeys(every))

    @property
    def decisions(self) -> Decisions:
        """What is decided, as `row` numbers it."""
        modifiers = (len(self._scales),) if len(self._scales) > 1 else ()
        return Decisions(tuple(map(tuple, self._options)), modifiers)

    @property
    def places(self) -> tuple[str, ...]:
        """The decision in each place of a row; of a layer it is named with its group."""
        return tuple(self._places)

    def options(self, group: str, params: Params) -> dict[str, int]:
        """Return the option in each place of a group, by kind; only what it decides matters."""
        options = self._layer(group, params).options
        places = {kind: f"{kind}.{group}" for kind in options}
        return {
            kind: self._index[self._place[name]][options[kind]]
            for kind, name in places.items()
            if name in self._place
        }

    def row(self, params: Params) -> Row:
        """Return the row of the policy that `params` make."""
        layers = {group.name: self._layer(group.name, params) for group in self._groups}
        low = {name for name, layer in layers.items() if layer.low}
        row = []
        for place, name in enumerate(self._places):
            kind, _, group = name.partition(".")
            if kind in PER_LAYER:
                option = layers[group].options[kind]
            elif kind == "op" and not low & {self._group_of.get(n) for n in self._users(group)}:
                option = idle_option(name)
            else:
                mode = params.get("update_rounding", self._fixed["update_rounding"])
                option = _other(name, acting(name, {**self._fixed, **params}), mode)
            row.append(self._index[place][option])
        if len(self._scales) > 1:
            scale = self._scale(params)
            short = any(layer.short for layer in layers.values())
            acts = scale.kind != "none" and (short or not moves_by_powers(scale))
            dropped = any(layer.unscaled for layer in layers.values())
            row.append(self._scales.index(scale) if acts and not dropped else 0)
        return tuple(row)

    def _users(self, op: str) -> tuple[str, ...]:
        """Return the layers that use an op; where that is not known, all."""
        return self._op_layers.get(op, tuple(self._group_of))

    def _every_option(self, name: str) -> list[Option]:
        kind, _, group = name.partition(".")
        if kind not in PER_LAYER:
            modes = self._choices.get("update_rounding", (self._fixed["update_rounding"],))
            values = product(self._choices[name], modes)
            options = [_other(name, value, mode) for value, mode in values]
            options += [idle_option(name)] * (kind == "op")
            options += [_other(name, USUAL[kind], modes[0])] if kind in USUAL else []
            return list(dict.fromkeys(options))
        own = tuple(each for each in PER_LAYER if f"{each}.{group}" in self._choices)
        key = own, self._kinds[group]
        if key not in self._made_of:  # groups alike that decide the same have the same options
            names = [*(f"{each}.{group}" for each in own), *self._shared]
            every = product(*(self._choices[each] for each in names))
            layers = (self._layer(group, dict(zip(names, each, strict=True))) for each in every)
            self._made_of[key] = list(dict.fromkeys(layers))
        return list(dict.fromkeys(layer.options[kind] for layer in self._made_of[key]))

    def _layer(self, group: str, params: Params) -> _Layer:
        names = {each: f"{each}.{group}" for each in PER_LAYER}
        names |= {name: name for name in self._shared}
        decided = tuple(params.get(name, self._fixed.get(name)) for name in names.values())
        key = self._kinds[group], *decided
        if key not in self._layers:
            values = {
                f"{each}.{ONE}" if each in PER_LAYER else each: value
                for each, value in zip(names, decided, strict=True)
                if value is not None
            }
            self._layers[key] = self._made(*self._as_run(self._one.policy(values), group))
        return self._layers[key]

    def _as_run(self, policy: Policy, group: str) -> tuple[Policy, bool]:
        """Return the policy of a layer as the target runs it in the group; whether unscaled.

        As it is asked for where the target runs the layers of the group in several ways.
        """
        model, target = self._space.model, self._space.target
        if model is None or target is None:
            return policy, False
        layers = next(each.layers for each in self._groups if each.name == group)
        others = {name: LayerPolicy() for name in model.layer_names}
        phases = [
            replace(phase, layers=tuple((name, dict(phase.layers)[ONE]) for name in layers))
            for phase in policy.phases
        ]
        asked = replace(
            policy,
            layers=tuple((others | dict.fromkeys(layers, policy.layer(ONE))).items()),
            loss_scale=LossScale("fixed", 2.0),
            phases=tuple(phases),
        )
        running = as_run(asked, model, target)
        policy = policy if running.phases else replace(policy, phases=())
        rows = {running.layer(name) for name in layers if model.parameters_of(name)}
        if len(rows) == 1:
            policy = replace(policy, layers=((ONE, rows.pop()),), scaling=running.scaling)
        return policy, running.loss_scale.kind == "none"

    def _made(self, policy: Policy, unscaled: bool) -> _Layer:
        section = self._one.section
        named = bool(section.scalings) or bool(set(section.formats) & set(layer_presets()))
        options = layer_options(policy, ONE, self._apart, policy.scaling.summary if named else "")
        low = policy.phases != () or policy.layer(ONE) != LayerPolicy()
        return _Layer(options, has_short_range(policy), low, unscaled)

    def _scale(self, params: Params) -> LossScale:
        """Return the loss scale without what its kind, or a run of these steps, does not use."""
        values = {name: params.get(name, self._fixed[name]) for name in MODIFYING}
        return over_run(self._one.loss_scale(values), self._one.steps)


def _kinds(space: Space) -> dict[str, int]:
    """Return numbers of the groups, the same for those whose layers a target runs alike."""
    if space.model is None or space.target is None:
        return dict.fromkeys((group.name for group in space.groups), 0)
    types, held = space.model.layer_types, defaultdict(list)
    for spec in space.model.parameters():
        for name in spec.owners:
            held[name].append((spec.shape, spec.trained))
    numbers: dict[Any, int] = {}
    return {
        group.name: numbers.setdefault(
            tuple((types.get(name, ""), *held[name]) for name in group.layers), len(numbers)
        )
        for group in space.groups
    }


def _other(name: str, value: Any, mode: str) -> Option:
    """Return what a decision that is of no layer decides, the spread among them."""
    spread = name.startswith(PREFIX)
    return parallel_option(name, value) if spread else other_option(name, value, mode)
