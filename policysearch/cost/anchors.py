"""Anchors: what the same network showed on other devices, carried over to a modeled speedup.

Errors of one network repeat from device to device, so its published or measured speedup there says
how far the model is off here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from policysearch.cost.published import Setting
from policysearch.cost.roofline import Array

OTHER_BASELINE = 0.3
"""Weight of an anchor whose baseline multiplies in another format; assumed."""

OTHER_FRAMEWORK = 0.5
"""Weight of an anchor of another framework; assumed."""

SHRINKAGE = 2.0
"""Weight of the model itself, in fully related anchors; assumed."""


@dataclass(frozen=True)
class Anchor:
    """A row, and the logarithm of its published speedup over the modeled one."""

    setting: Setting
    error: float


def anchors_of(settings: Sequence[Setting], modeled: Array) -> tuple[Anchor, ...]:
    """Return the anchors that rows make, `modeled` their speedups without any, [rows]."""
    return tuple(
        Anchor(setting, float(np.log(setting.row.speedup / speedup)))
        for setting, speedup in zip(settings, modeled, strict=True)
    )


def scale(setting: Setting, anchors: Sequence[Anchor]) -> float | None:
    """Return the factor on the modeled speedup, None where no anchor is related.

    Anchors are rows of the same network on other devices; their errors are averaged by how
    related they are, and drawn to none by SHRINKAGE.
    """
    weights = np.array([_related(setting, anchor.setting) for anchor in anchors])
    if not weights.sum():
        return None
    errors = np.array([anchor.error for anchor in anchors])
    # many rows of one kind say no more about another kind than a few
    trust = weights.max() * min(weights.sum() / weights.max(), 2.0)
    mean = float((weights * errors).sum() / weights.sum())
    return float(np.exp(mean * trust / (trust + SHRINKAGE)))


def _related(setting: Setting, other: Setting) -> float:
    if other.network != setting.network or other.device == setting.device:
        return 0.0
    weight = 1.0
    if other.precisions[0] != setting.precisions[0]:
        weight *= OTHER_BASELINE
    if other.stacks.framework != setting.stacks.framework:
        weight *= OTHER_FRAMEWORK
    return weight
