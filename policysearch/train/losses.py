"""What ends a forward pass: losses by name, and the nodes they emit."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from policysearch.graph import Op, Shape, size
from policysearch.nn.model import OWN_LOSS, USUAL_LOSS, Model, Traced, emit_data
from policysearch.ops import class_losses, elementwise, paired_losses, probability_losses
from policysearch.ops.builder import Builder
from policysearch.ops.loss import mean_squared_error, softmax_cross_entropy, token_cross_entropy
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
    of the outputs' shape, from `least` to `most`: classes are written as such, 1 for their own and
    0 for the others. `axis` is that of the n.
    """

    emit: Emit
    classes: bool = False
    least: float = -float("inf")
    most: float = float("inf")
    axis: int = -1


def _whole(op: Op) -> Emit:
    """Return the emission of an op that is a mean already."""
    return lambda b, outputs, targets: b.emit(op, outputs, targets)


def _mean(op: Op) -> Emit:
    """Return the emission of the mean of a loss of each element."""
    return lambda b, outputs, targets: b.emit(
        mean, b.emit(op, outputs, targets), source=op.name, attrs=_everywhere(2)
    )


def _everywhere(axes: int) -> dict[str, object]:
    return {"axes": tuple(range(axes)), "keepdim": False}


def _likelihood(b: Builder, log_p: int, targets: int) -> int:
    """Emit the mean over the rows that count of minus the logarithm of their class's share."""
    op = class_losses.negative_log_likelihood
    with b.scope(source=op.name):
        losses = b.emit(op, log_p, targets)
        counted = b.emit(class_losses.row_weights, targets, role="input")
        sums = [b.emit(sum_over, node, attrs=_everywhere(1)) for node in (losses, counted)]
        return b.emit(elementwise.divide, *sums)


LOSSES: Mapping[str, NamedLoss] = MappingProxyType(
    {
        "softmax_cross_entropy": NamedLoss(_whole(softmax_cross_entropy), least=0.0, most=1.0),
        "mean_squared_error": NamedLoss(_whole(mean_squared_error)),
        "token_cross_entropy": NamedLoss(_whole(token_cross_entropy), classes=True),
        "cross_entropy": NamedLoss(_whole(token_cross_entropy), classes=True, axis=1),
        "nll": NamedLoss(_likelihood, classes=True),
        "l1": NamedLoss(_mean(paired_losses.absolute_error)),
        "smooth_l1": NamedLoss(_mean(paired_losses.smooth_absolute_error)),
        "huber": NamedLoss(_mean(paired_losses.huber)),
        "binary_cross_entropy": NamedLoss(
            _mean(probability_losses.binary_cross_entropy), least=0.0, most=1.0
        ),
        "binary_cross_entropy_with_logits": NamedLoss(
            _mean(probability_losses.binary_cross_entropy_with_logits), least=0.0, most=1.0
        ),
        "kl_div": NamedLoss(_mean(probability_losses.kl_divergence), least=0.0, most=1.0),
        "soft_margin": NamedLoss(_mean(probability_losses.soft_margin), least=-1.0, most=1.0),
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
