"""How the loss scale moves, as a pure function of its state, by the rows of `policy/loss_scale.py`.

All scales are float32 numbers, as in the frameworks. The graph checks the unscaled gradients,
also for Keras, which looks at the scaled ones: the two differ only for scales below 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from policysearch.policy.loss_scale import RULES, LossScale
from policysearch.values import InputError


@dataclass(frozen=True)
class ScaleState:
    """The scale of the next step, clean steps since it last moved, and overflows in a row.

    `spared` are the overflows that left the scale, by the hysteresis of the rule.
    """

    scale: float
    good_steps: int = 0
    overflows_in_a_row: int = 0
    spared: int = 0


def lowest(config: LossScale) -> float | None:
    """Return what a dynamic scale does not fall below, by the policy or its rule; None for none."""
    return RULES[config.rule].floor if config.min_scale is None else config.min_scale


def highest(config: LossScale) -> float | None:
    """Return what a dynamic scale does not rise above, by the policy or its rule; None for none."""
    return RULES[config.rule].cap if config.max_scale is None else config.max_scale


def _times(scale: float, factor: float) -> float:
    """The factor is a double, the product a float32: as in torch's kernel."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(scale * factor))


def _next_scale(config: LossScale, state: ScaleState, finite: bool) -> float:
    """Return a dynamic scale after a step whose gradients were `finite` or not."""
    if not finite:
        if state.spared < RULES[config.rule].hysteresis - 1:
            return state.scale
        product, floor = _times(state.scale, config.backoff_factor), lowest(config)
        return product if floor is None else max(product, floor)
    if not _grows(config, state):
        return state.scale
    product = _times(state.scale, config.growth_factor)
    if RULES[config.rule].stays_finite and not np.isfinite(product):
        return state.scale
    return _under_cap(config, product)


def _grows(config: LossScale, state: ScaleState) -> bool:
    """Whether one more finite step completes the interval."""
    return state.good_steps + 1 == config.growth_interval + RULES[config.rule].grows_later


def _spared_steps(config: LossScale, state: ScaleState, finite: bool) -> int:
    rule = RULES[config.rule]
    if not finite:
        return min(state.spared + 1, rule.hysteresis - 1)
    return 0 if rule.consecutive or _grows(config, state) else state.spared


def _under_cap(config: LossScale, scale: float) -> float:
    cap = highest(config)
    return scale if cap is None else min(scale, cap)


def initial_state(config: LossScale) -> ScaleState:
    """Return the state before step 0; InputError where the framework of the rule refuses."""
    if config.kind == "none":
        return ScaleState(1.0)
    rule, dynamic = RULES[config.rule], config.kind == "dynamic"
    if config.init_scale < rule.lowest_init:
        given = f"{config.init_scale:g} with rule {config.rule}"
        raise InputError(f"loss_scale.init_scale: {given}; expected at least {rule.lowest_init:g}")
    factors = (config.growth_factor, config.backoff_factor)
    if dynamic and rule.factors and factors != rule.factors:
        valid = ", ".join(f"{factor:g}" for factor in rule.factors)
        raise InputError(f"loss_scale factors: {factors} with rule {config.rule}; expected {valid}")
    if dynamic and not rule.moves:
        raise InputError(f"loss_scale.kind: dynamic with rule {config.rule}; expected fixed")
    return ScaleState(first_scale(config))


def first_scale(config: LossScale) -> float:
    """Return the scale of step 0, a float32 number: a dynamic one is within its bounds from then.

    So Apex has it, which begins at min(2^24, init_scale).
    """
    if config.kind == "schedule":
        return _scale_of_schedule(config, 0)
    scale = _times(config.init_scale, 1.0)
    if config.kind != "dynamic":
        return scale
    return _under_cap(config, max(scale, config.min_scale or 0.0))


def next_state(config: LossScale, state: ScaleState, finite: bool, step: int) -> ScaleState:
    """Return the state after `step` (counted from 0), whose gradients were `finite` or not."""
    bad = 0 if finite else state.overflows_in_a_row + 1
    if config.kind == "schedule":
        return ScaleState(_scale_of_schedule(config, step + 1), 0, bad)
    if config.kind != "dynamic":
        return ScaleState(state.scale, 0, bad)
    good = state.good_steps + 1 if finite else 0
    if finite and _grows(config, state):
        good = int(RULES[config.rule].grows_later)
    spared = _spared_steps(config, state, finite)
    return ScaleState(_next_scale(config, state, finite), good, bad, spared)


def skips_update(config: LossScale, finite: bool) -> bool:
    """Whether the optimizer step is left out. Without a loss scale nothing looks: never."""
    if finite or config.kind == "none":
        return False
    return config.kind == "dynamic" or (config.skip_on_overflow and RULES[config.rule].skips_fixed)


def gave_up(config: LossScale, state: ScaleState) -> bool:
    """Whether the framework would end the run with an error: too many overflows in a row."""
    most = RULES[config.rule].most_overflows
    return config.kind == "dynamic" and most is not None and state.overflows_in_a_row > most


def scale_changes(config: LossScale, scales: NDArray[np.float64]) -> tuple[tuple[int, float], ...]:
    """Return (step, scale from there on) pairs of `scales`, one per step; () without a loss scale.

    A scale that grew to infinity is given as the largest float32 number, which no rule reaches.
    """
    if config.kind == "none":
        return ()
    known = np.minimum(scales, float(np.finfo(np.float32).max))
    changed = np.flatnonzero(np.diff(known, prepend=np.nan) != 0.0)
    return tuple((int(step), float(known[step])) for step in changed)


def inverse(scale: float) -> float:
    """Return 1/scale rounded once to float32, as torch's float(1/double(scale)) and a division.

    0 for an infinite scale, infinity for one that was halved until it was 0.
    """
    with np.errstate(divide="ignore", over="ignore"):
        return float(np.float32(1.0 / np.float64(scale)))


def _scale_of_schedule(config: LossScale, step: int) -> float:
    scale = config.init_scale
    for first_step, value in config.schedule:
        if first_step <= step:
            scale = value
    return _times(scale, 1.0)
