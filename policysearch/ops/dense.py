"""Matrix product and bias."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Shape, size
from policysearch.ops.builder import Builder


def _operands(a: FloatArray, b: FloatArray, attrs: Attrs) -> tuple[FloatArray, FloatArray]:
    left = a.swapaxes(-1, -2) if attrs.get("transpose_a") else a
    right = b.swapaxes(-1, -2) if attrs.get("transpose_b") else b
    return left, right


def _shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    a, b = inputs
    rows = a[-1] if attrs.get("transpose_a") else a[-2]
    columns = b[-2] if attrs.get("transpose_b") else b[-1]
    return (*a[:-2], rows, columns)


def contracted(inputs: Sequence[Shape], attrs: Attrs) -> int:
    """Return the length of the contracted axis."""
    return inputs[0][-2] if attrs.get("transpose_a") else inputs[0][-1]


def _bind_matmul(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    product = attrs.get("product", np.matmul)
    if out.ndim == 4:
        return _bind_stacks(inputs, out, attrs, work)
    left, right = _operands(inputs[0], inputs[1], attrs)
    return lambda: product(left, right, out=out)


def _bind_stacks(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    """Copies, as the first axis of four is stored last and BLAS wants a matrix in one piece."""
    product = attrs.get("product", np.matmul)
    ends = np.cumsum([array.size for array in (*inputs, out)])
    parts = np.split(work[: ends[-1]], ends[:-1])
    a, b, result = (
        part.reshape(array.shape) for part, array in zip(parts, (*inputs, out), strict=True)
    )
    left, right = _operands(a, b, attrs)

    def run() -> None:
        np.copyto(a, inputs[0])
        np.copyto(b, inputs[1])
        product(left, right, out=result)
        np.copyto(out, result)

    return run


def _matmul_work(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> int:
    return size(out) + sum(map(size, inputs)) if len(out) == 4 else 0


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
    _bind_matmul,
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
    work=_matmul_work,
)
"""a @ b of [..., m, k] and [..., k, n], both with the same axes in front.

`transpose_a` and `transpose_b` swap the last two axes.
"""


def _along_features(bias: FloatArray, x: FloatArray) -> FloatArray:
    return bias.reshape(1, -1, 1, 1) if x.ndim == 4 else bias


def _bind_bias(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    x, bias = inputs[0], _along_features(inputs[1], inputs[0])
    return lambda: np.add(x, bias, out=out)


def _bind_bias_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    return channel_sums(inputs[0], out, work)


def channel_sums(grad: FloatArray, out: FloatArray, work: FloatArray) -> Callable[[], object]:
    """Return the function that sums [batch, channels, ...] over all but the channels into `out`.

    As products with ones, where the layout allows: BLAS beats a strided reduce. `work` has the
    elements that `channel_work` says.
    """
    if grad.ndim == 2:
        ones = np.ones(grad.shape[0], np.float32)
        return lambda: np.matmul(ones, grad, out=out)
    if grad.ndim != 4:
        axes = (0, *range(2, grad.ndim))
        return lambda: np.add.reduce(grad, axis=axes, out=out)
    rows = grad.transpose(2, 1, 3, 0).reshape(grad.shape[2], grad.shape[1], -1)
    ones = np.ones(rows.shape[2], np.float32)
    partial = work[: rows.shape[0] * rows.shape[1]].reshape(rows.shape[:2])

    def run() -> None:
        np.matmul(rows, ones, out=partial)
        np.add.reduce(partial, axis=0, out=out)

    return run


def channel_work(shape: Shape) -> int:
    """Return the elements of scratch that `channel_sums` needs."""
    return shape[1] * shape[2] if len(shape) == 4 else 0


bias_grad = Op(
    "bias_grad",
    shape=lambda inputs, attrs: (inputs[0][1],),
    bind=_bind_bias_grad,
    flops=lambda inputs, out, attrs: size(inputs[0]),
    kind="reduce",
    work=lambda inputs, out, attrs: channel_work(inputs[0]),
)
bias = Op(
    "bias",
    shape=lambda inputs, attrs: inputs[0],
    bind=_bind_bias,
    gradients=(lambda b, node, grad: grad, lambda b, node, grad: b.emit(bias_grad, grad)),
    example=lambda rng: Example(
        (
            rng.standard_normal((3, 4)).astype(np.float32),
            rng.standard_normal(4).astype(np.float32),
        )
    ),
    placement="low",
    in_place=(0,),
)
"""x + b over the feature axis: [batch, n] + [n], or [batch, channels, h, w] + [channels].

`apart`: the product x is rounded first, whatever the policy says.
"""
