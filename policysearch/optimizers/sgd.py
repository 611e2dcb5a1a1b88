"""Gradient descent, without and with momentum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from policysearch.graph import Attrs
from policysearch.ops.builder import Builder
from policysearch.ops.eager_update import add_damped, sgd_nesterov
from policysearch.ops.elementwise import add, multiply, scale
from policysearch.ops.optimizers import sgd_step, sgd_velocity
from policysearch.ops.source import MOMENTUM as FED
from policysearch.optimizers.optimizer import (
    ADD,
    MULTIPLY,
    RATE,
    Array,
    EmitOne,
    Optimizer,
    Place,
    Rule,
    TorchClass,
)


def _emit_sgd(b: Builder, optimizer: Optimizer, at: Place) -> tuple[tuple[int, ...], int]:
    return (), b.emit(sgd_step, at.parameter, at.grad, at.rate)


def _emit_momentum(b: Builder, optimizer: Optimizer, at: Place) -> tuple[tuple[int, ...], int]:
    momentum = {} if at.cycled else {"momentum": optimizer.momentum}
    if optimizer.dampening and optimizer.momentum:  # torch dampens with momentum only
        share = {"share": 1.0 - optimizer.dampening}
        decayed = b.emit(scale, at.states[0], attrs={"factor": optimizer.momentum})
        velocity = b.emit(add_damped, decayed, at.grad, at.step, attrs=share)
    else:
        velocity = b.emit(sgd_velocity, at.states[0], at.grad, *at.cycled, attrs=momentum)
    direction = velocity
    if optimizer.nesterov:
        direction = b.emit(sgd_nesterov, at.grad, velocity, *at.cycled, attrs=momentum)
    return (velocity,), b.emit(sgd_step, at.parameter, direction, at.rate)


def _eager_velocity(emit: EmitOne, attrs: Attrs, inputs: Sequence[int]) -> int:
    """As torch's `buf.mul_(momentum).add_(grad)`: on vectors the product is not rounded alone."""
    velocity, grad, *fed = inputs
    if fed:
        decayed = emit(multiply, velocity, *fed, fused=True)
    else:
        decayed = emit(scale, velocity, attrs={"factor": attrs["momentum"]}, fused=True)
    return emit(add, decayed, grad)


def _plain(
    optimizer: Optimizer,
    parameter: Array,
    states: tuple[Array, ...],
    grad: Array,
    rate: float,
    step: int,
) -> tuple[tuple[Array, ...], Array]:
    grad = grad + optimizer.weight_decay * parameter
    if not states or not optimizer.momentum:
        return states and (grad,), parameter - rate * grad
    # The first velocity is the gradient itself, whatever the dampening: the state was not there.
    share = 1.0 if step == 1 else 1.0 - optimizer.dampening
    velocity = optimizer.momentum * states[0] + share * grad
    direction = grad + optimizer.momentum * velocity if optimizer.nesterov else velocity
    return (velocity,), parameter - rate * direction


SGD = Rule(
    "sgd",
    "parameter - learning_rate * grad",
    "torch.optim.SGD",
    states=(),
    reads=("weight_decay",),
    separate=(ADD,),
    fused=((2, 1),),
    emit=_emit_sgd,
    plain=_plain,
    torch=TorchClass("SGD", lambda o: {"momentum": 0.0, **_others(o)}),
    addends={"sgd_step": RATE},
)

MOMENTUM = replace(
    SGD,
    name="momentum",
    formula="velocity = momentum * velocity + grad; parameter - learning_rate * velocity",
    states=("velocity",),
    reads=("momentum", "dampening", "nesterov", "weight_decay"),
    separate=(MULTIPLY, ADD, ADD),
    fused=((3, 2),),
    emit=_emit_momentum,
    torch=TorchClass("SGD", lambda o: {"momentum": o.momentum, **_others(o)}),
    eager={"sgd_velocity": _eager_velocity},
    addends={"sgd_step": RATE, "sgd_nesterov": "momentum", "add_damped": "share"},
    gradients=("sgd_nesterov",),
    cycles=("momentum", FED),
)


def _others(optimizer: Optimizer) -> dict[str, float | bool]:
    return {"dampening": optimizer.dampening, "nesterov": optimizer.nesterov}
