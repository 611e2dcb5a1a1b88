"""Whether a data set holds what a model takes; said before anything is trained."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from policysearch.data.datasets import Dataset
from policysearch.nn.model import OWN_LOSS, Input, Model
from policysearch.ops.loss import IGNORED
from policysearch.train.step import trace_forward
from policysearch.values import InputError

Array = NDArray[Any]


def check_fits(model: Model, dataset: Dataset) -> None:
    """Raise InputError where inputs or labels of the data set are not those the model takes."""
    where = f"data set {dataset.name}"
    taken = [item for item in model.inputs if item.name != model.labels]
    if len(taken) != len(dataset.inputs):
        names = ", ".join(item.name for item in taken)
        given = f"{len(dataset.inputs)} inputs"
        raise InputError(f"{where}: {given}; model {model.name} expected {len(taken)}: {names}")
    for place, (item, array) in enumerate(zip(taken, dataset.inputs, strict=True)):
        _check_input(f"{where}, inputs[{place}]", f"{item.name} of model {model.name}", item, array)
    for item in model.inputs:
        if item.name == model.labels:
            _check_shape(f"{where}, labels", item, dataset.labels)
    if model.loss != OWN_LOSS and dataset.labels.dtype == np.int64:
        _check_labels(f"{where}, labels", model, dataset.labels)


def _check_shape(where: str, item: Input, array: Array) -> None:
    if array.shape[1:] != item.shape:
        given, expected = (
            f"[count, {', '.join(map(str, s))}]" for s in (array.shape[1:], item.shape)
        )
        raise InputError(f"{where}: {given}; expected {expected}")


def _check_input(where: str, named: str, item: Input, array: Array) -> None:
    _check_shape(where, item, array)
    if item.whole != (array.dtype == np.int64):
        expected = "int64" if item.whole else "float32"
        raise InputError(f"{where}: {array.dtype}; expected {expected} for {named}")
    if item.below and (array.min() < 0 or array.max() >= item.below):
        worst = array.min() if array.min() < 0 else array.max()
        raise InputError(f"{where}: {worst}; expected 0 to {item.below - 1} for {named}")


def _check_labels(where: str, model: Model, labels: Array) -> None:
    """Class numbers have a logit each, and there is one label for each row of logits."""
    graph = trace_forward(model, 2)
    (shape,) = (graph.nodes[i].shape for name, i in graph.outputs if name == "logits")
    kept = labels[labels != IGNORED]
    if kept.size and kept.max() >= shape[-1]:
        raise InputError(f"{where}: {kept.max()}; expected 0 to {shape[-1] - 1}, or {IGNORED}")
    if labels.shape[1:] != shape[1:-1]:
        given, expected = list(labels.shape[1:]), list(shape[1:-1])
        raise InputError(f"{where}: {given} per example; expected {expected}")
