"""What recipes of 8-bit and smaller operands take, fitted to published rows, families held out."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from scipy.optimize import least_squares

from benchmarks.validation.fit import CLOSE, TOLERANCE
from benchmarks.validation.narrow.rows import (
    NarrowRow,
    families_of,
    is_eight_bit,
    narrow_speedup,
    recipes_of,
)
from benchmarks.validation.narrow.scalings import (
    ALL,
    HELD_OUT,
    SCALINGS,
    NarrowConstants,
    constants_data,
)
from policysearch.cost.roofline import Array
from policysearch.formats import format_named
from policysearch.objective.published.row_file import built_of

ELEMENTS = (1.0, 1.0)
"""Where the elements that quantising counts for begin, and the deviation of their logarithm."""

RATES: Mapping[tuple[int, bool], tuple[float, float]] = {
    (8, False): (0.9, 0.2),
    (8, True): (0.9, 0.2),
    (4, True): (0.8, 0.2),
}
"""The same of what scaling leaves of the products' rate, of all recipes of so many bits.

Those that scale blocks are apart from those that scale whole rows or tensors.
"""

RECIPE_SPREAD = 0.15
"""Deviation of the logarithm of a recipe's rate from that of all."""

START = np.zeros(1 + len(RATES) + len(SCALINGS))
"""The place of the priors where a fit begins."""


def fit_narrow(rows: Sequence[NarrowRow]) -> NarrowConstants:
    """Return the constants that fit published speedups of 8-bit and smaller products.

    All else is as FITTED. Least soft absolute errors of the logarithms; rows of one recipe, kind
    and device weigh as the root of their number. A recipe that no row has gets the rate of its
    like.
    """
    truth = np.log([row.speedup for row in rows])
    kinds = [(recipes_of(row)[-1], row.kind, row.hardware) for row in rows]
    counts = Counter(kinds)
    weights = np.array([counts[kind] ** -0.5 for kind in kinds])
    weights *= len(weights) / weights.sum()

    def residuals(place: Array) -> Array:
        narrow = _constants_at(place)
        errors = np.log([narrow_speedup(row, narrow=narrow) for row in rows]) - truth
        return np.concatenate([errors / TOLERANCE * weights**0.5, place])

    near = {"ftol": CLOSE, "xtol": CLOSE}
    return _constants_at(least_squares(residuals, START, loss="soft_l1", diff_step=1e-3, **near).x)


def _constants_at(place: Array) -> NarrowConstants:
    """Return the constants at a place of the priors: 0 is where they begin, 1 a deviation on."""
    start, spread = np.array([ELEMENTS, *RATES.values()]).T
    elements, *means = start * np.exp(spread * place[: len(start)])
    of_kind = dict(zip(RATES, means, strict=True))
    shares = np.exp(RECIPE_SPREAD * place[len(start) :])
    rates = {
        name: float(of_kind[format_named(scaling.format).bits, scaling.blocks] * share)
        for (name, scaling), share in zip(SCALINGS.items(), shares, strict=True)
    }
    return NarrowConstants(float(elements), rates)


def write_narrow(rows: Sequence[NarrowRow], path: Path = HELD_OUT) -> None:
    """Write what fits all rows, and by family of recipes what fits those without one of it."""
    built = built_of(rows, lambda row: (row, narrow_speedup(row, narrow=_constants_at(START))))[0]
    eight = [row for row, _ in built if is_eight_bit(row)]
    fits = {ALL: fit_narrow(eight)}
    for family in dict.fromkeys(scaling.family for scaling in SCALINGS.values()):
        others = [row for row in eight if family not in families_of(row)]
        fits[family] = fit_narrow(others)
    data = {name: constants_data(constants) for name, constants in fits.items()}
    lines = (f"{json.dumps(name)}: {json.dumps(value)}" for name, value in data.items())
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
