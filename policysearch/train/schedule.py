"""Learning-rate schedules: what a recipe makes of its rate, step by step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, get_args

from policysearch.values import InputError, number, one_of

ScheduleKind = Literal["constant", "step", "cosine"]
# Source: torch 2.13 `torch/optim/lr_scheduler.py`: `LinearLR`, then `StepLR`, `CosineAnnealingLR`
# or nothing, joined by `SequentialLR`, with one `scheduler.step()` after every training step,
# skipped or not. Its closed forms are evaluated here in float64; torch's recursive ones agree with
# them to a few units in the last place of a float64: the float32 number a step reads is the same.


@dataclass(frozen=True)
class Schedule:
    """What the learning rate is multiplied by, over steps counted from 0.

    Of the values of `kind`, "step" multiplies by `factor` every `period_steps`; "cosine" falls
    along half a cosine to `final_factor` of the rate within `period_steps`, 0 standing for the
    rest of the training. Before either, `warmup_steps` rise in a line from `warmup_factor` of
    the rate to all of it.
    """

    kind: ScheduleKind = "constant"
    period_steps: int = 0
    factor: float = 0.1
    final_factor: float = 0.0
    warmup_steps: int = 0
    warmup_factor: float = 1.0 / 3.0

    def __post_init__(self) -> None:
        one_of("schedule kind", self.kind, get_args(ScheduleKind))
        number("schedule period_steps", self.period_steps, 0, 2**31)
        number("schedule factor", self.factor, 0.0, 1e6)
        number("schedule final_factor", self.final_factor, 0.0, 1.0)
        number("schedule warmup_steps", self.warmup_steps, 0, 2**31)
        number("schedule warmup_factor", self.warmup_factor, 2.0**-126, 1.0)
        if self.kind == "step" and not self.period_steps:
            raise InputError("schedule period_steps: 0 with kind 'step'; expected at least 1")

    def rate(self, learning_rate: float, step: int, steps: int) -> float:
        """Return the learning rate of `step` in a training of `steps`."""
        if step < self.warmup_steps:
            gone = step / self.warmup_steps
            return learning_rate * (self.warmup_factor + (1.0 - self.warmup_factor) * gone)
        since = step - self.warmup_steps
        if self.kind == "step":
            return learning_rate * self.factor ** (since // self.period_steps)
        if self.kind == "cosine":
            period = self.period_steps or max(steps - self.warmup_steps, 1)
            least = learning_rate * self.final_factor
            return least + (learning_rate - least) * (1.0 + math.cos(math.pi * since / period)) / 2
        return learning_rate


CONSTANT = Schedule()
"""The rate as it is, at every step."""
