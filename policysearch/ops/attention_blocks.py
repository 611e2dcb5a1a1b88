"""What torch's flash kernel for CPUs does block by block: scores, shares and their gradients.

It drops nothing. What CUDA's drops, and where, is of `csrc/flash_attn/src` of flash-attention 2
(`flash_fwd_kernel.h`, `flash_bwd_kernel.h`): shares after they are rounded, and what is left is
scaled up at the end of a product.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from policysearch.graph import Attrs, FloatArray
from policysearch.layout import in_c_order
from policysearch.rounding.rounder import Rounder

KEY_BLOCK = 512
"""Keys that the kernel takes at a time."""

SPAN, ROWS = 1 << 15, 64
"""Scores that are held at a time here, and queries; what is small stays in the cache."""

VECTOR = 16
"""Values in a vector of AVX-512; what is left of a row has the usual exponential."""

DROPS = "p"
"""Attribute of a call that drops shares: how many of them."""

POLYNOMIAL = tuple(
    np.float32(c) for c in (-0.0792042402, -0.2243383648, 0.3035426050, 0.0001070343495)
)
"""What is taken from a fraction f so that 2^f is one more than the rest, highest power first.

After Malossi, Ineichen, Bekas and Curioni, Fast Exponential Computation on SIMD Architectures
(2015), as torch has it in `aten/src/ATen/cpu/vec/vec512/vec512_float.h` (`fexp_u20`).
"""

SMALLEST_LOGARITHM = np.float32(-87.33655)
"""Below it, what the approximation gives is 0."""


def fast_exp(x: FloatArray) -> FloatArray:
    """Return exp(x) of x up to 0, to 1.1e-4 of it, but for the last of an axis past whole vectors.

    A float32 is read as an integer there: 2^23 times its logarithm, but for the fraction.
    """
    whole = x.shape[-1] // VECTOR * VECTOR
    result = np.empty_like(x)
    np.exp(x[..., whole:], out=result[..., whole:])
    x = x[..., :whole]
    two = np.maximum(x, SMALLEST_LOGARITHM)
    two *= np.float32(1.0 / np.log(2.0))
    fraction = two - np.floor(two)
    taken = fraction * POLYNOMIAL[0]
    for coefficient in POLYNOMIAL[1:-1]:
        taken += coefficient
        taken *= fraction
    taken += POLYNOMIAL[-1]
    two -= taken
    two *= np.float32(1 << 23)
    two += np.float32(127 << 23)
    fast = two.astype(np.int32).view(np.float32)
    fast[x < SMALLEST_LOGARITHM] = 0.0
    result[..., :whole] = fast
    return result


@dataclass(frozen=True)
class Heads:
    """Some heads: q [heads, rows, d], k and v [heads, keys, d], mask [heads or 1, rows, keys].

    `left` [heads, rows, keys] is 0 where a share is dropped. `others` are further arrays of these
    heads. They lie at `heads` in the whole, k and v at `pair`.
    """

    q: FloatArray
    k: FloatArray
    v: FloatArray
    mask: FloatArray | None
    left: FloatArray | None
    others: tuple[FloatArray, ...]
    heads: slice
    pair: slice
    attrs: Attrs
    rounder: Rounder | None

    @property
    def factor(self) -> np.float32:
        return np.float32(self.attrs["scale"])

    @property
    def kept_share(self) -> np.float32:
        """The share of what is not dropped."""
        return np.float32(1.0 - self.attrs.get(DROPS, 0.0))

    def without_dropped(self, x: FloatArray, rows: slice, keys: slice) -> FloatArray:
        return x if self.left is None else np.where(self.left[:, rows, keys], x, np.float32(0.0))

    def scaled_up(self, x: FloatArray) -> FloatArray:
        """Return what is left of a sum, as large as the whole."""
        return x if self.left is None else x * np.reciprocal(self.kept_share)

    def rounded(self, x: FloatArray) -> FloatArray:
        """Return x as products read it, rounded in place."""
        if self.rounder is not None:
            x = in_c_order(x)
            self.rounder(x.reshape(-1), x.reshape(-1), 0)
        return x

    def exp(self, x: FloatArray) -> FloatArray:
        # below float32 torch has an approximation, of whole vectors
        return np.exp(x) if self.rounder is None else fast_exp(x)

    def scores(self, rows: slice, keys: slice) -> FloatArray:
        """Return q k^T scale + mask, [heads, rows, keys], -inf where a key is hidden."""
        s = np.matmul(self.q[:, rows], self.k[:, keys].swapaxes(1, 2)) * self.factor
        if self.mask is not None:
            s += self.mask[:, rows, keys]
        return s

    def logarithm(self, out: FloatArray | None = None) -> FloatArray:
        """Return the logarithm of what shares are divided by, [heads, rows, 1].

        To `out`, of zeros, the result is written: softmax(scores) v, unrounded.
        """
        logarithm = np.empty((*self.q.shape[:2], 1), np.float32, like=self.q)
        for rows in blocks(self.q.shape[1], ROWS):
            result = None if out is None else out[:, rows]
            logarithm[:, rows] = self._logarithm(rows, result)
        return logarithm

    def _logarithm(self, rows: slice, out: FloatArray | None) -> FloatArray:
        shape = (*self.q[:, rows].shape[:2], 1)
        most = np.full(shape, -np.inf, np.float32, like=self.q)
        total = np.zeros(shape, np.float32, like=self.q)
        for keys in blocks(self.k.shape[1], KEY_BLOCK):
            s = self.scores(rows, keys)
            before, most = most, np.maximum(most, s.max(axis=2, keepdims=True))
            shift = np.where(np.isneginf(most), np.float32(0.0), most)
            s -= shift
            shares, left = self.exp(s), np.exp(before - shift)
            total[...] = shares.sum(axis=2, keepdims=True) + left * total
            if out is not None:
                read = self.without_dropped(self.rounded(shares), rows, keys)
                out[...] = out * left + np.matmul(read, self.v[:, keys])
        empty_row = total == 0.0
        total[empty_row], most[empty_row] = 1.0, 0.0
        if out is not None:
            out *= self.scaled_up(np.reciprocal(total))
        logarithm: FloatArray = most + np.log(total)
        return logarithm

    def shares(self, rows: slice, keys: slice, logarithm: FloatArray) -> FloatArray:
        return np.exp(self.scores(rows, keys) - logarithm[:, rows])

    def grad_scores(self, rows: slice, keys: slice, logarithm: FloatArray) -> FloatArray:
        """Return the gradient of the scores before `scale`, as the products read it.

        Where shares are dropped, of what is to be `scaled_up`.
        """
        grad, out = (x[:, rows] for x in self.others)
        along = (grad * out).sum(axis=2, keepdims=True)
        of_shares = np.matmul(grad, self.v[:, keys].swapaxes(1, 2))
        if self.left is not None:
            of_shares = self.without_dropped(of_shares, rows, keys)
            along *= self.kept_share
        return self.rounded(self.shares(rows, keys, logarithm) * (of_shares - along))


def blocks(length: int, block: int) -> Iterator[slice]:
    return (slice(start, start + block) for start in range(0, length, block))
