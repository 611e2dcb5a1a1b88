"""Whether a policy trains in its target as it was trained here."""

from __future__ import annotations

import json
import pickle
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from policysearch.data.datasets import Dataset
from policysearch.export.targets import target_named
from policysearch.nn.model import Model
from policysearch.policy.policy import LayerPolicy, Policy
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.feeding import batch_order
from policysearch.train.run import Run
from policysearch.train.step import SMALLEST_BATCH, trace_forward
from policysearch.train.tasks import Task
from policysearch.values import InputError, one_of
from policysearch.verify.forced_steps import ForcedSteps, forced_steps
from policysearch.verify.jittered_runs import (
    DRAWS,
    Array,
    Reference,
    Tell,
    emulator_runs,
    gaps,
    is_borderline,
    jitter_of,
    parting,
    reference_of,
    silent,
)

JOB, FILE, RESULT, VALUES = "job.pickle", "exported.py", "result.json", "values.npz"
"""Names in the folder that the two processes share: the job, the exported file, what came of it,
and where the job keeps them, the values before each step."""


@dataclass(frozen=True)
class Job:
    """What is trained: the task over its steps, on the batches and values of the seed.

    `source` is the user's module or its maker, None for a model that is built in or in a file.
    `place` is the device, as torch calls it. `keeps` says whether the values before every step, and
    after the last, are wanted.
    """

    task: Task
    policy: Policy
    seed: int
    source: Any = None
    place: str = "cpu"
    keeps: bool = False


UNMASKED = (
    "dropout inside attention or between recurrent layers, by masks of its own: left out on both "
    "sides"
)
"""What of a step is compared as if it were not there."""
RUN = ("torch",)
"""The targets that are run here."""
EXTRAS = MappingProxyType({"torch": "torch", "torchao": "float8"})
"""What installs a package that a target needs."""
EARLY_STEPS = 10
EARLY_GAP = 5e-5
"""Largest difference of a loss in the first EARLY_STEPS steps, in nats."""
LATE_GAP = 1e-4
"""The same over all steps, where the emulator under JITTER does not move by half of it."""


@dataclass(frozen=True, eq=False)
class Verdict:
    """Losses, loss scales and skips per step, of the emulator's `own` training and the target's.

    `gaps` are the differences of the losses, 0 where both are not finite. `compared` counts the
    steps before the scales part, all of them where they do not; `borderline` says whether they part
    where a gradient is within BORDER of overflow. `dtypes` are those of the results of the target's
    submodules, `formats` what the policy asks of those that hold no others. `unlike` has a line for
    what the target does otherwise in any case. `calls` are those of torch in the first step with
    their dtypes, `events` what the loss scale does where it is forced, `edits` what a file does
    otherwise than the one that is exported now. `forced` are steps from the target's own values,
    which decide where the emulator's trainings part from one another.
    """

    policy: Policy
    target: str
    own: Reference
    losses: Array
    scales: Array
    skipped: Array
    compared: int
    borderline: bool
    dtypes: dict[str, str]
    formats: dict[str, str]
    state_keys: int
    same_keys: bool
    unlike: tuple[str, ...] = ()
    calls: tuple[str, ...] = ()
    events: tuple[tuple[float, float], ...] = ()
    edits: tuple[str, ...] = ()
    forced: ForcedSteps | None = None

    @property
    def here(self) -> Run:
        """Return the training of the emulator that the target's is compared with."""
        return self.own.run

    @property
    def gaps(self) -> Array:
        """Return the difference of the losses of every step."""
        return gaps(self.losses, self.here.losses)

    @property
    def own_gap(self) -> float:
        """Return the largest gap of the emulator to itself, in nats."""
        return float(self.own.gaps.max(initial=0.0))

    @property
    def own_early_gap(self) -> float:
        """Return the same in the first EARLY_STEPS steps."""
        return float(self.own.gaps[:EARLY_STEPS].max(initial=0.0))

    @property
    def allowed(self) -> Array:
        """Return the largest difference allowed at every step."""
        return self._limits(EARLY_GAP)

    def _limits(self, early_gap: float) -> Array:
        early = np.arange(len(self.losses)) < EARLY_STEPS
        return np.where(early, early_gap, max(LATE_GAP, 2.0 * self.own_gap))

    @property
    def faults(self) -> tuple[str, ...]:
        """Return what does not agree, one line each."""
        lines = [line for line, chaotic in self._partings() if not chaotic]
        for name, wanted in self.formats.items():
            if self.dtypes[name] != wanted:
                lines.append(f"{name}: results are {self.dtypes[name]}; expected {wanted}")
        if not self.same_keys:
            lines.append("state_dict: other keys than without the policy")
        return (*self.edits, *lines, *(self.forced.faults if self.forced else ()))

    @property
    def undecided(self) -> tuple[str, ...]:
        """Return what does not agree where the emulator does not agree with itself either.

        That is early losses beyond EARLY_GAP, as the emulator's own are under JITTER, and no
        further apart than twice those; or what parts where most of its draws have other scales
        already: there the target may have taken a way that none of the draws shows. Where steps
        were `forced` they decide that. So are losses that both end without: of those nothing can
        be compared.
        """
        return (*(() if self.forced else self.chaotic), *self._lost())

    @property
    def chaotic(self) -> tuple[str, ...]:
        """Return where losses or scales part as those of the emulator's own trainings do."""
        return tuple(line for line, chaotic in self._partings() if chaotic)

    def _lost(self) -> tuple[str, ...]:
        """Say from where on no loss is finite, neither here nor there."""
        known = np.isfinite(self.losses) | np.isfinite(self.here.losses)
        count = len(known) if not known.any() else int(np.argmax(known[::-1]))
        if not count:
            return ()
        step = len(known) - count
        return (f"step {step}: no loss is finite from here on, neither here nor in {self.target}",)

    def _partings(self) -> Iterator[tuple[str, bool]]:
        """Yield where losses, then scales, part; and whether the emulator's own do as well."""
        gaps_compared, own = self.gaps[: self.compared], max(EARLY_GAP, 2.0 * self.own_early_gap)
        for early_gap in (own, EARLY_GAP):
            beyond = np.flatnonzero(gaps_compared > self._limits(early_gap)[: self.compared])
            if len(beyond):
                first = int(beyond[0])
                yield self._said(first), early_gap < own or self._is_chaotic(first)
                break
        if self.compared < len(self.losses) and not self.borderline:
            line = f"step {self.compared}: other loss scales, no gradient near overflow"
            yield f"{line} ({self._parting_words(self.compared)})", self._is_chaotic(self.compared)

    def _is_chaotic(self, step: int) -> bool:
        """Whether most of the emulator's draws have other scales by then."""
        return 2 * int(np.sum(self.own.partings <= step)) > DRAWS

    def _parting_words(self, step: int) -> str:
        parted = int(np.sum(self.own.partings <= step))
        return f"{parted} of {DRAWS} jittered trainings part from the emulator by then"

    def _said(self, step: int) -> str:
        apart, most, own = self.gaps[step], self.allowed[step], self.own_early_gap
        parted = f"; {self._parting_words(step)}" if np.any(self.own.partings <= step) else ""
        return (
            f"step {step}: losses {apart:.1e} apart; expected at most {most:.1e} "
            f"(the emulator moves itself by {own:.1e} in the first {EARLY_STEPS} steps{parted})"
        )


