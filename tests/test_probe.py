"""Counts of values that rounding pushed out of range, against ml_dtypes."""

from __future__ import annotations

from collections import Counter
from typing import Literal

import ml_dtypes
import numpy as np
import pytest

from policysearch.formats import Rounding, format_named
from policysearch.graph import FloatArray, Node
from policysearch.ops.source import cast
from policysearch.train.lost_values import Probe

Overflow = Literal["inf", "saturate"]


def node(layer: str, format: str, overflow: Overflow = "inf") -> Node:
    rounding = Rounding(overflow=overflow)
    return Node(0, cast, (), (4,), "fprop", layer=layer, format=format, rounding=rounding)


def seen(format: str, values: FloatArray, overflow: Overflow = "inf") -> Probe:
    """Return a probe that saw ml_dtypes round the values."""
    probe = Probe()
    dtype = getattr(ml_dtypes, format, None) or np.dtype(format)
    with np.errstate(over="ignore"):
        after = values.astype(dtype).astype(np.float32)
    if overflow == "saturate":
        largest = np.float32(format_named(format).max)
        after = np.clip(after, -largest, largest)
    probe(node("a", format, overflow), values, after)
    return probe


@pytest.mark.parametrize("overflow", ["inf", "saturate"])
def test_values_that_became_infinite_or_were_saturated_are_counted(overflow: Overflow) -> None:
    # 65519.996 rounds down to the largest of float16, 65504; 65520.004 does not.
    values = np.array([1.0, 65504.0, 65519.996, 65520.004, -7e4, 1e30, 0.0], np.float32)
    assert seen("float16", values, overflow).overflow_counts() == (("a", 3),)
    assert seen("float16", values[:2], overflow).overflow_counts() == ()


@pytest.mark.parametrize("format", ["float8_e4m3fn", "float8_e5m2", "float16", "bfloat16"])
def test_what_is_saturated_is_what_ml_dtypes_would_make_infinite(format: str) -> None:
    highest = 1.2 if format != "bfloat16" else 1.0039  # there float32 ends
    values = (format_named(format).max * np.linspace(0.9, highest, 1001)).astype(np.float32)
    counts = seen(format, values, "inf").overflow_counts()
    assert counts and seen(format, values, "saturate").overflow_counts() == counts


def test_what_was_infinite_before_is_no_overflow_of_this_rounding() -> None:
    values = np.array([np.inf, -np.inf, np.nan], np.float32)
    probe = seen("float16", values)
    assert probe.overflow_counts() == probe.underflow_counts() == ()


def test_values_that_became_zero_are_counted() -> None:
    tiny = np.float32(2.0**-24)  # float16's smallest: half of it goes to zero, more does not
    values = np.array([0.0, -0.0, tiny, -tiny / 2, tiny / 2, tiny * 0.51, 1.0], np.float32)
    probe = seen("float16", values)
    assert probe.underflow_counts() == (("a", 2),) and probe.overflow_counts() == ()


def test_counts_add_up_by_layer() -> None:
    probe, expected_over, expected_under = Probe(), Counter[str](), Counter[str]()
    rng = np.random.default_rng(0)
    for layer in ("b", "a", "b", "c"):
        values = (rng.standard_normal(64) * 2.0 ** rng.integers(-30, 20, 64)).astype(np.float32)
        with np.errstate(over="ignore"):
            after = values.astype(np.float16).astype(np.float32)
        probe(node(layer, "float16"), values, after)
        expected_over[layer] += int(np.isinf(after).sum())
        expected_under[layer] += int(((after == 0) & (values != 0)).sum())
    assert expected_over["b"] and expected_under["a"]
    assert dict(probe.overflow_counts()) == {k: v for k, v in expected_over.items() if v}
    assert dict(probe.underflow_counts()) == {k: v for k, v in expected_under.items() if v}
