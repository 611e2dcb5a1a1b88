"""Policies picked from results: to be confirmed, of least memory, or to fit on a device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from policysearch.cost.memory import NEEDED, VISIBLE_SHARE, process_bytes
from policysearch.objective.objective import Objective
from policysearch.search.hypervolume import non_dominated
from policysearch.study.journal.trials import Trial
from policysearch.study.results.results import Results
from policysearch.study.runs import Horizon
from policysearch.values import InputError


def candidates(results: Results, every: bool = False) -> list[Trial]:
    """Return TF32 where the verdict takes it, the knee, the rest of the front from the fastest on,
    then the front without it.

    Between them what is on the front where every gap counts, matter it or not, without early signs
    first: a longer run tells apart what the search alone cannot. With `every` the policies behind
    them follow, but for those that diverged. float32 is left out: everything is compared with it.
    """
    front = list(results.front)
    if not front:
        return []
    # Of what the search alone knows: a run that was stopped then goes on with the same.
    before = replace(results, confirmed=(), unconfirmed=())
    knee, taken = before.knee(), before.verdict
    switch = [t for t in results.trials if taken.switch and t.number == taken.trial]
    front += sorted(_told_apart(results, front), key=lambda trial: bool(trial.early_sign))
    sound = [t for t in results.trials if not t.diverged and t not in front]
    next_front = [sound[i] for i in non_dominated([results.point(trial) for trial in sound])]
    next_front.sort(key=lambda trial: -trial.cost.speedup)
    behind = [trial for trial in sound if trial not in next_front] if every else []
    first = [*switch, *[knee] * (knee not in switch)]
    others = [trial for trial in (*front, *next_front, *behind) if trial not in first]
    return [trial for trial in (*first, *others) if "float32" not in trial.presets]


def _told_apart(results: Results, front: Sequence[Trial]) -> list[Trial]:
    """Return what else is on the front where every gap counts that can be told, fastest first."""
    spec = results.spec
    fine = replace(spec, objectives=replace(spec.objectives, matters=0.0))
    return [trial for trial in replace(results, spec=fine).front if trial not in front]


def within_budget(
    results: Results, ordered: Sequence[Trial], horizon: Horizon, share: float
) -> list[Trial]:
    """Return the first of these that, with float32, take `share` of the study's own steps."""
    spent = sum(len(trial.scores) for trial in results.trials) * results.spec.task.steps
    affordable = int(share * spent / (horizon.steps * len(horizon.seeds))) - 1
    return list(ordered[: max(0, affordable)])


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
        live = min(cost.peak_bytes for cost, _ in costs)
        least = process_bytes(live, NEEDED.high) / VISIBLE_SHARE
        raise InputError(
            f"fits: {there.device.name} with {there.device.memory_bytes / 2**30:.0f} GiB at batch "
            f"{there.cost_batch_size}; expected {least / 2**30:.1f} GiB or more, the least of the "
            "front, or a smaller batch"
        )
    return max(fit, key=lambda pair: (pair[0].speedup, -pair[1].loss_gap))[1]
