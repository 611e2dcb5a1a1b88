"""The front at a longer horizon: what a short run lies about, because updates vanish later.

Members of the front and their neighbours are trained again, over more steps and on seeds the
search has not seen.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from policysearch.objective.score import (
    DIVERGED_GAP,
    Failure,
    Measurement,
    Outcome,
    gap,
    gap_curve,
)
from policysearch.search.hypervolume import non_dominated
from policysearch.study.results.results import Results
from policysearch.study.journal.records import RunKey
from policysearch.study.journal.trials import (Confirmation, Trial)


@dataclass(frozen=True)
class Horizon:
    """What is trained to confirm: over `steps` steps, with each of `seeds`."""

    steps: int
    seeds: tuple[int, ...]


def horizon_of(seeds: Sequence[int], steps: int, factor: float, count: int) -> Horizon:
    """Return `factor` times the steps, and the `count` smallest seeds above those of the search."""
    first = max(seeds) + 1
    return Horizon(max(1, round(steps * factor)), tuple(range(first, first + count)))


def candidates(results: Results, every: bool = False) -> list[Trial]:
    """Return the knee, the rest of the front from the fastest on, then the front without it.

    With `every` the policies behind them follow, but for those that diverged. float32 is left out:
    everything is compared with it anyway.
    """
    front = list(results.front)
    if not front:
        return []
    # Of what the search alone knows: a run that was stopped then goes on with the same.
    knee = replace(results, confirmed=(), unconfirmed=()).knee()
    sound = [t for t in results.trials if not t.diverged and t not in front]
    next_front = [sound[i] for i in non_dominated([results.point(trial) for trial in sound])]
    next_front.sort(key=lambda trial: -trial.cost.speedup)
    behind = [trial for trial in sound if trial not in next_front] if every else []
    others = [trial for trial in (*front, *next_front, *behind) if trial != knee]
    return [trial for trial in (knee, *others) if "float32" not in trial.presets]


def within_budget(
    results: Results, ordered: Sequence[Trial], horizon: Horizon, share: float
) -> list[Trial]:
    """Return the first of these that, with float32, take `share` of the study's own steps."""
    spec = results.spec
    spent = sum(len(trial.scores) for trial in results.trials) * spec.task.steps
    affordable = int(share * spent / (horizon.steps * len(horizon.seeds))) - 1
    return list(ordered[: max(0, affordable)])


Longer = tuple[RunKey, Outcome, Outcome]
"""A run over more steps than the task's, and float32's over as many with the same seed."""


def confirmations(
    runs: Mapping[RunKey, Outcome], base: str, digests: Sequence[str]
) -> dict[str, Confirmation]:
    """Return what the longest runs of these policies have come to, by digest.

    Each over the longest horizon at which a run of it and one of float32 (digest `base`) with the
    same seed came to their end, so a longer one that is under way takes no verdict away.
    """
    measured: dict[str, dict[int, list[tuple[int, Measurement, Measurement]]]] = {}
    for key, run, beside in _longer(runs, base, digests):
        sound = isinstance(beside, Measurement) and not beside.diverged
        if sound and isinstance(run, Measurement) and isinstance(beside, Measurement):
            horizons = measured.setdefault(key.digest, {})
            horizons.setdefault(key.steps or 0, []).append((key.seed, run, beside))
    return {digest: _confirmation(max(at), at[max(at)]) for digest, at in measured.items()}


def unconfirmed(
    runs: Mapping[RunKey, Outcome], base: str, digests: Sequence[str]
) -> dict[str, str]:
    """Return, by digest, why longer runs of these policies came to no verdict, in words."""
    confirmed = confirmations(runs, base, digests)
    found = {}
    for key, run, beside in _longer(runs, base, digests):
        if key.digest not in confirmed:
            if isinstance(beside, Failure):
                found[key.digest] = f"float32's run over {key.steps} steps failed: {beside.reason}"
            elif isinstance(run, Failure):
                found[key.digest] = f"its run over {key.steps} steps failed: {run.reason}"
            else:
                found[key.digest] = f"float32 itself diverges within {key.steps} steps"
    return found


def _longer(runs: Mapping[RunKey, Outcome], base: str, digests: Sequence[str]) -> Iterator[Longer]:
    """Yield the longer runs of these policies that float32 has one beside, by seed."""
    wanted = set(digests)
    for key in sorted((k for k in runs if k.steps), key=lambda k: (k.steps, k.seed)):
        beside = runs.get(replace(key, digest=base))
        if beside is not None and key.digest in wanted:
            yield key, runs[key], beside


def _confirmation(
    steps: int, measured: Sequence[tuple[int, Measurement, Measurement]]
) -> Confirmation:
    diverged = any(run.diverged for _, run, _ in measured)
    gaps = [gap(run, beside) for _, run, beside in measured]
    losses = [beside.tail_loss for _, _, beside in measured if beside.tail_loss is not None]
    return Confirmation(
        steps=steps,
        seeds=tuple(seed for seed, _, _ in measured),
        loss_gap=DIVERGED_GAP if diverged else math.fsum(gaps) / len(gaps),
        gap_spread=statistics.stdev(gaps) if len(gaps) > 1 else None,
        float32_loss=math.fsum(losses) / len(losses) if losses else math.nan,
        diverged=diverged,
        gap_curves=tuple(gap_curve(run, beside) for _, run, beside in measured),
    )
