"""The space of one model: which of its layers are decided together, and what it offers them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from policysearch.nn.model import Model
from policysearch.policy.presets import preset
from policysearch.rewrite.format_rules import FormatRule, LayerMatch
from policysearch.rewrite.patterns import block_of
from policysearch.space.decided.base import Group
from policysearch.space.decided.products import check_accumulators
from policysearch.space.rules import rules_for
from policysearch.space.section import SpaceSection
from policysearch.space.space import Space
from policysearch.space.target import offered
from policysearch.train.step import SMALLEST_BATCH, trace_forward
from policysearch.values import InputError, one_of


def complete_groups(section: SpaceSection, model: Model) -> tuple[Group, ...]:
    """Return the groups of `section`, with every layer of the model in one of them.

    Raises InputError for a group with a layer the model lacks or that no or two groups name.
    """
    owners = {name for name in model.layer_names if model.parameters_of(name)}
    groups = tuple(_matched_group(group, model) for group in section.groups) or tuple(
        Group(name, layers) for name, layers in _together(section, model, owners)
    )
    owner: dict[str, int] = {}
    for index, group in enumerate(groups):
        if not group.layers:
            raise InputError(f"space.groups: {group.name!r} is empty; expected layer names")
        for name in group.layers:
            one_of(f"space.groups: {group.name}", name, model.layer_names)
            if name in owner:
                raise InputError(f"space.groups: {name!r} is in two groups; expected one")
            owner[name] = index
    missing = sorted(owners - owner.keys())
    if missing:
        raise InputError(f"space.groups: no group has {', '.join(missing)}; expected every layer")
    followed = min(owner.values())
    filled: list[list[str]] = [[] for _ in groups]
    for name in model.layer_names:
        followed = owner.get(name, followed)
        filled[followed].append(name)
    return tuple(
        Group(g.name, tuple(sorted(names, key=lambda n: (n not in owners, names.index(n)))))
        for g, names in zip(groups, filled, strict=True)
    )


def _matched_group(group: Group, model: Model) -> Group:
    """Return the group with its layers named; those that fit have parameters or follow."""
    if group.match == LayerMatch():
        return group
    if group.layers:
        raise InputError(f"space.groups: {group.name!r} has layers and match; expected either")
    names = group.match.layers(trace_forward(model, SMALLEST_BATCH), model)
    return replace(group, layers=tuple(name for name in names if model.parameters_of(name)))


def _together(
    section: SpaceSection, model: Model, owners: set[str]
) -> list[tuple[str, tuple[str, ...]]]:
    """Return (name, layers with parameters) of what is decided together, in the model's order."""
    types, granularity = model.layer_types, section.granularity
    if granularity == "kind":
        products = LayerMatch(kind=("gemm",)).layers(trace_forward(model, SMALLEST_BATCH), model)
    members: dict[str, list[str]] = {}
    for name in model.layer_names:
        if name not in owners:
            continue
        if granularity == "layer":
            key = name
        elif granularity == "block":
            key = block_of(name) or name
        elif granularity == "type":
            key = types.get(name) or name
        elif granularity == "kind":
            key = "products" if name in products else "others"
        else:
            key = "net"
        members.setdefault(key, []).append(name)
    return [(key, tuple(names)) for key, names in members.items()]


def layers_of_ops(model: Model) -> dict[str, tuple[str, ...]]:
    """Return the layers of `model` that use an op in the forward pass, by op."""
    users: dict[str, list[str]] = {}
    for node in trace_forward(model, SMALLEST_BATCH).nodes:
        if node.op.kind != "source":
            users.setdefault(node.source, []).append(node.layer)
    return {op: tuple(dict.fromkeys(layers)) for op, layers in users.items()}


def make_space(
    section: SpaceSection,
    model: Model,
    rules: Sequence[FormatRule] = (),
    target: str | None = None,
    steps: int | None = None,
) -> Space:
    """Return the space of `section` for `model`, every policy of it as `rules` leave it.

    With a `target` of the exporters every policy is as that target runs it. `steps` are those of
    the run: phases, schedules and growth intervals are shares of it.

    Raises InputError for a group with a layer the model lacks or that no or two groups name, and
    for a rule that matches nothing.
    """
    section = offered(section, model, target)
    groups = complete_groups(section, model)
    names = model.layer_names
    base, placed = preset(section.base, names), rules_for(rules, model)
    ops = {op: layers for op, layers in layers_of_ops(model).items() if op in section.ops}
    space = Space(section, names, groups, base, placed, model, target, steps, ops)
    for accumulator in section.accumulators:
        for name in section.formats:
            formats = {f"format.{group.name}": name for group in groups}
            check_accumulators(space.policy({**formats, "accumulator": accumulator}))
    for each in space.rules:
        for option in each.rule.options:
            check_accumulators(space.policy({f"rule.{each.name}": option}))
    return space
