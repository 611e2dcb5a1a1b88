"""The front at a longer horizon: what a short run lies about, because updates vanish later.

Members of the front and their neighbours are trained again, over more steps and on seeds the
search has not seen.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policysearch.objective.score import DIVERGED_GAP, Measurement, Outcome, gap, gap_curve
from policysearch.search.front import non_dominated
from policysearch.search.results import Results
from policysearch.search.run_key import RunKey
from policysearch.search.trials import Confirmation, Trial


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
    knee = results.knee()
    sound = [t for t in results.trials if not t.diverged and t not in front]
    next_front = [sound[i] for i in non_dominated([results.point(trial) for trial in sound])]
    next_front.sort(key=lambda trial: -trial.cost.speedup)
    behind = [trial for trial in sound if trial not in next_front] if every else []
    ordered = [knee, *(t for t in front if t is not knee), *next_front, *behind]
    return [trial for trial in ordered if "float32" not in trial.presets]


def within_budget(
    results: Results, ordered: Sequence[Trial], horizon: Horizon, share: float
) -> list[Trial]:
    """Return the first of these that, with float32, take `share` of the study's own steps."""
    spec = results.spec
    spent = sum(len(trial.scores) for trial in results.trials) * spec.task.steps
    affordable = int(share * spent / (horizon.steps * len(horizon.seeds))) - 1
    return list(ordered[: max(0, affordable)])


def confirmations(
    runs: Mapping[RunKey, Outcome], base: str, digests: Sequence[str]
) -> dict[str, Confirmation]:
    """Return what the longest runs of these policies have come to, by digest.

    Only the longest horizon that float32 (digest `base`) was trained over counts.
    """
    longest = max((k.steps for k in runs if k.digest == base and k.steps), default=None)
    if longest is None:
        return {}
    seeds = sorted(k.seed for k in runs if k.digest == base and k.steps == longest)
    found = {}
    for digest in digests:
        measured = [
            (seed, run, beside)
            for seed in seeds
            if isinstance(run := runs.get(RunKey(digest, seed, 0.0, longest)), Measurement)
            and isinstance(beside := runs[RunKey(base, seed, 0.0, longest)], Measurement)
        ]
        if measured:
            found[digest] = _confirmation(longest, measured)
    return found


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
