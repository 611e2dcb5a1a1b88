"""Whether the labels of a data set are those that a loss takes: said before anything is trained."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policysearch.data.datasets import Dataset
from policysearch.graph import Graph, Shape
from policysearch.nn.model import OWN_LOSS, Model, emit_arrays
from policysearch.ops.builder import Builder
from policysearch.ops.loss import IGNORED
from policysearch.train.losses import CROSS_ENTROPIES, LOSSES, NamedLoss, loss_of
from policysearch.values import InputError, one_of

Array = NDArray[Any]


def check_name(loss: str) -> None:
    """Raise InputError for the loss of a task that has none of this name; "" names none."""
    if loss:
        one_of("loss", loss, LOSSES)


def check_loss(loss: str, model: Model) -> None:
    """Raise InputError where a task names a `loss` other than the model's own, or that none is."""
    loss_of(model, loss)
    same = {loss, model.loss} <= set(CROSS_ENTROPIES) or loss == model.loss
    if loss and model.loss and not same:
        own = "its own" if model.loss == OWN_LOSS else repr(model.loss)
        raise InputError(
            f"loss: {loss!r} in the task, but model {model.name} has {own}; expected one: leave it "
            'out of the task, or give it to a model made with loss=""'
        )


def check_dtype(loss: str, model: Model, dataset: Dataset) -> None:
    """Raise InputError for labels that are numbers where the loss of a task is for classes."""
    name = loss_of(model, loss)
    floats = dataset.labels.dtype == np.float32
    if floats and name != OWN_LOSS and LOSSES[name].classes:
        raise InputError(
            f"data set {dataset.name}, labels: float32, but loss {name!r} is for classes; expected "
            "int64, or a loss for numbers such as 'mean_squared_error'"
        )
    wholes = [item for item in model.inputs if item.name == model.labels and item.whole]
    if floats and wholes:
        raise InputError(
            f"data set {dataset.name}, labels: float32; expected int64 for {model.labels} of model "
            f"{model.name}"
        )


def check_labels(loss: str, model: Model, dataset: Dataset, outputs: Shape) -> None:
    """Raise InputError for labels that do not fit the loss of a task or the model's `outputs`.

    `outputs` is the shape of what it gives for one example.
    """
    check_loss(loss, model)
    check_dtype(loss, model, dataset)
    where, name = f"data set {dataset.name}, labels", loss_of(model, loss)
    if name == OWN_LOSS:
        for classes, ignored in _own_classes(model):
            _check_classes(where, dataset.labels, classes, ignored)
    else:
        given = f"model {model.name} for loss {name!r}"
        _, classes = _rows_of(outputs, LOSSES[name])
        if classes < 2 and (LOSSES[name].classes or name in CROSS_ENTROPIES):
            shape = ", ".join(("batch", *map(str, outputs)))
            raise InputError(f"{given}: outputs [{shape}]; expected 2 classes or more")
        _check_targets(where, dataset.labels, outputs, LOSSES[name], given)


def _check_targets(where: str, labels: Array, outputs: Shape, row: NamedLoss, given: str) -> None:
    """Check the labels of a loss that has a name."""
    rows, classes = _rows_of(outputs, row)
    multi_hot = row.multi_hot and labels.shape[1:] == outputs
    if not row.classes and (labels.dtype != np.int64 or multi_hot):
        _check_numbers(where, labels, outputs, row, given)
        return
    if not row.classes and (classes < 2 or not row.one_hot):
        raise InputError(f"{where}: int64; expected float32, the numbers to be met by {given}")
    _check_shape(where, labels, rows, given)
    _check_classes(where, labels, classes, (IGNORED,) if row.classes else ())


def _rows_of(outputs: Shape, row: NamedLoss) -> tuple[Shape, int]:
    """Return the shape of the labels of one example, and how many classes they may be of."""
    if not outputs:
        return (), 1
    return (outputs[1:], outputs[0]) if row.axis == 1 else (outputs[:-1], outputs[-1])


def _check_shape(where: str, labels: Array, expected: Shape, given: str) -> None:
    if labels.shape[1:] != expected:
        shape = list(labels.shape[1:])
        raise InputError(f"{where}: {shape} per example; expected {list(expected)}, of {given}")


def _check_classes(where: str, labels: Array, classes: int, ignored: tuple[int, ...]) -> None:
    counted = labels[~np.isin(labels, ignored)]
    if counted.size and (counted.min() < 0 or counted.max() >= classes):
        worst = counted.min() if counted.min() < 0 else counted.max()
        others = "".join(f", or {number}" for number in ignored)
        raise InputError(f"{where}: {worst}; expected 0 to {classes - 1}{others}")


def _long(shape: Shape) -> Shape:
    return tuple(extent for extent in shape if extent != 1)


def _check_numbers(where: str, labels: Array, outputs: Shape, row: NamedLoss, given: str) -> None:
    if _long(labels.shape[1:]) != _long(outputs):
        _check_shape(where, labels, outputs, given)
    if labels.min() < row.least or labels.max() > row.most:
        worst = labels.min() if labels.min() < row.least else labels.max()
        valid = f"{row.least:g} to {row.most:g}"
        raise InputError(f"{where}: {worst:g}; expected {valid}, for {given}")


def _own_classes(model: Model) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield, of each loss of classes inside a model, how many they are, and what it ignores."""
    b = Builder()
    fed = model.emit_inputs(b, 2) | emit_arrays(b, model.parameters())
    model.trace(b, fed | model.emit_statistics(b), training=True)
    graph = b.graph({})
    for node in graph.nodes:
        if "ignore_index" in node.attributes and len(node.inputs) > 1:
            logits, labels = node.inputs[:2]
            if _is_moved(graph, labels, fed.get(model.labels, -1)):
                yield graph.nodes[logits].shape[1], (node.attributes["ignore_index"],)


def _is_moved(graph: Graph, node: int, source: int) -> bool:
    """Return whether a node holds the values of `source`, all of them as they are."""
    while node != source and graph.nodes[node].op.kind == "move":
        node = graph.nodes[node].inputs[0]
    return node == source


def of_one_example(outputs: Shape, batch_size: int) -> Shape:
    """Return the shape of the outputs of one example; a net may give rows of all examples."""
    if outputs and outputs[0] != batch_size:
        return (outputs[0] // batch_size, *outputs[1:])
    return outputs[1:]


def labels_of(outputs: Shape, labels: Array) -> Array:
    """Return the labels that `outputs`, shape of one example, are compared with.

    Classes of a sequence that are one row fewer than its labels are those of the next places.
    """
    of_one = labels.shape[1:]
    if labels.dtype != np.int64 or not of_one or class_axis(outputs, of_one, OWN_LOSS) is not None:
        return labels
    rest = (of_one[0] - 1, *of_one[1:])
    return labels[:, 1:] if outputs[:-1] == rest else labels


def class_axis(outputs: Shape, labels: Shape, loss: str) -> int | None:
    """Return the axis of classes in a batch of outputs that `loss` trains: -1 or 1.

    The shapes are those of one example. None where the labels are no classes of the outputs. Where
    a loss of the model's own leaves both, it is 1 of pictures and -1 of sequences.
    """
    both = (1, -1) if len(labels) > 1 else (-1, 1)
    axes = both if loss == OWN_LOSS else (LOSSES[loss].axis,)
    fits = {-1: outputs[:-1] == labels, 1: outputs[1:] == labels}
    return next((axis for axis in axes if outputs and fits[axis]), None)
