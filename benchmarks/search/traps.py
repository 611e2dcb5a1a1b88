"""Spaces that mislead a search: made-up tables, the same for the same seed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from benchmarks.search.tables import Table
from policysearch.search.acquisition import yardstick
from policysearch.search.hypervolume import Array
from policysearch.space.options import Decisions, Option

PLACES = 5
OPTIONS = (
    Option("float32"),
    Option("bfloat16", 2.0**-7),
    Option("stored", 2.0**-7, 2.0**-7),
    Option("float8", 2.0**-3),
)
TIMES, PEAKS = np.array([1.0, 0.55, 0.5, 0.35]), np.array([1.0, 0.9, 0.6, 0.75])
GAPS = np.array([0.0, 5e-5, 1e-3, 4e-3])
FAILED = 2.0
"""The gap in nats of what fails."""

Trap = Callable[[np.ndarray, Array, np.random.Generator], Array]


def _low(rows: np.ndarray) -> np.ndarray:
    return np.asarray(rows == 3)


def pairs(rows: np.ndarray, gaps: Array, rng: np.random.Generator) -> Array:
    """Any two layers in float8 fail together."""
    return np.where(_low(rows).sum(axis=1) >= 2, FAILED, gaps)


def neighbours(rows: np.ndarray, gaps: Array, rng: np.random.Generator) -> Array:
    """Two neighbours in float8 fail together, at one place of the net."""
    at = int(rng.integers(PLACES - 1))
    return np.where(_low(rows)[:, at] & _low(rows)[:, at + 1], FAILED, gaps)


def two_layers(rows: np.ndarray, gaps: Array, rng: np.random.Generator) -> Array:
    """Two layers, anywhere in the net, fail when both are in float8."""
    one, other = rng.permutation(PLACES)[:2].tolist()
    return np.where(_low(rows)[:, one] & _low(rows)[:, other], FAILED, gaps)


def beside(rows: np.ndarray, gaps: Array, rng: np.random.Generator) -> Array:
    """bfloat16 beside float8 fails, in either order."""
    left, right = rows[:, :-1], rows[:, 1:]
    mixed = ((left == 1) & (right == 3)) | ((left == 3) & (right == 1))
    return np.where(mixed.any(axis=1), FAILED, gaps)


def misleading(rows: np.ndarray, gaps: Array, rng: np.random.Generator) -> Array:
    """bfloat16 fails, and float8 costs as little as bfloat16 was thought to."""
    sizes = np.exp(0.7 * rng.standard_normal(PLACES))
    return np.where(((rows == 1) | (rows == 2)).any(axis=1), FAILED, _low(rows) @ (GAPS[1] * sizes))


def deadly(rows: np.ndarray, gaps: Array, rng: np.random.Generator) -> Array:
    """One layer fails in whatever is not float32."""
    return np.where(rows[:, int(rng.integers(PLACES))] > 0, FAILED, gaps)


def at_random(rows: np.ndarray, gaps: Array, rng: np.random.Generator) -> Array:
    """Three in ten policies fail, whatever they decide."""
    return np.where(rng.random(len(rows)) < 0.3, FAILED, gaps)


def not_monotone(rows: np.ndarray, gaps: Array, rng: np.random.Generator) -> Array:
    """What a format costs a layer has nothing to do with its bits."""
    costs = np.exp(rng.uniform(np.log(2e-5), np.log(2e-2), (PLACES, len(OPTIONS))))
    costs[:, 0] = 0.0
    return np.asarray(costs[np.arange(PLACES), rows].sum(axis=1))


def nothing_works(rows: np.ndarray, gaps: Array, rng: np.random.Generator) -> Array:
    """Whatever is not float32 fails."""
    return np.where(rows.any(axis=1), FAILED, 0.0)


def as_it_is(rows: np.ndarray, gaps: Array, rng: np.random.Generator) -> Array:
    """A sum, as it is thought to be."""
    return gaps


TRAPS: Mapping[str, Trap] = MappingProxyType(
    {
        "pairs": pairs,
        "neighbours": neighbours,
        "deadly-layer": deadly,
        "fails-at-random": at_random,
        "not-monotone": not_monotone,
        "flat-price": as_it_is,
        "nothing-works": nothing_works,
        "two-layers": two_layers,
        "beside": beside,
        "misleading": misleading,
        "additive": as_it_is,
    }
)


def trap(name: str, seed: int) -> Table:
    """Return the table of TRAPS called `name`, drawn with `seed`: 1,024 policies, one seed."""
    rng = np.random.default_rng([seed, list(TRAPS).index(name)])
    ranges = [range(len(OPTIONS))] * PLACES
    rows = np.array(list(itertools.product(*ranges)), dtype=np.int64)
    sizes = np.exp(0.7 * rng.standard_normal((PLACES, len(OPTIONS))))
    gaps = (GAPS * sizes)[np.arange(PLACES), rows].sum(axis=1)
    gaps = gaps * np.exp(0.03 * rng.standard_normal(len(rows)))
    weights = rng.dirichlet(np.full(PLACES, 3.0), size=2)
    costs = np.column_stack([TIMES[rows] @ weights[0], PEAKS[rows] @ weights[1]])
    if name == "flat-price":
        costs = np.ones_like(costs)
    start = [i for i, row in enumerate(rows.tolist()) if len(set(row)) == 1]
    table = Table(
        name=f"{name}-{seed}",
        decisions=Decisions((OPTIONS,) * PLACES, ()),
        rows=rows,
        raw=rows,
        costs=costs,
        gaps=TRAPS[name](rows, gaps, rng)[None],
        measure=yardstick(costs[start[1:]]),
        start=tuple(start),
        curves=None,
        probes=None,
        probe_cost=0.0,
        scores={},
    )
    return replace(table, gaps=np.where(table.exact, 0.0, table.gaps))
