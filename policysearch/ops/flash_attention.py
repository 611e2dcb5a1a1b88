"""Attention in one kernel, rounded where torch's flash kernel for CPUs rounds.

It is `_scaled_dot_product_flash_attention_for_cpu` of torch 2.13
(`aten/src/ATen/native/cpu/FlashAttentionKernel.cpp`): scores are float32 and never stored, what a
product reads is rounded, and a gradient is rounded wherever a block is added to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from policysearch.formats import format_named
from policysearch.graph import Attrs, Example, FloatArray, GradientRule, Node, Op, Shape, size
from policysearch.layout import empty
from policysearch.ops.attention_blocks import DROPS, KEY_BLOCK, ROWS, SPAN, Heads, blocks
from policysearch.ops.builder import Builder
from policysearch.ops.composite import INNER_FORMAT
from policysearch.ops.gather import STEPS
from policysearch.rounding.rounder import rounder

QUERY_BLOCKS = ((768, 256), (192, 64), (0, 32))
"""Queries that its gradient takes at a time, from a number of queries on."""


def parts(
    qkv: Sequence[FloatArray],
    others: Sequence[FloatArray],
    masks: Sequence[FloatArray],
    attrs: Attrs,
) -> Iterator[Heads]:
    """Yield some heads at a time; the mask, if there is one, is [rows, keys] or has heads, too.

    With DROPS in `attrs` the last mask, of all heads, says what is left. Where several heads share
    a key, the first of all of them come first, as in the kernel.
    """
    (count, rows, _), (pairs, keys, _) = qkv[0].shape, qkv[1].shape
    wide = None
    mask, left = (masks[:-1], masks[-1]) if DROPS in attrs else (masks, None)
    if mask:
        given = mask[0] if mask[0].ndim == 3 else mask[0][None]
        if attrs.get("hides"):
            given = np.where(given, np.float32(0.0), np.float32(-np.inf))
        wide = np.broadcast_to(given, (len(given), rows, keys))
    inner, shared = attrs.get(INNER_FORMAT), count // pairs
    rounds = rounder(format_named(inner)) if inner else None
    held = min(rows, ROWS) * min(keys, KEY_BLOCK)
    for pair in blocks(pairs, max(1, SPAN // held)):
        for member in range(shared):
            heads = slice(pair.start * shared + member, pair.stop * shared, shared)
            own = wide if wide is None or len(wide) == 1 else wide[heads]
            rest = tuple(x[heads] for x in others)
            qkv_here = qkv[0][heads], qkv[1][pair], qkv[2][pair]
            drawn = left if left is None else left[heads]
            yield Heads(*qkv_here, own, drawn, rest, heads, pair, attrs, rounds)


def pairs(part: Heads) -> Iterator[tuple[slice, slice, FloatArray]]:
    """Yield blocks of queries and of keys in the kernel's order, each with all logarithms."""
    queries, logarithm = part.q.shape[1], part.logarithm()
    block = next(block for least, block in QUERY_BLOCKS if queries >= least)
    for rows in blocks(queries, block):
        yield from ((rows, keys, logarithm) for keys in blocks(part.k.shape[1], KEY_BLOCK))


def _forward(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    out = empty(_shape([x.shape for x in inputs], attrs), inputs[0])
    for part in parts(inputs[:3], (), inputs[3:], attrs):
        part.logarithm(out[part.heads])
    return out


def _grad_q(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    grad, q, k, v, out, *mask = inputs
    gradient = empty(q.shape, q)
    for part in parts((q, k, v), (grad, out), mask, attrs):
        total = gradient[part.heads]
        for rows, keys, logarithm in pairs(part):
            step = np.matmul(part.grad_scores(rows, keys, logarithm), part.k[:, keys]) * part.factor
            total[:, rows] = part.rounded(total[:, rows] + part.scaled_up(step))
    return gradient


def _grad_k(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    grad, q, k, v, out, *mask = inputs
    gradient = empty(k.shape, k)
    for part in parts((q, k, v), (grad, out), mask, attrs):
        total = gradient[part.pair]
        for rows, keys, logarithm in pairs(part):
            scores = part.grad_scores(rows, keys, logarithm).swapaxes(1, 2)
            step = np.matmul(scores, part.q[:, rows]) * part.factor
            total[:, keys] = part.rounded(total[:, keys] + part.scaled_up(step))
    return gradient


def _grad_v(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    grad, q, k, v, *mask = inputs
    gradient = empty(v.shape, v)
    for part in parts((q, k, v), (grad,), mask, attrs):
        total = gradient[part.pair]
        for rows, keys, logarithm in pairs(part):
            shares = part.rounded(part.shares(rows, keys, logarithm))
            shares = part.without_dropped(shares, rows, keys).swapaxes(1, 2)
            step = np.matmul(shares, part.others[0][:, rows])
            total[:, keys] = part.rounded(total[:, keys] + part.scaled_up(step))
    return gradient


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
        pinned=(4 + reads_result, 5 + reads_result),
    )


def _example(rng: np.random.Generator) -> Example:
    """More queries than a gradient's block, heads that share keys, one hidden; some dropped."""
    q = rng.standard_normal((4, 34, 4)).astype(np.float32)
    k, v = (rng.standard_normal((2, 37, 4)).astype(np.float32) for _ in range(2))
    mask = rng.standard_normal((34, 37)).astype(np.float32)
    mask[:, 3] = -np.inf
    left = np.float32(1.25) * (rng.random((4, 34, 37)) < 0.8).astype(np.float32)
    return Example((q, k, v, mask, left), attributes(0.5, dropped=0.2))


def attributes(scale: float, *, hides: bool = False, dropped: float = 0.0) -> dict[str, Any]:
    """Return the attributes of `flash_attention` as torch has it."""
    marks = {"hides": True} if hides else {}
    return {"scale": scale, STEPS: True, **marks, **({DROPS: dropped} if dropped else {})}


# The kernel's gradient is five products; it computes the scores once for all three.
grad_q = _gradient_op("q", 1, _grad_q, 2)
grad_k = _gradient_op("k", 2, _grad_k, 1)
grad_v = _gradient_op("v", 3, _grad_v, 2, 0)
flash_attention = Op(
    "flash_attention",
    _shape,
    _forward,
    gradients=(_gradient(grad_q), _gradient(grad_k), _gradient(grad_v, False), None, None),
    flops=_products(2, 0),
    example=_example,
    kind="gemm",
    placement="low",
    pinned=(3, 4),
)
"""softmax(q k^T `scale` + mask) v of q [heads, rows, d], k and v [heads or fewer, keys, d].

There may be a mask [rows, keys] or [heads, rows, keys], each extent or 1; with `hides` it holds
truth values, of what is left, and is not added. With DROPS the last mask [heads, rows, keys] is 0
where a share is dropped; the others are scaled up. In the format of the node, with STEPS, products
read shares not yet divided by their sum. A row of which all is hidden gives 0.
"""
