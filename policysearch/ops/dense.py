"""Matrix product and bias."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Shape, size
from policysearch.layout import empty, in_c_order
from policysearch.ops.builder import Builder
from policysearch.ops.elementwise import scale, sum_to
from policysearch.ops.summation import channel_sum


def transposed(a: FloatArray, b: FloatArray, attrs: Attrs) -> tuple[FloatArray, FloatArray]:
    """Return both as the product takes them, transposed where the attributes say so."""
    left = a.swapaxes(-1, -2) if attrs.get("transpose_a") else a
    right = b.swapaxes(-1, -2) if attrs.get("transpose_b") else b
    return left, right


def contract(
    left: FloatArray, right: FloatArray, attrs: Attrs, out: FloatArray | None = None
) -> FloatArray:
    """Return the product of [..., m, k] and [..., k, n], in `out` or in a new array in C order.

    Summed as the attribute "product" does, by BLAS where there is none. How all three lie in memory
    is part of the meaning: it decides which way BLAS is called, and that in which order it sums.
    """
    if out is None:
        lead = np.broadcast_shapes(left.shape[:-2], right.shape[:-2])
        out = np.empty((*lead, left.shape[-2], right.shape[-1]), np.float32, like=left)
    attrs.get("product", np.matmul)(left, right, out=out)
    return out


def _shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    a, b = inputs
    rows = a[-1] if attrs.get("transpose_a") else a[-2]
    columns = b[-2] if attrs.get("transpose_b") else b[-1]
    return (*a[:-2], rows, columns)


def contracted(inputs: Sequence[Shape], attrs: Attrs) -> int:
    """Return the length of the contracted axis."""
    return inputs[0][-2] if attrs.get("transpose_a") else inputs[0][-1]


def _matmul(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    left, right = inputs
    stacks = left.ndim == 4  # their first axis is stored last, and BLAS wants a matrix in one piece
    if stacks:
        left, right = in_c_order(left), in_c_order(right)
    out = None if stacks else empty(_shape([left.shape, right.shape], attrs), left)
    return contract(*transposed(left, right, attrs), attrs, out)


def _grad_a(b: Builder, node: Node, grad: int) -> int:
    attrs, other = node.attributes, node.inputs[1]
    if attrs.get("transpose_a"):
        flags = {"transpose_a": bool(attrs.get("transpose_b")), "transpose_b": True}
        return b.emit(matmul, other, grad, attrs=flags)
    return b.emit(matmul, grad, other, attrs={"transpose_b": not attrs.get("transpose_b")})


def _grad_b(b: Builder, node: Node, grad: int) -> int:
    attrs, other = node.attributes, node.inputs[0]
    if attrs.get("transpose_b"):
        flags = {"transpose_a": True, "transpose_b": bool(attrs.get("transpose_a"))}
        return b.emit(matmul, grad, other, attrs=flags)
    return b.emit(matmul, other, grad, attrs={"transpose_a": not attrs.get("transpose_a")})


matmul = Op(
    "matmul",
    _shape,
    _matmul,
    gradients=(_grad_a, _grad_b),
    flops=lambda inputs, out, attrs: 2 * size(out) * contracted(inputs, attrs),
    example=lambda rng: Example(
        (
            rng.standard_normal((3, 4)).astype(np.float32),
            rng.standard_normal((5, 4)).astype(np.float32),
        ),
        {"transpose_b": True},
    ),
    kind="gemm",
    placement="low",
)
"""a @ b of [..., m, k] and [..., k, n], both with the same axes in front.

`transpose_a` and `transpose_b` swap the last two axes.
"""


def _bias(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x, bias = inputs
    if bias.ndim == 1 and x.ndim > 3:
        bias = bias.reshape(-1, *(1,) * (x.ndim - 2))
    alpha, beta = attrs.get("alpha", 1.0), attrs.get("beta", 1.0)
    if (alpha, beta) != (1.0, 1.0):
        return x * np.float32(alpha) + bias * np.float32(beta)
    return x + bias


def _scaled_gradient(b: Builder, node: Node, grad: int, name: str) -> int:
    factor = node.attributes.get(name, 1.0)
    return grad if factor == 1.0 else b.emit(scale, grad, attrs={"factor": factor})


def _by_bias(b: Builder, node: Node, grad: int) -> int:
    shape = b.shape(node.inputs[1])
    if len(shape) == 1:
        total = b.emit(bias_grad, grad)
    else:
        total = grad if b.shape(grad) == shape else b.emit(sum_to, grad, attrs={"shape": shape})
    return _scaled_gradient(b, node, total, "beta")


bias_grad = Op(
    "bias_grad",
    shape=lambda inputs, attrs: (inputs[0][1],),
    forward=lambda inputs, attrs: channel_sum(inputs[0]),
    flops=lambda inputs, out, attrs: size(inputs[0]),
    kind="reduce",
)
bias = Op(
    "bias",
    shape=lambda inputs, attrs: inputs[0],
    forward=_bias,
    gradients=(lambda b, node, grad: _scaled_gradient(b, node, grad, "alpha"), _by_bias),
    example=lambda rng: Example(
        (
            rng.standard_normal((3, 4)).astype(np.float32),
            rng.standard_normal(4).astype(np.float32),
        )
    ),
    placement="low",
    in_place=(0,),
)
"""x + b over the feature axis: [batch, n] + [n], or [batch, channels, h, w, ...] + [channels].

A b of more axes than one is broadcast to x, as in `addmm` and `baddbmm`, whose sum is that of x
times `alpha` and b times `beta`. `apart`: the product x is rounded first, whatever the policy says;
UNCAST: where no cast is between the product and what it multiplies; BIAS_UNCAST: between the sum
and the bias.
"""

UNCAST, BIAS_UNCAST = "uncast", "bias uncast"
