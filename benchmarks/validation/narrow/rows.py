"""Published speedups of 8-bit and smaller products over bfloat16, and the layers of each row."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.validation.narrow.as_run import as_run
from benchmarks.validation.narrow.decoders import Decoder, block, decoder, decoder_named
from benchmarks.validation.narrow.layers import Layers
from benchmarks.validation.narrow.parallel import Run, waited_seconds
from benchmarks.validation.narrow.precision import NarrowPrecision
from benchmarks.validation.narrow.scalings import (
    ALL,
    SCALINGS,
    NarrowConstants,
    Scaling,
    read_held_out,
    scaling_named,
)
from policysearch.cost.devices import Device
from policysearch.cost.gemm import Extents
from policysearch.cost.parallel.collectives import LINK_SHARE, link_of
from policysearch.cost.roofline import FITTED, Constants, joined_seconds, kernel_seconds, load_of
from policysearch.cost.stacks import STACKS, Stack
from policysearch.objective.published.aliases import device_of
from policysearch.objective.published.row_file import Fields, read_file
from policysearch.objective.published.rows import FORMATS, said_as_run
from policysearch.policy.parallel import Parallel
from policysearch.values import InputError, number

SHIPPED = Path(__file__).with_name("published_narrow.json")
SHIPPED_MORE = Path(__file__).with_name("published_narrow_2.json")
"""Rows that come with the repository: most recipes were chosen with the first in view, some with
both."""

BFLOAT16 = NarrowPrecision("bfloat16", "bfloat16", "bfloat16", masters=False)

LARGEST_SIZE = 2**40
"""No extent of a product and no batch is larger."""

BATCH = "batch_per_gpu"

EIGHT_BIT = ("fp8", "nvfp4", "mxfp8")

SPREAD = re.compile(r"\b(TP|PP|CP|DP|DDP|FSDP\d?|ZeRO|data|tensor)\b|\b[TPC]P\d", re.IGNORECASE)
"""Words that say how a run is spread over devices."""

MEGATRON = re.compile(r"megatron|nemo", re.IGNORECASE)

UNCOMPILED = re.compile(rf"Transformer ?Engine(?! \(JAX)|\bTE\b|{MEGATRON.pattern}", re.IGNORECASE)
"""Names of libraries whose modules launch their fused kernels one by one, each from Python."""

FORWARD = re.compile(r"forward only|fprop|matmul, shape|MAMF", re.IGNORECASE)
"""Names of rows that time one product, forward alone."""

LARGE = 8192
"""Extent of the best of many shapes, where a row says no more."""

FLAGS = re.compile(r"flags differ: bf16 (.*)\| fp8 (.*)")
"""A note on runs that were started with different flags."""


@dataclass(frozen=True)
class NarrowRow:
    """A published ratio of throughputs. `sizes` are M, N, K and groups of products, 0 if not given.

    `batches`: sequences of a micro-batch in bfloat16 and narrow; `accumulation` micro-batches.
    """

    id: str
    kind: str
    model: str
    hardware: str
    parallelism: str
    length: int
    batches: tuple[int, int]
    accumulation: int
    formats: tuple[str, str]
    recipe: str
    sizes: tuple[int, int, int, int]
    speedup: float
    notes: tuple[str, ...]
    devices: int = 1
    framework: str = ""
    whole_batch: int = 0

    @property
    def shards(self) -> int:
        """How many devices its products are split over."""
        return self._ways("TP")

    @property
    def stages(self) -> int:
        """How many stages of a pipeline its blocks are parted in."""
        return self._ways("PP")

    def _ways(self, kind: str) -> int:
        found = re.search(rf"\b{kind}=? ?([1-9]\d*)", self.parallelism)
        return int(found[1]) if found else 1

    @property
    def parallel(self) -> Parallel:
        """How gradients are spread: FSDP is stage 3 of ZeRO, plain DP divides the optimizer state.

        Stages and parts of sequences have gradients of their own. Megatron divides the optimizer
        state as well. Where nothing is said of the layout, nothing is exchanged.
        """
        said, alone = self.parallelism, self.stages * self._ways("CP")
        if self.devices > 1 and not SPREAD.search(said):
            return Parallel(1, 1, 0)
        devices = self.devices // alone if self.devices % alone == 0 else self.devices
        tensor = self.shards if devices % self.shards == 0 else 1
        megatron = MEGATRON.search(self.framework) is not None
        zero = 3 if re.search(r"FSDP(?!=0\b)", said) else 0
        zero = zero or (1 if megatron or re.search(r"\bDP\b", said) else 0)
        return Parallel(devices, tensor, zero)

    @property
    def wide_share(self) -> float:
        """The share of its blocks that multiply in the activations' format, as the row says."""
        if narrow := re.search(r"(\d+) of (\d+) blocks", self.formats[1]):
            return 1 - int(narrow[1]) / int(narrow[2])
        wide = re.search(r"last (\d+) of (\d+) layers", self.formats[1])
        return int(wide[1]) / int(wide[2]) if wide else 0.0

    @property
    def micro_batches(self) -> int:
        """Micro-batches of a step: as said, else those that make the batch of all devices."""
        if self.accumulation > 1 or not self.whole_batch:
            return self.accumulation
        return max(1, round(self.whole_batch / (self.batches[0] * self.parallel.groups)))

    @property
    def asynchronous(self) -> bool:
        """Whether products are cut in parts that overlap exchanges: Megatron's default recipes."""
        return "async TP" in self.parallelism or MEGATRON.search(self.framework) is not None


