"""Optimizers as graph nodes: SGD, momentum, Adam and AdamW with torch's formulas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

from policysearch.ops.builder import Builder
from policysearch.ops.eager_update import add_damped, sgd_nesterov
from policysearch.ops.elementwise import scale
from policysearch.ops.optimizers import (
    adam_m,
    adam_step,
    adam_v,
    sgd_step,
    sgd_velocity,
    weight_decay,
)
from policysearch.ops.source import state
from policysearch.values import InputError, number, one_of

OptimizerKind = Literal["sgd", "momentum", "adam", "adamw"]
Decays = Literal["all", "matrices"]

STATES: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"sgd": (), "momentum": ("velocity",), "adam": ("m", "v"), "adamw": ("m", "v")}
)
"""State arrays per parameter by optimizer kind, in the order the update reads them."""


@dataclass(frozen=True)
class Optimizer:
    """An update rule without its learning rate, which is fed at every step.

    `momentum` is that of "momentum", and `beta1`, `beta2` and `epsilon` are those of "adam" and
    "adamw". `weight_decay` adds weight_decay * parameter to the gradient; with "adamw" it
    shrinks the parameter by learning_rate * weight_decay instead (decoupled, arXiv 1711.05101).
    It is for "all" parameters, or for "matrices", which leaves out biases and the weights of
    norms. `dampening` and `nesterov` are those of torch.optim.SGD.
    """

    kind: OptimizerKind = "momentum"
    momentum: float = 0.9
    weight_decay: float = 0.0
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    dampening: float = 0.0
    nesterov: bool = False
    decays: Decays = "all"

    def __post_init__(self) -> None:
        one_of("optimizer", self.kind, STATES)
        for name in ("momentum", "beta1", "beta2"):
            number(f"optimizer {name}", getattr(self, name), 0.0, 1.0 - 2.0**-24)
        number("optimizer dampening", self.dampening, 0.0, 1.0)
        one_of("optimizer decays", self.decays, get_args(Decays))
        if self.nesterov and (self.kind != "momentum" or not self.momentum or self.dampening):
            raise InputError(
                f"optimizer nesterov: True with kind {self.kind!r}, momentum {self.momentum}, "
                f"dampening {self.dampening}; expected kind 'momentum', one above 0, and 0"
            )
        number("optimizer weight_decay", self.weight_decay, 0.0, 1e6)
        number("optimizer epsilon", self.epsilon, 1e-30, 1e6)


def emit_states(b: Builder, optimizer: Optimizer, parameter: int) -> tuple[int, ...]:
    """Emit the state sources "<parameter>.velocity" and so on; they start at zero."""
    node = b.nodes[parameter]
    return tuple(
        b.emit(
            state,
            attrs={"shape": node.shape},
            name=f"{node.name}.{suffix}",
            layer=node.layer,
            role="input",
        )
        for suffix in STATES[optimizer.kind]
    )


def emit_update(
    b: Builder,
    optimizer: Optimizer,
    parameter: int,
    states: tuple[int, ...],
    grad: int,
    learning_rate: int,
    step: int,
) -> list[tuple[int, int]]:
    """Emit one parameter's update; return the (source, new value) pairs it makes.

    `grad` is the unscaled gradient, `step` a scalar that counts updates from 1.
    """
    decays = optimizer.decays == "all" or len(b.shape(parameter)) > 1
    decay = {"weight_decay": optimizer.weight_decay if decays else 0.0}
    if decay["weight_decay"] and optimizer.kind != "adamw":
        grad = b.emit(weight_decay, grad, parameter, attrs=decay)
    if optimizer.kind == "sgd":
        return [(parameter, b.emit(sgd_step, parameter, grad, learning_rate))]
    if optimizer.kind == "momentum":
        velocity = _velocity(b, optimizer, states[0], grad, step)
        momentum = {"momentum": optimizer.momentum}
        nesterov = optimizer.nesterov
        way = b.emit(sgd_nesterov, grad, velocity, attrs=momentum) if nesterov else velocity
        return [(states[0], velocity), (parameter, b.emit(sgd_step, parameter, way, learning_rate))]
    m = b.emit(adam_m, states[0], grad, attrs={"beta1": optimizer.beta1})
    v = b.emit(adam_v, states[1], grad, attrs={"beta2": optimizer.beta2})
    attrs: dict[str, Any] = {name: getattr(optimizer, name) for name in ("beta1", "beta2")}
    attrs["epsilon"] = optimizer.epsilon
    if optimizer.kind == "adamw":
        attrs |= decay
    new = b.emit(adam_step, parameter, m, v, learning_rate, step, attrs=attrs)
    return [(states[0], m), (states[1], v), (parameter, new)]


def _velocity(b: Builder, optimizer: Optimizer, velocity: int, grad: int, step: int) -> int:
    if not optimizer.dampening or not optimizer.momentum:  # torch dampens with momentum only
        return b.emit(sgd_velocity, velocity, grad, attrs={"momentum": optimizer.momentum})
    kept = b.emit(scale, velocity, attrs={"factor": optimizer.momentum})
    return b.emit(add_damped, kept, grad, step, attrs={"share": 1.0 - optimizer.dampening})
