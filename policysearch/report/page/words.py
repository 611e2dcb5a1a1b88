"""Numbers and policies of the page in words; the shortest form that a reader can use."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import groupby
from types import MappingProxyType

from policysearch.formats import format_named
from policysearch.policy.policy import LayerPolicy, Policy
from policysearch.values import NO_LAYER

SHORT: Mapping[str, str] = MappingProxyType(
    {
        "float32": "fp32",
        "tfloat32": "tf32",
        "bfloat16": "bf16",
        "float16": "fp16",
        "float8_e4m3fn": "e4m3",
        "float8_e5m2": "e5m2",
        "float6_e2m3fn": "e2m3",
        "float6_e3m2fn": "e3m2",
        "float4_e2m1fn": "e2m1",
    }
)
"""Formats as the pictures spell them."""

MOST_GROUPS = 4
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def short(name: str) -> str:
    """Return the short name of a format, its own where it has none."""
    return SHORT.get(name, name)


def colour(name: str) -> str:
    """Return the class that colours a format; one colour for all that have no name of their own."""
    return f"f-{SHORT.get(name, 'other')}"


def times(value: float) -> str:
    """Return how many times as fast or large, as 1.53×."""
    return f"{value:.2f}×"


def power(value: float, digits: int = 1, sign: bool = False) -> str:
    """Return a small number as people write it: 2.9×10⁻⁷, or 0.0123 where that is short."""
    if value == 0.0 or not math.isfinite(value):
        return "0" if value == 0.0 else "–"
    lead = ("−" if value < 0 else "+") if sign else ("−" if value < 0 else "")
    size = abs(value)
    if 0.001 <= size < 10000.0:
        return f"{lead}{size:.{digits + 1}g}"
    mantissa, exponent = f"{size:.{digits}e}".split("e")
    if mantissa == "1":
        return f"{lead}10{str(int(exponent)).translate(_RAISED)}"
    return f"{lead}{mantissa}×10{str(int(exponent)).translate(_RAISED)}"


def gap(value: float) -> str:
    """Return a loss gap in nats, with its sign."""
    return power(value, sign=True)


def percent(share: float) -> str:
    """Return a share in percent, small ones as such."""
    if 0.0 < share < 0.0005:
        return "<0.1%"
    return f"{100.0 * share:.1f}%" if share < 0.1 else f"{100.0 * share:.0f}%"


def mib(count: float) -> str:
    """Return bytes in MiB, or GiB."""
    size = count / 2.0**20
    return f"{size / 1024.0:.3g} GiB" if size >= 1024.0 else f"{size:.3g} MiB"


def seconds(count: float) -> str:
    """Return a time in the unit that people would use."""
    if count < 1.0:
        return f"{1000.0 * count:.3g} ms" if count >= 1e-3 else f"{1e6 * count:.3g} µs"
    if count < 120.0:
        return f"{count:.0f} s"
    return f"{count / 60.0:.0f} min" if count < 7200.0 else f"{count / 3600.0:.1f} h"


def formats_said(policy: Policy) -> str:
    """Return which layers compute in what: "float16 in conv1 to flatten, float32 in fc1".

    Formats that are for operands alone are said of products.
    """
    layers = policy.layers
    runs = [list(rows) for _, rows in groupby(layers, key=lambda row: row[1].compute)]
    if len(runs) == 1:
        return f"{_computed(layers[0][1].compute)} throughout"
    if len(runs) <= MOST_GROUPS:
        return ", ".join(f"{_computed(rows[0][1].compute)} in {_span(rows)}" for rows in runs)
    return ", ".join(
        f"{_computed(name)} in {n} of {len(layers)} layers" for name, n in counts(policy)
    )


def _computed(name: str) -> str:
    return f"{name} products" if format_named(name).operands_only else name


def counts(policy: Policy) -> list[tuple[str, int]]:
    """Return (format, layers that compute in it), the most frequent first."""
    sums: dict[str, int] = {}
    for _, layer in policy.layers:
        sums[layer.compute] = sums.get(layer.compute, 0) + 1
    return sorted(sums.items(), key=lambda pair: (-pair[1], pair[0]))


def _span(rows: list[tuple[str, LayerPolicy]]) -> str:
    names = [name or NO_LAYER for name, _ in rows]
    if len(names) < 3:
        return " and ".join(names)
    return f"{names[0]} to {names[-1]}"


def sentence(parts: Iterable[str]) -> str:
    """Return parts as one sentence."""
    said = "; ".join(part for part in parts if part)
    return f"{said[0].upper()}{said[1:]}." if said else ""
