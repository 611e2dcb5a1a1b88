"""Published throughputs in two precisions as rows, and what of each has to be known to price it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import isclose
from pathlib import Path
from types import MappingProxyType

from policysearch.cost.devices import Device
from policysearch.cost.gemm import OLDEST_UNALIGNED_LIBRARY
from policysearch.cost.stacks import Stack
from policysearch.objective.published.aliases import device_of
from policysearch.objective.published.graphs import Run
from policysearch.objective.published.models import own_network
from policysearch.objective.published.networks import Network, as_run_by, network_named
from policysearch.objective.published.row_file import Fields, read_file
from policysearch.objective.published.stacks import (
    FLOAT32,
    TFLOAT32,
    Pair,
    Precision,
    channels_last,
    compiled,
    pair_named,
)
from policysearch.train.user_code import found_from, is_user_code
from policysearch.values import InputError

SHIPPED = (
    "published_speedups.json",
    "published_speedups_more_devices.json",
    "published_speedups_2.json",
)
"""Files of rows that come with the package; constants are fitted to all of them."""

FORMATS: Mapping[str, str] = MappingProxyType(
    {"fp32": "float32", "tf32": "tfloat32", "fp16": "float16", "bf16": "bfloat16"}
)
"""Formats by the names that rows use."""

LENGTH = re.compile(r"\s*\(seq[a-z_ ]*[ =]*(\d+)\)$", re.IGNORECASE)
"""A sequence length behind the name of a network, as in "BERT Large (seq 512)"."""

SPEEDUP_TOLERANCE = 0.02
"""How far a published speedup may lie from that of its throughputs: both are rounded."""


@dataclass(frozen=True)
class Row:
    """One published pair of throughputs on `devices` devices, of all of them together.

    `speedup` is the mixed throughput over the baseline's, as published where it is; `batches` are
    baseline and mixed, `notes` the confounders and flags of the row's collector. `source` names
    repository and line. `data` and `optimizer` are those of a net of the user's.
    """

    id: str
    model: str
    framework: str
    hardware: str
    length: int | None
    batches: tuple[int, int]
    formats: tuple[str, str]
    throughputs: tuple[float, float]
    speedup: float
    notes: tuple[str, ...]
    source: str
    devices: int = 1
    data: str = ""
    optimizer: str = ""

    @property
    def doubtful(self) -> bool:
        """Whether the speedup is not that of the throughputs."""
        wide, mixed = self.throughputs
        return not isclose(self.speedup, mixed / wide, rel_tol=SPEEDUP_TOLERANCE)

    @property
    def pure(self) -> bool:
        """Whether parameters are in half precision and nothing updates them."""
        return "pure half" in self.formats[1]


@dataclass(frozen=True)
class Setting:
    """What a row was run with: its network, device, and stack and precision of both runs."""

    row: Row
    network: Network
    device: Device
    stacks: Pair
    precisions: tuple[Precision, Precision]

    @property
    def length(self) -> int:
        return self.row.length or self.network.length

    @property
    def binned(self) -> bool:
        """Whether it ran on shorter sequences than it says; see `Recipe.binned`."""
        longest = self.length == max(self.network.lengths)
        return longest and self.stacks.framework in self.network.recipe.binned

    @property
    def runs(self) -> tuple[Run, Run]:
        """The baseline and the mixed run, each on one device."""
        stacks = (self.stacks.baseline, self.stacks.mixed)
        given = zip(self.row.batches, self.precisions, stacks, strict=True)
        first, second = (Run(self.network, self.length, b, p, self.device, s) for b, p, s in given)
        return first, second


def read_rows(path: Path | None = None, shipped: str = SHIPPED[0]) -> tuple[Row, ...]:
    """Return the rows of a JSON file, or of one that comes with the package.

    InputError where the file cannot be read or a row lacks a field, with its place.
    """
    return read_file(path, shipped, row_of).all


def shipped_rows() -> tuple[Row, ...]:
    """Return all rows that come with the package."""
    return tuple(row for name in SHIPPED for row in read_rows(shipped=name))


def row_of(row: Fields) -> Row:
    """Return a row; InputError names the field that is wrong."""
    return Row(
        id=row.id,
        model=found_from(row.folder, row.text("model")),
        framework=row.text("framework"),
        hardware=row.text("hardware"),
        length=_length(row),
        batches=(row.whole("batch_per_gpu_baseline"), row.whole("batch_per_gpu_mixed")),
        formats=(row.text("dtype_baseline"), row.text("dtype_mixed")),
        throughputs=_throughputs(row),
        speedup=_speedup(row),
        notes=(*row.texts("confounders"), *row.texts("flags")),
        source=row.text("source", ""),
        devices=row.count("n_gpu") or 1,
        data=found_from(row.folder, row.text("data", "")),
        optimizer=row.text("optimizer", ""),
    )


def _length(row: Fields) -> int | None:
    """Return the sequence length of a row, that behind its network's name where it gives none."""
    given, named = row.count("seq_len"), LENGTH.search(row.text("model"))
    if named and given not in (None, int(named[1])):
        raise InputError(f"{row.where}: seq_len: {given}; expected {named[1]} as in its 'model'")
    return int(named[1]) if named else given


