"""When a training is lost."""

from __future__ import annotations

import math
from collections.abc import Sequence

DIVERGED_FACTOR = 10.0
DIVERGED_STEPS = 5
NON_FINITE_STEPS = 50


def has_diverged(losses: Sequence[float], skipped: Sequence[bool]) -> bool:
    """Return whether a run with these losses and skips, one per step taken, is lost.

    A loss that is not finite is no end where its step was skipped, as torch's GradScaler halves
    the scale and goes on; NON_FINITE_STEPS of them in a row are. Finite losses are lost when
    DIVERGED_STEPS in a row stay above DIVERGED_FACTOR times the first of all; where a loss of one's
    own has been zero or below, above as many times the largest size before them.
    """
    # The scale may need many halvings from 2**24 or 2**16 until nothing overflows: a run of skipped
    # steps at the start is no divergence, unless it is longer than any such search.
    if not math.isfinite(losses[-1]):
        latest = losses[-NON_FINITE_STEPS:]
        alone = len(latest) == NON_FINITE_STEPS and not any(map(math.isfinite, latest))
        return alone or not skipped[-1]
    latest = losses[-DIVERGED_STEPS:]
    if len(latest) < DIVERGED_STEPS or not all(map(math.isfinite, latest)):
        return False
    first = next(loss for loss in losses if math.isfinite(loss))
    if min(latest) <= DIVERGED_FACTOR * abs(first):
        return False  # Nearly always, and without a look at all that went before.
    earlier = [loss for loss in losses[:-DIVERGED_STEPS] if math.isfinite(loss)]
    size = first if min(earlier) > 0.0 else max(map(abs, earlier))
    return min(latest) > DIVERGED_FACTOR * size


def tail_mean(losses: Sequence[float]) -> float:
    """Return the mean of the finite ones among `losses`, infinity where there are none."""
    finite = [loss for loss in losses if math.isfinite(loss)]
    return math.fsum(finite) / len(finite) if finite else math.inf
