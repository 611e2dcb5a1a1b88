"""What a recorded torch training shows: values beyond a format, and mistakes of the loop."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from policysearch.diagnose.packed import NOT_FINITE, ZERO, Unpacker
from policysearch.files import read_text
from policysearch.formats import format_named
from policysearch.values import InputError, from_plain, number, shown

NOTABLE = 1e-3
"""Share of the values of a tensor that are lost, from which on it is named."""

VANISHED = 0.2
"""The same of values that become zero: some always do."""

EXPECTED = "a log of `record` or Transformer Engine's statistics, or msprobe's dump.json"
LONGEST_MIB = 512
SPECIAL = {str(NOT_FINITE): "not_finite", str(ZERO): "zero"}
"""What the recorder calls values without an exponent."""

LARGEST = 400
"""No exponent of float32, nor of the share by which an update moves a parameter, is larger."""

STEADY = 0.02
"""Relative difference within which two norms are the same."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong in a log: what, where, first in which step, and how much of it.

    `share` is None where the log does not say how many values.
    """

    kind: str
    direction: str
    layer: str
    op: str
    step: int
    share: float | None
    words: str


@dataclass(frozen=True)
class Tally:
    """How many values of a tensor have which exponent, as of `frexp`: from `first` on, `counts`.

    In the direction "pole" they are what an op divides by, or takes the logarithm of.
    """

    direction: Literal["fprop", "pole", "dgrad", "wgrad", "update"]
    layer: str
    op: str
    first: int
    counts: tuple[int, ...]
    not_finite: int = 0
    zero: int = 0

    def __post_init__(self) -> None:
        number("first", self.first, -LARGEST, LARGEST)
        number("counts", len(self.counts), 0, 2 * LARGEST)
        for count in (*self.counts, self.not_finite, self.zero):
            number("counts", count, 0, 2**62)

    @property
    def total(self) -> int:
        """All values, at least one."""
        return sum(self.counts) + self.not_finite + self.zero or 1

    def up_to(self, limit: float) -> int:
        """Return how many values are below `limit`, those of its own exponent left out."""
        return sum(count for size, count in self._sizes if size <= limit)

    def above(self, limit: float) -> int:
        """Return how many values are above `limit`, those of its own exponent left out."""
        return sum(count for size, count in self._sizes if size / 2.0 > limit)

    @property
    def _sizes(self) -> Iterator[tuple[float, int]]:
        """The power of two below which values are, and how many have that."""
        return ((2.0 ** (self.first + i), count) for i, count in enumerate(self.counts))


@dataclass(frozen=True)
class LogStep:
    """A step of a log: its loss scale, norms of the gradient (None: not finite), and tallies.

    `norm` is that of the gradient as it came, `norm_at_step` as it was applied, `norm_at_clip` as
    torch's clipping saw it, and `clip` the limit of that.
    """

    step: int
    scale: float
    norm: float | None
    norm_at_step: float | None
    exponents: tuple[Tally, ...]
    clip: float | None = None
    norm_at_clip: float | None = None


def read_log(path: Path) -> list[LogStep]:
    """Return the steps of a log as `record` writes it; InputError where it is none."""
    return log_steps(read_text(path, EXPECTED, LONGEST_MIB), path)


def log_steps(text: str, path: Path) -> list[LogStep]:
    """Return the steps of a log whose `text` stood in `path`."""
    lines, names = text.splitlines(), Unpacker()
    steps = [_step(line, f"{path}: line {place}", names) for place, line in enumerate(lines, 1)]
    if not steps:
        raise InputError(f"{path}: no recorded step; expected {EXPECTED}")
    return steps


def _step(line: str, where: str, names: Unpacker) -> LogStep:
    """Return a step; logs of policysearch 0.2 have their rows as they are, as "exponents"."""
    try:
        plain = json.loads(line, parse_constant=lambda name: None)
    except (ValueError, RecursionError):
        raise InputError(f"{where}: {shown(line)}; expected {EXPECTED}") from None
    rows = plain.get("exponents") if isinstance(plain, dict) else None
    if isinstance(plain, dict) and "rows" in plain:
        try:
            rows = [*names.rows(plain)]
        except (ValueError, TypeError, RecursionError) as error:
            raise InputError(
                f"{where}.rows: {error}; expected {EXPECTED}, from its start"
            ) from None
        plain = {key: value for key, value in plain.items() if key not in ("rows", "names")}
    if not isinstance(rows, list):
        raise InputError(f"{where}: {shown(plain)}; expected {EXPECTED}")
    tallies = [_tally(row, f"{where}.exponents[{place}]") for place, row in enumerate(rows)]
    return from_plain(LogStep, {**plain, "exponents": tallies}, where)


def _tally(row: Any, where: str) -> Tally:
    if not isinstance(row, list) or len(row) != 6 or not isinstance(row[5], dict):
        expected = "[direction, layer, op, first exponent, counts, what has none]"
        raise InputError(f"{where}: {shown(row)}; expected {expected}")
    names = "direction", "layer", "op", "first", "counts"
    plain: dict[str, Any] = dict(zip(names, row[:5], strict=True))
    plain |= {SPECIAL.get(str(key), str(key)): count for key, count in row[5].items()}
    return from_plain(Tally, plain, where)


def findings(lines: Sequence[LogStep], format: str) -> list[Finding]:
    """Return what is wrong, mistakes of the loop first, then what `format` would lose."""
    return [*_clipped_scaled(lines), *_scale_collapse(lines), *_ranges(lines, format)]


def _ranges(lines: Sequence[LogStep], format: str) -> Iterator[Finding]:
    fmt = format_named(format)
    top, bottom = fmt.max, fmt.min_normal * 2.0**-fmt.mantissa_bits
    found: dict[tuple[str, str, str, str], Finding] = {}
    for line in lines:
        for row in line.exponents:
            if row.direction == "update":
                lost: dict[str, int] = {
                    "swamped updates": row.up_to(2.0 ** -(fmt.mantissa_bits + 2))
                }
            elif row.direction == "pole":
                lost = {"born": row.up_to(bottom / 2.0)}
            else:
                over = row.above(top) + row.not_finite
                lost = {"overflow": over, "underflow": row.up_to(bottom / 2.0)}
            for kind, count in lost.items():
                least = NOTABLE if kind in ("overflow", "born") else VANISHED
                direction = "fprop" if kind == "born" else row.direction
                key, share = (kind, direction, row.layer, row.op), count / row.total
                if share >= least and key not in found:
                    words = _words(key, share, line.step, format)
                    found[key] = Finding(*key, line.step, share, words)
    order = {"overflow": 0, "born": 0, "underflow": 1, "swamped updates": 2}

    def place(finding: Finding) -> tuple[int, int, bool]:
        # a loss may well be zero where its gradients are not
        last = finding.kind == "underflow" and finding.direction == "fprop"
        return order[finding.kind], finding.step, last

    yield from sorted(found.values(), key=place)


def percent(share: float) -> str:
    """Return a share in percent with two digits."""
    return f"{float(f'{100.0 * share:.2g}'):g} %"


def _words(key: tuple[str, str, str, str], share: float, step: int, format: str) -> str:
    kind, direction, layer, op = key
    place = f"{op} of {layer or 'no layer'} ({direction}, step {step})"
    if kind == "born":
        return f"{percent(share)} of what {place} divides by, or is the log of: 0 in {format}"
    return f"{percent(share)} of {place}: {kind} in {format}"


def _clipped_scaled(lines: Sequence[LogStep]) -> Iterator[Finding]:
    """Find gradients that were clipped while they still had the loss scale."""
    first = next((line for line in lines if line.scale > 1.0 and _is_clipped_scaled(line)), None)
    if first is None or first.norm_at_step is None:
        return
    applied = first.norm_at_step
    words = (
        f"gradients are clipped to {applied * first.scale:.3g} before they are unscaled: what is "
        f"applied has the norm {applied:.3g}; call scaler.unscale_(optimizer) first"
    )
    yield Finding("clip before unscale", "update", "", "", first.step, 1.0, words)


def _is_clipped_scaled(line: LogStep) -> bool:
    """Return whether the norm that was clipped was that of the gradient as it came, scaled.

    Where no call of torch's clipping was seen: whether what is applied is the limit, unscaled.
    """
    applied = line.norm_at_step
    if line.norm is None or applied is None or not 0.0 < applied < 0.5 * line.norm / line.scale:
        return False
    if line.norm_at_clip is not None:
        return math.isclose(line.norm_at_clip, line.norm, rel_tol=STEADY)
    if line.clip is None:
        return False
    return math.isclose(applied * line.scale, line.clip, rel_tol=STEADY)


def _scale_collapse(lines: Sequence[LogStep]) -> Iterator[Finding]:
    scales = [line.scale for line in lines]
    if scales[0] > 1.0 and min(scales) < 1.0:
        step = next(line.step for line in lines if line.scale < 1.0)
        words = f"the loss scale fell from {scales[0]:g} to {min(scales):g}: something overflows"
        yield Finding("scale collapse", "dgrad", "", "", step, 1.0, words)
