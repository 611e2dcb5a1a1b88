"""Adam (Kingma and Ba, arXiv 1412.6980), and with decoupled weight decay (arXiv 1711.05101)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from policysearch.graph import Attrs
from policysearch.ops.builder import Builder
from policysearch.ops.eager_update import (
    adam_corrected,
    adam_epsilon,
    adam_moved,
    adam_root,
    adam_shrunk,
    add_square,
)
from policysearch.ops.elementwise import scale
from policysearch.ops.optimizers import adam_m, adam_step, adam_v
from policysearch.ops.source import MOMENTUM_SHARE
from policysearch.optimizers.optimizer import (
    ADDC,
    DIVIDE,
    LERP,
    MULTIPLY,
    ROOT,
    SQUARE,
    Array,
    EmitOne,
    Optimizer,
    Passes,
    Place,
    Rule,
    TorchClass,
)

MOMENTS: Passes = (LERP, MULTIPLY, SQUARE, ROOT, DIVIDE, MULTIPLY)
"""Passes to both moments and the denominator of the step."""


def _emit(b: Builder, optimizer: Optimizer, at: Place) -> tuple[tuple[int, ...], int]:
    first: dict[str, Any] = {} if at.cycled else {"beta1": optimizer.beta1}
    m = b.emit(adam_m, at.states[0], at.grad, *at.cycled, attrs=first)
    v = b.emit(adam_v, at.states[1], at.grad, attrs={"beta2": optimizer.beta2})
    attrs = {**first, "beta2": optimizer.beta2, "epsilon": optimizer.epsilon}
    if optimizer.rule.decoupled:
        attrs["weight_decay"] = at.decay
    fed = at.rate, at.step, *at.cycled
    return (m, v), b.emit(adam_step, at.parameter, m, v, *fed, attrs=attrs)


def eager_second_moment(emit: EmitOne, attrs: Attrs, inputs: Sequence[int]) -> int:
    """Emit it as torch's `exp_avg_sq.mul_(beta2).addcmul_(grad, grad, value=1 - beta2)`."""
    second, grad = inputs
    decayed = emit(scale, second, attrs={"factor": attrs["beta2"]}, fused=True)
    return emit(add_square, decayed, grad, attrs={"share": 1.0 - attrs["beta2"]})


def _eager_step(emit: EmitOne, attrs: Attrs, inputs: Sequence[int]) -> int:
    """As `_single_tensor_adam`: decay, root, bias correction, epsilon and the step, each stored."""
    parameter, m, v, rate, step, *share = inputs
    if attrs.get("weight_decay"):
        parameter = emit(adam_shrunk, parameter, rate, attrs=attrs)
    root = emit(adam_root, v)
    root = emit(adam_corrected, root, step, attrs=attrs)
    root = emit(adam_epsilon, root, attrs=attrs)
    return emit(adam_moved, parameter, m, root, rate, step, *share, attrs=attrs)


def moments_of(
    optimizer: Optimizer, states: tuple[Array, ...], grad: Array, step: int
) -> tuple[Array, Array, Array, Array]:
    """Return both moments after a step, and both without bias, in numpy."""
    beta1, beta2 = optimizer.beta1, optimizer.beta2
    m = beta1 * states[0] + (1.0 - beta1) * grad
    v = beta2 * states[1] + (1.0 - beta2) * grad**2
    # The moments begin at zero, so that early ones are too small by these factors.
    return m, v, m / (1.0 - beta1**step), v / (1.0 - beta2**step)


def _plain(
    optimizer: Optimizer,
    parameter: Array,
    states: tuple[Array, ...],
    grad: Array,
    rate: float,
    step: int,
) -> tuple[tuple[Array, ...], Array]:
    decay = optimizer.weight_decay
    if optimizer.rule.decoupled:
        parameter = parameter * (1.0 - rate * decay)
    else:
        grad = grad + decay * parameter
    m, v, unbiased_m, unbiased_v = moments_of(optimizer, states, grad, step)
    return (m, v), parameter - rate * unbiased_m / (np.sqrt(unbiased_v) + optimizer.epsilon)


def _arguments(optimizer: Optimizer) -> dict[str, Any]:
    return {"betas": (optimizer.beta1, optimizer.beta2), "eps": optimizer.epsilon}


ADAM = Rule(
    "adam",
    "m, v = moments of grad; parameter - learning_rate * unbiased m / (sqrt(unbiased v) + epsilon)",
    "torch.optim.Adam; arXiv 1412.6980",
    states=("m", "v"),
    reads=("beta1", "beta2", "epsilon", "weight_decay"),
    separate=(*MOMENTS, ADDC),
    fused=((4, 3),),
    aside=1,
    emit=_emit,
    plain=_plain,
    torch=TorchClass("Adam", _arguments),
    eager={"adam_v": eager_second_moment, "adam_step": _eager_step},
    addends={"adam_step": "epsilon"},
    cycles=("beta1", MOMENTUM_SHARE),
)

ADAMW = replace(
    ADAM,
    name="adamw",
    formula="as adam, of parameter * (1 - learning_rate * weight_decay)",
    source="torch.optim.AdamW; arXiv 1711.05101",
    separate=(MULTIPLY, *ADAM.separate),
    decoupled=True,
    torch=TorchClass("AdamW", _arguments),
)
