"""Attention in one kernel, rounded where torch's flash kernel for CPUs rounds.

It is `_scaled_dot_product_flash_attention_for_cpu` of torch 2.13
(`aten/src/ATen/native/cpu/FlashAttentionKernel.cpp`): scores are float32 and never stored, what a
product reads is rounded, and a gradient is rounded wherever a block is added to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from policysearch.formats import format_named
from policysearch.graph import Attrs, Example, FloatArray, GradientRule, Node, Op, Shape, size
from policysearch.layout import empty
from policysearch.ops.builder import Builder
from policysearch.ops.composite import INNER_FORMAT
from policysearch.ops.gather import STEPS
from policysearch.rounding.rounder import quantise

KEY_BLOCK = 512
"""Keys that the kernel takes at a time."""

QUERY_BLOCKS = ((768, 256), (192, 64), (0, 32))
"""Queries that its gradient takes at a time, from a number of queries on."""

SPAN = 1 << 20
"""Scores that are held at a time here; no result depends on it."""

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
    result: FloatArray = np.exp(x)
    whole = x.shape[-1] // VECTOR * VECTOR
    x = x[..., :whole]
    two = np.maximum(x, SMALLEST_LOGARITHM) * np.float32(1.0 / np.log(2.0))
    fraction = two - np.floor(two)
    taken = np.full_like(two, POLYNOMIAL[0])
    for coefficient in POLYNOMIAL[1:]:
        taken = _multiply_add(taken, fraction, coefficient)
    bits = _multiply_add(two - taken, np.float32(1 << 23), np.float32(127 << 23))
    fast = bits.astype(np.int32).view(np.float32)
    result[..., :whole] = np.where(x < SMALLEST_LOGARITHM, np.float32(0.0), fast)
    return result


def _multiply_add(a: FloatArray, b: FloatArray | np.float32, c: np.float32) -> FloatArray:
    """Return a b + c rounded once: the product of two float32 is exact in float64."""
    product = a.astype(np.float64)
    product *= b
    product += np.float64(c)
    return product.astype(np.float32)


@dataclass(frozen=True)
class _Attention:
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

    @property
    def factor(self) -> np.float32:
        return np.float32(self.attrs["scale"])

    def rounded(self, x: FloatArray) -> FloatArray:
        inner = self.attrs.get(INNER_FORMAT)
        return quantise(x, format_named(inner)) if inner else x

    def exp(self, x: FloatArray) -> FloatArray:
        # below float32 torch has an approximation, of whole vectors
        return fast_exp(x) if self.attrs.get(INNER_FORMAT) else np.exp(x)

    def scores(self, rows: slice, keys: slice) -> FloatArray:
        """Return q k^T scale + mask, [heads, rows, keys], -inf where a key is hidden."""
        s = np.matmul(self.q[:, rows], self.k[:, keys].swapaxes(1, 2)) * self.factor
        if self.mask is None:
            return s
        mask = self.mask[:, rows, keys]
        return np.where(mask, s, np.float32(-np.inf)) if self.attrs.get("hides") else s + mask

    def results(self) -> tuple[FloatArray, FloatArray]:
        """Return softmax(scores) v, unrounded, and the logarithm of what it is divided by."""
        shape = self.q.shape[:2]
        most, total = np.full((*shape, 1), -np.inf, np.float32), np.zeros((*shape, 1), np.float32)
        out = np.zeros((*shape, self.v.shape[2]), np.float32)
        for keys in _blocks(self.k.shape[1], KEY_BLOCK):
            s = self.scores(slice(None), keys)
            before, most = most, np.maximum(most, s.max(axis=2, keepdims=True))
            shift = np.where(np.isneginf(most), np.float32(0.0), most)
            shares, left = self.exp(s - shift), np.exp(before - shift)
            total[...] = shares.sum(axis=2, keepdims=True) + left * total
            out[...] = out * left + np.matmul(self.rounded(shares), self.v[:, keys])
        empty_row = total == 0.0
        total[empty_row], most[empty_row] = 1.0, 0.0
        out *= np.reciprocal(total)
        logarithm: FloatArray = most + np.log(total)
        return out, logarithm

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


def _parts(
    qkv: Sequence[FloatArray],
    others: Sequence[FloatArray],
    mask: Sequence[FloatArray],
    attrs: Attrs,
) -> Iterator[_Attention]:
    """Yield some heads at a time; the mask, if there is one, is [rows, keys] or has heads, too.

    Where several heads share a key, the first of all of them come first, as in the kernel.
    """
    (count, rows, _), (pairs, keys, _) = qkv[0].shape, qkv[1].shape
    wide = None
    if mask:
        given = mask[0] if mask[0].ndim == 3 else mask[0][None]
        wide = np.broadcast_to(given, (len(given), rows, keys))
    shared = count // pairs
    for pair in _blocks(pairs, max(1, SPAN // (rows * keys))):
        for member in range(shared):
            heads = slice(pair.start * shared + member, pair.stop * shared, shared)
            own = wide if wide is None or len(wide) == 1 else wide[heads]
            rest = tuple(x[heads] for x in others)
            yield _Attention(
                qkv[0][heads], qkv[1][pair], qkv[2][pair], own, rest, heads, pair, attrs
            )


def _forward(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    out = empty(_shape([x.shape for x in inputs], attrs))
    for part in _parts(inputs[:3], (), inputs[3:], attrs):
        out[part.heads] = part.results()[0]
    return out


def _grad_q(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    grad, q, k, v, out, *mask = inputs
    gradient = empty(q.shape)
    for part in _parts((q, k, v), (grad, out), mask, attrs):
        total = gradient[part.heads]
        for rows, keys, logarithm in _pairs(part):
            step = np.matmul(part.grad_scores(rows, keys, logarithm), part.k[:, keys]) * part.factor
            total[:, rows] = part.rounded(total[:, rows] + step)
    return gradient


def _grad_k(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    grad, q, k, v, out, *mask = inputs
    gradient = empty(k.shape)
    for part in _parts((q, k, v), (grad, out), mask, attrs):
        total = gradient[part.pair]
        for rows, keys, logarithm in _pairs(part):
            scores = part.grad_scores(rows, keys, logarithm).swapaxes(1, 2)
            step = np.matmul(scores, part.q[:, rows]) * part.factor
            total[:, keys] = part.rounded(total[:, keys] + step)
    return gradient


def _grad_v(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    grad, q, k, v, *mask = inputs
    gradient = empty(v.shape)
    for part in _parts((q, k, v), (grad,), mask, attrs):
        total = gradient[part.pair]
        for rows, keys, logarithm in _pairs(part):
            shares = part.rounded(part.shares(rows, keys, logarithm)).swapaxes(1, 2)
            step = np.matmul(shares, part.others[0][:, rows])
            total[:, keys] = part.rounded(total[:, keys] + step)
    return gradient


def _pairs(part: _Attention) -> Iterator[tuple[slice, slice, FloatArray]]:
    """Yield blocks of queries and of keys in the kernel's order, each with all logarithms."""
    queries, logarithm = part.q.shape[1], part.results()[1]
    block = next(block for least, block in QUERY_BLOCKS if queries >= least)
    for rows in _blocks(queries, block):
        yield from ((rows, keys, logarithm) for keys in _blocks(part.k.shape[1], KEY_BLOCK))


