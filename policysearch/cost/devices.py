"""Devices as rows of `hardware.json`: peaks, bandwidth and their sources."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.resources import files
from math import inf
from statistics import median
from types import MappingProxyType
from typing import Any, Literal

from policysearch.cost.timings import NO_TIMINGS, Timings
from policysearch.formats import FORMATS, format_named
from policysearch.rounding.inclusion import contains, join
from policysearch.values import InputError, near_miss, shown

HOST_ARCH = "x86"
"""Architecture of a device that is its own host."""


Mark = Literal["", "memory", "unsourced"]
"""How far a number is to be trusted; see `Sourced`."""


@dataclass(frozen=True)
class Sourced:
    """A number, where it comes from, and how far that can be trusted.

    `mark`: "memory" for a vendor's value that nobody has looked up again, "unsourced" for one that
    is assumed or derived from what is.
    """

    value: float
    source: str
    mark: Mark = ""


@dataclass(frozen=True)
class Accuracy:
    """How far prices of per-layer policies were from the steps measured on the same machine.

    Of the speedup over float32, as a share of it: the mean error, that of nine policies of ten,
    and the mean by which a second measurement of the same policies differs from the first.
    """

    mean_error: float
    p90_error: float
    retest_error: float
    policies: int

    @property
    def summary(self) -> str:
        return f"mean error {self.mean_error:.1%} on {self.policies} policies measured there"


@dataclass(frozen=True)
class Device:
    """One accelerator. Peaks in dense FLOP/s and bandwidth in bytes/s, as sold, not achieved.

    `peaks` is keyed by format name; "float8" stands for both 8-bit formats and "float4" for
    float4_e2m1fn. `memory_gib` lists the sizes sold; `alignment` the elements a contiguous extent
    must be a multiple of to fill the matrix unit.

    A device with `timings` of its kernels is priced from them. Then `cache_bytes` is the private
    cache, `host_seconds` what the host spends on each kernel and `host_step_seconds` on each step,
    which "adds" to the kernels' time or "overlaps" with it, and `accuracy` how far such prices were
    from training steps, once measured.
    """

    name: str
    arch: str
    memory_gib: tuple[float, ...]
    peaks: tuple[tuple[str, Sourced], ...]
    bandwidth: Sourced
    multiprocessors: Sourced
    alignment: tuple[tuple[str, int], ...]
    achieved: tuple[tuple[str, Sourced], ...] = ()
    other: tuple[tuple[str, Sourced], ...] = ()
    notes: str = ""
    labels: tuple[str, ...] = ()
    timings: Timings = NO_TIMINGS
    cache_bytes: int = 0
    host: Literal["adds", "overlaps"] = "overlaps"
    host_seconds: float = 0.0
    host_step_seconds: float = 0.0
    accuracy: Accuracy | None = None

    @property
    def memory_bytes(self) -> int:
        """Bytes of the smallest size sold, so that what fits, fits every one of them."""
        return int(min(self.memory_gib) * 2**30)

    @cached_property
    def _peaks(self) -> dict[str, float]:
        return {name: number.value for name, number in self.peaks}

    @cached_property
    def _runs(self) -> dict[str, str]:
        return {}

    @property
    def formats(self) -> tuple[str, ...]:
        """Names of the formats the device multiplies by itself, in the order of FORMATS."""
        return tuple(name for name in FORMATS if peak_key(name) in self._peaks)

    def runs_as(self, name: str) -> str:
        """Return the format a matrix product of format `name` runs in.

        That is `name` itself where the device has a peak for it; else the narrowest format with a
        peak that holds all its values, the faster of two of one width (emulation); else float32.
        """
        if name not in self._runs:
            row = format_named(name)
            wider = [FORMATS[own] for own in self.formats if contains(FORMATS[own], row)]
            best = min(wider, key=lambda r: (r.bits, -self.peak(r.name)), default=None)
            self._runs[name] = name if name in self.formats else best.name if best else "float32"
        return self._runs[name]

    def product_format(self, names: frozenset[str]) -> str:
        """Return the format a product of operands of these formats runs in.

        Operands of one peak (both 8-bit formats) multiply directly; others meet in the narrowest
        format that holds both, as frameworks promote. What the device lacks is emulated.
        """
        if len({peak_key(name) for name in names}) == 1:
            return self.runs_as(min(names))
        return self.runs_as(join(format_named(name) for name in names).name)

    def peak(self, name: str) -> float:
        """Return the FLOP/s of a format the device runs; KeyError for any other."""
        return self._peaks[peak_key(name)]

    def achieved_share(self, name: str) -> float:
        """Return the share of a format's peak that large square products achieve.

        Its own number, else that of its 16-bit products; where the row has none, the median of
        those of its architecture, else of its vendor, else of all. Shares of 8-bit products are to
        those of 16-bit ones as they are there.
        """
        own, key = _achieved_shares(self), peak_key(name)
        if key in own:
            return own[key]
        share = own.get("bfloat16", own.get("float16")) or _usual_share(self.arch)
        return share * _usual_share(self.arch, "float8") if key == "float8" else share

    def achieved_peak(self, name: str) -> float:
        """Return the FLOP/s that large square products of a format achieve on its matrix unit.

        Products in 4 bits are held to what feeds them: an operand of 16 bits brings four of theirs,
        so that they run at most four times as fast, whatever is sold. GeForce cards are fed for
        sums in 16 bits.
        """
        achieved = self.peak(name) * self.achieved_share(name)
        if peak_key(name) != "float4":
            return achieved
        fed = max((self._peaks[key] for key in SIXTEEN_BITS if key in self._peaks), default=inf)
        return min(achieved, 16 / 4 * fed * self.achieved_share("float16"))

    @property
    def plain_peak(self) -> float:
        """Float32 FLOP/s of the units without matrices; the row's "float32" where it has no own.

        A row has "float32_vector" apart where "float32" is the rate of its matrix unit, as the cube
        of Ascend 910B has it.
        """
        return self._peaks.get("float32_vector", self._peaks["float32"])

    def on_matrix_unit(self, name: str) -> bool:
        """Whether the matrix unit multiplies the format: all but float32, and that where faster."""
        return name != "float32" or self._peaks[name] > self.plain_peak

    def align(self, name: str) -> int:
        """Return the alignment in elements for a format; 1 where there is none to keep."""
        return dict(self.alignment).get(peak_key(name), 1)

    @property
    def issue_rate(self) -> float:
        """Element instructions per second that the device can issue, one per lane and cycle.

        The row's own number; else half the vector FLOP/s (a multiply-add per lane): of float16 on
        Ascend, whose vector unit is that wide, of float32 elsewhere.
        """
        own = dict(self.other).get("issues_per_second")
        vector = self._peaks.get("float16_vector") if self.arch == "davinci" else None
        return own.value if own else (vector or self._peaks["float32"]) / 2

    @property
    def is_its_host(self) -> bool:
        """Whether launches add to the time of kernels; of a device with timings `host` says it."""
        return self.host == "adds" if self.timings.rows else self.arch == HOST_ARCH

    @property
    def cached_bytes(self) -> float:
        """Bytes that the cache which all multiprocessors share holds; 0 where the row has none."""
        cache = dict(self.other).get("l2_megabytes")
        return cache.value * 2**20 if cache else 0.0

    @property
    def numbers(self) -> tuple[tuple[str, Sourced], ...]:
        """Every number that has a source, under its name."""
        rows = [("bandwidth", self.bandwidth), ("multiprocessors", self.multiprocessors)]
        rows += [(f"peak {name}", number) for name, number in self.peaks]
        rows += [(f"achieved {name}", number) for name, number in self.achieved]
        return (*rows, *self.other)

    @property
    def marks(self) -> tuple[tuple[str, Mark, str], ...]:
        """(number, mark, source) of every number with a mark."""
        return tuple((name, row.mark, row.source) for name, row in self.numbers if row.mark)


def peak_key(name: str) -> str:
    """Return the key of a format in a device's peaks."""
    if name in ("float8_e4m3fn", "float8_e5m2"):
        return "float8"
    return "float4" if name == "float4_e2m1fn" else name


