"""What a policy of several phases costs: the mean step of its run, and the largest memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from policysearch.cost.price import PolicyCost

Shares = tuple[tuple[str, float], ...]


def over_phases(parts: Sequence[tuple[int, PolicyCost]]) -> PolicyCost:
    """Return the cost of a run of `parts`, (steps, cost of one of them); of one, that cost.

    Seconds are the mean over the steps, speedups those of the whole run, shares weighted by time;
    memory is that of the phase with the largest peak. Raises ValueError for no steps.
    """
    spent = [(steps * cost.step_seconds, cost) for steps, cost in parts if steps]
    if not spent:
        raise ValueError("a run of no steps")
    largest = max((cost for _, cost in spent), key=lambda cost: cost.peak_bytes)
    total = math.fsum(seconds for seconds, _ in spent)
    steps = sum(count for count, _ in parts)

    def weighted(value: Callable[[PolicyCost], float]) -> float:
        return math.fsum(seconds * value(cost) for seconds, cost in spent) / total

    if len(spent) == 1:
        return largest
    speedup = largest.float32_step_seconds * steps / total
    return replace(
        largest,
        speedup=speedup,
        speedup_low=speedup * min(cost.speedup_low / cost.speedup for _, cost in spent),
        speedup_high=speedup * max(cost.speedup_high / cost.speedup for _, cost in spent),
        fits=all(cost.fits for _, cost in spent),
        step_seconds=total / steps,
        cast_share=weighted(lambda cost: cost.cast_share),
        optimizer_share=weighted(lambda cost: cost.optimizer_share),
        low_precision_share=weighted(lambda cost: cost.low_precision_share),
        host_bound=any(cost.host_bound for _, cost in spent),
        layer_shares=_shares([(s / total, cost.layer_shares) for s, cost in spent]),
        format_shares=_shares([(s / total, cost.format_shares) for s, cost in spent]),
        emulated=tuple(sorted({name for _, cost in spent for name in cost.emulated})),
        communication_share=weighted(lambda cost: cost.communication_share),
    )


def _shares(parts: Sequence[tuple[float, Shares]]) -> Shares:
    """Return the weighted sum of shares by name."""
    summed: dict[str, float] = {}
    for weight, part in parts:
        for name, share in part:
            summed[name] = summed.get(name, 0.0) + weight * share
    return tuple(summed.items())
