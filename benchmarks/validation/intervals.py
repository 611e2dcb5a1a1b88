"""Intervals on modeled numbers, from the errors of rows that were held out."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from policysearch.cost.roofline import Array

COVERAGE = 0.8
"""Share of rows that an interval is meant to hold."""


class Interval(NamedTuple):
    """Factors on a modeled number between which the published one lies in COVERAGE of rows."""

    low: float
    high: float


def interval_of(errors: Array) -> Interval:
    """Return the interval that holds COVERAGE of published over modeled numbers, [rows]."""
    low, high = np.quantile(errors, [(1 - COVERAGE) / 2, (1 + COVERAGE) / 2])
    return Interval(float(low), float(high))