def _sourced_number(data: Mapping[str, Any]) -> Sourced:
    return Sourced(float(data["value"]), str(data["source"]), data.get("mark", ""))


def _numbers(data: Mapping[str, Any]) -> tuple[tuple[str, Sourced], ...]:
    return tuple((k, _sourced_number(v)) for k, v in data.items() if v["value"] is not None)


def _device(row: Mapping[str, Any]) -> Device:
    return Device(
        name=row["name"],
        arch=row["arch"],
        memory_gib=tuple(row["memory_gib"]),
        peaks=_numbers(row["peak_flops_per_second"]),
        bandwidth=_sourced_number(row["bandwidth_bytes_per_second"]),
        multiprocessors=_sourced_number(row["multiprocessors"]),
        alignment=tuple(row["alignment"].items()),
        achieved=_numbers(row.get("achieved_flops_per_second", {})),
        other=_numbers(row["other"]),
        notes=row.get("notes", ""),
        labels=tuple(row.get("labels", ())),
    )


_TABLE = json.loads((files("policysearch.cost") / "hardware.json").read_text(encoding="utf-8"))

SOURCES: dict[str, str] = _TABLE["sources"]
"""What the short names in every `Sourced.source` stand for."""

MINIMUM_KERNEL = _sourced_number(_TABLE["minimum_kernel_seconds"])
"""Seconds of a kernel that does nothing."""

