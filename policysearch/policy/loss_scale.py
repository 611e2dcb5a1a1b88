"""The loss scale of a policy: what it starts from and the rule it moves by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from policysearch.values import InputError, number

LossScaleKind = Literal["none", "fixed", "dynamic", "schedule"]
LossScaleRule = Literal[
    "torch.GradScaler",
    "mindspore.DynamicLossScaleManager",
    "mindspore.DynamicLossScaler",
    "mindspore.FixedLossScaleManager",
    "apex",
    "keras.LossScaleOptimizer",
    "jmp.DynamicLossScale",
]


@dataclass(frozen=True)
class LossScale:
    """What the loss is multiplied by before backward, and how that number moves.

    `rule` names the framework whose order of events is followed. A "dynamic" scale stays from
    `min_scale` to `max_scale` from its first step on; None is the bound that the framework has, if
    any. `schedule` holds (first step, scale) pairs. A "fixed" or "schedule" scale skips a step
    with non-finite gradients only if `skip_on_overflow`.
    """

    kind: LossScaleKind = "none"
    init_scale: float = 1.0
    growth_factor: float = 2.0
    backoff_factor: float = 0.5
    growth_interval: int = 2000
    min_scale: float | None = None
    max_scale: float | None = None
    skip_on_overflow: bool = True
    schedule: tuple[tuple[int, float], ...] = ()
    rule: LossScaleRule = "torch.GradScaler"

    def __post_init__(self) -> None:
        number("init_scale", self.init_scale, 2.0**-126, 2.0**126)
        number("growth_factor", self.growth_factor, 1.0, 2.0**16)
        number("backoff_factor", self.backoff_factor, 2.0**-16, 1.0)
        number("growth_interval", self.growth_interval, 1, 2**31)
        for name in ("min_scale", "max_scale"):
            if getattr(self, name) is not None:
                number(name, getattr(self, name), 2.0**-126, 2.0**127)
        steps = [step for step, _ in self.schedule]
        if (self.kind == "schedule") != bool(steps) or steps != sorted(set(steps)):
            raise InputError(
                f"schedule: steps {steps} for kind {self.kind!r}; "
                "expected rising first steps for kind 'schedule', none for the others"
            )
        for step, scale in self.schedule:
            number("schedule step", step, 0, 2**31)
            number("schedule scale", scale, 2.0**-126, 2.0**126)