def _throughputs(row: Fields) -> tuple[float, float]:
    return row.positive("throughput_baseline"), row.positive("throughput_mixed")


def _speedup(row: Fields) -> float:
    """Return the published speedup, that of the throughputs where there is none."""
    wide, mixed = _throughputs(row)
    return row.positive("speedup") if row.has("speedup") else mixed / wide


def setting_of(row: Row) -> Setting:
    """Return what a row was run with; InputError says what of it is not known.

    Stacks follow from framework, notes and the network's recipe. "fp32" on a device that has
    tfloat32 is what the framework makes of it by default.
    """
    network = as_run_by(_network(row), row.framework, row.source)
    device = device_of(row.hardware)
    for batch in row.batches:
        if batch < 1:
            raise InputError(f"a batch of {batch}")
    stacks = _of_recipe(pair_named(row.framework, row.notes), network)
    tfloat32 = "tfloat32" in device.formats
    if tfloat32:
        newer = max(stacks.baseline.library, OLDEST_UNALIGNED_LIBRARY)
        stacks = stacks.changed(library=newer)
    narrow = row.formats[1].split(" ")[0]
    if row.formats[0] not in ("fp32", "tf32") or narrow not in ("fp16", "bf16"):
        raise InputError(f"{row.formats[0]} against {row.formats[1]}: not float32 against half")
    wide = _wide(row.formats[0], stacks.baseline, tfloat32)
    half = FORMATS[narrow]
    mixed = Precision(half, half, half, masters=not row.pure, update=not row.pure)
    return Setting(row, network, device, stacks, (replace(wide, update=not row.pure), mixed))


def _network(row: Row) -> Network:
    """Return the network of a row: a recorded one, or the net of a function of the user's."""
    if not is_user_code(row.model):
        found = network_named(LENGTH.sub("", row.model))
        lengths = found.lengths
        if row.length and lengths != (0,) and row.length not in lengths:
            there = ", ".join(map(str, lengths))
            raise InputError(f"{found.name} of length {row.length}: no record; expected {there}")
        return found
    return own_network(row.model, row.data, row.optimizer)


def emulated(setting: Setting) -> list[str]:
    """Return what the device of a row runs its formats as, where it lacks them."""
    return said_as_run((p.products for p in setting.precisions), setting.device)


def said_as_run(formats: Iterable[str], device: Device) -> list[str]:
    """Return a line for each of the formats that the device runs as another."""
    return [
        f"{name} on {device.name} runs as {device.runs_as(name)}"
        for name in dict.fromkeys(formats)
        if device.runs_as(name) != name
    ]


def _of_recipe(stacks: Pair, network: Network) -> Pair:
    """Return the stacks with what the network's published recipe changes in them."""
    if stacks.framework in network.recipe.compiled:
        stacks = compiled(stacks)
    if stacks.framework in network.recipe.compiled_mixed:
        stacks = replace(stacks, mixed=compiled(stacks).mixed)
    if stacks.framework in network.recipe.channels_last:
        stacks = replace(stacks, mixed=channels_last(stacks.mixed))
    if stacks.framework in network.recipe.fused_update:
        stacks = stacks.changed(fused_optimizer=True)
    if stacks.framework in network.recipe.unfused_update:
        stacks = stacks.changed(fused_optimizer=False)
    if stacks.framework in network.recipe.float32_norms:
        stacks = stacks.changed(float32_norms=True)
    if stacks.framework == "torch" and network.recipe.update:
        stacks = replace(stacks, baseline=replace(stacks.baseline, fused_optimizer=False))
    return stacks


def _wide(given: str, stack: Stack, tfloat32: bool) -> Precision:
    """Return what a baseline computes in; "fp32" is what the stack makes of it by default."""
    if not tfloat32:
        return FLOAT32
    if given == "tf32":
        return TFLOAT32
    return Precision(stack.float32_products, stack.float32_convolutions, "float32")
