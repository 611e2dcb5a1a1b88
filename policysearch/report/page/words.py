"""Numbers and policies of the page in words; the shortest form that a reader can use."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import groupby
from types import MappingProxyType

from policysearch.formats import FORMATS, format_named
from policysearch.policy.policy import Policy
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
        said = f"{size:#.{digits + 1}g}" if size < 10.0**digits else f"{size:.0f}"
        return f"{lead}{said.removesuffix('.')}"
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
    """Return which layers are to compute in what: "float16 in conv1 to flatten, float32 in fc1"."""
    return spans([(name or NO_LAYER, layer.compute) for name, layer in policy.layers], "layers")


def spans(pairs: Sequence[tuple[str, str]], what: str) -> str:
    """Return (name, format) pairs in words, neighbours together; counts where they are many.

    Formats that are for operands alone are said of products.
    """
    runs = [list(rows) for _, rows in groupby(pairs, key=lambda pair: pair[1])]
    if len(runs) == 1:
        return f"{_product_words(pairs[0][1])} throughout"
    if len(runs) <= MOST_GROUPS:
        return ", ".join(
            f"{_product_words(run[0][1])} in {span([n for n, _ in run])}" for run in runs
        )
    return ", ".join(
        f"{_product_words(name)} in {n} of {len(pairs)} {what}"
        for name, n in Counter(form for _, form in pairs).most_common()
    )


def _product_words(name: str) -> str:
    alone = name in FORMATS and format_named(name).operands_only
    return f"{name} products" if alone else name


def span(names: Sequence[str]) -> str:
    """Return names of neighbours, from the first to the last."""
    return " and ".join(names) if len(names) < 3 else f"{names[0]} to {names[-1]}"


_TYPED = re.compile(
    r"(?P<power>(?<![\w./+-])[+-]?\d(?:\.\d+)?e[+-]?\d+(?!\w|\.\w))"
    r"|(?P<times>(?<![\w.-])\d+(?:\.\d+)?)x(?!\w)"
    r"|(?P<share>\d) %"
    r"|(?P<about>\+-)(?= ?\d)"
    r"|(?P<minus>(?<![^ (])-)(?=\d)"
)


def typeset(said: str) -> str:
    """Return a sentence that terminals show, its numbers written as this page writes them.

    1.15x is 1.15×, 95 % is 95%, +6.2e-05 is +6.2×10⁻⁵ and -0.1 is −0.1.
    """
    return _TYPED.sub(_typeset_number, said)


def _typeset_number(found: re.Match[str]) -> str:
    kind, said = found.lastgroup, found[found.lastgroup or 0]
    if kind == "power":
        return power(float(said), sign=said[0] == "+")
    return {"times": f"{said}×", "share": f"{said}%", "about": "±"}.get(kind or "", "−")
