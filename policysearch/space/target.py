"""Policies as the export target of a study runs them."""

from __future__ import annotations

from dataclasses import replace

from policysearch.export.targets import Target, target_named
from policysearch.formats import format_named
from policysearch.nn.model import Model
from policysearch.policy.policy import Policy
from policysearch.policy.presets import layer_named, preset
from policysearch.policy.scaling import Recipe, Scaling
from policysearch.space.section import SpaceSection
from policysearch.values import InputError

BASE = "torch.autocast.bfloat16"
"""A preset that multiplies in the formats of the layers."""

SCALINGS: tuple[Recipe, ...] = ("current",)
"""How exported files scale operands in 8 bits."""


def as_run(policy: Policy, model: Model, target: str | None) -> Policy:
    """Return the policy that `target` obeys when it is given this one; None obeys any as it is."""
    return policy if target is None else target_named(target).runs(policy, model)


def baseline_as_run(name: str | None, model: Model, target: str | None) -> Policy | None:
    """Return the preset `name` as `target` runs it, of the layers of `model`; None without one."""
    return as_run(preset(name, model.layer_names), model, target) if name else None


def named_as_run(policy: Policy, model: Model, target: str | None) -> Policy:
    """Return `as_run`, whose name says so where it differs from the policy that was given."""
    return policy if target is None else run_and_different(policy, model, target)[0]


def run_and_different(policy: Policy, model: Model, target: str) -> tuple[Policy, tuple[str, ...]]:
    """Return `named_as_run`, and the `differences`."""
    running, lines = as_run(policy, model, target), differences(policy, model, target)
    if lines:
        running = replace(running, name=f"{policy.name}, as {target} runs it")
    return running, lines


def offered(section: SpaceSection, model: Model, target: str | None) -> SpaceSection:
    """Return the section with the formats and the accumulator that the target can express.

    InputError where none of the formats is left.
    """
    if target is None:
        return section
    there = target_named(target)
    formats = tuple(name for name in section.formats if not _refusal_words(name, model, there))
    if not formats:
        where = f"{list(section.formats)} with study.target {target!r}"
        raise InputError(f"space.formats: {where}; expected one or more that it runs")
    narrow = any(format_named(layer_named(name).compute).bits < 16 for name in formats)
    scalings = SCALINGS if narrow else ()
    return replace(section, formats=formats, accumulators=("float32",), scalings=scalings)


def left_out(section: SpaceSection, model: Model, target: str | None) -> list[str]:
    """Return a line for each format of the section that no layer runs in as the target has it."""
    refused = {n: _refusal_words(n, model, target_named(target)) for n in section.formats if target}
    return [f"{name} is not searched, for no layer {why}" for name, why in refused.items() if why]


def _refusal_words(name: str, model: Model, target: Target) -> str:
    """Say why no layer runs in the format, where all are asked to; "" where some do."""
    formats, types = layer_named(name), model.layer_types
    layers = [x for x in model.layer_names if target.offers(formats, types.get(x, ""))]
    policy = preset(BASE, model.layer_names).with_layers(dict.fromkeys(layers, formats))
    asked = replace(policy, scaling=formats.scaling or Scaling(SCALINGS[0]))
    running = target.runs(asked, model)
    if any(running.layer(layer).compute == formats.compute for layer in layers):
        return ""
    why = [line for line in target.losses(asked, model) if f" in {formats.compute} (" in line]
    return (
        f"runs in it: {why[0]} ({len(why)} such)"
        if why
        else "is of a type that the target runs in it"
    )


def differences(policy: Policy, model: Model, target: str) -> tuple[str, ...]:
    """Return what the target does otherwise than the policy says, and than it would train here.

    What is left to the user's module and training loop is not among it.
    """
    there = target_named(target)
    lines = there.losses(policy, model)
    left = there.losses(there.runs(policy, model), model) if lines else ()
    return tuple(line for line in lines if line not in left)


def kept_wide(policy: Policy, model: Model, target: str | None) -> tuple[str, ...]:
    """Return a line for each layer that the target runs in a wider format than others, and why.

    Of a policy with layers below 16 bits these are the layers of their type, asked for the same
    format: what already runs as the target has it does not say what was asked.
    """
    narrow = {n: row for n, row in policy.layers if format_named(row.compute).bits < 16}
    if target is None or not narrow:
        return ()
    types, (first, *_) = model.layer_types, narrow.values()
    alike = [n for n, _ in policy.layers if types.get(n) in {types.get(each) for each in narrow}]
    asked = policy.with_layers({n: first for n in alike if n not in narrow})
    return tuple(
        line for line in differences(asked, model, target) if f" in {first.compute} (" in line
    )
