"""The results of a study as text: the CSV file, and what stands below tables and plots."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from policysearch.accumulators import accumulator_named
from policysearch.policy.presets import TF32
from policysearch.study.journal.trials import Trial
from policysearch.study.results.results import Results
from policysearch.study.specification import StudySpec

EMULATORS: Mapping[str, str] = MappingProxyType(
    {"c": "C and numpy", "numpy": "numpy", "off": "the reference"}
)
"""What ran (`Score.fast`), in words; the bits are the same."""


INTERVALS = "95 % intervals by t, variances shared between policies"


def csv_text(results: Results) -> str:
    """Return `Results.to_frame` as CSV with a header line; a `noise_gap` not measured is empty."""
    text: str = results.to_frame().to_csv(index=False, lineterminator="\n")
    return text


def batches(spec: StudySpec) -> str:
    """Say at which batch a step was trained and priced, why at two, and what it computes again."""
    trained, priced = spec.task.batch_size, spec.priced_batch_size
    blocks = ", ".join(spec.cost.recompute)
    again = f", {blocks} computed again in backward" if blocks else ""
    if trained == priced:
        return f"trained and priced at batch {trained}{again}"
    why = spec.cost.batch_size_reason
    return f"trained at batch {trained}, priced at batch {priced} ({why}){again}"


def speedups(results: Results, trial: Trial) -> str:
    """Return the modeled speedups of a policy over each reference, with their intervals."""
    said = (
        f"{x.value:.2f} ({x.low:.2f} to {x.high:.2f}) over {_called(results, x.over)}"
        for x in results.speedups(trial)
    )
    return "modeled speedup " + ", ".join(said)


def _called(results: Results, name: str) -> str:
    """Return what a reference is called beside others."""
    if name == results.spec.study.baseline:
        return f"the baseline {name}"
    return {TF32: "TF32"}.get(name, name)


def reference_names(results: Results) -> dict[str, float]:
    """Return what else than strict float32 speed is compared with, and its speedup over that."""
    named = list(results.reference_speedups.items())[1:]
    return {_called(results, name): speedup for name, speedup in named}


def _references(results: Results) -> str:
    """Say over what a speedup is, and how fast the other references are."""
    others = (f"{name} is {value:.2f}x" for name, value in reference_names(results).items())
    said = ", ".join(others)
    return f" Speedup is over strict float32; {said} that." if said else ""


def _spread(spec: StudySpec) -> str:
    """Say over how many devices a step is spread, and what of that is emulated."""
    base = spec.parallel.base
    if base.devices == 1:
        return ""
    return (
        f" Each of {spec.parallel.devices} devices, float32 with {base.summary}; trained is one "
        "replica of the whole batch, gradients rounded once to the format they are reduced in."
    )


def _modeled(results: Results) -> str:
    """Say what the prices are: with their error where they were compared with measured steps."""
    labels = [trial.cost.label for trial in results.trials[:1]] or ["modeled"]
    return "Modeled, not measured" if labels == ["modeled"] else labels[0].capitalize()


def caption(results: Results) -> str:
    """Return on what the results rest: device, stack, batches, seeds, accumulator, noise.

    First, where it is so, that the recipe cannot rank policies.
    """
    spec = results.spec
    accumulators = [accumulator_named(name) for name in results.accumulators or ("float32",)]
    sums = "; ".join(f"{row.name} ({row.not_modelled})" for row in accumulators)
    seeds = ", ".join(str(seed) for seed in spec.study.seeds)
    ways = ", ".join(sorted({EMULATORS.get(s.fast, "?") for t in results.trials for s in t.scores}))
    between = "one seed, so no interval" if len(spec.study.seeds) == 1 else INTERVALS
    if spec.study.searched != spec.study.seeds:
        first = ", ".join(str(seed) for seed in spec.study.searched)
        between = f"the front; others {first} alone; {between}"
    noise = "not measured"
    if results.noise_gap is not None:
        noise = f"{results.noise_gap:.1e} nats, counted from {results.resolution_gap:.1e} on"
    ranks = f"{results.cannot_rank}\n" if results.cannot_rank else ""
    return (
        f"{ranks}{_modeled(results)}: speed and memory of {spec.cost.device} "
        f"with {spec.cost.stack}, {batches(spec)}.{_references(results)}{_spread(spec)}\n"
        f"Trained: {spec.task.model_name} on {spec.task.data_name}, batch {spec.task.batch_size}, "
        f"{spec.task.steps} steps, seeds {seeds} ({between}). Noise under jitter: {noise}.\n"
        f"{f'Emulated by {ways}. ' if ways else ''}Accumulator, and what it does not model: {sums}."
    )