def read_narrow_rows(path: Path | None = None) -> tuple[NarrowRow, ...]:
    """Return the rows of a JSON file, or those of the package; InputError names a broken place."""
    paths = (path,) if path else (SHIPPED, SHIPPED_MORE)
    return tuple(row for each in paths for row in read_file(each, "", narrow_row_of).all)


def narrow_row_of(row: Fields) -> NarrowRow:
    """Return a row; InputError names the field that is wrong."""
    batch = row.table(BATCH)
    micro = batch.get("micro", batch.get("tokens"))
    batches = (batch.get("micro_bf16", micro), batch.get("micro_fp8", micro))
    m, n, k, groups = (_size(row, key, row.data.get(key)) for key in ("M", "N", "K", "groups"))
    return NarrowRow(
        row.id,
        row.text("kind"),
        row.text("model"),
        row.text("hardware"),
        row.text("parallelism", ""),
        row.count("seq_len") or 0,
        (_size(row, BATCH, batches[0]) or 1, _size(row, BATCH, batches[1]) or 1),
        _size(row, BATCH, batch.get("grad_accum_bf16")) or 1,
        (row.text("dtype_baseline"), row.text("dtype_mixed")),
        row.text("recipe", ""),
        (m, n, k, groups),
        row.positive("speedup"),
        row.texts("confounders"),
        row.count("n_gpu") or 1,
        row.text("framework", ""),
        _size(row, BATCH, batch.get("global")),
    )


