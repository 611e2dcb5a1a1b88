"""The loss scale of a policy: what it starts from, and the rules it moves by as rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Annotated, Literal

from policysearch.values import InputError, RowName, number

LossScaleKind = Literal["none", "fixed", "dynamic", "schedule"]


@dataclass(frozen=True)
class Rule:
    """How a framework moves a dynamic scale. All of them keep one order of events:

    overflow: scale = max(floor, scale * backoff_factor); good_steps = 0
    else: good_steps += 1; at growth_interval: scale = min(cap, scale * growth_factor) and
    good_steps = 0

    With a `hysteresis` of n, the first n - 1 overflows skip their step and leave the scale. They
    are given back when the scale grows or, where it is `consecutive`, by every finite step.
    `grows_later`: the first finite step, and that after an overflow, is none of the interval.

    `source` is where the framework says so. `floor` and `cap` hold unless the policy says others,
    None is none. `stays_finite`: the scale is kept where it would grow to infinity. The framework
    refuses a first scale below `lowest_init`, and ends the run after more than `most_overflows` in
    a row. `factors`: the only (growth, backoff) it has. `moves`: whether it takes a dynamic scale.
    `skips_fixed`: whether a scale that stays can skip a step.
    """

    source: str
    floor: float | None = None
    cap: float | None = None
    stays_finite: bool = False
    lowest_init: float = 0.0
    most_overflows: int | None = None
    factors: tuple[float, float] | None = None
    hysteresis: int = 1
    consecutive: bool = False
    grows_later: bool = False
    moves: bool = True
    skips_fixed: bool = True


_DEEPSPEED = Rule(
    # Beside what the row says it ends the run where a scale at its floor has to fall.
    "deepspeed/runtime/fp16/loss_scaler.py at 18fd4c97, `DynamicLossScaler.update_scale`",
    1.0,
    factors=(2.0, 0.5),
    hysteresis=2,
    grows_later=True,
)

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "torch.GradScaler": Rule(
            "amp/grad_scaler.py, `_amp_update_scale_` in native/cuda/AmpKernels.cu",
            stays_finite=True,
        ),
        "mindspore.DynamicLossScaleManager": Rule(
            # It grows where the steps since the last overflow are a multiple of the window.
            "train/loss_scale_manager.py, nn/wrap/loss_scale.py",
            1.0,
            lowest_init=1.0,
            most_overflows=1000,
        ),
        "mindspore.DynamicLossScaler": Rule(
            "amp.py, `DynamicLossScaler.adjust`", 1.0, stays_finite=True, lowest_init=1.0
        ),
        "mindspore.FixedLossScaleManager": Rule(
            "train/loss_scale_manager.py", lowest_init=1.0, moves=False
        ),
        "apex": Rule(
            # Its `should_skip` needs `dynamic`.
            "apex/amp/scaler.py at e13873de, `LossScaler.update_scale`",
            cap=2.0**24,
            skips_fixed=False,
        ),
        "keras.LossScaleOptimizer": Rule("optimizers/loss_scale_optimizer.py", factors=(2.0, 0.5)),
        "jmp.DynamicLossScale": Rule(
            "jmp/_src/loss_scale.py, `DynamicLossScale.adjust`", 1.0, stays_finite=True
        ),
        "megatron.DynamicGradScaler": Rule(
            "megatron/core/optimizer/grad_scaler.py at 00caa53a, with its defaults",
            1.0,
            hysteresis=2,
        ),
        "deepspeed.DynamicLossScaler": _DEEPSPEED,
        "deepspeed.consecutive_hysteresis": replace(_DEEPSPEED, consecutive=True),
    }
)
"""By `LossScale.rule`."""

LossScaleRule = Annotated[str, RowName(lambda: RULES)]


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
