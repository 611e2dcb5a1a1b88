"""Matrices divided by, their exponentials, determinants and orthogonal factors.

They are computed in float64 and rounded once. torch has none of them for 16 bits, so every preset
has them in float32. Matrices are the last two axes. Where torch raises an error, as of a matrix
that is singular, all are NaN: a step of other formats may get there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Shape, size
from policysearch.ops.builder import Builder

Wide = NDArray[np.float64]


def wide(x: Any) -> Wide:
    """Return x in float64."""
    doubles: Wide = x.astype(np.float64)
    return doubles


def or_nan(function: Callable[..., Any], *matrices: Wide) -> Wide:
    """Return a function of matrices, or NaN in the shape of the last."""
    try:
        return wide(function(*matrices))
    except np.linalg.LinAlgError:
        return np.full_like(matrices[-1], np.nan)


def turned(x: Wide) -> Wide:
    """Return matrices with their axes exchanged."""
    return np.swapaxes(x, -1, -2)


def _cubic(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> int:
    """Two thirds of n^3 to take a matrix apart and 2 n^2 for each column of the result."""
    columns = inputs[1][-1] if len(inputs) > 1 else inputs[0][-1]
    return int(size(inputs[0]) * (2 * inputs[0][-1] / 3 + 2 * columns))


def regular(rng: np.random.Generator, *others: Any) -> Example:
    """Return matrices far from singular ones."""
    matrix = np.eye(3) * 2 + rng.uniform(-0.4, 0.4, (2, 3, 3))
    return Example((matrix.astype(np.float32), *others))


def _solution(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    matrix = wide(inputs[0])
    matrix = turned(matrix) if attrs.get("transposed") else matrix
    return or_nan(np.linalg.solve, matrix, wide(inputs[1])).astype(np.float32)


def _by_right(b: Builder, node: Node, grad: int) -> int:
    transposed = not node.attributes.get("transposed", False)
    return b.emit(solve, node.inputs[0], grad, attrs={"transposed": transposed})


def _by_matrix(b: Builder, node: Node, grad: int) -> int:
    """minus the gradient of the right side times the solution, turned."""
    by_right = _by_right(b, node, grad)
    transposed = bool(node.attributes.get("transposed", False))
    pair = (node.id, by_right) if transposed else (by_right, node.id)
    return b.emit(outer_negative, *pair)


outer_negative = Op(
    "solve_grad",
    lambda inputs, attrs: (*inputs[0][:-1], inputs[1][-2]),
    lambda inputs, attrs: (-(wide(inputs[0]) @ turned(wide(inputs[1])))).astype(np.float32),
    flops=lambda inputs, out, attrs: 2 * size(out) * inputs[0][-1],
    kind="reduce",
    placement="fp32",
)

solve: Op = Op(
    "solve",
    lambda inputs, attrs: inputs[1],
    _solution,
    gradients=(_by_matrix, _by_right),
    flops=_cubic,
    example=lambda rng: regular(rng, rng.standard_normal((2, 3, 2)).astype(np.float32)),
    kind="reduce",
    placement="fp32",
)
"""X of A X = B for stacks [..., n, n] and [..., n, k] of one extent; A may be `transposed`."""


TERMS, HALVINGS = 18, 10


def _exponential(matrix: Wide) -> Wide:
    """Return e^A by the series of A / 2^HALVINGS, and squares: of norms up to about 1,000."""
    scaled = matrix / 2.0**HALVINGS
    result = term = np.zeros_like(matrix) + np.eye(matrix.shape[-1])
    for k in range(1, TERMS):
        term = term @ scaled / k
        result = result + term
    for _ in range(HALVINGS):
        result = result @ result
    return result


def _exponential_gradient(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """The upper right block of e^[[A', G], [0, A']], as torch has it (Mathias 1996)."""
    grad, matrix = map(wide, inputs)
    n = matrix.shape[-1]
    columns = turned(matrix)
    upper = np.concatenate((columns, grad), -1)
    lower = np.concatenate((np.zeros_like(columns), columns), -1)
    whole = _exponential(np.concatenate((upper, lower), -2))
    return whole[..., :n, n:].astype(np.float32)


matrix_exp_grad = Op(
    "matrix_exp_grad",
    lambda inputs, attrs: inputs[1],
    _exponential_gradient,
    flops=lambda inputs, out, attrs: 16 * TERMS * size(out) * out[-1],
    kind="reduce",
    placement="fp32",
)

matrix_exp: Op = Op(
    "matrix_exp",
    lambda inputs, attrs: inputs[0],
    lambda inputs, attrs: _exponential(wide(inputs[0])).astype(np.float32),
    gradients=(lambda b, node, grad: b.emit(matrix_exp_grad, grad, node.inputs[0]),),
    flops=lambda inputs, out, attrs: 2 * TERMS * size(out) * out[-1],
    example=regular,
    kind="reduce",
    placement="fp32",
)


def _log_determinant_gradient(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    grad, matrix = map(wide, inputs)
    inverse = turned(or_nan(np.linalg.inv, matrix))
    return (grad[..., np.newaxis, np.newaxis] * inverse).astype(np.float32)


log_determinant_grad = Op(
    "logdet_grad",
    lambda inputs, attrs: inputs[1],
    _log_determinant_gradient,
    flops=lambda inputs, out, attrs: 2 * size(out) * out[-1],
    kind="reduce",
    placement="fp32",
)

log_determinant: Op = Op(
    "logdet",
    lambda inputs, attrs: inputs[0][:-2],
    lambda inputs, attrs: np.linalg.slogdet(wide(inputs[0]))[1].astype(np.float32),
    gradients=(lambda b, node, grad: b.emit(log_determinant_grad, grad, node.inputs[0]),),
    flops=lambda inputs, out, attrs: int(2 * size(inputs[0]) * inputs[0][-1] / 3),
    example=regular,
    kind="reduce",
    placement="fp32",
)
"""log |det A|."""

determinant_sign = Op(
    "det_sign",
    lambda inputs, attrs: inputs[0][:-2],
    lambda inputs, attrs: np.linalg.slogdet(wide(inputs[0]))[0].astype(np.float32),
    gradients=(None,),
    flops=lambda inputs, out, attrs: int(2 * size(inputs[0]) * inputs[0][-1] / 3),
    example=regular,
    kind="reduce",
    placement="fp32",
)
"""The sign of det A, which has no gradient."""