def _shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return (*inputs[0][:2], inputs[2][2])


def _products(count: int, place: int) -> Callable[[Sequence[Shape], Shape, Attrs], int]:
    """Return the FLOPs of `count` products of queries and keys; q is the input at `place`."""
    return lambda inputs, out, attrs: 2 * count * size(inputs[place]) * inputs[place + 1][1]


def _gradient(op: Op, reads_result: bool = True) -> GradientRule:
    def rule(b: Builder, node: Node, grad: int) -> int:
        q, k, v, *mask = node.inputs
        result = [node.id] if reads_result else []
        return b.emit(op, grad, q, k, v, *result, *mask, attrs=node.attributes)

    return rule


def _gradient_op(
    name: str, place: int, forward: Callable[..., FloatArray], products: int, reads_result: int = 1
) -> Op:
    return Op(
        f"flash_attention_grad_{name}",
        shape=lambda inputs, attrs: inputs[place],
        forward=forward,
        flops=_products(products, 1),
        kind="gemm",
        placement="low",
        pinned=(4 + reads_result,),
    )


def _example(rng: np.random.Generator) -> Example:
    """More queries than a block of the gradient, heads that share keys, one of which is hidden."""
    q = rng.standard_normal((4, 34, 4)).astype(np.float32)
    k, v = (rng.standard_normal((2, 37, 4)).astype(np.float32) for _ in range(2))
    mask = rng.standard_normal((34, 37)).astype(np.float32)
    mask[:, 3] = -np.inf
    return Example((q, k, v, mask), attributes(0.5))


def attributes(scale: float, *, hides: bool = False) -> dict[str, Any]:
    """Return the attributes of `flash_attention` as torch has it."""
    return {"scale": scale, STEPS: True, **({"hides": True} if hides else {})}


# The kernel's gradient is five products; it computes the scores once for all three.
grad_q = _gradient_op("q", 1, _grad_q, 2)
grad_k = _gradient_op("k", 2, _grad_k, 1)
grad_v = _gradient_op("v", 3, _grad_v, 2, 0)
flash_attention = Op(
    "flash_attention",
    _shape,
    _forward,
    gradients=(_gradient(grad_q), _gradient(grad_k), _gradient(grad_v, False), None),
    flops=_products(2, 0),
    example=_example,
    kind="gemm",
    placement="low",
    pinned=(3,),
)
"""softmax(q k^T `scale` + mask) v of q [heads, rows, d], k and v [heads or fewer, keys, d].

There may be a mask [rows, keys] or [heads, rows, keys], each extent or 1; with `hides` it holds
truth values, of what is left, and is not added. In the format of the node, with STEPS, products
read shares not yet divided by their sum. A row of which all is hidden gives 0.
"""
