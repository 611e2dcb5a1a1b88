"""How sure a mean gap over a few seeds is: variances that policies share, and t intervals.

Three seeds say little about one policy's spread, but a study has dozens of policies whose spreads
follow their gaps. So the spread of each is drawn towards that trend, as far as the policies agree
on it (the moderated variance of Smyth, Stat. Appl. Genet. Mol. Biol. 3(1), 2004, with a trend as
in Law et al., Genome Biology 15:R29, 2014).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, polygamma
from scipy.stats import t as student

CONFIDENCE = 0.95
FEWEST = 4
"""With fewer policies that have a spread there is no trend: each stands for itself."""

MOST_PRIOR = 4.0
"""Most degrees of freedom that the trend is worth: policies share seeds, so they err together."""


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its interval at 95 %, in nats; `error` is its standard error."""

    mean: float
    low: float
    high: float
    error: float
    degrees: float

    def apart(self, other: Interval) -> bool:
        """Whether the two means differ at 95 %."""
        degrees = min(self.degrees, other.degrees)
        reach = float(student.ppf(0.5 + CONFIDENCE / 2, degrees))
        return abs(self.mean - other.mean) > reach * math.hypot(self.error, other.error)


def intervals(gaps: Sequence[Sequence[float]]) -> list[Interval | None]:
    """Return the interval of each policy's mean gap, from its gap per seed.

    None for a policy with one seed: nothing is known of its spread, and none is made up. A policy
    whose gaps are all equal (float32 itself) has an interval without width.
    """
    means = np.array([math.fsum(row) / len(row) for row in gaps])
    counts = np.array([len(row) for row in gaps])
    squares = np.array([_square(row) for row in gaps])
    fitted = (counts > 1) & (squares > 0.0)
    prior, prior_degrees = _prior(means, squares, counts - 1.0, fitted)
    found: list[Interval | None] = []
    for mean, square, count, expected, spread in zip(
        means, squares, counts, prior, fitted, strict=True
    ):
        if count < 2:
            found.append(None)
            continue
        degrees = count - 1.0 + prior_degrees
        variance = (prior_degrees * expected + (count - 1.0) * square) / degrees if spread else 0.0
        error = math.sqrt(variance / count)
        reach = float(student.ppf(0.5 + CONFIDENCE / 2, degrees)) * error
        found.append(Interval(float(mean), mean - reach, mean + reach, error, degrees))
    return found


def _square(row: Sequence[float]) -> float:
    return float(np.var(row, ddof=1)) if len(row) > 1 else 0.0


def _prior(
    means: NDArray[np.float64],
    squares: NDArray[np.float64],
    degrees: NDArray[np.float64],
    fitted: NDArray[np.bool_],
) -> tuple[NDArray[np.float64], float]:
    """Return each policy's variance by the trend, and the degrees of freedom that is worth.

    log s^2 is linear in log |gap|; E log s^2 = log sigma^2 + digamma(d/2) - log(d/2), and what
    varies more about the line than trigamma(d/2) is how little policies agree.
    """
    if fitted.sum() < FEWEST:
        return np.ones_like(means), 0.0
    d, size = degrees[fitted], np.abs(means)
    floor = float(np.median(np.sqrt(squares[fitted]))) * 1e-2
    x = np.log(np.maximum(size, floor))
    y = np.log(squares[fitted]) - digamma(d / 2) + np.log(d / 2)
    slope, height = np.polyfit(x[fitted], y, 1)
    line = height + slope * x
    left = float(np.var(y - line[fitted], ddof=2)) - float(np.mean(polygamma(1, d / 2)))
    return np.exp(line), _degrees(left)


def _degrees(excess: float) -> float:
    """Return d with trigamma(d/2) = `excess`, at most MOST_PRIOR; that where nothing is left."""
    if excess <= float(polygamma(1, MOST_PRIOR / 2)):
        return MOST_PRIOR
    low, high = 1e-3, MOST_PRIOR
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if polygamma(1, middle / 2) > excess else (low, middle)
    return math.sqrt(low * high)