def verify(
    policy: Policy,
    task: Task,
    *,
    target: str = "torch",
    steps: int = 50,
    seed: int = 0,
    place: str = "cpu",
    text: str | None = None,
    progress: Tell = silent,
) -> Verdict:
    """Train the policy as `target` runs it, here and, in another process, there on `place`.

    Both have the same values and batches. `text` is the file that trains there, that which is
    exported now where there is none. `progress` is told before each of up to STAGES trainings.
    Raises InputError where the target cannot run.
    """
    task, dataset = task.with_steps(steps), task.load_dataset()
    batch_order(task, dataset, seed)  # a batch that the data has not is refused before torch starts
    built, exporter = task.build_model(dataset), target_named(one_of("verify target", target, RUN))
    model = built.without_inner_masks()
    runs = exporter.runs(policy, model)
    running, unlike = _on_place(runs, place), [] if model is built else [UNMASKED]
    progress(target)
    result = trained_in_torch(policy, task, model, seed, place, text)
    made = beside_emulator(
        result["steps"],
        task,
        running,
        model,
        dataset,
        seed,
        progress,
        target=target,
        **_told(result, running, model),
        unlike=(*exporter.losses(running, model), *_not_there(runs, place), *unlike),
    )
    told = seed, place, text, progress
    return _verdict_with_steps(made, policy, task, model, dataset, *told) if made.chaotic else made


def beside_emulator(
    steps: Sequence[Sequence[float]],
    task: Task,
    running: Policy,
    model: Model,
    dataset: Dataset,
    seed: int,
    progress: Tell = silent,
    **told: Any,
) -> Verdict:
    """Return the verdict on the steps of a target: (loss, scale, skipped) of each.

    `told` are the fields of a verdict that do not come from the emulator.
    """
    first, *moved = emulator_runs(task, running, model, dataset, seed, progress)
    losses, scales, skipped = np.array(steps, np.float64).T
    ours = reference_of(first, moved, scales, skipped, jitter_of(task, model))
    losses, scales, skipped = (x[: len(ours.run.losses)] for x in (losses, scales, skipped))
    apart = parting(ours.run, scales, skipped)
    one_skips = apart < len(losses) and bool(scales[apart] == ours.run.scales[apart])
    border = one_skips and is_borderline(task, running, model, dataset, seed, apart)
    return Verdict(
        policy=running,
        own=ours,
        losses=losses,
        scales=scales,
        skipped=skipped.astype(bool),
        compared=apart + border,  # the loss of that step is before its update
        borderline=border,
        **told,
    )


