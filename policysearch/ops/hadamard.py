"""The Hadamard transform with signs, over runs of 16 values: spreads an outlier over its run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Op, size
from policysearch.layout import empty
from policysearch.ops.amax import in_blocks
from policysearch.ops.elementwise import same_shape

RUN = 16
SIGNS = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)
"""Transformer Engine `custom_recipes/reference_nvfp4.py`, `get_wgrad_sign_vector`."""


FACTORS = np.array(SIGNS, np.float32) / np.float32(4.0)


def _hadamard(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """A butterfly: every sum is of two numbers, so that no order of a product decides a bit."""
    (x,), axis = inputs, attrs["axis"]
    out = empty(x.shape, x)
    whole = x.shape[axis] // RUN * RUN
    kept = (slice(None),) * axis
    out[(*kept, slice(whole, None))] = x[(*kept, slice(whole, None))]
    if whole:
        runs, made = (np.moveaxis(in_blocks(y, axis, RUN)[0], axis + 1, 0) for y in (x, out))
        values = [runs[i] * FACTORS[i] for i in range(RUN)]
        for apart in (1, 2, 4, 8):
            for i in (i for i in range(RUN) if not i & apart):
                low, high = values[i], values[i + apart]
                values[i], values[i + apart] = low + high, low - high
        for i, value in enumerate(values):
            made[i] = value
    return out


hadamard = Op(
    "hadamard",
    same_shape,
    _hadamard,
    # a butterfly: four additions per value, and the signs and the factor at once
    flops=lambda inputs, out, attrs: 5 * size(out),
    example=lambda rng: Example((rng.standard_normal((3, 35)).astype(np.float32),), {"axis": 1}),
    placement="fp32",
    pointwise=False,
)
"""Each whole run of 16 values along `axis` times signs and Sylvester's matrix / 4.

A last run that is shorter stays as it is. Both operands of a product that are transformed along
what it sums over leave the product as it was: the matrix is orthogonal.
"""
