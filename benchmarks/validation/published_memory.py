"""Published memory of trainings in two precisions as rows, and what of each prices it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import Literal

from policysearch.cost.memory import StepMemory, step_memory
from policysearch.cost.stacks import STACKS
from policysearch.graph import size
from policysearch.nn.model import Model
from policysearch.objective.published.aliases import device_of
from policysearch.objective.published.models import model_at
from policysearch.objective.published.networks import Network, as_run_by, network_named
from policysearch.objective.published.policies import policy_of
from policysearch.objective.published.row_file import Fields, read_file
from policysearch.objective.published.stacks import (
    FLOAT16,
    FLOAT32,
    Precision,
    pair_named,
    torch_version,
)
from policysearch.optimizers.optimizer import Optimizer, trained
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import trace_step
from policysearch.values import InputError

SHIPPED = Path(__file__).with_name("published_memory.json")

SHIPPED_MEASURED = Path(__file__).with_name("measured_memory.json")
"""Readings of torch 2.11 on an NVIDIA H200, far from full: a step of nets of torchvision and
transformers with random weights, what its allocator counts after some steps."""

Weights = Literal["float32", "cached", "halved", "pure"]
"""How parameters are kept: as they are, with narrow copies, narrow with masters, and without."""

ASSUMED_FRAMEWORK = "PyTorch 1.7"
"""Of a row that names none; the version in which autocast had become usual."""

MODES: Mapping[str, tuple[str, Weights]] = MappingProxyType(
    {
        "AMP": ("float16", "cached"),
        "O1": ("float16", "cached"),
        "AMP-BF16": ("bfloat16", "cached"),
        "FP16": ("float16", "halved"),
        "O2": ("float16", "halved"),
        "BF16": ("bfloat16", "halved"),
        "O3": ("float16", "pure"),
    }
)
"""Format and storage of parameters by the `mode` of a row: autocast, or a model in half precision
with float32 masters; "O3" has none. A row without a mode is autocast."""

OPTIMIZERS: Mapping[str, str] = MappingProxyType(
    {"plain": "sgd", "sgd": "momentum", "adam": "adam", "adamw": "adamw"}
)
"""Names of `optimizers/` by the words of the rows, whose "sgd" has momentum."""

Read = Literal["allocated", "reserved", "process"]
"""What was read: live bytes, what the allocator holds, or that and the context (the default)."""


@dataclass(frozen=True)
class MemoryRow:
    """One published pair of memory readings on one device.

    `batches` and `gib` are baseline and mixed; `gib` None where `largest`: then the batches are
    the largest that fit. `optimizer` None is that of the network's recipe.
    """

    id: str
    model: str
    framework: str
    hardware: str
    length: int | None
    mode: str
    batches: tuple[int, int]
    gib: tuple[float, float] | None
    metric: str
    source: str
    optimizer: str | None = None

    @property
    def largest(self) -> bool:
        return self.gib is None

    @property
    def read(self) -> Read:
        """What the `metric` of the row says was read."""
        said = self.metric.lower()
        if "smi" in said or "context" in said:
            return "process"
        return (
            "allocated" if "allocated" in said else "reserved" if "reserved" in said else "process"
        )


@dataclass(frozen=True)
class Training:
    """A training of one network in one mode, but for its batch.

    `persistent_gradients`: gradients are set to zero and never given back, as frameworks had it
    before `set_to_none`.
    """

    network: Network
    length: int
    precision: Precision
    weights: Weights
    optimizer: str
    persistent_gradients: bool

    def memory(self, batch: int) -> StepMemory:
        """Return the memory of a step at a batch, as that of a user's policy is modeled."""
        return _memory(self, batch)

    def live_bytes(self, batch: int) -> float:
        """Return what lives at the peak of a step at a batch, work space and data included."""
        memory = self.memory(batch)
        kept = 0.0
        if self.persistent_gradients:
            each = 4 if self.weights in ("float32", "cached") else 2
            whole = each * sum(size(row.shape) for row in self.model.parameters())
            kept = max(0.0, whole - memory.gradient_bytes)
        return memory.held_bytes + kept + self.network.data_bytes

    @property
    def model(self) -> Model:
        """The network; since gradients are given back torch has attention in one kernel, too."""
        fused = not (self.persistent_gradients or self.network.recipe.written_attention)
        return model_at(self.network, self.length, fused)


@lru_cache(maxsize=256)
def _memory(training: Training, batch: int) -> StepMemory:
    kind = training.optimizer
    return memory_of(training.model, kind, training.precision, training.weights, batch)


