"""How sure a mean gap over a few seeds is: variances that policies share, and t intervals.

Three seeds say little about one policy's spread, but a study has dozens of policies whose spreads
follow their gaps. So the spread of each is drawn towards that trend, as far as the policies agree
on it (the moderated variance of Smyth, Stat. Appl. Genet. Mol. Biol. 3(1), 2004, with a trend as
in Law et al., Genome Biology 15:R29, 2014). Policies are trained on the same seeds and err
together, so thirty of them say less than thirty would that were independent: what the trend is
worth to each is worked out from how their gaps vary together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import digamma, polygamma, stdtrit

CONFIDENCE = 0.95
MOST_SEEDS = 20
"""With more seeds than this the recipe is to be changed rather than repeated."""
FEWEST = 4
"""With fewer policies that have a spread there is no trend: each stands for itself."""


@dataclass(frozen=True)
class Interval:
    """A mean over seeds with its interval at 95 %, in nats; `error` is its standard error."""

    mean: float
    low: float
    high: float
    error: float
    degrees: float

    @property
    def holds_zero(self) -> bool:
        """Whether the mean cannot be told from zero."""
        return self.low <= 0.0 <= self.high

    def apart(self, other: Interval) -> bool:
        """Whether the two means differ at 95 %."""
        return abs(self.mean - other.mean) > self.reach(other)

    def reach(self, other: Interval) -> float:
        """Return the least difference of the two means that is one at 95 %, in nats."""
        degrees = min(self.degrees, other.degrees)
        wide = float(stdtrit(degrees, 0.5 + CONFIDENCE / 2))
        return wide * math.hypot(self.error, other.error)


def intervals(gaps: Sequence[Sequence[float]]) -> list[Interval | None]:
    """Return the interval of each policy's mean gap, from its gap per seed, in one order of seeds.

    None for a policy with one seed: nothing is known of its spread, and none is made up. A policy
    whose gaps are all equal (float32 itself) has an interval without width.
    """
    most = max((len(row) for row in gaps), default=0)
    fitted = [i for i, row in enumerate(gaps) if len(row) == most > 1 and np.var(row) > 0.0]
    shared: dict[int, tuple[float, float]] = {}
    if len(fitted) >= FEWEST:
        moderated = _moderated_variances(np.array([gaps[i] for i in fitted]))
        shared = dict(zip(fitted, moderated, strict=True))
    spreads = (shared[i] if i in shared else _alone(row) for i, row in enumerate(gaps))
    return [_interval(row, *spread) for row, spread in zip(gaps, spreads, strict=True)]


def change(before: Sequence[float], after: Sequence[float]) -> Interval | None:
    """Return the interval of how far the mean gap moves from one policy to another, in nats.

    From these two alone, their gaps per seed in one order of seeds: what a seed does to both
    cancels (the paired t interval), and what else was trained changes nothing. None with one seed.
    """
    moved = [there - here for here, there in zip(before, after, strict=True)]
    return _interval(moved, *_alone(moved))


def seeds_needed(error: float, degrees: float, seeds: int, wanted: float) -> int:
    """Return with how many seeds a 95 % interval reaches no further than `wanted` nats.

    `error`: the standard error from `seeds` of them, with `degrees` of freedom. MOST_SEEDS + 1
    where that many do not do.
    """
    for count in range(2, MOST_SEEDS + 1):
        # Student's t is narrower with more degrees of freedom, which grow with the seeds.
        reach = stdtrit(degrees * (count - 1) / max(1, seeds - 1), 0.5 + CONFIDENCE / 2)
        if reach * error * math.sqrt(seeds / count) <= wanted:
            return count
    return MOST_SEEDS + 1


def _interval(row: Sequence[float], variance: float, degrees: float) -> Interval | None:
    if len(row) < 2:
        return None
    mean, error = math.fsum(row) / len(row), math.sqrt(variance / len(row))
    reach = float(stdtrit(degrees, 0.5 + CONFIDENCE / 2)) * error
    return Interval(mean, mean - reach, mean + reach, error, degrees)


def _alone(row: Sequence[float]) -> tuple[float, float]:
    """Return the variance of one policy over its seeds, and its degrees of freedom."""
    return (float(np.var(row, ddof=1)), len(row) - 1.0) if len(row) > 1 else (0.0, 0.0)


def _moderated_variances(gaps: NDArray[np.float64]) -> list[tuple[float, float]]:
    """Return each policy's variance drawn towards the trend, and its degrees of freedom.

    `gaps`: [policies, seeds]. log s^2 is linear in log |gap|; with d = seeds - 1 its expectation is
    log sigma^2 + digamma(d/2) - log(d/2) and its variance trigamma(d/2). Two policies' log s^2 vary
    together as the square of their gaps' correlation. What the policies vary more about the line
    than that is how little they agree, and the line itself is no surer than its weights make it.
    """
    d = gaps.shape[1] - 1.0
    squares, sampling = np.var(gaps, axis=1, ddof=1), float(polygamma(1, d / 2))
    # `left` over sampling variance is what the policies scatter more than chi-square would; from
    # that `excess`, the variance between true log variances. The line adds its own uncertainty, and
    # a prior whose log has that variance has trigamma(d0/2) of it: d0 degrees of freedom (Smyth).
    # The line's weights [policies, policies] are `design @ inverse`, of rank two: no product here
    # grows faster than with the square of the policies.
    design, inverse, line, left = _trend(gaps.mean(axis=1), squares, d)
    together = _together(gaps, float(left @ left) / (len(gaps) - 2) / sampling)
    reached = inverse @ together
    common = np.einsum("ij,ji->i", design, reached)  # of each policy's own row of both
    free = np.trace(together) - common.sum()
    excess = max(0.0, (left @ left - sampling * free) / (len(gaps) - 2))
    unsure = (sampling * reached + excess * inverse) @ inverse.T
    prior = _degrees(excess + np.einsum("ij,jk,ik->i", design, unsure, design))
    # `spread` is half the relative variance of a weighted mean of two that vary together, one
    # over it its degrees of freedom (Satterthwaite, Biometrics Bulletin 2(6), 1946).
    share = prior / (prior + d)
    spread = share**2 / prior + (1 - share) ** 2 / d + 2 * share * (1 - share) * common / d
    variance = share * np.exp(line) + (1 - share) * squares
    degrees = np.maximum(1.0, np.minimum(1.0 / spread, prior + d))
    return list(zip(variance.tolist(), degrees.tolist(), strict=True))


def _trend(
    means: NDArray[np.float64], squares: NDArray[np.float64], d: float
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """Return the design [policies, 2] of a least-squares line, its inverse, the line, the rest."""
    floor = float(np.median(np.sqrt(squares))) * 1e-2
    x = np.log(np.maximum(np.abs(means), floor))
    y = np.log(squares) - digamma(d / 2) + np.log(d / 2)
    design = np.stack([np.ones_like(x), x], axis=1)
    inverse = np.linalg.pinv(design)
    line = design @ (inverse @ y)
    return design, inverse, line, y - line


def _together(gaps: NDArray[np.float64], scatter: float) -> NDArray[np.float64]:
    """Return an estimate [policies, policies] of the squared correlations between policies.

    The square of a correlation over d degrees of freedom is 1/d on average where there is none.
    Two seeds correlate any two policies; then what their variances scatter less about the line
    than independent ones would is taken for shared. `scatter` is that, 1 where nothing is.
    """
    d = gaps.shape[1] - 1.0
    if d < 2.0:
        shared = min(1.0, max(0.0, 1.0 - scatter))
        return shared + (1.0 - shared) * np.eye(len(gaps))
    squares: NDArray[np.float64] = (np.corrcoef(gaps) ** 2 - 1 / d) / (1 - 1 / d)
    return squares


def _degrees(variances: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return d with trigamma(d/2) = variance, of each."""
    low, high = np.full_like(variances, 1e-3), np.full_like(variances, 1e6)
    for _ in range(60):  # trigamma falls, so halving on a logarithmic scale finds it
        middle = np.sqrt(low * high)
        above = polygamma(1, middle / 2) > variances
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.sqrt(low * high)
