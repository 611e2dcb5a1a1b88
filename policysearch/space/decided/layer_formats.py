"""The format of each layer, and of its roles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from policysearch.formats import format_named
from policysearch.policy.policy import LayerPolicy, Policy, uniform_layer
from policysearch.policy.presets import layer_named, layer_presets
from policysearch.space.decided.base import (
    SAME,
    Choices,
    Group,
    Params,
    Setting,
    by_group,
    check_different,
    check_formats,
    short_format,
    telling,
    with_layers,
)
from policysearch.values import InputError, names_once

Granularity = Literal["layer", "block", "type", "kind", "net"]
ROLES = {"grad": "grad_formats", "wgrad": "wgrad_formats", "output": "output_formats"}
"""What of a layer is decided apart from its format, and the key that offers it."""


@dataclass(frozen=True)
class LayerFormats:
    """`formats` are offered to every layer with parameters, or to each of the `groups`: number
    formats, and presets of narrow operands ("te.mxfp8"), which bring their recipe and products. A
    layer without parameters follows the one before it. Without groups, `granularity` says which
    layers are decided together: each "layer", those of a "block" or of a "type" ("Conv2d"), those
    with a product or without ("kind"), or the whole "net". Where rules say the formats of a layer
    for every policy, nothing of it is decided.

    `grad_formats` are formats of gradients as operands of dgrad and wgrad, `wgrad_formats` of the
    result of wgrad, and `output_formats` of the result of fprop. "same" is as the layer's format
    has it. Below 16 bits that is bfloat16 results, and float8_e5m2 gradients for float8_e4m3fn.
    """

    formats: tuple[str, ...]
    groups: tuple[Group, ...] = ()
    granularity: Granularity = "layer"
    grad_formats: tuple[str, ...] = (SAME,)
    wgrad_formats: tuple[str, ...] = (SAME,)
    output_formats: tuple[str, ...] = (SAME,)


class Formats:
    """Decides "format.group"."""

    keys = LayerFormats
    shared = modifying = ()

    def check(self, section: LayerFormats) -> None:
        for name in section.formats:
            try:
                layer_named(name)
            except InputError as error:
                raise InputError(f"formats: {error}") from None
        check_different("formats", section.formats)
        names_once("groups", [group.name for group in section.groups])
        if section.groups and section.granularity != "layer":
            raise InputError(f"granularity: {section.granularity!r} with groups; expected either")

    def choices(self, section: LayerFormats, at: Setting) -> Choices:
        return {f"format.{group.name}": section.formats for group in at.open_groups}

    def applied(self, policy: Policy, params: Params, section: LayerFormats, at: Setting) -> Policy:
        formats = {
            layer: params.get(f"format.{group.name}", section.formats[0])
            for group in at.groups
            for layer in group.layers
        }
        made = {name: layer_named(name) for name in set(formats.values())}
        layers = tuple((name, made[formats[name]]) for name in at.layers)
        return replace(policy, layers=layers)

    def read(self, policy: Policy, section: LayerFormats, at: Setting) -> Params:
        return {
            f"format.{g.name}": _name_of(policy, telling(policy, g), section) for g in at.groups
        }

    def words(self, policy: Policy, section: LayerFormats, at: Setting) -> list[str]:
        names = [_name_of(policy, telling(policy, group), section) for group in at.groups]
        said = [name if name in layer_presets() else short_format(name) for name in names]
        return [by_group(said, at.groups)]


def _name_of(policy: Policy, layer: str, section: LayerFormats) -> str:
    """Return what the section calls the format of a layer: a preset where that is nearer."""
    row = dict(policy.layers)[layer]
    alike = [name for name in section.formats if layer_named(name).compute == row.compute]
    if not set(alike) & set(layer_presets()):
        return row.compute
    recipe = policy.scaling_of(layer)

    def likeness(name: str) -> tuple[int, bool]:
        said = layer_named(name)
        same = [said.scaling in (None, recipe), said.grad == row.grad]
        same += [said.products == row.products, said.backward == row.backward]
        return sum(same), said.scaling is not None

    return max(alike, key=likeness)


class Roles:
    """Decides "grad.group", "wgrad.group" and "output.group"."""

    keys = LayerFormats
    shared = modifying = ()

    def check(self, section: LayerFormats) -> None:
        for role, key in ROLES.items():
            offered: tuple[str, ...] = getattr(section, key)
            check_formats(key, offered, SAME)
            check_different(key, offered)
            for name in offered if role != "grad" else ():
                if name != SAME and format_named(name).operands_only:
                    raise InputError(f"{key}: {name!r}; expected a format that results are kept in")

    def choices(self, section: LayerFormats, at: Setting) -> Choices:
        return {
            f"{role}.{group.name}": getattr(section, key)
            for role, key in ROLES.items()
            for group in at.open_groups
        }

    def applied(self, policy: Policy, params: Params, section: LayerFormats, at: Setting) -> Policy:
        said = {
            role: {
                group.name: name
                for group in at.groups
                if (name := params.get(f"{role}.{group.name}", getattr(section, key)[0])) != SAME
            }
            for role, key in ROLES.items()
        }
        return with_layers(policy, at, **said) if any(said.values()) else policy

    def read(self, policy: Policy, section: LayerFormats, at: Setting) -> Params:
        params: Params = {}
        layers = dict(policy.layers)
        for group in at.groups:
            layer = layers[telling(policy, group)]
            usual = uniform_layer(layer.compute)
            for role, key in ROLES.items():
                name = getattr(layer, role)
                same = name == getattr(usual, role) and SAME in getattr(section, key)
                params[f"{role}.{group.name}"] = SAME if same else name
        return params

    def words(self, policy: Policy, section: LayerFormats, at: Setting) -> list[str]:
        layers = dict(policy.layers)
        firsts = [layers[telling(policy, group)] for group in at.groups]
        return [word for role in ROLES if (word := _role_word(role, firsts, at.groups))]


def _role_word(role: str, layers: list[LayerPolicy], groups: Sequence[Group]) -> str:
    """Return what a role has in these layers where it is not as usual, "" where it is in all."""
    usual = [getattr(uniform_layer(layer.compute), role) for layer in layers]
    formats = [getattr(layer, role) for layer in layers]
    if formats == usual:
        return ""
    said = [
        short_format(name) if name != as_usual else "-"
        for name, as_usual in zip(formats, usual, strict=True)
    ]
    return f"{role}:{by_group(said, groups)}"
