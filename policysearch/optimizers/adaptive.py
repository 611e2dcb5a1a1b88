"""Steps over the root of summed squares: Adagrad (arXiv 1002.4862) and RMSprop (Hinton, 2012)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from policysearch.graph import Attrs
from policysearch.ops.builder import Builder
from policysearch.ops.eager_update import adam_epsilon, adam_root, add_square, moved_over
from policysearch.ops.optimizers import adam_v, root_step
from policysearch.optimizers.optimizer import (
    ADDC,
    MULTIPLY,
    ROOT,
    SQUARE,
    Array,
    EmitOne,
    Optimizer,
    Place,
    Rule,
    TorchClass,
)


def _emit_rmsprop(b: Builder, optimizer: Optimizer, at: Place) -> tuple[tuple[int, ...], int]:
    v = b.emit(adam_v, at.states[0], at.grad, attrs={"beta2": optimizer.beta2})
    return (v,), _step(b, optimizer, at, v)


def _emit_adagrad(b: Builder, optimizer: Optimizer, at: Place) -> tuple[tuple[int, ...], int]:
    total = b.emit(add_square, at.states[0], at.grad, attrs={"share": 1.0})
    return (total,), _step(b, optimizer, at, total)


def _step(b: Builder, optimizer: Optimizer, at: Place, squares: int) -> int:
    attrs = {"epsilon": optimizer.epsilon}
    return b.emit(root_step, at.parameter, at.grad, squares, at.rate, attrs=attrs)


def _eager_step(emit: EmitOne, attrs: Attrs, inputs: Sequence[int]) -> int:
    """As torch's `param.addcdiv_(grad, square_avg.sqrt().add_(eps), value=-lr)`."""
    parameter, grad, squares, rate = inputs
    root = emit(adam_epsilon, emit(adam_root, squares), attrs=attrs)
    return emit(moved_over, parameter, grad, root, rate)


def _plain(
    optimizer: Optimizer,
    parameter: Array,
    states: tuple[Array, ...],
    grad: Array,
    rate: float,
    step: int,
) -> tuple[tuple[Array, ...], Array]:
    grad = grad + optimizer.weight_decay * parameter
    if optimizer.kind == "rmsprop":
        squares = optimizer.beta2 * states[0] + (1.0 - optimizer.beta2) * grad**2
    else:
        squares = states[0] + grad**2
    return (squares,), parameter - rate * grad / (np.sqrt(squares) + optimizer.epsilon)


def _rmsprop_arguments(optimizer: Optimizer) -> dict[str, Any]:
    return {"alpha": optimizer.beta2, "eps": optimizer.epsilon}


RMSPROP = Rule(
    "rmsprop",
    "v = beta2 * v + (1 - beta2) * grad^2; parameter - learning_rate * grad / (sqrt(v) + epsilon)",
    "torch.optim.RMSprop; without momentum, beta2 is its alpha",
    states=("square_avg",),
    reads=("beta2", "epsilon", "weight_decay"),
    separate=(MULTIPLY, SQUARE, ROOT, MULTIPLY, ADDC),
    aside=1,
    emit=_emit_rmsprop,
    plain=_plain,
    torch=TorchClass("RMSprop", _rmsprop_arguments, fused=False),
    eager={"root_step": _eager_step},
    addends={"root_step": "epsilon"},
)

ADAGRAD = Rule(
    "adagrad",
    "sum = sum + grad^2; parameter - learning_rate * grad / (sqrt(sum) + epsilon)",
    "torch.optim.Adagrad; arXiv 1002.4862",
    states=("sum",),
    reads=("epsilon", "weight_decay"),
    separate=(SQUARE, ROOT, MULTIPLY, ADDC),
    aside=1,
    emit=_emit_adagrad,
    plain=_plain,
    torch=TorchClass("Adagrad", lambda optimizer: {"eps": optimizer.epsilon}, fused=False),
    eager={"root_step": _eager_step},
    addends={"root_step": "epsilon"},
)