DEVICES: dict[str, Device] = {row["name"]: _device(row) for row in _TABLE["devices"]}


SIXTEEN_BITS = ("float16", "bfloat16", "float16_accumulate16")
"""Peaks of products of 16-bit operands: the third of sums in 16 bits, where those are faster."""

VENDORS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "nvidia": ("pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell"),
        "amd": ("cdna2", "cdna3", "cdna4", "rdna3"),
    }
)
"""Architectures by vendor, where a vendor has several."""


def _achieved_shares(device: Device) -> dict[str, float]:
    peaks = {peak_key(name): number.value for name, number in device.peaks}
    found = ((peak_key(name), row.value) for name, row in device.achieved)
    return {name: value / peaks[name] for name, value in found if name in peaks}


@lru_cache(maxsize=256)
def _usual_share(arch: str, over: str = "") -> float:
    """Return the median share of 16-bit products on related devices with a number of their own.

    With `over`, of the share of that format over it.
    """
    vendor = next((archs for archs in VENDORS.values() if arch in archs), (arch,))
    shares = []
    for row in DEVICES.values():
        own = _achieved_shares(row)
        if "bfloat16" in own and (not over or over in own):
            shares.append((row.arch, own[over] / own["bfloat16"] if over else own["bfloat16"]))
    for related in ((arch,), vendor, tuple(found for found, _ in shares)):
        if alike := [share for found, share in shares if found in related]:
            return median(alike)
    raise AssertionError("no device has a number")


SOLD_BY = ("nvidia", "geforce", "tesla", "amd", "instinct", "huawei", "google", "cloud", "intel")
"""Words of a device's name that tell no two devices apart."""


def plain_name(name: str) -> str:
    """Return the letters and digits of a device's name, without the words of SOLD_BY."""
    words = re.findall(r"[a-z]+|[0-9]+", name.lower())
    return "".join(word for word in words if word not in SOLD_BY)


_ALIKE = {
    plain_name(name): row.name for row in DEVICES.values() for name in (*row.labels, row.name)
}


def device_named(name: str, key: str = "") -> Device:
    """Return the device called `name`; InputError with the valid names where there is none.

    `key` is the place that it is given at, for the message.
    """
    if isinstance(name, str) and name in DEVICES:
        return DEVICES[name]
    given = f"{key}: {shown(name)}" if key else f"unknown device {shown(name)}"
    hint = device_hint(name) or ";"
    raise InputError(
        f"{given}{hint} expected one that `policysearch hardware` lists, or a FILE.toml"
    )


def device_labelled(label: str) -> Device:
    """Return the device that others call `label`, as its row has it or spelled alike."""
    found = _ALIKE.get(plain_name(label))
    if found is None:
        raise InputError(
            f"unknown device {shown(label)}; expected one that `policysearch hardware` lists"
            f"{device_hint(label)}"
        )
    return DEVICES[found]


def device_hint(name: object) -> str:
    """Return the end of a message that names the devices that may be meant; "" for none.

    The one of that label; those whose name begins so, as "A100" has several; else the likeliest of
    those with the same numbers: a device of another number is another device.
    """
    if not isinstance(name, str) or not (spelled := plain_name(name)):
        return ""
    if spelled in _ALIKE:
        return f"; did you mean {_ALIKE[spelled]!r}?"
    longer = [row for row in DEVICES if re.match(rf"{spelled}(?!\d)", plain_name(row))]
    if longer:
        return f"; did you mean {' or '.join(map(repr, longer))}?"
    numbers = re.findall(r"\d+", name)
    like = [row for row in DEVICES if re.findall(r"\d+", row)[: len(numbers)] == numbers]
    return near_miss(name, like)
