"""What the runs of float32 itself show: how far noise moves them, what they learn, their faults."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TypeVar

from policysearch.objective.objective import JITTER
from policysearch.objective.score import Failure, Measurement, Outcome, gap
from policysearch.study.journal.records import RunKey
from policysearch.study.results.learning import Beside, Learned
from policysearch.train.constant import Constant
from policysearch.train.tasks import Task

T = TypeVar("T")


def measured(outcome: Outcome | None) -> Measurement | None:
    """Return the measurement of a run that came to one."""
    return outcome if isinstance(outcome, Measurement) else None


def noise_gap(runs: Mapping[RunKey, Outcome], base: str, seeds: Sequence[int]) -> float | None:
    """Return how far float32's tail loss moves under jitter, as root mean square, in nats."""
    pairs = [
        (measured(runs.get(RunKey(base, seed, JITTER))), measured(runs.get(RunKey(base, seed))))
        for seed in seeds
    ]
    shifts = [
        gap(jittered, plain)
        for jittered, plain in pairs
        if jittered and plain and not plain.diverged
    ]
    return math.sqrt(math.fsum(s * s for s in shifts) / len(shifts)) if shifts else None


def learned(
    runs: Mapping[RunKey, Outcome],
    base: str,
    seeds: Sequence[int],
    constant: Constant | None = None,
) -> Learned | None:
    """Return float32's mean loss before and after; None where a run is missing, lost or older.

    With what the best constant predictor gets on the same data, where that is known.
    """
    ended = [measured(runs.get(RunKey(base, seed))) for seed in seeds]
    pairs = [
        (run.first_loss, run.tail_loss)
        for run in ended
        if run and run.first_loss is not None and run.tail_loss is not None
    ]
    if len(pairs) < len(seeds):
        return None
    first, tail = zip(*pairs, strict=True)
    means = math.fsum(first) / len(seeds), math.fsum(tail) / len(seeds)
    unit = next((run.loss_unit for run in ended if run and run.loss_unit), "nats")
    if constant is None:
        return Learned(*means, unit=unit)
    accuracies = _each([run.validation_accuracy for run in ended if run])
    gains = _each([run.validation_gain for run in ended if run])
    return Learned(*means, Beside(constant, accuracies, gains), unit)


def _each(values: Sequence[T | None]) -> tuple[T, ...]:
    """Return the values if each is known, else none."""
    known = tuple(value for value in values if value is not None)
    return known if len(known) == len(values) else ()


def lost_seed(runs: Mapping[RunKey, Outcome], base: str, seeds: Sequence[int]) -> int | None:
    """Return the first seed with which float32 failed or diverged; None where none has so far."""
    for seed in seeds:
        run = runs.get(RunKey(base, seed))
        if isinstance(run, Failure) or (run is not None and run.diverged):
            return seed
    return None


def float32_fault(
    runs: Mapping[RunKey, Outcome], base: str, task: Task, seeds: Sequence[int]
) -> str:
    """Say that float32 itself diverged or failed, and what to change; "" where it did not."""
    seed = lost_seed(runs, base, seeds)
    if seed is None:
        return ""
    run = runs[RunKey(base, seed)]
    if isinstance(run, Failure):
        return f"float32 itself failed with seed {seed}: {run.reason}; no gap can be measured"
    return (
        f"float32 itself {run.divergence} (seed {seed}), so no gap can be measured and no "
        "policy ranked: the recipe does not train in any format; lower task.learning_rate "
        f"(now {task.learning_rate:g}) or change the optimizer (now {task.optimizer})"
    )
