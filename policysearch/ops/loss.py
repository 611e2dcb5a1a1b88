"""Losses as scalars (shape ()), means over the batch; targets are float32 rows [batch, classes]."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Op, size


def log_softmax(logits: FloatArray, out: FloatArray, row: FloatArray, scratch: FloatArray) -> None:
    """Set `out` to log softmax(logits) over axis 1; `row` is [rows, 1], `scratch` like logits."""
    np.maximum.reduce(logits, axis=1, keepdims=True, out=row)
    np.subtract(logits, row, out=out)
    np.exp(out, out=scratch)
    np.add.reduce(scratch, axis=1, keepdims=True, out=row)
    np.log(row, out=row)
    np.subtract(out, row, out=out)


def _bind_cross_entropy(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    logits, targets = inputs
    log_p, scratch, row = np.empty_like(logits), np.empty_like(logits), np.empty_like(logits[:, :1])
    share = np.float32(-1.0 / len(logits))

    def run() -> None:
        log_softmax(logits, log_p, row, scratch)
        np.multiply(log_p, targets, out=log_p)
        # 0 * -inf is NaN, but a class of probability 0 that is not the target costs nothing
        np.copyto(log_p, 0.0, where=targets == 0)
        out[()] = np.add.reduce(log_p, axis=None) * share

    return run


def _bind_cross_entropy_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    grad, logits, targets = inputs
    scratch, row = np.empty_like(logits), np.empty_like(logits[:, :1])
    share = np.float32(1.0 / len(logits))

    def run() -> None:
        log_softmax(logits, scratch, row, out)
        np.exp(scratch, out=out)
        np.subtract(out, targets, out=out)
        np.multiply(out, grad * share, out=out)

    return run


def _example(rng: np.random.Generator) -> Example:
    targets = np.eye(5, dtype=np.float32)[rng.integers(0, 5, 4)]
    return Example((rng.standard_normal((4, 5)).astype(np.float32), targets))


softmax_cross_entropy_grad = Op(
    "softmax_cross_entropy_grad",
    shape=lambda inputs, attrs: inputs[1],
    bind=_bind_cross_entropy_grad,
    flops=lambda inputs, out, attrs: 12 * size(out),
    kind="reduce",
    placement="fp32",
)
softmax_cross_entropy = Op(
    "softmax_cross_entropy",
    shape=lambda inputs, attrs: (),
    bind=_bind_cross_entropy,
    gradients=(
        lambda b, node, grad: b.emit(softmax_cross_entropy_grad, grad, *node.inputs),
        None,
    ),
    flops=lambda inputs, out, attrs: 12 * size(inputs[0]),
    example=_example,
    kind="reduce",
    placement="fp32",
)
"""Mean over the batch of -sum(target * log softmax(logits))."""


def _bind_squared_error(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    prediction, targets = inputs
    scratch, share = np.empty_like(prediction), np.float32(1.0 / prediction.size)

    def run() -> None:
        np.subtract(prediction, targets, out=scratch)
        np.multiply(scratch, scratch, out=scratch)
        out[()] = np.add.reduce(scratch, axis=None) * share

    return run


def _bind_squared_error_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    grad, prediction, targets = inputs
    share = np.float32(2.0 / prediction.size)

    def run() -> None:
        np.subtract(prediction, targets, out=out)
        np.multiply(out, grad * share, out=out)

    return run


mean_squared_error_grad = Op(
    "mean_squared_error_grad",
    shape=lambda inputs, attrs: inputs[1],
    bind=_bind_squared_error_grad,
    flops=lambda inputs, out, attrs: 3 * size(out),
    kind="reduce",
    placement="fp32",
)
mean_squared_error = Op(
    "mean_squared_error",
    shape=lambda inputs, attrs: (),
    bind=_bind_squared_error,
    gradients=(lambda b, node, grad: b.emit(mean_squared_error_grad, grad, *node.inputs), None),
    flops=lambda inputs, out, attrs: 3 * size(inputs[0]),
    example=lambda rng: Example(
        (
            rng.standard_normal((4, 5)).astype(np.float32),
            rng.standard_normal((4, 5)).astype(np.float32),
        )
    ),
    kind="reduce",
    placement="fp32",
)
"""Mean over all elements of (prediction - target)^2."""
