"""The results of a study as plain rows: what the table, the plots and the CSV file show."""

from __future__ import annotations

import csv
import io
from collections.abc import Mapping
from dataclasses import dataclass, fields
from types import MappingProxyType

from policysearch.accumulators import accumulator_named
from policysearch.search.results import Results, Trial

EMULATORS: Mapping[str, str] = MappingProxyType(
    {"c": "C and numpy", "numpy": "numpy", "off": "the reference"}
)
"""What ran (`Score.fast`), in words; the bits are the same."""


@dataclass(frozen=True)
class Row:
    """One trained policy.

    Gaps are in nats: the mean over the seeds, the smallest and largest, and what the front counts
    (see `Results.counted_gap`). The speedup with its interval and the memory ratio are modeled,
    against float32 on the same device and stack. `presets` are the presets that are this policy,
    separated by spaces.
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
    validation_accuracy: float
    modeled_speedup: float
    modeled_speedup_low: float
    modeled_speedup_high: float
    modeled_memory_ratio: float
    skipped_steps: int
    device: str
    stack: str
    digest: str

    @property
    def label(self) -> str:
        """The name to show: the presets where there are any."""
        return self.presets or self.policy


def rows_of(results: Results) -> tuple[Row, ...]:
    """Return one row per trained policy: the front first, fastest first, then the rest so."""
    front = [trial.number for trial in results.front]
    order = {number: place for place, number in enumerate(front)}

    def place(trial: Trial) -> tuple[int, float, int]:
        return order.get(trial.number, len(front)), -trial.cost.speedup, trial.number

    return tuple(_row(results, trial) for trial in sorted(results.trials, key=place))


def _row(results: Results, trial: Trial) -> Row:
    cost = trial.cost
    low, high = trial.gap_range
    return Row(
        trial=trial.number,
        policy=trial.policy.name,
        presets=" ".join(trial.presets),
        on_front=trial in results.front,
        diverged=trial.diverged,
        loss_gap=trial.loss_gap,
        loss_gap_low=low,
        loss_gap_high=high,
        counted_gap=results.counted_gap(trial),
        noise_gap=results.noise_gap,
        validation_accuracy=trial.validation_accuracy,
        modeled_speedup=cost.speedup,
        modeled_speedup_low=cost.speedup_low,
        modeled_speedup_high=cost.speedup_high,
        modeled_memory_ratio=cost.memory_ratio,
        skipped_steps=trial.skipped_steps,
        device=results.spec.cost.device,
        stack=results.spec.cost.stack,
        digest=trial.policy.digest,
    )


def csv_text(results: Results) -> str:
    """Return all rows as CSV with a header line; `noise_gap` is empty where not measured."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [field.name for field in fields(Row)]
    writer.writerow(names)
    for row in rows_of(results):
        writer.writerow([getattr(row, name) for name in names])
    return out.getvalue()


def caption(results: Results) -> str:
    """Return on what the results rest: device, stack, batches, seeds, accumulator, noise."""
    spec = results.spec
    priced = spec.cost.batch_size or spec.task.batch_size
    names = {layer.accumulator for t in results.trials for _, layer in t.policy.layers}
    accumulators = [accumulator_named(name) for name in sorted(names or {"float32"})]
    sums = "; ".join(f"{row.name} ({row.not_modelled})" for row in accumulators)
    seeds = ", ".join(str(seed) for seed in spec.study.seeds)
    ways = ", ".join(sorted({EMULATORS.get(s.fast, "?") for t in results.trials for s in t.scores}))
    noise = "not measured"
    if results.noise_gap is not None:
        noise = f"{results.noise_gap:.1e} nats, counted from {results.resolution_gap:.1e} on"
    return (
        f"Modeled, not measured: speed and memory of {spec.cost.device} with {spec.cost.stack}, "
        f"batch {priced}.\n"
        f"Trained: {spec.task.model} on {spec.task.data}, batch {spec.task.batch_size}, "
        f"{spec.task.steps} steps, seeds {seeds}. Noise of the gap: {noise}.\n"
        f"Emulated by {ways}. Accumulator, and what it does not model: {sums}."
    )
