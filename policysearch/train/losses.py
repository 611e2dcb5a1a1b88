"""What ends a forward pass: losses by name, and whether they fit the model and the labels."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policysearch.data.datasets import Dataset
from policysearch.graph import Graph, Op, Shape, size
from policysearch.nn.model import OWN_LOSS, Model, Traced, emit_data
from policysearch.ops import loss as loss_ops
from policysearch.ops.builder import Builder
from policysearch.ops.catalogue import FORWARD_OPS, OPS
from policysearch.ops.loss import IGNORED
from policysearch.ops.paired_losses import absolute_error, huber, smooth_absolute_error
from policysearch.ops.probability_losses import binary_cross_entropy_with_logits
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
        "binary_cross_entropy_with_logits": binary_cross_entropy_with_logits,
    }
)
"""What can end a forward pass, by name: the ops of `ops/loss.py`, and means of paired losses."""

EXAMPLES = 2
"""Of what labels are checked with."""

OF_CLASSES = ("softmax_cross_entropy", "token_cross_entropy")
OF_NUMBERS = ("l1", "smooth_l1", "huber")
"""Losses that take no class numbers; others of numbers meet one-hot rows of them."""
OF_PROBABILITIES = ("softmax_cross_entropy", "binary_cross_entropy_with_logits")


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


def check_loss(loss: str, model: Model) -> None:
    """Raise InputError for the loss of a task that the model, which has another, contradicts."""
    if loss not in (USUAL_LOSS, model.loss or loss):
        raise InputError(
            f"loss: {loss!r} beside model {model.name}, whose loss is {model.loss!r}; expected "
            f"no loss, or a model made with loss={loss!r}"
        )


def check_labels(loss: str, model: Model, dataset: Dataset, forward: Graph) -> None:
    """Raise InputError for labels that the loss, the model's or else `loss`, is not made for.

    `forward` is the forward pass of the model, of EXAMPLES.
    """
    name = one_of(f"model {model.name}, loss", model.loss or loss, LOSSES)
    labels, shape = dataset.labels, forward.output("logits").shape
    where = f"data set {dataset.name}, labels"
    if name in OF_CLASSES and shape[-1] == 1:
        raise InputError(
            f"model {model.name}: 1 logit; expected one for each class for loss {name!r}, or a "
            "loss of numbers, as 'mean_squared_error' or 'binary_cross_entropy_with_logits'"
        )
    if labels.dtype != np.int64:
        _check_numbers(where, name, shape, labels)
    elif name in OF_NUMBERS or (name not in OF_CLASSES and labels.shape[1:] == shape[1:]):
        raise InputError(f"{where}: int64; expected float32, numbers to be met, for loss {name!r}")
    else:
        _check_classes(where, name, shape, labels)


def _check_numbers(where: str, loss: str, shape: Shape, labels: NDArray[Any]) -> None:
    """Numbers are as many as the model gives, and probabilities where a loss compares such."""
    if 1 in LOSSES[loss].pinned:
        valid = "int64, numbers of classes; or a loss of numbers, as 'mean_squared_error'"
        raise InputError(f"{where}: {labels.dtype}; expected {valid}")
    if EXAMPLES * size(labels.shape[1:]) != size(shape):
        given, expected = list(labels.shape[1:]), list(shape[1:])
        raise InputError(
            f"{where}: {given} per example; expected {expected}, as the model gives, for loss "
            f"{loss!r}"
        )
    if loss in OF_PROBABILITIES and (labels.min() < 0 or labels.max() > 1):
        worst = labels.min() if labels.min() < 0 else labels.max()
        raise InputError(f"{where}: {worst:g}; expected 0 to 1, probabilities, for loss {loss!r}")


def _check_classes(where: str, loss: str, shape: Shape, labels: NDArray[Any]) -> None:
    """Class numbers have a logit each, and there is one label for each row of logits."""
    left_out = f", or {IGNORED}" if 1 in LOSSES[loss].pinned else ""
    classes = labels[labels != IGNORED] if left_out else labels
    if classes.size and (classes.max() >= shape[-1] or classes.min() < 0):
        worst = classes.min() if classes.min() < 0 else classes.max()
        raise InputError(f"{where}: {worst}; expected 0 to {shape[-1] - 1}{left_out}")
    joined = (EXAMPLES * size(labels.shape[1:]), shape[-1])  # as the models with a name have rows
    if labels.shape[1:] != shape[1:-1] and shape != joined:
        given, expected = list(labels.shape[1:]), list(shape[1:-1])
        raise InputError(f"{where}: {given} per example; expected {expected}")
