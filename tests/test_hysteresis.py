"""Loss-scale rules with hysteresis against the rules of Megatron and DeepSpeed, written anew.

What each does is read from its source: `grad_scaler.py` of Megatron-LM at 00caa53a and
`loss_scaler.py` of DeepSpeed at 18fd4c97.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest

from policysearch.policy.loss_scale import RULES, LossScale
from policysearch.policy.presets import preset
from policysearch.train.loss_scale import initial_state, next_state

STEPS, INTERVAL, INIT = 40, 4, 64.0
SPARING = [name for name, row in RULES.items() if row.hysteresis > 1]
Scales = Iterator[float]


def megatron(overflows: list[bool]) -> Scales:
    """A counter of patience goes down with every overflow, and is set back by a growth alone."""
    scale, clean, patience = INIT, 0, 2
    for overflow in overflows:
        if overflow:
            clean, patience = 0, patience - 1
            if patience <= 0:
                scale = max(scale * 0.5, 1.0)
        else:
            clean += 1
            if clean == INTERVAL:
                scale, clean, patience = scale * 2.0, 0, 2
        yield scale


def deepspeed(overflows: list[bool], consecutive: bool = False) -> Scales:
    """Steps are counted from the last overflow, which is taken to be step -1 at first."""
    scale, last, patience = INIT, -1, 2
    for at, overflow in enumerate(overflows):
        if overflow:
            if patience == 1:
                scale = max(scale / 2.0, 1.0)
            else:
                patience -= 1
            last = at
        else:
            patience = 2 if consecutive else patience
            stable = at - last - 1
            if stable > 0 and stable % INTERVAL == 0:
                scale, patience = scale * 2.0, 2
        yield scale


FRAMEWORKS: dict[str, Callable[[list[bool]], Scales]] = {
    "megatron.DynamicGradScaler": megatron,
    "deepspeed.DynamicLossScaler": deepspeed,
    "deepspeed.consecutive_hysteresis": lambda overflows: deepspeed(overflows, True),
}


def scales(rule: str, overflows: list[bool]) -> Scales:
    config = LossScale("dynamic", INIT, growth_interval=INTERVAL, rule=rule)
    state = initial_state(config)
    for step, overflow in enumerate(overflows):
        state = next_state(config, state, not overflow, step)
        yield state.scale


@pytest.mark.parametrize("count", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rule", SPARING)
def test_scales_are_those_of_the_framework(rule: str, count: int) -> None:
    """Over sequences of few overflows and of many; all three rules differ on them."""
    rng, apart = np.random.default_rng(11), dict.fromkeys((*FRAMEWORKS, "torch.GradScaler"), 0)
    for number in range(count):
        overflows = (rng.random(STEPS) < rng.choice([0.03, 0.15, 0.4])).tolist()
        wanted = list(FRAMEWORKS[rule](overflows))
        assert list(scales(rule, overflows)) == wanted
        if number < 200:
            for other in apart:
                apart[other] += list(scales(other, overflows)) != wanted
    assert apart.pop(rule) == 0 and min(apart.values()) > 20


def test_every_rule_that_spares_overflows_is_compared() -> None:
    assert set(SPARING) == set(FRAMEWORKS)


@pytest.mark.parametrize(
    ("name", "expected"),
    [("megatron.fp16", [2.0**32, 2.0**31]), ("deepspeed.fp16", [2.0**16, 2.0**15])],
)
def test_a_preset_spares_the_first_overflow(name: str, expected: list[float]) -> None:
    config = preset(name, ("fc1",)).loss_scale
    state = next_state(config, initial_state(config), False, 0)
    assert [state.scale, next_state(config, state, False, 1).scale] == expected
