"""Picks from a front beside its knee and its fastest member: the smallest, and what fits."""

from __future__ import annotations

from policysearch.cost.reserved import VISIBLE_SHARE
from policysearch.objective.objective import Objective
from policysearch.search.results import Results
from policysearch.search.trials import Trial
from policysearch.values import InputError


def smallest(results: Results, max_gap: float | None = None) -> Trial:
    """Return the front's member of least modeled memory with a loss gap up to `max_gap` nats.

    Of equal ones the fastest. Raises InputError where none is that close.
    """
    return min(results.within(max_gap), key=lambda t: (t.cost.memory_ratio, -t.cost.speedup))


def fitting(results: Results, there: Objective, max_gap: float | None = None) -> Trial:
    """Return the front's fastest member that fits on the device of `there`, at its batch.

    Speed and memory are modeled there, loss gaps up to `max_gap` nats. Raises InputError where none
    is that close, and where none fits.
    """
    costs = [(there.price(trial.policy), trial) for trial in results.within(max_gap)]
    fit = [(cost, trial) for cost, trial in costs if cost.fits]
    if not fit:
        least = min(cost.reserved_high_bytes for cost, _ in costs) / VISIBLE_SHARE
        raise InputError(
            f"fits: {there.device.name} with {there.device.memory_bytes / 2**30:.0f} GiB at batch "
            f"{there.cost_batch_size}; expected {least / 2**30:.1f} GiB or more, the least of the "
            "front, or a smaller batch"
        )
    return max(fit, key=lambda pair: (pair[0].speedup, -pair[1].loss_gap))[1]
