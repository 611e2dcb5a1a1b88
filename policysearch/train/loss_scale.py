"""How the loss scale moves: each framework's rule as a pure function of its state.

All scales are float32 numbers, as in the frameworks. The graph checks the unscaled gradients,
also for Keras, which looks at the scaled ones: the two differ only for scales below 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from policysearch.policy.loss_scale import LossScale
from policysearch.values import InputError


@dataclass(frozen=True)
class ScaleState:
    """The scale of the next step, clean steps since it last moved, and overflows in a row."""

    scale: float
    good_steps: int = 0
    overflows_in_a_row: int = 0


Rule = Callable[[LossScale, ScaleState, bool], float]

FLOORS: Mapping[str, float] = MappingProxyType(
    dict.fromkeys(
        (
            "mindspore.DynamicLossScaleManager",
            "mindspore.DynamicLossScaler",
            "jmp.DynamicLossScale",
        ),
        1.0,
    )
)
CAPS: Mapping[str, float] = MappingProxyType({"apex": 2.0**24})
"""What a dynamic scale does not fall below, or rise above, by rule, unless the policy says it."""


def _times(scale: float, factor: float) -> float:
    """The factor is a double, the product a float32: as in torch's kernel."""
    with np.errstate(over="ignore", under="ignore"):
        return float(np.float32(scale * factor))


def _lowered(config: LossScale, state: ScaleState) -> float:
    lowest = FLOORS.get(config.rule) if config.min_scale is None else config.min_scale
    product = _times(state.scale, config.backoff_factor)
    return product if lowest is None else max(product, lowest)


def _raised(config: LossScale, state: ScaleState, *, stays: bool) -> float:
    """Grow after growth_interval clean steps. `stays`: keep the scale rather than reach inf."""
    if state.good_steps + 1 < config.growth_interval:
        return state.scale
    product = _times(state.scale, config.growth_factor)
    if stays and not np.isfinite(product):
        return state.scale
    return _capped(config, product)


def _capped(config: LossScale, scale: float) -> float:
    highest = CAPS.get(config.rule) if config.max_scale is None else config.max_scale
    return scale if highest is None else min(scale, highest)


def torch_grad_scaler(config: LossScale, state: ScaleState, finite: bool) -> float:
    """torch.amp.GradScaler: amp/grad_scaler.py, `_amp_update_scale_` in native/cuda/AmpKernels.cu.

    overflow: scale *= backoff; tracker = 0
    else: tracker += 1; at growth_interval: scale *= growth unless that is infinite; tracker = 0
    No floor.
    """
    if not finite:
        return _lowered(config, state)
    return _raised(config, state, stays=True)


def mindspore_manager(config: LossScale, state: ScaleState, finite: bool) -> float:
    """MindSpore DynamicLossScaleManager and DynamicLossScaleUpdateCell.

    train/loss_scale_manager.py, nn/wrap/loss_scale.py:
    overflow: scale = max(scale * backoff, 1); last_overflow = iteration
    else: scale *= growth where (iteration - last_overflow) is a multiple of the window
    The manager gives up after more than 1000 overflows in a row (see `gave_up`).
    """
    if not finite:
        return _lowered(config, state)
    return _raised(config, state, stays=False)


def mindspore_scaler(config: LossScale, state: ScaleState, finite: bool) -> float:
    """MindSpore amp.DynamicLossScaler.adjust, amp.py.

    overflow: scale = max(1, scale / factor); counter = 0
    else: at counter == window - 1: scale *= factor unless that is infinite;
    counter = (counter + 1) % window
    """
    if not finite:
        return _lowered(config, state)
    return _raised(config, state, stays=True)


def mindspore_fixed(config: LossScale, state: ScaleState, finite: bool) -> float:
    """MindSpore FixedLossScaleManager, train/loss_scale_manager.py: the scale never moves."""
    return state.scale


def apex(config: LossScale, state: ScaleState, finite: bool) -> float:
    """Apex LossScaler.update_scale, apex/amp/scaler.py at e13873de.

    overflow: scale = max(min_loss_scale or 0, scale / 2); unskipped = 0
    else: unskipped += 1; at scale_window: scale = min(2^24, scale * 2); unskipped = 0
    """
    if not finite:
        return _lowered(config, state)
    return _raised(config, state, stays=False)


