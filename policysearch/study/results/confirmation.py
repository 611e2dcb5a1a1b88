"""The front at a longer horizon: what a short run lies about, because updates vanish later.

Members of the front and their neighbours are trained again, over more steps and on seeds the
search has not seen.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from policysearch.objective.score import (
    DIVERGED_GAP,
    Failure,
    Measurement,
    Outcome,
    gap,
    gap_curve,
)
from policysearch.study.journal.records import RunKey
from policysearch.study.journal.trials import Confirmation

Longer = tuple[RunKey, Outcome, Outcome]
"""A run over more steps than the task's, and float32's over as many with the same seed."""


def confirmations(
    runs: Mapping[RunKey, Outcome], base: str, digests: Sequence[str]
) -> dict[str, Confirmation]:
    """Return what the longest runs of these policies have come to, by digest.

    Each over the longest horizon at which a run of it and one of float32 (digest `base`) with the
    same seed came to their end, so a longer one that is under way takes no verdict away.
    """
    every = horizons(runs, base, digests)
    return {digest: found[-1] for digest, found in every.items()}


def horizons(
    runs: Mapping[RunKey, Outcome], base: str, digests: Sequence[str]
) -> dict[str, tuple[Confirmation, ...]]:
    """Return what the longer runs of these policies have come to, by digest, the longest last."""
    measured: dict[str, dict[int, list[tuple[int, Measurement, Measurement]]]] = {}
    for key, run, beside in _longer(runs, base, digests):
        sound = isinstance(beside, Measurement) and not beside.diverged
        if sound and isinstance(run, Measurement) and isinstance(beside, Measurement):
            at = measured.setdefault(key.digest, {})
            at.setdefault(key.steps or 0, []).append((key.seed, run, beside))
    return {
        digest: tuple(_confirmation(steps, at[steps]) for steps in sorted(at))
        for digest, at in measured.items()
    }


def unconfirmed(
    runs: Mapping[RunKey, Outcome], base: str, digests: Sequence[str]
) -> dict[str, str]:
    """Return, by digest, why longer runs of these policies came to no verdict, in words."""
    confirmed = confirmations(runs, base, digests)
    reasons = {}
    for key, run, beside in _longer(runs, base, digests):
        if key.digest not in confirmed:
            if isinstance(beside, Failure):
                reasons[key.digest] = (
                    f"float32's run over {key.steps} steps failed: {beside.reason}"
                )
            elif isinstance(run, Failure):
                reasons[key.digest] = f"its run over {key.steps} steps failed: {run.reason}"
            else:
                reasons[key.digest] = f"float32 itself diverges within {key.steps} steps"
    return reasons


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
