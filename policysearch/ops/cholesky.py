"""The triangle that times itself turned is a matrix, as likelihoods of normal variables have it.

It is computed in float64 and rounded once; torch has none for 16 bits.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Op, size
from policysearch.ops.linear_algebra import or_nan, regular, turned, wide


def _root(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    return or_nan(np.linalg.cholesky, wide(inputs[0])).astype(np.float32)


def _cholesky_gradient(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """L'^-1 S L^-1, S half the lower triangle of L' G on both sides (Murray 2016)."""
    grad, root = map(wide, inputs)
    lower = np.tril(turned(root) @ grad)
    both = (lower + turned(np.tril(lower, -1))) / 2
    inverse = or_nan(np.linalg.inv, root)
    return (turned(inverse) @ both @ inverse).astype(np.float32)


cholesky_grad = Op(
    "cholesky_grad",
    lambda inputs, attrs: inputs[1],
    _cholesky_gradient,
    flops=lambda inputs, out, attrs: 4 * size(out) * out[-1],
    kind="reduce",
    placement="fp32",
)


def _positive(rng: np.random.Generator) -> Example:
    (matrix,) = regular(rng).inputs
    return Example((matrix @ np.swapaxes(matrix, -1, -2),))


cholesky: Op = Op(
    "cholesky",
    lambda inputs, attrs: inputs[0],
    _root,
    gradients=(lambda b, node, grad: b.emit(cholesky_grad, grad, node.id),),
    flops=lambda inputs, out, attrs: int(size(out) * out[-1] / 3),
    example=_positive,
    kind="reduce",
    placement="fp32",
)
"""The lower triangle L of L L' = A, of which only that triangle is read; the gradient is symmetric.

So has torch both.
"""