def _verdict_with_steps(
    verdict: Verdict,
    policy: Policy,
    task: Task,
    model: Model,
    dataset: Dataset,
    seed: int,
    place: str,
    text: str | None,
    progress: Tell,
) -> Verdict:
    """Return the verdict with steps from the values of the target, which trains again for them."""
    progress(f"{verdict.target}, its values kept")
    result = trained_in_torch(policy, task, model, seed, place, text, keeps=True)
    progress("single steps of both")
    there = result["values"], result["steps"]
    forced = forced_steps(task, verdict.policy, model, dataset, seed, *there)
    return replace(verdict, forced=forced)


def _told(result: dict[str, Any], running: Policy, model: Model) -> dict[str, Any]:
    """Return the fields of a verdict that the training in the target says by itself.

    And what the policy asks of the modules whose results it has seen.
    """
    events = tuple((scale, value) for scale, value in result["events"])
    counts = {
        "dtypes": result["dtypes"],
        "state_keys": result["keys"],
        "same_keys": result["same_keys"],
    }
    formats = _formats(running, model, set(result["leaves"]) & set(result["dtypes"]))
    return {**counts, "formats": formats, "calls": tuple(result["calls"]), "events": events}


def _on_place(running: Policy, place: str) -> Policy:
    """Return the policy as that place runs it.

    Optimizers have the numbers of updates otherwise there, a CPU has no TF32, and CUDA rounds a
    convolution before its bias is added (`at::convolution` adds it to what cuDNN gives).
    """
    if place == "cpu":
        running = running.with_layers(
            {name: LayerPolicy() for name, row in running.layers if row.compute == "tfloat32"}
        )
    elif running.bias == "fused":
        running = replace(running, bias="convolution_rounded")
    if running.optimizer_order == "fused":
        return running
    return replace(running, optimizer_scalars="storage" if place == "cpu" else "float32")


def _not_there(running: Policy, place: str) -> Iterator[str]:
    layers = [name for name, row in running.layers if row.compute == "tfloat32"]
    if layers and place == "cpu":
        yield f"{layers[0]}: products in TF32 ({len(layers)} such layers) are float32 on a CPU"


def _formats(policy: Policy, model: Model, names: set[str]) -> dict[str, str]:
    """Return the format of what each of these layers gives on."""
    nodes = apply_policy(trace_forward(model, SMALLEST_BATCH), policy).nodes
    return {n.layer: n.format for n in nodes if n.role == "fprop" and n.layer in names}


def trained_in_torch(
    policy: Policy,
    task: Task,
    model: Model,
    seed: int,
    place: str,
    text: str | None = None,
    keeps: bool = False,
) -> dict[str, Any]:
    """Return what the training with the exported file gave, or with `text`, in a fresh process.

    Where it `keeps` them, "values" are those before each step and after the last, by name.
    """
    task.build_optimizer().in_torch()  # refused before a process starts
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / FILE).write_text(text or target_named("torch").export(policy, model))
        source = None if isinstance(task.model, str) else getattr(model, "source", None)
        job = Job(task, target_named("torch").runs(policy, model), seed, source, place, keeps)
        (folder / JOB).write_bytes(pickle.dumps(job))
        module = "policysearch.verify.torch_training"
        done = subprocess.run(
            [sys.executable, "-m", module, name], capture_output=True, text=True, check=False
        )
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no message"])[-1]
            _check_installed(reason)
            refused = f"{InputError.__module__}.{InputError.__name__}: "
            if reason.startswith(refused):
                raise InputError(f"verify in torch: {reason.removeprefix(refused)}")
            raise InputError(f"verify in torch: {reason}; expected it to train")
        result: dict[str, Any] = json.loads((folder / RESULT).read_text())
        if keeps:
            result["values"] = values_in(folder / VALUES, len(result["steps"]) + 1)
        return result


def values_in(file: Path, count: int) -> list[dict[str, Array]]:
    """Return the values in a file of NumPy's, by step."""
    values: list[dict[str, Array]] = [{} for _ in range(count)]
    with np.load(file) as held:
        for key in held.files:
            step, _, name = key.partition(" ")
            values[int(step)][name] = held[key]
    return values


def _check_installed(reason: str) -> None:
    """Raise InputError with the extra that installs it where a package is what is missing."""
    missing = re.search(r"No module named '(\w+)", reason)
    if missing and missing[1] in EXTRAS:
        raise InputError(
            f"verify in torch: {missing[1]} is not installed; expected pip install "
            f"'policysearch[{EXTRAS[missing[1]]}]'"
        )