def keras(config: LossScale, state: ScaleState, finite: bool) -> float:
    """Keras LossScaleOptimizer, optimizers/loss_scale_optimizer.py: no floor, no cap.

    overflow: counter = 0; scale = scale / 2
    else: at counter == dynamic_growth_steps - 1: counter = 0; scale = scale * 2
    """
    if not finite:
        return _lowered(config, state)
    return _raised(config, state, stays=False)


def jmp(config: LossScale, state: ScaleState, finite: bool) -> float:
    """jmp.DynamicLossScale.adjust, jmp/_src/loss_scale.py.

    overflow: scale = max(min_loss_scale, scale / factor), min_loss_scale 1; counter = 0
    else: at counter == period - 1: scale *= factor unless that is infinite;
    counter = (counter + 1) % period
    """
    if not finite:
        return _lowered(config, state)
    return _raised(config, state, stays=True)


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "torch.GradScaler": torch_grad_scaler,
        "mindspore.DynamicLossScaleManager": mindspore_manager,
        "mindspore.DynamicLossScaler": mindspore_scaler,
        "mindspore.FixedLossScaleManager": mindspore_fixed,
        "apex": apex,
        "keras.LossScaleOptimizer": keras,
        "jmp.DynamicLossScale": jmp,
    }
)
"""The scale after a step, by `LossScale.rule`; a fixed scale does not ask them."""

LOWEST_INIT: Mapping[str, float] = MappingProxyType(
    {
        "mindspore.DynamicLossScaleManager": 1.0,
        "mindspore.DynamicLossScaler": 1.0,
        "mindspore.FixedLossScaleManager": 1.0,
    }
)
MOST_OVERFLOWS: Mapping[str, int] = MappingProxyType({"mindspore.DynamicLossScaleManager": 1000})


def initial_state(config: LossScale) -> ScaleState:
    """Return the state before step 0; InputError where the framework of the rule refuses."""
    if config.kind == "none":
        return ScaleState(1.0)
    lowest = LOWEST_INIT.get(config.rule, 0.0)
    if config.init_scale < lowest:
        given = f"{config.init_scale:g} with rule {config.rule}"
        raise InputError(f"loss_scale.init_scale: {given}; expected at least {lowest:g}")
    factors = (config.growth_factor, config.backoff_factor)
    dynamic = config.kind == "dynamic"
    if dynamic and config.rule == "keras.LossScaleOptimizer" and factors != (2.0, 0.5):
        raise InputError(f"loss_scale factors: {factors} with rule {config.rule}; expected 2, 0.5")
    if dynamic and config.rule == "mindspore.FixedLossScaleManager":
        raise InputError(f"loss_scale.kind: dynamic with rule {config.rule}; expected fixed")
    return ScaleState(first_scale(config))


def first_scale(config: LossScale) -> float:
    """Return the scale of step 0, a float32 number: a dynamic one is within its bounds from then.

    So Apex has it, which begins at min(2^24, init_scale).
    """
    if config.kind == "schedule":
        return _scheduled(config, 0)
    scale = _times(config.init_scale, 1.0)
    if config.kind != "dynamic":
        return scale
    return _capped(config, max(scale, config.min_scale or 0.0))


def next_state(config: LossScale, state: ScaleState, finite: bool, step: int) -> ScaleState:
    """Return the state after `step` (counted from 0), whose gradients were `finite` or not."""
    bad = 0 if finite else state.overflows_in_a_row + 1
    if config.kind == "schedule":
        return ScaleState(_scheduled(config, step + 1), 0, bad)
    if config.kind != "dynamic":
        return ScaleState(state.scale, 0, bad)
    scale = RULES[config.rule](config, state, finite)
    good = (state.good_steps + 1) % config.growth_interval if finite else 0
    return ScaleState(scale, good, bad)


def skips_update(config: LossScale, finite: bool) -> bool:
    """Whether the optimizer step is left out. Without a loss scale nothing looks: never.

    Apex never skips under a static scale (scaler.py: `should_skip` needs `dynamic`).
    """
    if finite or config.kind == "none":
        return False
    return config.kind == "dynamic" or (config.skip_on_overflow and config.rule != "apex")


def gave_up(config: LossScale, state: ScaleState) -> bool:
    """Whether the framework would end the run with an error: too many overflows in a row."""
    most = MOST_OVERFLOWS.get(config.rule)
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


def _scheduled(config: LossScale, step: int) -> float:
    scale = config.init_scale
    for first_step, value in config.schedule:
        if first_step <= step:
            scale = value
    return _times(scale, 1.0)
