"""What tables, plots and CSV files show of one policy of a study, as plain values."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One trained policy.

    Gaps are in nats: the mean over the seeds, the smallest and largest, and what the front counts
    (see `Results.counted_gap`). The speedup with its interval and the memory ratio are modeled,
    against float32 on the same device and stack. `presets` are the presets that are this policy,
    separated by spaces. `confirmed_gap`: the gap after `confirmed_steps` steps, on other seeds;
    `fault` says why the policy fails there, "" where it does not. `gap_low95` and `gap_high95`
    bound the mean gap at 95 % (see `search.noise`), None with a single seed. `tied_with` is the
    faster member of the front whose gap cannot be told from this one's. `by_hand`: a user tried it.
    `swamped_share` of the updates are too small to move their parameter, projected from step
    `swamped_step` to the smallest learning rate; `early_sign` says so where they are many.
    `speedup_over_tf32` and `speedup_over_baseline` are modeled as well: None on a device without
    tfloat32 products, and in a study that names no `baseline`. Gaps are of `batch_size` examples a
    step, speed and memory of `priced_batch_size`.
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
    speedup_over_tf32: float | None = None
    baseline: str = ""
    speedup_over_baseline: float | None = None
    batch_size: int = 0
    priced_batch_size: int = 0

    @property
    def label(self) -> str:
        """The name to show: the presets where there are any."""
        return self.presets or self.policy
