"""Losses as scalars (shape ()): means over the batch, or over the rows that count."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from policysearch.graph import Attrs, Example, FloatArray, Op, size


def log_softmax(logits: FloatArray) -> FloatArray:
    """Return log softmax(logits) over axis 1, shifted by the maximum so that nothing overflows."""
    shifted = logits - np.maximum.reduce(logits, axis=1, keepdims=True)
    return shifted - np.log(np.add.reduce(np.exp(shifted), axis=1, keepdims=True))


def _cross_entropy(inputs: Sequence[FloatArray], attrs: Attrs) -> np.float32:
    logits, targets = inputs
    product = log_softmax(logits) * targets
    # 0 * -inf is NaN, but a class of probability 0 that is not the target costs nothing
    product[targets == 0] = 0.0
    return np.add.reduce(product, axis=None) * np.float32(-1.0 / len(logits))


def _cross_entropy_grad(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    grad, logits, targets = inputs
    return (np.exp(log_softmax(logits)) - targets) * (grad * np.float32(1.0 / len(logits)))


def _classes_example(rng: np.random.Generator) -> Example:
    targets = np.eye(5, dtype=np.float32)[rng.integers(0, 5, 4)]
    return Example((rng.standard_normal((4, 5)).astype(np.float32), targets))


softmax_cross_entropy_grad = Op(
    "softmax_cross_entropy_grad",
    shape=lambda inputs, attrs: inputs[1],
    forward=_cross_entropy_grad,
    flops=lambda inputs, out, attrs: 12 * size(out),
    kind="reduce",
    placement="fp32",
)
softmax_cross_entropy = Op(
    "softmax_cross_entropy",
    shape=lambda inputs, attrs: (),
    forward=_cross_entropy,
    gradients=(
        lambda b, node, grad: b.emit(softmax_cross_entropy_grad, grad, *node.inputs),
        None,
    ),
    flops=lambda inputs, out, attrs: 12 * size(inputs[0]),
    example=_classes_example,
    kind="reduce",
    placement="fp32",
)
"""Mean over the batch of -sum(target * log softmax(logits)), both [batch, classes]."""


def _squared_error(inputs: Sequence[FloatArray], attrs: Attrs) -> np.float32:
    prediction, targets = inputs
    error = prediction - targets
    return np.add.reduce(error * error, axis=None) * np.float32(1.0 / prediction.size)


def _squared_error_grad(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    grad, prediction, targets = inputs
    return (prediction - targets) * (grad * np.float32(2.0 / prediction.size))


mean_squared_error_grad = Op(
    "mean_squared_error_grad",
    shape=lambda inputs, attrs: inputs[1],
    forward=_squared_error_grad,
    flops=lambda inputs, out, attrs: 3 * size(out),
    kind="reduce",
    placement="fp32",
)
mean_squared_error = Op(
    "mean_squared_error",
    shape=lambda inputs, attrs: (),
    forward=_squared_error,
    gradients=(lambda b, node, grad: b.emit(mean_squared_error_grad, grad, *node.inputs), None),
    flops=lambda inputs, out, attrs: 3 * size(inputs[0]),
    example=lambda rng: Example(tuple(rng.standard_normal((2, 4, 5)).astype(np.float32))),
    kind="reduce",
    placement="fp32",
)
"""Mean over all elements of (prediction - target)^2."""

IGNORED = -100
"""The target that torch leaves out unless told otherwise."""


def _counted_rows(
    targets: FloatArray, attrs: Attrs
) -> tuple[NDArray[np.intp], NDArray[np.intp], np.float32]:
    """Return the rows that count, the class of each, and how much each counts: alike, in all 1."""
    classes = targets.astype(np.intp)
    counts = classes != attrs.get("ignore_index", IGNORED)
    rows = np.flatnonzero(counts)
    return rows, classes[counts], np.float32(1.0) / np.float32(len(rows))


def _token_cross_entropy(inputs: Sequence[FloatArray], attrs: Attrs) -> np.float32:
    logits, targets = inputs
    rows, classes, share = _counted_rows(targets, attrs)
    log_p, smoothing = log_softmax(logits), np.float32(attrs.get("label_smoothing", 0.0))
    total = np.add.reduce(log_p[rows, classes])
    if smoothing:
        even = np.add.reduce(np.add.reduce(log_p, axis=1)[rows])
        even *= smoothing / np.float32(logits.shape[1])
        total = total * (np.float32(1.0) - smoothing) + even
    return -total * share


def _token_cross_entropy_grad(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    grad, logits, targets = inputs
    rows, classes, share = _counted_rows(targets, attrs)
    smoothing = np.float32(attrs.get("label_smoothing", 0.0))
    slope = np.exp(log_softmax(logits)) - smoothing / np.float32(logits.shape[1])
    slope[rows, classes] -= np.float32(1.0) - smoothing
    weights = np.zeros((len(logits), 1), np.float32, like=logits)
    weights[rows] = grad * share
    return np.where(weights == 0, np.float32(0.0), slope * weights)


def _tokens_example(rng: np.random.Generator) -> Example:
    targets = rng.integers(0, 5, 6).astype(np.float32)
    targets[2] = IGNORED
    return Example(
        (rng.standard_normal((6, 5)).astype(np.float32), targets), {"label_smoothing": 0.1}
    )


token_cross_entropy_grad = Op(
    "token_cross_entropy_grad",
    shape=lambda inputs, attrs: inputs[1],
    forward=_token_cross_entropy_grad,
    flops=lambda inputs, out, attrs: 12 * size(out),
    kind="reduce",
    placement="fp32",
    pinned=(2,),
)
token_cross_entropy = Op(
    "token_cross_entropy",
    shape=lambda inputs, attrs: (),
    forward=_token_cross_entropy,
    gradients=(
        lambda b, node, grad: b.emit(
            token_cross_entropy_grad, grad, *node.inputs, attrs=node.attributes
        ),
        None,
    ),
    flops=lambda inputs, out, attrs: 12 * size(inputs[0]),
    example=_tokens_example,
    kind="reduce",
    placement="fp32",
    pinned=(1,),
)
"""Mean over the rows of -log softmax(logits)[target], of logits [rows, classes], targets [rows].

Targets are whole numbers; rows with target `ignore_index` do not count, and where none does the
loss is NaN, as in torch. `label_smoothing` is the share of the target spread evenly over classes.
"""
