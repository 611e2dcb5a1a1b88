"""How far modeled memory lies from published and measured readings, each judged without its family.

Readings of full cards fit nothing: an allocator fills a card before it gives back what it caches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar

from benchmarks.validation.published_memory import (
    SHIPPED_MEASURED,
    MemoryRow,
    MemorySetting,
    Training,
    memory_setting_of,
    read_memory_rows,
)
from policysearch.cost.memory import (
    CONTEXT_BYTES,
    GIB,
    NEEDED,
    largest_batch,
    process_bytes,
    visible_bytes,
)
from policysearch.objective.published.known import Errors, Interval, interval_of
from policysearch.objective.published.row_file import built_of

FULL = 0.9
"""Share of a card from which on a reading says what there was, not what was needed."""

MOST_FRAGMENTS = 40.0
"""No fit looks beyond."""


def reserved_bytes(live: float, growth: float, visible: float) -> float:
    """Return what a process holds: the allocator gives back what it caches before it fails."""
    return min(visible, process_bytes(live, growth))


@dataclass(frozen=True)
class Reading:
    """One published memory with the live bytes that are modeled, and the share of a block there.

    `bytes` are without context unless `what` is "allocated"; `full` says that the card was.
    """

    family: str
    what: str
    bytes: float
    live: float
    share: float
    full: bool


@dataclass(frozen=True)
class JudgedMemory:
    """A row with what is modeled for it: pairs are of the baseline and the mixed training.

    `gib` is what was read, `reserved` and `ratios` are factors that held 80 % of readings and
    ratios of other families. `may_fit` says whether the least that each needs is there, `largest`
    the largest batches at the most, the expected and the least; None where readings were published.
    """

    setting: MemorySetting
    readings: tuple[Reading, Reading]
    gib: tuple[float, float]
    reserved: Interval
    ratios: Interval
    may_fit: tuple[bool, bool]
    largest: tuple[tuple[int, int, int], tuple[int, int, int]] | None

    @property
    def ratio(self) -> float:
        """Modeled memory of the mixed training over the baseline's."""
        return self.gib[1] / self.gib[0]

    @property
    def live(self) -> tuple[float, float]:
        """Modeled live bytes."""
        return self.readings[0].live, self.readings[1].live


@dataclass(frozen=True)
class MemoryValidation:
    """All rows that could be built, those that could not with the reason, and what was fitted.

    `fragments` is `FRAGMENTS` of `cost/memory.py`, `interval` holds 80 % of held-out readings.
    """

    judged: tuple[JudgedMemory, ...]
    unbuilt: tuple[tuple[MemoryRow, str], ...]
    fragments: float
    interval: Interval

    @property
    def read(self) -> tuple[JudgedMemory, ...]:
        """The rows with readings."""
        return tuple(row for row in self.judged if not row.setting.row.largest)


def known_rows() -> tuple[MemoryRow, ...]:
    """Return the rows that come with the package: published, and measured for it."""
    return (*read_memory_rows(), *read_memory_rows(SHIPPED_MEASURED))


def validate_memory(rows: Sequence[MemoryRow]) -> MemoryValidation:
    """Return the rows judged, each by what readings of other families say."""
    known = built_of(known_rows(), _of_row)[0]
    readings = [reading for made in known for reading in made.readings if reading.bytes]
    families = dict.fromkeys(reading.family for reading in readings)
    fits = {family: fragments_of(readings, family) for family in ("", *families)}
    errors = [
        (r.family, (r.bytes) / (r.live * growth_of(r, fits[r.family])))
        for r in readings
        if not r.full and r.what != "allocated"
    ]
    ratios = []
    for made in known:
        if made.setting.row.gib:
            first, second = made.gib(fits[made.setting.family])
            published = made.setting.row.gib
            ratios.append((made.setting.family, published[1] / published[0] / (second / first)))
    built, unbuilt = built_of(rows, _of_row)
    judged = []
    for made in built:
        family = made.setting.family
        fragments = fits.get(family, fits[""])
        judged.append(_judged(made, fragments, _held(errors, family), _held(ratios, family)))
    return MemoryValidation(tuple(judged), tuple(unbuilt), fits[""], _held(errors, ""))


