"""Cross entropy with the numbers of classes as targets."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Op, size
from policysearch.ops.loss import log_softmax

IGNORED = -100
"""The target that torch leaves out unless told otherwise."""


class _Rows:
    """Which rows count, in which column, and how much: an equal share of one."""

    def __init__(self, targets: FloatArray, attrs: Attrs) -> None:
        numbers = targets.astype(np.intp)
        kept = numbers != attrs.get("ignore_index", IGNORED)
        self.numbers, self.columns = np.flatnonzero(kept), numbers[kept]
        with np.errstate(all="ignore"):
            self.share = np.float32(1.0) / np.float32(len(self.numbers))


def _bind_loss(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    logits, targets = inputs
    log_p, scratch, row = np.empty_like(logits), np.empty_like(logits), np.empty_like(logits[:, :1])
    smoothing = np.float32(attrs.get("label_smoothing", 0.0))

    def run() -> None:
        log_softmax(logits, log_p, row, scratch)
        rows = _Rows(targets, attrs)
        chosen = np.add.reduce(log_p[rows.numbers, rows.columns])
        if smoothing:
            even = np.add.reduce(np.add.reduce(log_p, axis=1)[rows.numbers])
            even *= smoothing / np.float32(logits.shape[1])
            chosen = chosen * (np.float32(1.0) - smoothing) + even
        out[()] = -chosen * rows.share

    return run


def _bind_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    grad, logits, targets = inputs
    log_p, scratch, row = np.empty_like(logits), np.empty_like(logits), np.empty_like(logits[:, :1])
    smoothing = np.float32(attrs.get("label_smoothing", 0.0))

    def run() -> None:
        log_softmax(logits, log_p, row, scratch)
        rows = _Rows(targets, attrs)
        np.exp(log_p, out=log_p)
        np.subtract(log_p, smoothing / np.float32(logits.shape[1]), out=log_p)
        log_p[rows.numbers, rows.columns] -= np.float32(1.0) - smoothing
        weights = np.zeros((len(logits), 1), np.float32)
        weights[rows.numbers] = grad * rows.share
        np.multiply(log_p, weights, out=out)
        np.copyto(out, 0.0, where=weights == 0)

    return run


def _example(rng: np.random.Generator) -> Example:
    targets = rng.integers(0, 5, 6).astype(np.float32)
    targets[2] = IGNORED
    return Example(
        (rng.standard_normal((6, 5)).astype(np.float32), targets), {"label_smoothing": 0.1}
    )


token_cross_entropy_grad = Op(
    "token_cross_entropy_grad",
    shape=lambda inputs, attrs: inputs[1],
    bind=_bind_grad,
    flops=lambda inputs, out, attrs: 12 * size(out),
    kind="reduce",
    placement="fp32",
    pinned=(2,),
)
token_cross_entropy = Op(
    "token_cross_entropy",
    shape=lambda inputs, attrs: (),
    bind=_bind_loss,
    gradients=(
        lambda b, node, grad: b.emit(
            token_cross_entropy_grad, grad, *node.inputs, attrs=node.attributes
        ),
        None,
    ),
    flops=lambda inputs, out, attrs: 12 * size(inputs[0]),
    example=_example,
    kind="reduce",
    placement="fp32",
    pinned=(1,),
)
"""Mean over the rows of -log softmax(logits)[target], of logits [rows, classes], targets [rows].

Targets are whole numbers; rows with target `ignore_index` do not count, and where none does the
loss is NaN, as in torch. `label_smoothing` is the share of the target spread evenly over classes.
"""
