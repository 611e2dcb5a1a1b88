"""What ends a forward pass: losses by name, and the nodes they emit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from policysearch.graph import Op, Shape, size
from policysearch.nn.model import OWN_LOSS, USUAL_LOSS, Model, Traced, emit_data
from policysearch.ops.builder import Builder
from policysearch.ops.catalogue import OPS
from policysearch.ops.reduce import mean, sum_over
from policysearch.ops.shape import reshape, transpose
from policysearch.ops.source import TARGETS
from policysearch.values import InputError, one_of

Emit = Callable[[Builder, int, int], int]
"""Of a Builder, the node of the outputs [rows, n] and that of the targets: the scalar node."""


@dataclass(frozen=True)
class NamedLoss:
    """A loss that a study can name, of outputs [batch, ..., n].

    It is for `classes`, whole numbers from 0 to n - 1, one for each row of n logits, or for numbers
    of the outputs' shape, from `least` to `most`. `one_hot` ones take classes too, written as rows
    of numbers, 1 for their own and 0 for the others, and `multi_hot` ones such rows of whole
    numbers. `axis` is that of the n, `unit` what the loss is counted in: nats of a likelihood.
    """

    emit: Emit
    classes: bool = False
    one_hot: bool = False
    multi_hot: bool = False
    least: float = -float("inf")
    most: float = float("inf")
    axis: int = -1
    unit: str = "nats"


def _whole(op: Op) -> Emit:
    """Return the emission of an op that is a mean already."""
    return lambda b, outputs, targets: b.emit(op, outputs, targets)


def _mean(op: Op, axes: int = 2) -> Emit:
    """Return the emission of the mean of a loss of each element or, with 1 axis, of each row."""
    return lambda b, outputs, targets: b.emit(
        mean, b.emit(op, outputs, targets), source=op.name, attrs=_everywhere(axes)
    )


def _everywhere(axes: int) -> dict[str, object]:
    return {"axes": tuple(range(axes)), "keepdim": False}


def _likelihood(b: Builder, log_p: int, targets: int) -> int:
    """Emit the mean over the rows that count of minus the logarithm of their class's share."""
    op = OPS["negative_log_likelihood"]
    with b.scope(source=op.name):
        losses = b.emit(op, log_p, targets)
        counted = b.emit(OPS["row_weights"], targets, role="input")
        sums = [b.emit(sum_over, node, attrs=_everywhere(1)) for node in (losses, counted)]
        return b.emit(OPS["divide"], *sums)


SHARES: Mapping[str, Any] = MappingProxyType({"one_hot": True, "least": 0.0, "most": 1.0})
"""Of losses for probabilities."""

LOSSES: Mapping[str, NamedLoss] = MappingProxyType(
    {
        "softmax_cross_entropy": NamedLoss(_whole(OPS["softmax_cross_entropy"]), **SHARES),
        "mean_squared_error": NamedLoss(
            _whole(OPS["mean_squared_error"]), one_hot=True, unit="MSE"
        ),
        "token_cross_entropy": NamedLoss(_whole(OPS["token_cross_entropy"]), classes=True),
        "cross_entropy": NamedLoss(_whole(OPS["token_cross_entropy"]), classes=True, axis=1),
        "nll": NamedLoss(_likelihood, classes=True),
        "l1": NamedLoss(_mean(OPS["absolute_error"]), unit="MAE"),
        "smooth_l1": NamedLoss(_mean(OPS["smooth_absolute_error"]), unit="smooth L1"),
        "huber": NamedLoss(_mean(OPS["huber"]), unit="Huber"),
        "binary_cross_entropy": NamedLoss(
            _mean(OPS["binary_cross_entropy"]), **SHARES, multi_hot=True
        ),
        "binary_cross_entropy_with_logits": NamedLoss(
            _mean(OPS["binary_cross_entropy_with_logits"]), **SHARES, multi_hot=True
        ),
        "kl_div": NamedLoss(_mean(OPS["kl_divergence"]), least=0.0, most=1.0),
        "multi_margin": NamedLoss(_mean(OPS["multi_margin"], axes=1), classes=True, unit="hinge"),
        "soft_margin": NamedLoss(_mean(OPS["soft_margin"]), least=-1.0, most=1.0),
    }
)
"""Losses that a study or `from_torch` can name, each with the defaults that torch has for it."""

CROSS_ENTROPIES = ("softmax_cross_entropy", "token_cross_entropy", "cross_entropy")
"""Names of one loss, which differ in the layout they read."""


def loss_of(model: Model, loss: str) -> str:
    """Return the name of the loss that trains a model in a task whose own is `loss`, "" for none.

    OWN_LOSS for a model that returns its own; InputError for another unknown name.
    """
    name = model.loss or loss or USUAL_LOSS
    return name if name == OWN_LOSS else one_of("loss", name, LOSSES)


def unit_of(loss: str) -> str:
    """Return what a loss is counted in, by its name of `loss_of`: "loss" for a net's own."""
    return "loss" if loss == OWN_LOSS else LOSSES[loss].unit


def emit_loss(b: Builder, model: Model, loss: str, traced: Traced) -> int:
    """Emit the loss of the outputs, all axes but that of classes joined, and its source TARGETS.

    Those are whole numbers [rows] where it is for classes, else float32 [rows, n].
    """
    name = loss_of(model, loss)
    if name == OWN_LOSS:
        if traced.loss is None:
            raise InputError(f"model {model.name}: no loss of its own; expected one as its output")
        return traced.loss
    row = LOSSES[name]
    outputs = _rows(b, traced.output, row.axis)
    shape = b.shape(outputs)
    targets = emit_data(b, TARGETS, shape[:1] if row.classes else shape)
    return row.emit(b, outputs, targets)


def _rows(b: Builder, outputs: int, axis: int) -> int:
    """Return the outputs as [rows, n], of which n was along `axis`."""
    shape, layer = b.shape(outputs), b.nodes[outputs].layer  # the loss has no formats of its own
    if axis == 1 and len(shape) > 2:
        split = shape[0], shape[1], size(shape[2:])
        rows: Shape = (split[0] * split[2], split[1])
        attrs = {"split": split, "axes": (0, 2, 1), "shape": rows}
        return b.emit(transpose, outputs, attrs=attrs, layer=layer)
    if len(shape) == 2:
        return outputs
    rows = (size(shape[:-1]), shape[-1])
    return b.emit(reshape, outputs, attrs={"shape": rows}, layer=layer)