def _held(errors: Sequence[tuple[str, float]], family: str) -> Interval:
    return interval_of(Errors(np.array([error for own, error in errors if own != family])))


def growth_of(reading: Reading, fragments: float) -> float:
    """Return the modeled growth of a reading: 1 where live bytes were read."""
    return 1.0 if reading.what == "allocated" else 1 + fragments * reading.share


def fragments_of(readings: Sequence[Reading], without: str = "") -> float:
    """Return the constant of least absolute logarithmic error, one family left out.

    Readings of full cards are left out, every family weighs alike.
    """
    kept = [r for r in readings if r.family != without and not r.full and r.what != "allocated"]
    families = [r.family for r in kept]
    weights = np.array([1 / families.count(family) for family in families])
    growths = np.array([r.bytes / r.live for r in kept])
    shares = np.array([r.share for r in kept])

    def loss(fragments: float) -> float:
        return float(weights @ np.abs(np.log(growths / (1 + fragments * shares))))

    tried = np.linspace(0, MOST_FRAGMENTS, 401)
    best = float(tried[np.argmin([loss(value) for value in tried])])
    near = minimize_scalar(loss, bounds=(max(0.0, best - 0.1), best + 0.1), method="bounded")
    return float(near.x)


@dataclass(frozen=True)
class _Built:
    """A setting with what lives at its peaks, made once."""

    setting: MemorySetting
    readings: tuple[Reading, Reading]

    @property
    def visible(self) -> float:
        return visible_bytes(self.setting.card_gib)

    def gib(self, fragments: float) -> tuple[float, float]:
        """Return what is expected to be read."""
        first, second = (self._read_bytes(reading, fragments) for reading in self.readings)
        return first / GIB, second / GIB

    def _read_bytes(self, reading: Reading, fragments: float) -> float:
        if reading.what == "allocated":
            return min(reading.live, self.visible)
        held = reserved_bytes(reading.live, growth_of(reading, fragments), self.visible)
        return held - (CONTEXT_BYTES if reading.what == "reserved" else 0.0)


def _of_row(row: MemoryRow) -> _Built:
    setting = memory_setting_of(row)
    context = CONTEXT_BYTES if row.read == "process" else 0.0
    visible = visible_bytes(setting.card_gib)
    readings = []
    for gib, batch, training in zip(
        row.gib or (0.0, 0.0), row.batches, setting.trainings, strict=True
    ):
        full = gib * GIB > FULL * visible
        share, live = training.memory(batch).block_share, training.live_bytes(batch)
        bytes = gib * GIB - context if gib else 0.0
        readings.append(Reading(setting.family, row.read, bytes, live, share, full))
    return _Built(setting, (readings[0], readings[1]))


def _judged(made: _Built, fragments: float, reserved: Interval, ratios: Interval) -> JudgedMemory:
    first, second = (
        process_bytes(reading.live, NEEDED.low) <= made.visible for reading in made.readings
    )
    largest = None
    if made.setting.row.largest:
        baseline, mixed = made.setting.trainings
        largest = _largest(baseline, made.visible), _largest(mixed, made.visible)
    return JudgedMemory(
        *(made.setting, made.readings, made.gib(fragments), reserved, ratios),
        (first, second),
        largest,
    )


def _largest(training: Training, visible: float) -> tuple[int, int, int]:
    def live_at(batch: int) -> float:
        return training.live_bytes(batch)

    sure, expected, most = (
        largest_batch(live_at, value, visible)
        for value in (NEEDED.high, NEEDED.expected, NEEDED.low)
    )
    return sure, expected, most
