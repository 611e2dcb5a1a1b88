"""What ends a forward pass: losses by name, and whether they fit the model and the labels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policysearch.data.datasets import Dataset
from policysearch.graph import Graph, Op, size
from policysearch.nn.model import OWN_LOSS, Model, Traced, emit_data
from policysearch.ops import loss as loss_ops
from policysearch.ops.builder import Builder
from policysearch.ops.catalogue import FORWARD_OPS, OPS
from policysearch.ops.loss import IGNORED
from policysearch.ops.paired_losses import absolute_error, huber, smooth_absolute_error
from policysearch.ops.probability_losses import (
    binary_cross_entropy,
    binary_cross_entropy_with_logits,
)
from policysearch.ops.reduce import mean
from policysearch.ops.shape import reshape
from policysearch.ops.source import TARGETS
from policysearch.values import InputError, one_of

USUAL_LOSS = "softmax_cross_entropy"
"""The loss of a task that names none: a model may have another."""

LOSSES: Mapping[str, Op] = MappingProxyType(
    {
        **{n: op for n, op in OPS.items() if n in FORWARD_OPS and op in vars(loss_ops).values()},
        "l1": absolute_error,
        "smooth_l1": smooth_absolute_error,
        "huber": huber,
        "binary_cross_entropy": binary_cross_entropy,
        "binary_cross_entropy_with_logits": binary_cross_entropy_with_logits,
    }
)
"""What can end a forward pass, by name: the ops of `ops/loss.py`, and means of paired losses."""


def emit_loss(b: Builder, model: Model, loss: str, traced: Traced) -> int:
    """Emit the loss of the logits, all axes but the last joined, and the source TARGETS it reads.

    Those are whole numbers [rows] where the loss pins them, else float32 of the logits' shape.
    """
    if model.loss == OWN_LOSS:
        if traced.loss is None:
            raise InputError(f"model {model.name}: no loss of its own; expected one as its output")
        return traced.loss
    op = LOSSES[one_of("loss", model.loss or loss, LOSSES)]
    logits, shape = traced.output, b.shape(traced.output)
    rows = size(shape[:-1])
    if len(shape) != 2:
        layer = b.nodes[logits].layer  # the loss has no formats of its own
        logits = b.emit(reshape, logits, attrs={"shape": (rows, shape[-1])}, layer=layer)
    targets = emit_data(b, TARGETS, (rows,) if 1 in op.pinned else b.shape(logits))
    losses = b.emit(op, logits, targets)
    return losses if b.shape(losses) == () else b.emit(mean, losses, source=op.name)


def check_loss(loss: str, model: Model, dataset: Dataset, forward: Graph) -> None:
    """Raise InputError for a loss that the model contradicts, or that the labels are not made for.

    `loss` is that of the task; a model's own comes first. `forward` is the forward pass, of any
    number of examples.
    """
    if loss not in (USUAL_LOSS, model.loss or loss):
        raise InputError(
            f"loss: {loss!r} beside model {model.name}, whose loss is {model.loss!r}; expected "
            f"no loss, or a model made with loss={loss!r}"
        )
    name, labels = model.loss or loss, dataset.labels
    if name == OWN_LOSS:
        return
    whole = 1 in LOSSES[name].pinned
    if whole and labels.dtype != np.int64:
        valid = "int64, numbers of classes; or a loss of numbers, as 'mean_squared_error'"
        raise InputError(f"data set {dataset.name}, labels: {labels.dtype}; expected {valid}")
    if not whole and labels.dtype != np.int64:
        shape = forward.output("logits").shape
        if math.prod(labels.shape[1:]) != math.prod(shape[1:]):
            given, expected = list(labels.shape[1:]), list(shape[1:])
            raise InputError(
                f"data set {dataset.name}, labels: {given} per example; expected {expected}, as "
                f"model {model.name} gives, for loss {name!r}"
            )


def check_labels(where: str, forward: Graph, labels: NDArray[Any]) -> None:
    """Class numbers have a logit each, and there is one label for each row of logits."""
    (shape,) = (forward.nodes[i].shape for name, i in forward.outputs if name == "logits")
    classes = labels[labels != IGNORED]
    if classes.size and classes.max() >= shape[-1]:
        raise InputError(f"{where}: {classes.max()}; expected 0 to {shape[-1] - 1}, or {IGNORED}")
    if labels.shape[1:] != shape[1:-1]:
        given, expected = list(labels.shape[1:]), list(shape[1:-1])
        raise InputError(f"{where}: {given} per example; expected {expected}")
