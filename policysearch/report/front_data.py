"""The results of a study as text: the CSV file, and what stands below tables and plots."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from policysearch.accumulators import accumulator_named
from policysearch.search.results import Results

EMULATORS: Mapping[str, str] = MappingProxyType(
    {"c": "C and numpy", "numpy": "numpy", "off": "the reference"}
)
"""What ran (`Score.fast`), in words; the bits are the same."""


INTERVALS = "95 % intervals by t, variances shared between policies"


def csv_text(results: Results) -> str:
    """Return `Results.to_frame` as CSV with a header line; a `noise_gap` not measured is empty."""
    text: str = results.to_frame().to_csv(index=False, lineterminator="\n")
    return text


def caption(results: Results) -> str:
    """Return on what the results rest: device, stack, batches, seeds, accumulator, noise.

    First, where it is so, that the recipe cannot rank policies.
    """
    spec = results.spec
    priced = spec.cost.batch_size or spec.task.batch_size
    accumulators = [accumulator_named(name) for name in results.accumulators or ("float32",)]
    sums = "; ".join(f"{row.name} ({row.not_modelled})" for row in accumulators)
    seeds = ", ".join(str(seed) for seed in spec.study.seeds)
    ways = ", ".join(sorted({EMULATORS.get(s.fast, "?") for t in results.trials for s in t.scores}))
    between = "one seed, so no interval" if len(spec.study.seeds) == 1 else INTERVALS
    noise = "not measured"
    if results.noise_gap is not None:
        noise = f"{results.noise_gap:.1e} nats, counted from {results.resolution_gap:.1e} on"
    ranks = f"{results.cannot_rank}\n" if results.cannot_rank else ""
    return (
        f"{ranks}Modeled, not measured: speed and memory of {spec.cost.device} "
        f"with {spec.cost.stack}, batch {priced}.\n"
        f"Trained: {spec.task.model} on {spec.task.data}, batch {spec.task.batch_size}, "
        f"{spec.task.steps} steps, seeds {seeds} ({between}). Noise under jitter: {noise}.\n"
        f"Emulated by {ways}. Accumulator, and what it does not model: {sums}."
    )
