"""Where parameters and the optimizer's state are stored."""

from __future__ import annotations

from dataclasses import dataclass, replace

from policysearch.policy.policy import AS_STORED, Policy, usual_storage
from policysearch.space.decided.base import (
    SAME,
    Choices,
    Params,
    Setting,
    by_group,
    check_different,
    check_formats,
    short_format,
    telling,
    with_layers,
)


@dataclass(frozen=True, kw_only=True)
class StoredFormats:
    """Where `master_weights` is false, parameters are stored in their layer's format, or in
    bfloat16 where that has fewer bits; that is "same" of the `param_formats`, which are offered to
    each layer (or group) there. `optimizer_states` are formats of the optimizer's state.
    """

    master_weights: tuple[bool, ...] = (True,)
    param_formats: tuple[str, ...] = (SAME,)
    optimizer_states: tuple[str, ...] = ("float32",)


class Storage:
    """Decides "master_weights", and "param.group" where there are none."""

    keys = StoredFormats
    shared = ("master_weights",)
    modifying = ()

    def check(self, section: StoredFormats) -> None:
        check_different("master_weights", section.master_weights)
        check_formats("param_formats", section.param_formats, SAME)
        check_different("param_formats", section.param_formats)

    def choices(self, section: StoredFormats, at: Setting) -> Choices:
        offered = section.param_formats if False in section.master_weights else ()
        return {
            "master_weights": section.master_weights,
            **{f"param.{group.name}": offered for group in at.open_groups},
        }

    def applied(
        self, policy: Policy, params: Params, section: StoredFormats, at: Setting
    ) -> Policy:
        master = params.get("master_weights", section.master_weights[0])
        policy = replace(policy, master_weights=master)
        if master:  # the kind Formats, which comes first, leaves every layer stored in float32
            return policy
        layers, stored = dict(policy.layers), {}
        for group in at.groups:
            format = params.get(f"param.{group.name}", section.param_formats[0])
            stored[group.name] = (
                usual_storage(layers[telling(policy, group)].compute) if format == SAME else format
            )
        return with_layers(policy, at, param=stored)

    def read(self, policy: Policy, section: StoredFormats, at: Setting) -> Params:
        layers = dict(policy.layers)
        decisions: Params = {"master_weights": policy.master_weights}
        for group in at.groups:
            layer = layers[telling(policy, group)]
            same = policy.master_weights or layer.param == usual_storage(layer.compute)
            offered = SAME in section.param_formats
            decisions[f"param.{group.name}"] = SAME if same and offered else layer.param
        return decisions

    def words(self, policy: Policy, section: StoredFormats, at: Setting) -> list[str]:
        if policy.master_weights:
            return []
        layers = dict(policy.layers)
        firsts = [layers[telling(policy, group)] for group in at.groups]
        said = [short_format(each.param) for each in firsts]
        if all(each.param == usual_storage(each.compute) for each in firsts):
            return ["no-master"]
        return ["no-master", f"param:{by_group(said, at.groups)}"]


class OptimizerState:
    """Decides "optimizer_state"."""

    keys = StoredFormats
    shared = modifying = ()

    def check(self, section: StoredFormats) -> None:
        check_formats("optimizer_states", section.optimizer_states)
        check_different("optimizer_states", section.optimizer_states)

    def choices(self, section: StoredFormats, at: Setting) -> Choices:
        return {"optimizer_state": section.optimizer_states}

    def applied(
        self, policy: Policy, params: Params, section: StoredFormats, at: Setting
    ) -> Policy:
        state = params.get("optimizer_state", section.optimizer_states[0])
        return replace(policy, optimizer_state=state)

    def read(self, policy: Policy, section: StoredFormats, at: Setting) -> Params:
        return {"optimizer_state": policy.optimizer_state}

    def words(self, policy: Policy, section: StoredFormats, at: Setting) -> list[str]:
        state = policy.optimizer_state
        return [] if state in ("float32", AS_STORED) else [f"state:{short_format(state)}"]
