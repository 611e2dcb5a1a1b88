"""How an update is rounded onto what stores it."""

from __future__ import annotations

from dataclasses import dataclass, replace

from policysearch.formats import RoundingMode
from policysearch.policy.policy import Policy
from policysearch.space.decided.base import Choices, Params, Setting, check_different


@dataclass(frozen=True, kw_only=True)
class Updates:
    """`update_roundings` are modes in which new parameters and optimizer state are rounded to
    where they are stored, if that is below float32: "nearest_even" loses updates below half a unit
    of the parameter, "stochastic" moves by a whole unit as often as keeps the mean.
    """

    update_roundings: tuple[RoundingMode, ...] = ("nearest_even",)


class UpdateRounding:
    """Decides "update_rounding", which is `rounding.update.mode` of a policy."""

    keys = Updates
    shared = ("update_rounding",)
    modifying = ()

    def check(self, section: Updates) -> None:
        check_different("update_roundings", section.update_roundings)

    def choices(self, section: Updates, at: Setting) -> Choices:
        return {"update_rounding": section.update_roundings}

    def applied(self, policy: Policy, params: Params, section: Updates, at: Setting) -> Policy:
        mode = params.get("update_rounding", section.update_roundings[0])
        update = replace(policy.rounding.update, mode=mode)
        return replace(policy, rounding=replace(policy.rounding, update=update))

    def read(self, policy: Policy, section: Updates, at: Setting) -> Params:
        mode = policy.rounding.update.mode
        unused = policy.master_weights and policy.optimizer_state == "float32"
        return {"update_rounding": section.update_roundings[0] if unused else mode}

    def words(self, policy: Policy, section: Updates, at: Setting) -> list[str]:
        mode = policy.rounding.update.mode
        return [] if mode == "nearest_even" else [f"update:{mode}"]
