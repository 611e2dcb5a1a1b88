"""A trained policy as a row of tables: what views and data frames show of it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from policysearch.policy.presets import TF32
from policysearch.study.journal.trials import Trial


@dataclass(frozen=True)
class Row:
    """One trained policy.

    Gaps are in nats: the mean over the seeds, the smallest and largest, and what can be told of it
    (see `Results.counted_gap`). The speedup with its interval and the memory ratio are modeled,
    against float32 on the same device and stack. `presets` are the presets that are this policy,
    separated by spaces. `confirmed_gap`: the gap after `confirmed_steps` steps, on other seeds;
    `fault` says why the policy fails there, "" where it does not. `gap_low95` and `gap_high95`
    bound the mean gap at 95 % (see `results.noise`), None with a single seed. `tied_with` is the
    faster member of the front whose gap cannot be told from this one's. `by_hand`: a user tried it.
    `swamped_share` of the updates are too small to move their parameter, projected from step
    `swamped_step` to the smallest learning rate; `early_sign` says so where they are many.
    `gap_eighth` and so on: the mean gap after that share of the steps; the relative ones are shares
    of float32's own loss there, `relative_gap` at the end. The trends are those of
    `results.trend.Trend`, of the study's run and of the longer one.
    `speedup_over_tf32` and `speedup_over_baseline` are modeled as well: None on a device without
    tfloat32 products, and in a study that names no `baseline`. Gaps are of `batch_size` examples a
    step, speed and memory of `priced_batch_size`.
    `cannot_rank` says why nothing is on the front of this study, "" where that does not apply.
    `parallel` says how the step is spread over devices, "" on one, `all_reduce` what gradients are
    reduced in, and `communication_share` which share of the step waits for other devices. `seeds`:
    how many it was trained with. `matters_gap`: gaps up to it are equal. `verdict` is the study's.
    Losses and gaps are counted in `loss_unit`, nats for a likelihood. What the validation part
    shows, a mean over the seeds, has its 95 % interval over seeds, None with one.
    """

    trial: int
    policy: str
    presets: str
    on_front: bool
    diverged: bool
    loss_gap: float
    loss_gap_low: float
    loss_gap_high: float
    counted_gap: float
    noise_gap: float | None
    validation_accuracy: float | None
    modeled_speedup: float
    modeled_speedup_low: float
    modeled_speedup_high: float
    modeled_memory_ratio: float
    skipped_steps: int
    device: str
    stack: str
    digest: str
    confirmed_steps: int | None
    confirmed_gap: float | None
    float32_loss: float | None
    fault: str
    gap_low95: float | None
    gap_high95: float | None
    tied_with: int | None
    by_hand: bool
    swamped_share: float
    swamped_step: int | None
    swamped_layer: str
    early_sign: str
    gap_eighth: float | None
    gap_quarter: float | None
    gap_half: float | None
    relative_gap_eighth: float | None
    relative_gap_quarter: float | None
    relative_gap_half: float | None
    relative_gap: float | None
    gap_trend: str
    relative_gap_trend: str
    confirmed_gap_trend: str
    confirmed_relative_gap_trend: str
    speedup_over_tf32: float | None = None
    baseline: str = ""
    speedup_over_baseline: float | None = None
    batch_size: int = 0
    priced_batch_size: int = 0
    cannot_rank: str = ""
    parallel: str = ""
    all_reduce: str = "float32"
    communication_share: float = 0.0
    seeds: int = 1
    matters_gap: float = 0.0
    verdict: str = ""
    loss_unit: str = "nats"
    validation_loss: float | None = None
    validation_loss_low95: float | None = None
    validation_loss_high95: float | None = None
    validation_accuracy_low95: float | None = None
    validation_accuracy_high95: float | None = None
    metric_name: str = ""
    metric: float | None = None
    metric_low95: float | None = None
    metric_high95: float | None = None
    first_not_finite: str = ""

    @property
    def label(self) -> str:
        """The name to show: the presets where there are any."""
        return self.presets or self.policy

    @property
    def told(self) -> bool:
        """Whether the gap can be told: `counted_gap` is the measured one, and not the least."""
        return self.loss_gap > 0.0 and self.loss_gap >= self.counted_gap


def none_told(rows: Iterable[Row]) -> bool:
    """Return whether of no gap more is known than what was measured: none is told, or ranked."""
    return not any(row.told and not row.cannot_rank for row in rows)


def own_columns(trial: Trial) -> dict[str, Any]:
    """Return what a row has from its trial alone."""
    cost = trial.cost
    low, high = trial.gap_range
    return {
        "trial": trial.number,
        "policy": trial.name,
        "presets": " ".join(trial.presets),
        "diverged": trial.diverged,
        "loss_gap": trial.loss_gap,
        "loss_gap_low": low,
        "loss_gap_high": high,
        "validation_accuracy": trial.validation_accuracy,
        "validation_loss": trial.validation_loss,
        "metric": trial.metric,
        "loss_unit": trial.loss_unit,
        "modeled_speedup": cost.speedup,
        "modeled_speedup_low": cost.speedup_low,
        "modeled_speedup_high": cost.speedup_high,
        "modeled_memory_ratio": cost.memory_ratio,
        "skipped_steps": trial.skipped_steps,
        "digest": trial.digest,
        "by_hand": trial.by_hand,
        "swamped_share": trial.swamped_share,
        "swamped_step": trial.swamped_step,
        "swamped_layer": trial.swamped_layer,
        "early_sign": trial.early_sign,
        "first_not_finite": trial.first_not_finite,
        "parallel": cost.parallel,
        "all_reduce": _all_reduce(trial),
        "communication_share": cost.communication_share,
        "seeds": len(trial.scores),
    }


def columns_over(speedups: Mapping[str, float], baseline: str) -> dict[str, Any]:
    """Return what a row has of its speedups, by what they are over."""
    return {
        "speedup_over_tf32": speedups.get(TF32),
        "baseline": baseline,
        "speedup_over_baseline": speedups.get(baseline),
    }


_ALL_REDUCE = re.compile(r'"all_reduce": ?"([^"\\]*)"')


def _all_reduce(trial: Trial) -> str:
    # Near the end; reading the whole policy would take minutes for thousands of deep ones.
    place = max(0, trial.text.rfind('"all_reduce"'))
    found = _ALL_REDUCE.match(trial.text, place)
    return found[1] if found else trial.policy.all_reduce
