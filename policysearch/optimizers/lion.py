"""Lion (arXiv 2302.06675): the sign of a momentum, with decoupled weight decay.

One `exp_avg` is kept, read with beta1 for the step and moved with beta2, in that order, as the
authors' code has it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs
from policysearch.ops.builder import Builder
from policysearch.ops.eager_update import adam_shrunk, add_share, lion_direction
from policysearch.ops.elementwise import scale
from policysearch.ops.optimizers import lion_m, lion_step, sgd_step
from policysearch.optimizers.optimizer import (
    ADD,
    MULTIPLY,
    RATE,
    Array,
    EmitOne,
    Optimizer,
    Place,
    Rule,
)


def _emit(b: Builder, optimizer: Optimizer, at: Place) -> tuple[tuple[int, ...], int]:
    attrs = {"beta1": optimizer.beta1, "weight_decay": at.decay}
    new = b.emit(lion_step, at.parameter, at.states[0], at.grad, at.rate, attrs=attrs)
    moved = {"beta2": optimizer.beta2, "share": 1.0 - optimizer.beta2}
    m = b.emit(lion_m, at.states[0], at.grad, attrs=moved)
    return (m,), new


def _eager_step(emit: EmitOne, attrs: Attrs, inputs: Sequence[int]) -> int:
    """As `p.mul_(1 - lr * wd)`, `p.add_((m * beta1 + g * (1 - beta1)).sign_(), alpha=-lr)`."""
    parameter, m, grad, rate = inputs
    if attrs["weight_decay"]:
        parameter = emit(adam_shrunk, parameter, rate, attrs=attrs)
    kept = emit(scale, m, attrs={"factor": attrs["beta1"]})
    added = emit(scale, grad, attrs={"factor": 1.0 - attrs["beta1"]})
    return emit(sgd_step, parameter, emit(lion_direction, kept, added), rate)


def _eager_m(emit: EmitOne, attrs: Attrs, inputs: Sequence[int]) -> int:
    """As `m.mul_(beta2).add_(g, alpha=1 - beta2)`."""
    m, grad = inputs
    kept = emit(scale, m, attrs={"factor": attrs["beta2"]})
    return emit(add_share, kept, grad, attrs={"share": attrs["share"]})


def _plain(
    optimizer: Optimizer,
    parameter: Array,
    states: tuple[Array, ...],
    grad: Array,
    rate: float,
    step: int,
) -> tuple[tuple[Array, ...], Array]:
    (m,), beta1, beta2 = states, optimizer.beta1, optimizer.beta2
    direction = np.sign(beta1 * m + (1.0 - beta1) * grad)
    shrunk = parameter * (1.0 - rate * optimizer.weight_decay)
    return (beta2 * m + (1.0 - beta2) * grad,), shrunk - rate * direction


LION = Rule(
    "lion",
    "parameter * (1 - learning_rate * weight_decay) - learning_rate * sign(beta1 * m + "
    "(1 - beta1) * grad); m = beta2 * m + (1 - beta2) * grad",
    "arXiv 2302.06675, and its authors' code",
    states=("exp_avg",),
    reads=("beta1", "beta2", "weight_decay"),
    separate=(MULTIPLY, MULTIPLY, MULTIPLY, ADD, MULTIPLY, ADD, MULTIPLY, ADD),
    aside=2,
    emit=_emit,
    plain=_plain,
    decoupled=True,
    eager={"lion_step": _eager_step, "lion_m": _eager_m},
    addends={"lion_step": RATE, "lion_m": "share"},
)