def memory_of(
    model: Model, optimizer: str, precision: Precision, weights: Weights, batch: int
) -> StepMemory:
    """Return the modeled memory of a step of a model, eager and on one device."""
    step = trace_step(model, model.loss, Optimizer(optimizer), batch)
    stack = replace(STACKS["torch.eager"], float32_norms=weights == "cached")
    policy = policy_of(precision, stack, step, model.layer_names)
    return step_memory(apply_policy(step, policy))


@dataclass(frozen=True)
class MemorySetting:
    """A row with both of its trainings and the GiB of its card."""

    row: MemoryRow
    card_gib: float
    trainings: tuple[Training, Training]

    @property
    def family(self) -> str:
        return self.trainings[0].network.family

    @property
    def live_bytes(self) -> tuple[float, float]:
        """What lives at the peaks of both trainings at the row's batches."""
        (baseline, mixed), (first, second) = self.trainings, self.row.batches
        return baseline.live_bytes(first), mixed.live_bytes(second)


def read_memory_rows(path: Path | None = None) -> tuple[MemoryRow, ...]:
    """Return the rows of a JSON file, or those that come with the package.

    Entries whose `kind` is other than "step" are left out. InputError where the file cannot be
    read or a row lacks a field, with its place.
    """
    return read_file(path or SHIPPED, "", memory_row_of).all


def memory_row_of(row: Fields) -> MemoryRow | None:
    """Return a row, None for one of another kind; InputError names the field that is wrong."""
    if row.data.get("kind", "step") != "step":
        return None
    read = row.has("memory_baseline_gib") and row.has("memory_mixed_gib")
    model = row.text("model")
    return MemoryRow(
        id=row.id,
        model=model,
        framework=row.text("framework", _framework(model)),
        hardware=row.text("hardware"),
        length=row.count("seq_len"),
        mode=row.text("mode", "AMP"),
        batches=(row.whole("batch_baseline"), row.whole("batch_mixed")),
        gib=(row.positive("memory_baseline_gib"), row.positive("memory_mixed_gib"))
        if read
        else None,
        metric=row.text("metric", ""),
        source=row.text("source", ""),
        optimizer=row.text("optimizer") if row.has("optimizer") else None,
    )


def _framework(model: str) -> str:
    return f"{ASSUMED_FRAMEWORK} HF" if "(HF)" in model else ASSUMED_FRAMEWORK


def card_gib(label: str) -> float:
    """Return the GiB of a card: those its label names, else the smallest size it is sold with."""
    named = re.search(r"(\d+) ?Gi?B\b", label, re.IGNORECASE)
    return float(named[1]) if named else min(device_of(label).memory_gib)


def memory_setting_of(row: MemoryRow) -> MemorySetting:
    """Return what a row was run with; InputError says what of it is not known."""
    network = as_run_by(network_named(re.sub(r"\s*\(.*\)", "", row.model)), row.framework)
    mode = row.mode.upper().replace("_", "-")
    if mode not in MODES:
        raise InputError(f"unknown mode {row.mode!r}; expected one of {', '.join(MODES)}")
    if row.largest and "max batch" not in row.metric:
        raise InputError("no memory, and its metric is no 'max batch'")
    if min(row.batches) < 1:
        raise InputError(f"a batch of {min(row.batches)}")
    if row.optimizer is not None and row.optimizer not in OPTIMIZERS:
        known = ", ".join(OPTIMIZERS)
        raise InputError(f"unknown optimizer {row.optimizer!r}; expected one of {known}")
    format, weights = MODES[mode]
    half = replace(FLOAT16, products=format, convolutions=format, activations=format)
    given = (row.length, OPTIMIZERS[row.optimizer] if row.optimizer else None)
    baseline = training(network, row.framework, FLOAT32, "float32", *given)
    mixed = training(network, row.framework, half, weights, *given)
    return MemorySetting(row, card_gib(row.hardware), (baseline, mixed))


def training(
    network: Network,
    framework: str,
    precision: Precision,
    weights: Weights,
    length: int | None = None,
    optimizer: str | None = None,
) -> Training:
    """Return a training; framework and version decide how gradients are kept."""
    pair_named(framework)
    steps = length or network.longest or network.length
    named = optimizer or network.optimizer
    if named not in trained():
        named = "adam"  # LAMB has the states of Adam
    masters = replace(precision, masters=weights != "pure")
    return Training(network, steps, masters, weights, named, not _modern(framework))


def _modern(framework: str) -> bool:
    """Whether a framework is a torch whose gradients are given back between steps: 2 or newer."""
    version = torch_version(framework)
    return version is not None and version >= (2, 0)