def _size(row: Fields, key: str, value: object) -> int:
    """Return a size, 0 where it is missing or described in words; a text of digits is a number."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,12}", value):
        value = int(value)
    if value == "best":
        return LARGE
    if not isinstance(value, int) or value <= 0:
        return 0
    number(f"{row.where}: {key}", value, 1, LARGEST_SIZE)
    return value


def narrow_speedup(
    row: NarrowRow, constants: Constants = FITTED, narrow: NarrowConstants | None = None
) -> float:
    """Return the modeled speedup of a row; InputError says what of it is not known.

    `narrow` are the constants of recipes, those fitted to all rows unless given.
    """
    device = device_of(row.hardware)
    narrow = narrow or read_held_out()[ALL]
    baseline, mixed = (_fitted(precision, narrow) for precision in _precisions(row))
    seconds = []
    for precision, batch in zip((baseline, mixed), row.batches, strict=True):
        step = Layers(_stack(row, precision is mixed), precision)
        build(row, step, batch)
        _check_shared(row, step)
        alone = _seconds(step, device, constants)
        micro = max(1, round(row.micro_batches * row.batches[0] / batch))
        run = Run(step, alone, device, row.parallel, BFLOAT16.activations, micro, row.asynchronous)
        waited = waited_seconds(run) if row.kind == "end-to-end" else 0.0
        seconds.append((alone + waited + _host_seconds(row, step, device)) / batch)
    return seconds[0] / seconds[1]


def _fitted(precision: NarrowPrecision, narrow: NarrowConstants) -> NarrowPrecision:
    scaling = precision.scaling
    return replace(precision, scaling=narrow.of(scaling)) if scaling else precision


def _seconds(step: Layers, device: Device, constants: Constants) -> float:
    load = load_of(as_run(step.works, device), device, step.stack)
    each = kernel_seconds(load, constants)
    launches = float((load.launch_seconds * load.count).sum()) * constants.launch_factor
    kernels = ((each.kernel + each.shift) * load.count).sum()
    return float(joined_seconds(kernels, launches, device))


def _precisions(row: NarrowRow) -> tuple[NarrowPrecision, NarrowPrecision]:
    """Return what both runs multiply in: named formats, or bfloat16 and scaling recipes."""
    words = [FORMATS.get(name) for name in row.formats]
    if words[0] and words[1]:
        return _plain(words[0]), _plain(words[1])
    if not is_eight_bit(row):
        raise InputError(f"{row.formats[0]} against {row.formats[1]}: no 8-bit or smaller format")
    return _baseline(row), _mixed(row)


def _baseline(row: NarrowRow) -> NarrowPrecision:
    """Return what the baseline multiplies in as it is stated: bfloat16 unless in 8 bits itself."""
    said = row.formats[0]
    if any(name in said.lower() for name in EIGHT_BIT):
        return replace(BFLOAT16, scaling=scaling_named(said), accumulation=row.micro_batches)
    named = FORMATS.get(said, "bfloat16")
    return BFLOAT16 if named == "bfloat16" else _plain(named)


def _mixed(row: NarrowRow) -> NarrowPrecision:
    scaling = scaling_named(f"{row.recipe} {row.formats[1]}")
    kernel = "pre-quantized" in row.model and scaling.name != "delayed"
    if kernel or "MAMF" in row.model or "gemm only" in row.formats[1]:
        scaling = replace(scaling, launches=0)
    return replace(BFLOAT16, scaling=scaling, accumulation=row.micro_batches)


def recipes_of(row: NarrowRow) -> tuple[str, ...]:
    """Return the names of the recipes that the runs of a row scale by, that of the faster last."""
    return tuple(p.scaling.name for p in _precisions(row) if p.scaling)


def families_of(row: NarrowRow) -> set[str]:
    """Return the families of the recipes that the runs of a row scale by."""
    return {SCALINGS[name].family for name in recipes_of(row)}


def emulated(row: NarrowRow) -> list[str]:
    """Return what the device of a row runs its formats as, where it lacks them."""
    precisions = _precisions(row)
    scaled = [p.scaling.format for p in precisions if p.scaling]
    return said_as_run([*(p.products for p in precisions), *scaled], device_of(row.hardware))


def is_eight_bit(row: NarrowRow) -> bool:
    """Whether the narrow run multiplies in 8 bits of floating point or fewer."""
    return any(name in row.formats[1].lower() for name in EIGHT_BIT)


def _plain(format: str) -> NarrowPrecision:
    stored = "float32" if format in ("float32", "tfloat32") else format
    return NarrowPrecision(format, format, stored, masters=False)


def _stack(row: NarrowRow, mixed: bool) -> Stack:
    """Return the stack of a run: compiled or with fused kernels of a library, unless said eager."""
    said, fused = row.formats[1 if mixed else 0].lower(), STACKS["torch.compile"]
    if "eager" in said and "+ torch.compile" not in said:
        return STACKS["torch.eager"]
    if UNCOMPILED.search(f"{row.framework}, {row.formats[1]}"):
        return replace(fused, launch_seconds=STACKS["torch.eager"].launch_seconds)
    return fused


def build(row: NarrowRow, step: Layers, batch: int) -> None:
    """Add the works of a row's step to a list; InputError says what of it is not known."""
    sizes = decoder_named(re.sub(r" \(.*\)", "", row.model))
    shards, (m, n, k, groups) = row.shards, row.sizes
    if sizes is not None and row.kind == "end-to-end":
        flags = _flags(row, step.precision.scaling is not None)
        again = [flag.removeprefix("--recompute-") for flag in flags if "recompute" in flag]
        length = row.length or 2048
        decoder(step, batch, length, sizes, shards, again, row.stages, row.wide_share)
    elif found := re.search(r"transformer layer.* hidden (\d+),? ffn (\d+)", row.model):
        width, inner = int(found[1]), int(found[2])
        _layer(row, step, batch, Decoder(width, 1, 32, 32, inner, 0, gated=False))
    elif not (m and n and k):
        raise InputError("shapes are not given; expected M, N and K, or a decoder known by name")
    elif FORWARD.search(row.model):
        _forward(step, m, n, k)
    elif "expert" in row.model or "MoE" in row.model:
        _experts(step, row, m, n, k, groups or 8)
    elif "square" in row.model:
        step.single_product(Extents(1, m, n, k, (m, n, k)), m * n + m * k + n * k)
    else:
        step.linear(m // max(1, shards // 2), k, n // shards, bias=False)


def _check_shared(row: NarrowRow, step: Layers) -> None:
    """Raise InputError where a device has no part of a product."""
    for e in (work.product for work in step.works if work.product):
        if min(e.batch, e.rows, e.columns, e.depth) < 1:
            sides = f"{e.batch} x {e.rows} x {e.columns} x {e.depth:g}"
            raise InputError(f"a product of {sides}; expected one that {row.shards} devices share")


def _flags(row: NarrowRow, mixed: bool) -> list[str]:
    """Return the flags of a run, where a note has those of both."""
    found = next((found for note in row.notes if (found := FLAGS.fullmatch(note))), None)
    return found[2 if mixed else 1].split() if found else []


def _host_seconds(row: NarrowRow, step: Layers, device: Device) -> float:
    """Return the seconds of adding gradients to those that are kept in the host's memory.

    The step waits while a device reads its part over the link and writes it back at once
    (github:IST-DASLab/llmq@b77d969164: doc.md, src/training/gradients.cpp).
    """
    if "--offload-gradients" not in _flags(row, step.precision.scaling is not None):
        return 0.0
    part = step.parameters / row.devices * step.precision.bytes
    return part / (link_of(device).value * LINK_SHARE)


def _layer(row: NarrowRow, step: Layers, batch: int, sizes: Decoder) -> None:
    """Add a layer of a transformer, or its products alone."""
    if "GEMMs" not in row.model:
        block(step, batch, row.length, sizes)
        return
    tokens, width = batch * row.length, sizes.width
    for n_in, n_out in (
        (width, 3 * width),
        (width, width),
        (width, sizes.inner),
        (sizes.inner, width),
    ):
        step.linear(tokens, n_in, n_out, bias=False)


def _forward(step: Layers, m: int, n: int, k: int) -> None:
    """Add one product of activations and weight, with the casts that it alone needs."""
    scaling: Scaling | None = step.precision.scaling
    whole = Layers(step.stack, step.precision)
    whole.product(1, m, n, k, scaling)
    step.works.append(whole.works[0])
    if scaling is not None:
        step.quantise(m * k, scaling, scaling.forward_bytes)
        step.quantise(n * k, scaling, scaling.forward_bytes, fresh=False)


def _experts(step: Layers, row: NarrowRow, m: int, n: int, k: int, groups: int) -> None:
    """Add grouped products of all tokens; a layer has two or three, and moves its tokens."""
    layers = [(k, n)] if "grouped mm fwd" in row.model else [(k, n), (k, n), (n, k)]
    for n_in, n_out in layers:
        step.product(groups, m // groups, n_out, n_in, step.precision.scaling)
    if len(layers) > 1:
        step.copy(m * k)
        step.copy(m * k)
        step.move(2 * m * n, m * n)
        step.move(3 * m * n, 2 * m * n)
