"""How far modeled memory lies from published readings, each judged without its own family."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.validation.published_memory import (
    MemoryRow,
    MemorySetting,
    Training,
    memory_setting_of,
    read_memory_rows,
)
from policysearch.cost.memory import (
    CONTEXT_BYTES,
    GIB,
    Growth,
    largest_batch,
    process_bytes,
    visible_bytes,
)
from policysearch.objective.published.known import Interval, interval_of
from policysearch.objective.published.row_file import built_of


def reserved_bytes(live: float, growth: float, visible: float) -> float:
    """Return what a process holds: the allocator gives back what it caches before it fails."""
    return min(visible, process_bytes(live, growth))


@dataclass(frozen=True)
class JudgedMemory:
    """A row with what is modeled for it: pairs are of the baseline and the mixed training.

    `gib` is what `nvidia-smi` would show, `interval` factors on the ratio that held 80 % of rows
    of other families. `fits` says whether the upper bound of the growth fits the card, `largest`
    the largest batches at the upper, expected and lower growth; None where readings were published.
    """

    setting: MemorySetting
    live: tuple[float, float]
    growth: Growth
    gib: tuple[float, float]
    interval: Interval
    fits: tuple[bool, bool]
    largest: tuple[tuple[int, int, int], tuple[int, int, int]] | None

    @property
    def ratio(self) -> float:
        """Modeled memory of the mixed training over the baseline's."""
        return self.gib[1] / self.gib[0]

    @property
    def live_ratio(self) -> float:
        """The same of live bytes, which no card's size bounds."""
        return self.live[1] / self.live[0]


@dataclass(frozen=True)
class MemoryValidation:
    """All rows that could be built, those that could not with the reason, and what was fitted."""

    judged: tuple[JudgedMemory, ...]
    unbuilt: tuple[tuple[MemoryRow, str], ...]
    growth: Growth

    @property
    def read(self) -> tuple[JudgedMemory, ...]:
        """The rows with readings."""
        return tuple(row for row in self.judged if not row.setting.row.largest)


def validate_memory(rows: Sequence[MemoryRow]) -> MemoryValidation:
    """Return the rows judged, each by growths of other families of the package's rows."""
    known = [made for made in built_of(read_memory_rows(), _of_row)[0] if made.setting.row.gib]
    growths = [(made.setting.family, value) for made in known for value in made.growths]
    errors = []
    for made in known:
        gib = made.setting.row.gib or (1.0, 1.0)
        baseline, mixed = made.gib(_growth(growths, made.setting.family))
        errors.append((made.setting.family, gib[1] / gib[0] / (mixed / baseline)))
    built, unbuilt = built_of(rows, _of_row)
    judged = []
    for made in built:
        family = made.setting.family
        others = [error for own, error in errors if own != family]
        judged.append(_judged(made, _growth(growths, family), interval_of(np.array(others))))
    return MemoryValidation(tuple(judged), tuple(unbuilt), _growth(growths))


@dataclass(frozen=True)
class _Built:
    """A setting with what lives at its peaks, made once."""

    setting: MemorySetting
    live: tuple[float, float]

    @property
    def growths(self) -> list[float]:
        """Return published reserved over live bytes of both readings."""
        pairs = zip(self.setting.row.gib or (), self.live, strict=True)
        return [(gib * GIB - CONTEXT_BYTES) / live for gib, live in pairs]

    @property
    def visible(self) -> float:
        return visible_bytes(self.setting.card_gib)

    def gib(self, growth: Growth) -> tuple[float, float]:
        """Return what the trainings are expected to hold."""
        baseline, mixed = (self._read_bytes(live, growth) for live in self.live)
        return baseline / GIB, mixed / GIB

    def _read_bytes(self, live: float, growth: Growth) -> float:
        read = self.setting.row.read
        if read == "allocated":
            return min(live, self.visible)
        held = reserved_bytes(live, growth.expected, self.visible)
        return held - (CONTEXT_BYTES if read == "reserved" else 0.0)


def _of_row(row: MemoryRow) -> _Built:
    setting = memory_setting_of(row)
    return _Built(setting, setting.live_bytes)


def _growth(readings: Sequence[tuple[str, float]], without: str = "") -> Growth:
    """Return the median of the families' medians and the most of all, one family left out.

    The least is 1: a process holds what lives, and readings of cards that batches were raised to
    fill say what it held at most, not what it needed.
    """
    values = {family: [v for f, v in readings if f == family] for family, _ in readings}
    kept = [found for family, found in values.items() if family != without]
    every = [value for found in kept for value in found]
    return Growth(1.0, float(np.median([np.median(v) for v in kept])), max(every))


def _judged(made: _Built, growth: Growth, interval: Interval) -> JudgedMemory:
    first, second = (process_bytes(live, growth.high) <= made.visible for live in made.live)
    largest = None
    if made.setting.row.largest:
        baseline, mixed = made.setting.trainings
        largest = _largest(baseline, growth, made.visible), _largest(mixed, growth, made.visible)
    return JudgedMemory(
        made.setting, made.live, growth, made.gib(growth), interval, (first, second), largest
    )


def _largest(training: Training, growth: Growth, visible: float) -> tuple[int, int, int]:
    def live_at(batch: int) -> float:
        return training.live_bytes(batch)

    sure, expected, most = (
        largest_batch(live_at, value, visible)
        for value in (growth.high, growth.expected, growth.low)
    )
    return sure, expected, most
