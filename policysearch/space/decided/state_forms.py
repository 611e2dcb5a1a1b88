"""How state is kept below float32: second moments apart, scales of blocks, what rounding lost."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, get_args

from policysearch.policy.policy import AS_FIRST, Compensation, Policy
from policysearch.space.decided.base import (
    SAME,
    Choices,
    Params,
    Setting,
    check_different,
    check_formats,
    short_format,
)
from policysearch.values import number, one_of


@dataclass(frozen=True, kw_only=True)
class StateForms:
    """`second_moments` are formats of sums of squares (v of Adam), "same" as the rest of the
    optimizer's state. States below 16 bits have a scale for so many values as one of the
    `state_blocks`, 0 for none (torchao's FP8 optimizers have 256). `compensations`: "kahan" keeps
    beside each parameter that is stored low what its rounding has lost, in the same format;
    "remainder" beside one in bfloat16 the other 16 bits of float32; "none".
    """

    second_moments: tuple[str, ...] = (SAME,)
    state_blocks: tuple[int, ...] = (0,)
    compensations: tuple[Compensation, ...] = ("none",)


class State:
    """Decides "second_moment", "state_block" and "compensation"."""

    keys = StateForms
    shared = ("compensation",)
    modifying = ()

    def check(self, section: StateForms) -> None:
        check_formats("second_moments", section.second_moments, SAME)
        for block in section.state_blocks:
            number("state_blocks", block, 0, 65536)
        for name in section.compensations:
            one_of("compensations", name, get_args(Compensation))
        for key in ("second_moments", "state_blocks", "compensations"):
            check_different(key, getattr(section, key))

    def choices(self, section: StateForms, at: Setting) -> Choices:
        return {
            "second_moment": section.second_moments,
            "state_block": section.state_blocks,
            "compensation": section.compensations,
        }

    def applied(self, policy: Policy, params: Params, section: StateForms, at: Setting) -> Policy:
        chosen: dict[str, Any] = {
            name: params.get(name, values[0]) for name, values in self.choices(section, at).items()
        }
        if chosen["second_moment"] == SAME:
            chosen["second_moment"] = AS_FIRST
        return replace(policy, **chosen)

    def read(self, policy: Policy, section: StateForms, at: Setting) -> Params:
        second = policy.second_moment
        return {
            "second_moment": SAME if second == AS_FIRST else second,
            "state_block": policy.state_block,
            "compensation": policy.compensation,
        }

    def words(self, policy: Policy, section: StateForms, at: Setting) -> list[str]:
        second = policy.second_moment
        said = [] if second == AS_FIRST else [f"second:{short_format(second)}"]
        said += [f"blocks:{policy.state_block}"] * bool(policy.state_block)
        return said + [policy.compensation] * (policy.compensation != "none")
