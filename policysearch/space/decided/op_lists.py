"""Which list each op is on, and the rules that are decisions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from policysearch.ops.catalogue import FORWARD_OPS
from policysearch.policy.policy import Policy
from policysearch.rewrite.format_rules import LISTS, apply_format_rules
from policysearch.space.decided.base import Choices, Params, Setting, check_different
from policysearch.space.rules import nearest_option
from policysearch.values import one_of


@dataclass(frozen=True, kw_only=True)
class OpLists:
    """Each op of `ops` that the model has may run "low", "fp32" or "promote", as far as
    `op_places` offers these.
    """

    ops: tuple[str, ...] = ()
    op_places: tuple[str, ...] = ("low", "fp32")


class Ops:
    """Decides "op.name"."""

    keys = OpLists
    shared = modifying = ()

    def check(self, section: OpLists) -> None:
        for op in section.ops:
            one_of("ops", op, FORWARD_OPS)
        for place in section.op_places:
            one_of("op_places", place, LISTS)
        check_different("op_places", section.op_places)

    def choices(self, section: OpLists, at: Setting) -> Choices:
        return {f"op.{op}": section.op_places for op in _there(section, at)}

    def applied(self, policy: Policy, params: Params, section: OpLists, at: Setting) -> Policy:
        placed = {op: params.get(f"op.{op}", section.op_places[0]) for op in _there(section, at)}
        lists: dict[str, Any] = {
            key: (
                *(op for op in getattr(policy, key) if op not in placed),
                *(op for op, place in placed.items() if place == name),
            )
            for name, key in LISTS.items()
        }
        return replace(policy, **lists)

    def read(self, policy: Policy, section: OpLists, at: Setting) -> Params:
        return {
            f"op.{op}": name
            for op in _there(section, at)
            for name, key in LISTS.items()
            if op in getattr(policy, key)
        }

    def words(self, policy: Policy, section: OpLists, at: Setting) -> list[str]:
        usual = LISTS[section.op_places[0]]
        return [
            f"{op}:{name}"
            for op in _there(section, at)
            for name, key in LISTS.items()
            if op in getattr(policy, key) and key != usual
        ]


class Rules:
    """Decides "rule.name": the option of each rule of the study file that has several."""

    keys = None
    shared = modifying = ()

    def check(self, section: object) -> None:
        """Rules are checked where they are read."""

    def choices(self, section: object, at: Setting) -> Choices:
        return {f"rule.{each.name}": each.rule.options for each in at.rules}

    def applied(self, policy: Policy, params: Params, section: object, at: Setting) -> Policy:
        chosen = {each.name: params.get(f"rule.{each.name}") for each in at.rules}
        options = {name: option for name, option in chosen.items() if option is not None}
        return apply_format_rules(policy, at.rules, options)

    def read(self, policy: Policy, section: object, at: Setting) -> Params:
        return {f"rule.{each.name}": nearest_option(each, policy) for each in at.rules}

    def words(self, policy: Policy, section: object, at: Setting) -> list[str]:
        return []


def _there(section: OpLists, at: Setting) -> list[str]:
    """Return the ops that layers of the model use; an op of the loss alone is placed by `base`."""
    return [op for op in section.ops if at.op_layers is None or op in at.op_layers]
