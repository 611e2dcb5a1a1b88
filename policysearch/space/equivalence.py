"""Policies that must train alike, as one: what decides nothing is brought to its usual value."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from policysearch.formats import format_named
from policysearch.nn.model import Model
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.normal_forms import layers_of, with_own_recipe
from policysearch.policy.policy import AS_FIRST, LayerPolicy, Policy
from policysearch.policy.preset_row import NORMS
from policysearch.policy.presets import preset
from policysearch.policy.products import Products
from policysearch.rewrite.format_rules import LISTS
from policysearch.rewrite.kept_state import HALVED
from policysearch.train.step import SMALLEST_BATCH, trace_forward

FOLLOWING = ("current", "rowwise", "mx", "mx_rceil", "nvfp4")
"""Recipes whose scales follow a power of two exactly; a delayed one knows no step before the first.
"""


def canonical(
    policy: Policy,
    steps: int | None = None,
    op_layers: Mapping[str, tuple[str, ...]] | None = None,
) -> Policy:
    """Return the policy that stands for all that compute the same as this one.

    Over a run of `steps`, None for any; `op_layers` are the layers that use each op whose place is
    decided, None where that is not known. What is float32 throughout is the preset float32. A loss
    scale that changes no rounding (see `scale_acts`) is none; updates of what is stored in float32
    are rounded to nearest. Masters of layers that are stored in float32 anyway are kept, and an op
    of float32 layers alone stays where float32 has it.
    """
    policy = with_own_recipe(policy)
    if not policy.master_weights and {each.param for each in layers_of(policy)} == {"float32"}:
        policy = replace(policy, master_weights=True)
    policy = _as_kept(policy)
    if _state_is_wide(policy) and _stores_wide(policy):
        update = replace(policy.rounding.update, mode="nearest_even")
        policy = replace(policy, rounding=replace(policy.rounding, update=update))
    if not scale_acts(policy):
        policy = replace(policy, loss_scale=LossScale())
    policy = replace(policy, loss_scale=over_run(policy.loss_scale, steps))
    if _is_float32(policy):
        return preset("float32", [name for name, _ in policy.layers])
    return policy if op_layers is None else _with_acting_ops(policy, op_layers)


def acting(policy: Policy, model: Model | None) -> Policy:
    """Return the policy without what its op lists say of norms that the model has not."""
    if model is None:
        return policy
    there = {node.source for node in trace_forward(model, SMALLEST_BATCH).nodes}
    lists: dict[str, Any] = {
        key: tuple(op for op in getattr(policy, key) if op not in NORMS or op in there)
        for key in LISTS.values()
    }
    return replace(policy, **lists)


def _as_kept(policy: Policy) -> Policy:
    """Return the policy without what keeps nothing: sums of what is not rounded, unused blocks."""
    if policy.second_moment == policy.optimizer_state:
        policy = replace(policy, second_moment=AS_FIRST)
    states = {policy.state_of(name, state) for name, _ in policy.layers for state in ("m", "v")}
    if all(format_named(state).bits >= 16 for state in states):
        policy = replace(policy, state_block=0)
    halved = any(row.param == HALVED for row in layers_of(policy))
    idle = policy.master_weights or (policy.compensation == "remainder" and not halved)
    return replace(policy, compensation="none") if idle else policy


def _state_is_wide(policy: Policy) -> bool:
    second = policy.second_moment
    return policy.optimizer_state == "float32" and second in (AS_FIRST, "float32")


def scale_acts(policy: Policy) -> bool:
    """Whether the loss scale can change a rounding, or save a run that would overflow.

    Times a power of two, every number of a format with float32's exponents is rounded alike, as
    are operands whose scale follows their largest; both but for numbers near the ends of float32's
    own range. So it takes another factor, shorter exponents or a sum in other than float32.
    """
    scale = policy.loss_scale
    return scale.kind != "none" and (not moves_by_powers(scale) or has_short_range(policy))


def moves_by_powers(scale: LossScale) -> bool:
    """Whether the scale is a power of two at every step."""
    factors = [scale.init_scale, scale.growth_factor, scale.backoff_factor]
    factors += [value for _, value in scale.schedule]
    return all(math.frexp(factor)[0] == 0.5 for factor in factors)


def has_short_range(policy: Policy) -> bool:
    """Whether a power of two over all gradients can change what a layer rounds."""
    return not _is_long(policy.all_reduce) or any(
        _is_short(layer, policy) for layer in layers_of(policy)
    )


def _is_short(layer: LayerPolicy, policy: Policy) -> bool:
    results = [layer.output, layer.dgrad, layer.wgrad, layer.param]
    results += filter(None, (layer.gradient_sum, layer.all_reduce))
    follows = set(policy.recipes) <= {*FOLLOWING}
    formats = (layer.compute, layer.grad)
    operands = (
        _is_long(name) or (follows and format_named(name).bits < 16)
        for name in (formats if layer.products == Products() else layer.operand_formats)
    )
    return layer.accumulator != "float32" or not (all(map(_is_long, results)) and all(operands))


def _stores_wide(policy: Policy) -> bool:
    """Whether updates read gradients, and write parameters, in float32 alone."""
    stored = {each.param for each in layers_of(policy)}
    reduced = {policy.all_reduce, *policy.reductions.values()}
    return reduced == {"float32"} and (policy.master_weights or stored == {"float32"})


def _is_long(name: str) -> bool:
    row = format_named(name)
    return row.exponent_bits >= format_named("float32").exponent_bits and not row.taper


def over_run(scale: LossScale, steps: int | None) -> LossScale:
    """Return the scale over a run of `steps`: one that cannot grow within it grows after it."""
    if scale.kind == "dynamic" and steps is not None and scale.growth_interval > steps:
        return replace(scale, growth_interval=steps + 1, growth_factor=2.0)
    return scale


def _is_float32(policy: Policy) -> bool:
    whole = LayerPolicy()
    return (
        all(layer == whole for layer in layers_of(policy))
        and _state_is_wide(policy)
        and policy.all_reduce == "float32"
        and policy.optimizer_order == "fused"
        and policy.loss_scale.kind == "none"
    )


def _with_acting_ops(policy: Policy, op_layers: Mapping[str, tuple[str, ...]]) -> Policy:
    """Return the policy with ops of float32 layers alone on the list that float32 has them on."""
    usual = preset("float32", [name for name, _ in policy.layers])
    low = {
        name
        for layers in (policy.layers, *(phase.layers for phase in policy.phases))
        for name, layer in layers
        if layer != LayerPolicy()
    }
    idle = {
        op
        for op, layers in op_layers.items()
        if not low & set(layers)
        and any(
            (op in getattr(policy, key)) != (op in getattr(usual, key)) for key in LISTS.values()
        )
    }
    if not idle:
        return policy
    lists: dict[str, Any] = {
        key: (
            *(op for op in getattr(policy, key) if op not in idle),
            *(op for op in getattr(usual, key) if op in idle),
        )
        for key in LISTS.values()
    }
    return replace(policy, **lists)
