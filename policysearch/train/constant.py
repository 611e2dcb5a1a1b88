"""The best predictor that ignores its inputs, and a net beside it: what is beaten by learning.

Of classes it gives each the share that it has of the training labels; of numbers it gives one
number per output, the mean or the median of the training labels, whichever the loss likes better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policysearch.data.datasets import Dataset
from policysearch.graph import Shape
from policysearch.ops.loss import IGNORED
from policysearch.train.labels import labels_of
from policysearch.train.losses import CROSS_ENTROPIES

Array = NDArray[Any]
Losses = NDArray[np.float64]

CHANCE = 1e-3
"""How often a net that has learned nothing may pass for one that has, by the validation labels."""

UNSEEN = 0.5
"""A class without training labels counts as seen so many times: none is held to be impossible."""


def _huber(outputs: Array, targets: Array) -> Losses:
    off = np.abs(outputs - targets)
    return np.asarray(np.where(off < 1.0, 0.5 * off * off, off - 0.5))


def _bernoulli(shares: Array, targets: Array) -> Losses:
    sure = np.clip(shares, 1e-12, 1.0 - 1e-12)
    return np.asarray(-targets * np.log(sure) - (1.0 - targets) * np.log1p(-sure))


def _bernoulli_logits(outputs: Array, targets: Array) -> Losses:
    soft = np.logaddexp(0.0, -np.abs(outputs))
    return np.asarray(np.maximum(outputs, 0.0) - outputs * targets + soft)


OF_NUMBERS: Mapping[str, Callable[[Array, Array], Losses]] = MappingProxyType(
    {
        "mean_squared_error": lambda outputs, targets: (outputs - targets) ** 2,
        "l1": lambda outputs, targets: np.abs(outputs - targets),
        "smooth_l1": _huber,
        "huber": _huber,
        "binary_cross_entropy": _bernoulli,
        "binary_cross_entropy_with_logits": _bernoulli_logits,
    }
)
"""Losses of each output, in float64."""

OF_CLASSES = (*CROSS_ENTROPIES, "nll")


@dataclass(frozen=True)
class Constant:
    """What the best constant predictor gets, of the data alone.

    `train_loss` and `validation_loss` are means in units of the task's loss, nats for classes; None
    where no constant is known for that loss. `accuracy` is the share of the most frequent class
    among the `validation_labels` that count; None where no labels are classes.
    """

    train_loss: float | None
    validation_loss: float | None
    accuracy: float | None
    validation_labels: int


def constant_of(dataset: Dataset, loss: str, outputs: Shape = ()) -> Constant | None:
    """Return what the best constant predictor gets under `loss`; None where no label counts.

    `outputs` is the shape of a net's for one example: those of next labels leave the first out.
    """
    wanted = counted(labels_of(outputs, dataset.validation[1]))
    if not wanted.size:
        return None
    train, validation = (
        None if losses is None or not losses.size else float(losses.mean())
        for part in (dataset.train, dataset.validation)
        for losses in (constant_losses(dataset, loss, part),)
    )
    accuracy = None
    if wanted.dtype == np.int64:
        accuracy = float(np.bincount(wanted.ravel()).max() / wanted.size)
    return Constant(train, validation, accuracy, len(wanted))


def counted(labels: Array) -> Array:
    """Return the labels that are not IGNORED: [count] of classes, as they are of numbers."""
    return labels[labels != IGNORED] if labels.dtype == np.int64 else labels


def constant_losses(dataset: Dataset, loss: str, part: tuple[Any, Array]) -> Losses | None:
    """Return the constant's loss of each label of a part that counts, float64 [labels].

    Of numbers, the mean over the outputs of each example. None where no constant is known.
    """
    known, labels = counted(dataset.train[1]), counted(part[1])
    if known.dtype == np.int64:
        if loss not in OF_CLASSES or not known.size:
            return None
        seen = np.bincount(known, minlength=dataset.classes).astype(np.float64)
        seen = np.maximum(seen, UNSEEN)
        return np.asarray(-np.log(seen / seen.sum())[labels])
    if loss not in OF_NUMBERS:
        return None
    exact = known.astype(np.float64)
    tried = [_numbers(exact.mean(axis=0), exact, loss), _numbers(np.median(exact, 0), exact, loss)]
    best = exact.mean(axis=0) if tried[0].mean() <= tried[1].mean() else np.median(exact, axis=0)
    return _numbers(best, labels.astype(np.float64), loss)


def _numbers(shares: Array, labels: Array, loss: str) -> Losses:
    """Return the loss of one number per output, of each example."""
    if loss == "binary_cross_entropy_with_logits":
        shares = log_odds(shares, 1e-9)
    each = OF_NUMBERS[loss](np.broadcast_to(shares, labels.shape), labels)
    return np.asarray(each.reshape(len(labels), -1).mean(axis=1))


def log_odds(shares: Array, least: float) -> Array:
    """Return the logits whose sigmoids are these shares, kept within `least` and 1 - `least`."""
    inner = np.clip(shares, least, 1.0 - least)
    return np.asarray(np.log(inner) - np.log1p(-inner))


def _soft_margin(outputs: Array, targets: Array) -> Losses:
    return np.asarray(np.logaddexp(0.0, -outputs * targets))


def _divergence(log_shares: Array, targets: Array) -> Losses:
    own = np.where(targets > 0.0, targets * np.log(np.where(targets > 0.0, targets, 1.0)), 0.0)
    return np.asarray(own - targets * log_shares)


def _soft_cross_entropy(outputs: Array, targets: Array) -> Losses:
    rows = np.logaddexp.reduce(outputs, axis=-1, keepdims=True) - outputs
    return np.asarray((targets * rows).sum(axis=-1))


def _margins(outputs: Array, classes: Array) -> Losses:
    right = np.take_along_axis(outputs, classes[:, None], axis=1)
    over = np.maximum(1.0 - right + outputs, 0.0)
    np.put_along_axis(over, classes[:, None], 0.0, axis=1)
    return np.asarray(over.mean(axis=1))


OF_NETS: Mapping[str, Callable[[Array, Array], Losses]] = MappingProxyType(
    {
        **OF_NUMBERS,
        "soft_margin": _soft_margin,
        "kl_div": _divergence,
        "softmax_cross_entropy": _soft_cross_entropy,
    }
)
"""Losses of a net for numbers, those included that no constant is known for."""


def output_losses(outputs: Array, labels: Array, loss: str) -> Losses | None:
    """Return a net's loss of each label that counts, as `constant_losses`; None as there.

    `outputs`: [count, ...], of classes [count, ..., n] with the classes last.
    """
    exact = outputs.astype(np.float64)
    if labels.dtype == np.int64:
        rows, wanted = exact[labels != IGNORED], labels[labels != IGNORED]
        if loss == "multi_margin":
            return _margins(rows, wanted)
        if loss not in OF_CLASSES:  # classes as rows of numbers, 1 for their own
            if loss not in OF_NETS:
                return None
            each = OF_NETS[loss](rows, np.eye(rows.shape[1])[wanted])
            return np.asarray(each.mean(axis=1))
        right = np.take_along_axis(rows, wanted[:, None], axis=1)[:, 0]
        sums = 0.0 if loss == "nll" else np.logaddexp.reduce(rows, axis=1)
        return np.asarray(sums - right)
    if loss not in OF_NETS or math.prod(outputs.shape) != math.prod(labels.shape):
        return None
    each = OF_NETS[loss](exact, labels.reshape(outputs.shape))
    return np.asarray(each.reshape(len(labels), -1).mean(axis=1))


Judged = tuple[int, Losses | None]
"""How many labels of a batch are got right, and the loss of each that counts."""


def any_counts(labels: Array) -> bool:
    """Whether any label is not IGNORED."""
    return labels.dtype != np.int64 or bool(np.any(labels != IGNORED))


def judged(rows: Array, labels: Array, loss: str) -> Judged:
    """Return how a batch of outputs, classes last, does beside its labels."""
    right = 0
    if labels.dtype == np.int64:
        # argmax would find a class in rows of NaN, and the labels of IGNORED never match one
        right = int(((rows.argmax(axis=-1) == labels) & np.isfinite(rows).all(axis=-1)).sum())
    with np.errstate(all="ignore"):  # of rows that are not finite
        return right, output_losses(rows, labels, loss)


def joined(parts: Sequence[Judged], labels: Array) -> tuple[float | None, Losses | None]:
    """Return the accuracy on all `labels`, and their losses, from those of their batches."""
    known = [each for _, each in parts if each is not None]
    losses = np.concatenate(known) if known and len(known) == len(parts) else None
    if labels.dtype != np.int64:
        return None, losses
    right = sum(hits for hits, _ in parts)
    return right / int(np.count_nonzero(labels != IGNORED)), losses


def below_constant(
    dataset: Dataset, loss: str, losses: Losses | None
) -> tuple[float, float] | None:
    """Return by how much losses are below the constant's: their mean and standard error.

    Label by label over the validation part, whose `losses` these are. None where one is not known
    or not finite.
    """
    constant = constant_losses(dataset, loss, dataset.validation)
    if losses is None or constant is None or constant.shape != losses.shape:
        return None
    less = constant - losses
    if len(less) < 2 or not np.isfinite(less).all():
        return None
    return float(less.mean()), float(less.std(ddof=1)) / math.sqrt(len(less))
