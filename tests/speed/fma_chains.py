"""Matrix products as exact chains of fused multiply-adds: the oracle of compiled convolutions."""

from __future__ import annotations

import numpy as np

from policysearch.graph import FloatArray


def fma(a: FloatArray, b: FloatArray, c: FloatArray) -> FloatArray:
    """Return a * b + c, rounded once.

    The float64 sum is rounded to odd, from where rounding to float32 is exact (Boldo and
    Melquiond, IEEE Transactions on Computers 57(4), 2008).
    """
    product, wide = a.astype(np.float64) * b, c.astype(np.float64)
    total = np.asarray(product + wide)
    back = total - product
    error = (product - (total - back)) + (wide - back)
    bits = total.view(np.int64)
    inexact = np.isfinite(total) & (error != 0) & (bits & 1 == 0)
    bits += np.where(inexact, np.where((error > 0) == (total > 0), 1, -1), 0)
    return total.astype(np.float32)


def chained(left: FloatArray, right: FloatArray, *, out: FloatArray) -> None:
    """Write the matrix product, summed in the order of the contracted index."""
    total = np.zeros(out.shape, np.float32)
    for k in range(left.shape[-1]):
        total = fma(left[..., :, k, None], right[..., k, None, :], total)
    out[...] = total


def backwards(left: FloatArray, right: FloatArray, *, out: FloatArray) -> None:
    """Write the matrix product, summed from the last contracted index to the first."""
    chained(left[..., ::-1], right[..., ::-1, :], out=out)
