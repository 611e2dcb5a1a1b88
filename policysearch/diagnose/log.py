"""What a recorded torch training shows: values beyond a format, and mistakes of the loop."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policysearch.formats import format_named
from policysearch.values import InputError

NOTABLE = 1e-3
"""Share of the values of a tensor that are lost, from which on it is named."""

VANISHED = 0.2
"""The same of values that become zero: some always do."""

STEADY = 0.02
"""Relative difference within which two norms are the same."""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong in a log: what, where, first in which step, and how much of it."""

    kind: str
    direction: str
    layer: str
    op: str
    step: int
    share: float
    words: str


def read_log(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a log as `record` writes it; InputError where it is none."""
    try:
        text = path.read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text.splitlines()]
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: {error}; expected a log that `record` wrote") from None
    if not lines or not all(isinstance(x, dict) and "exponents" in x for x in lines):
        raise InputError(f"{path}: no recorded step; expected a log that `record` wrote")
    return lines


def findings(lines: Sequence[dict[str, Any]], format: str) -> list[Finding]:
    """Return what is wrong, mistakes of the loop first, then what `format` would lose."""
    return [*_clipped_scaled(lines), *_collapsed(lines), *_ranges(lines, format)]


def _ranges(lines: Sequence[dict[str, Any]], format: str) -> Iterator[Finding]:
    fmt = format_named(format)
    top, bottom = fmt.max, fmt.min_normal * 2.0**-fmt.mantissa_bits
    found: dict[tuple[str, str, str, str], Finding] = {}
    for line in lines:
        for direction, layer, op, first, counts, special in line["exponents"]:
            total = sum(counts) + sum(special.values()) or 1
            sizes = [(2.0 ** (first + i), count) for i, count in enumerate(counts)]
            if direction == "update":
                unit = 2.0 ** -(fmt.mantissa_bits + 2)
                lost = {"swamped updates": sum(count for size, count in sizes if size <= unit)}
            else:
                # frexp: an exponent e is of values from 2^(e - 1) up to 2^e
                over = sum(count for size, count in sizes if size / 2.0 > top)
                over += special.get("-201", 0)
                lost = {
                    "overflow": over,
                    "underflow": sum(count for size, count in sizes if size <= bottom / 2.0),
                }
            for kind, count in lost.items():
                least = NOTABLE if kind == "overflow" else VANISHED
                key = kind, direction, layer, op
                if count / total >= least and key not in found:
                    place = f"{op} of {layer or 'no layer'} ({direction}, step {line['step']})"
                    words = f"{100.0 * count / total:.2g} % of {place}: {kind} in {format}"
                    found[key] = Finding(*key, line["step"], count / total, words)
    order = {"overflow": 0, "underflow": 1, "swamped updates": 2}
    yield from sorted(found.values(), key=lambda f: (order[f.kind], f.step))


def _clipped_scaled(lines: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    """Find gradients that were clipped while they still had the loss scale."""
    found = [line for line in lines if line["scale"] > 1.0 and _is_clipped_scaled(line)]
    if not found:
        return
    first = found[0]
    limit = first["norm_at_step"] * first["scale"]
    words = (
        f"gradients are clipped to {limit:.3g} before they are unscaled: what is applied has "
        f"the norm {first['norm_at_step']:.3g}; call scaler.unscale_(optimizer) first"
    )
    yield Finding("clip before unscale", "update", "", "", first["step"], 1.0, words)


def _is_clipped_scaled(line: dict[str, Any]) -> bool:
    """Return whether the norm that was clipped was that of the gradient as it came, scaled.

    Where no call of torch's clipping was seen: whether what is applied is the limit, unscaled.
    """
    seen, raw, limit = line.get("norm_at_clip"), line["norm"], line.get("clip")
    applied = line["norm_at_step"]
    is_cut = 0.0 < applied < 0.5 * raw / line["scale"]
    if seen is not None:
        return is_cut and math.isclose(seen, raw, rel_tol=STEADY)
    if limit is None:
        return False
    return is_cut and math.isclose(applied * line["scale"], limit, rel_tol=STEADY)


def _collapsed(lines: Sequence[dict[str, Any]]) -> Iterator[Finding]:
    scales = [line["scale"] for line in lines]
    if scales[0] > 1.0 and min(scales) < 1.0:
        step = next(line["step"] for line in lines if line["scale"] < 1.0)
        words = f"the loss scale fell from {scales[0]:g} to {min(scales):g}: something overflows"
        yield Finding("scale collapse", "dgrad", "", "", step, 1.0, words)


def log_page(path: Path, format: str) -> str:
    """Return what a log shows, as text."""
    found = findings(read_log(path), format)
    if not found:
        return f"verdict: nothing that {format} would lose, and no mistake of the loop"
    return "\n".join([f"verdict: {found[0].words}", *(f.words for f in found[1:12])])
