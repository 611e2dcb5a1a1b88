"""What torch's flash kernel for CPUs does block by block: scores, shares and their gradients."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from policysearch.formats import format_named
from policysearch.graph import Attrs, FloatArray
from policysearch.layout import in_c_order
from policysearch.ops.composite import INNER_FORMAT
from policysearch.rounding.rounder import Rounder, rounder

KEY_BLOCK = 512
"""Keys that the kernel takes at a time."""

QUERY_BLOCKS = ((768, 256), (192, 64), (0, 32))
"""Queries that its gradient takes at a time, from a number of queries on."""

SPAN, ROWS = 1 << 15, 64
"""Scores that are held at a time here, and queries; what is small stays in the cache."""

VECTOR = 16
"""Values in a vector of AVX-512; what is left of a row has the usual exponential."""

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

    `others` are further arrays of these heads. They lie at `heads` in the whole, k and v at `pair`.
    """

    q: FloatArray
    k: FloatArray
    v: FloatArray
    mask: FloatArray | None
    others: tuple[FloatArray, ...]
    heads: slice
    pair: slice
    attrs: Attrs
    rounder: Rounder | None

    @property
    def factor(self) -> np.float32:
        return np.float32(self.attrs["scale"])

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
        for rows in _blocks(self.q.shape[1], ROWS):
            result = None if out is None else out[:, rows]
            logarithm[:, rows] = self._logarithm(rows, result)
        return logarithm

    def _logarithm(self, rows: slice, out: FloatArray | None) -> FloatArray:
        shape = (*self.q[:, rows].shape[:2], 1)
        most = np.full(shape, -np.inf, np.float32, like=self.q)
        total = np.zeros(shape, np.float32, like=self.q)
        for keys in _blocks(self.k.shape[1], KEY_BLOCK):
            s = self.scores(rows, keys)
            before, most = most, np.maximum(most, s.max(axis=2, keepdims=True))
            shift = np.where(np.isneginf(most), np.float32(0.0), most)
            s -= shift
            shares, left = self.exp(s), np.exp(before - shift)
            total[...] = shares.sum(axis=2, keepdims=True) + left * total
            if out is not None:
                out[...] = out * left + np.matmul(self.rounded(shares), self.v[:, keys])
        empty_row = total == 0.0
        total[empty_row], most[empty_row] = 1.0, 0.0
        if out is not None:
            out *= np.reciprocal(total)
        logarithm: FloatArray = most + np.log(total)
        return logarithm

    def shares(self, rows: slice, keys: slice, logarithm: FloatArray) -> FloatArray:
        return np.exp(self.scores(rows, keys) - logarithm[:, rows])

    def grad_scores(self, rows: slice, keys: slice, logarithm: FloatArray) -> FloatArray:
        """Return the gradient of the scores before `scale`, as the products read it."""
        grad, out = (x[:, rows] for x in self.others)
        along = (grad * out).sum(axis=2, keepdims=True)
        of_shares = np.matmul(grad, self.v[:, keys].swapaxes(1, 2))
        return self.rounded(self.shares(rows, keys, logarithm) * (of_shares - along))


def _blocks(length: int, block: int) -> Iterator[slice]:
    return (slice(start, start + block) for start in range(0, length, block))


def _query_block(rows: int) -> int:
    return next(block for least, block in QUERY_BLOCKS if rows >= least)


def parts(
    qkv: Sequence[FloatArray],
    others: Sequence[FloatArray],
    mask: Sequence[FloatArray],
    attrs: Attrs,
) -> Iterator[Heads]:
    """Yield some heads at a time; the mask, if there is one, is [rows, keys] or has heads, too.

    Where several heads share a key, the first of all of them come first, as in the kernel.
    """
    (count, rows, _), (pairs, keys, _) = qkv[0].shape, qkv[1].shape
    wide = None
    if mask:
        given = mask[0] if mask[0].ndim == 3 else mask[0][None]
        if attrs.get("hides"):
            given = np.where(given, np.float32(0.0), np.float32(-np.inf))
        wide = np.broadcast_to(given, (len(given), rows, keys))
    inner, shared = attrs.get(INNER_FORMAT), count // pairs
    rounds = rounder(format_named(inner)) if inner else None
    held = min(rows, ROWS) * min(keys, KEY_BLOCK)
    for pair in _blocks(pairs, max(1, SPAN // held)):
        for member in range(shared):
            heads = slice(pair.start * shared + member, pair.stop * shared, shared)
            own = wide if wide is None or len(wide) == 1 else wide[heads]
            rest = tuple(x[heads] for x in others)
            qkv_here = qkv[0][heads], qkv[1][pair], qkv[2][pair]
            yield Heads(*qkv_here, own, rest, heads, pair, attrs, rounds)


def pairs(part: Heads) -> Iterator[tuple[slice, slice, FloatArray]]:
    """Yield blocks of queries and of keys in the kernel's order, each with all logarithms."""
    queries, logarithm = part.q.shape[1], part.logarithm()
    block = next(block for least, block in QUERY_BLOCKS if queries >= least)
    for rows in _blocks(queries, block):
        yield from ((rows, keys, logarithm) for keys in _blocks(part.k.shape[1], KEY_BLOCK))
