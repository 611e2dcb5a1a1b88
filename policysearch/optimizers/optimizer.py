"""An optimizer: its row, the settings of a training, and the nodes they make.

Every `Rule` in a file of this folder is found by itself, so a new one needs no second edit.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Annotated, Any, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

import policysearch.optimizers
from policysearch.graph import Attrs, Op, Shape
from policysearch.ops.builder import Builder
from policysearch.ops.optimizers import weight_decay
from policysearch.ops.source import state
from policysearch.optimizers.averages import Average
from policysearch.values import InputError, RowName, number, one_of

Decays = Literal["all", "matrices"]
Passes = tuple[tuple[int, int], ...]
"""(tensors read, tensors written) of each kernel, per parameter."""

RATE = "learning_rate"
"""As a number of an addition: the learning rate, which is fed, not an attribute."""

# Passes over memory of the operations of `torch.optim`: each reads tensors and writes one.
LERP, MULTIPLY, ADD, ADDC, ROOT, DIVIDE = (2, 1), (1, 1), (2, 1), (3, 1), (1, 1), (1, 1)
SQUARE = (2, 1)
"""A multiply-add of a gradient's square to what is written."""


@dataclass(frozen=True)
class Place:
    """Where an update is emitted: the nodes of one parameter.

    `states` are in the order of the row, `grad` is the unscaled gradient, with coupled weight decay
    already added, `step` a scalar that counts updates from 1, and `decay` the weight decay that the
    update itself has to do. `cycled` is the number that a schedule moves, () where none does.
    """

    parameter: int
    states: tuple[int, ...]
    grad: int
    rate: int
    step: int
    decay: float
    cycled: tuple[int, ...] = ()


class EmitOne(Protocol):
    """Emits one operation of an eager update, its result rounded to the tensor it is written to."""

    def __call__(
        self, op: Op, *inputs: int, attrs: Attrs | None = None, fused: bool = False
    ) -> int: ...


Emit = Callable[[Builder, "Optimizer", Place], tuple[tuple[int, ...], int]]
"""Emits one parameter's update; returns the new states, in order, and the new parameter."""
Eager = Callable[[EmitOne, Attrs, Sequence[int]], int]
"""Emits, operation by operation, what a node with these attributes and inputs does in one pass."""
Array = NDArray[np.float64]
Plain = Callable[
    ["Optimizer", Array, tuple[Array, ...], Array, float, int], tuple[tuple[Array, ...], Array]
]
"""The formula in numpy: settings, parameter, states, gradient (decay not added), learning rate and
step, from 1, to the new states and parameter."""


Product = tuple[int, int, int]
"""Rows, columns and depth."""


@dataclass(frozen=True)
class TorchClass:
    """The class of `torch.optim` and what it is given of the settings, but for rate and decay.

    `fused`: whether it takes `fused=True`.
    """

    name: str
    arguments: Callable[[Optimizer], dict[str, Any]]
    fused: bool = True


@dataclass(frozen=True, eq=False)
class Rule:
    """One optimizer.

    `formula` is its update in one line, `source` where that is from. Each of `states` begins at
    zero, in the shape of its parameter or in that which `shapes` says. Parameters that are not of
    the `axes` it takes are moved by `others`, with that rule's states: see `of`. `reads`: the
    settings of `Optimizer` that change it.
    `decoupled`: weight decay shrinks the parameter and is left to `emit`; else it is added to the
    gradient before. Without `emit` it is priced, not trained. `plain` is the formula that the tests
    compare with. `torch` None: torch has no such class.

    In the eager order `eager` says for an op of the update what it is there, where that is more
    than one operation; `addends` names, by op, the attribute that is the number of an addition,
    which some devices round to the dtype of the tensor (a factor of a product they do not);
    `gradients` are ops whose result is a gradient still, kept in the format of its parameter, and
    `numbers` those whose result is the number of an addition; `epsilon_of` are ops whose `epsilon`
    is that of the format a parameter is stored in. `elementwise`: no value of an update depends on
    values at other places. `cycles`: the setting that a schedule may move, and what is then fed.

    For its price: passes in one kernel (`fused`: torch's `fused=True`, Apex; () where no library
    has one) and op by op (`separate`: torch's own implementation). `aside`: temporaries per
    parameter of the ops over many tensors at once; `norms`: launches for each tensor that joining
    tensors does not spare; `products`: the matrix products of one parameter, in bfloat16.
    """

    name: str
    formula: str
    source: str
    states: tuple[str, ...]
    reads: tuple[str, ...]
    separate: Passes
    fused: Passes = ()
    aside: int = 0
    norms: int = 0
    emit: Emit | None = None
    plain: Plain | None = None
    decoupled: bool = False
    torch: TorchClass | None = None
    eager: Mapping[str, Eager] = field(default_factory=dict)
    addends: Mapping[str, str] = field(default_factory=dict)
    gradients: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()
    epsilon_of: tuple[str, ...] = ()
    elementwise: bool = True
    cycles: tuple[str, str] | None = None
    shapes: Callable[[Shape], tuple[Shape, ...]] | None = None
    axes: tuple[int, int] = (0, 99)
    others: Rule | None = None
    products: Callable[[Shape], tuple[Product, ...]] = lambda shape: ()

    def of(self, shape: Shape) -> Rule:
        """Return the rule that moves parameters of a shape: this one or `others`."""
        taken = self.axes[0] <= len(shape) <= self.axes[1]
        return self if taken or self.others is None else self.others

    def kept(self, shape: Shape) -> dict[str, Shape]:
        """Return the shape of every state of a parameter of this shape, by the state's name."""
        rule = self.of(shape)
        shapes = rule.shapes(shape) if rule.shapes else (shape,) * len(rule.states)
        return dict(zip(rule.states, shapes, strict=True))

    @property
    def parts(self) -> tuple[Rule, ...]:
        """This rule and that of parameters it does not take."""
        return (self, self.others) if self.others else (self,)

    @property
    def fused_tensors(self) -> int:
        """Tensors read and written per parameter in one kernel: 5 of momentum, 7 of Adam."""
        return sum(read + written for read, written in self.fused)


@cache
def rules() -> Mapping[str, Rule]:
    """Return every optimizer by name.

    The order is that of their cost: by states, then those with a fused kernel, then by passes.
    """
    package = policysearch.optimizers
    rows = {
        row.name: row
        for info in pkgutil.iter_modules(package.__path__, f"{package.__name__}.")
        for row in vars(importlib.import_module(info.name)).values()
        if type(row) is Rule
    }

    def cost(row: Rule) -> tuple[int, bool, int]:
        return len(row.states), not row.fused, sum(map(sum, row.separate))

    return {row.name: row for row in sorted(rows.values(), key=cost)}


@cache
def trained() -> tuple[str, ...]:
    """Return the names of the optimizers that train: what a study file may name."""
    return tuple(name for name, row in rules().items() if row.emit)


OptimizerKind = Annotated[str, RowName(trained)]


@dataclass(frozen=True)
class Optimizer:
    """An update rule without its learning rate, which is fed at every step.

    - `momentum` is for "momentum" and for the matrices of "muon"; `dampening` and `nesterov` are
      those of torch.optim.SGD.
    - `beta1`, `beta2` and `epsilon` are for "adam", "adamw", "lamb" and for all but the matrices of
      "muon". "lion" reads both betas, "adagrad" `epsilon`, and "rmsprop" `beta2` (torch's alpha)
      and `epsilon`.
    - `weight_decay` times the parameter is added to the gradient. With "adamw", "lion", "muon" and
      "adafactor" it shrinks the parameter by learning_rate * weight_decay instead (decoupled,
      arXiv 1711.05101). "lamb" adds it to the step, before the step gets its length.
    - `weight_decay_for`: "all" parameters, or "matrices", without biases and the weights of norms.
    - `ema_decay`: a moving average of the parameters is kept beside them, in the format
      `ema_storage`.
    - `cycled`: the momentum, or `beta1`, is fed at every step as the rate is.
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
    ema_decay: float | None = None
    ema_storage: str = "float32"
    cycled: bool = False

    def __post_init__(self) -> None:
        one_of("optimizer", self.kind, trained())
        if self.cycled and (self.rule.cycles is None or self.dampening):
            kinds = " or ".join(repr(row.name) for row in rules().values() if row.cycles)
            raise InputError(
                f"optimizer {self.kind!r}, dampening {self.dampening:g}: the schedule moves "
                f"momentum; expected kind {kinds} without dampening"
            )
        for name in ("momentum", "beta1", "beta2"):
            number(f"optimizer {name}", getattr(self, name), 0.0, 1.0 - 2.0**-24)
        number("optimizer dampening", self.dampening, 0.0, 1.0)
        one_of("optimizer decays", self.decays, get_args(Decays))
        reads = "nesterov" in self.rule.reads
        if self.nesterov and (not reads or not self.momentum or self.dampening):
            kinds = " or ".join(
                repr(row.name) for row in rules().values() if "nesterov" in row.reads
            )
            raise InputError(
                f"optimizer nesterov: True with kind {self.kind!r}, momentum {self.momentum}, "
                f"dampening {self.dampening}; expected kind {kinds}, one above 0, and 0"
            )
        number("optimizer weight_decay", self.weight_decay, 0.0, 1e6)
        number("optimizer epsilon", self.epsilon, 1e-30, 1e6)
        _ = self.average

    @property
    def average(self) -> Average:
        """What is kept of the parameters beside them."""
        return Average(self.ema_decay, self.ema_storage)

    @property
    def rule(self) -> Rule:
        """The row of its kind."""
        return rules()[self.kind]

    def in_torch(self) -> TorchClass:
        """Return the class of torch that does the same; InputError where there is none."""
        if self.rule.torch is None:
            known = ", ".join(name for name in trained() if rules()[name].torch)
            raise InputError(f"optimizer: {self.kind!r} is not in torch; expected one of {known}")
        return self.rule.torch


def emit_states(b: Builder, optimizer: Optimizer, parameter: int) -> tuple[int, ...]:
    """Emit the state sources "<parameter>.velocity" and so on; they start at zero."""
    node = b.nodes[parameter]
    return tuple(
        b.emit(
            state,
            attrs={"shape": shape},
            name=f"{node.name}.{suffix}",
            layer=node.layer,
            role="input",
        )
        for suffix, shape in optimizer.rule.kept(node.shape).items()
    )


def emit_update(
    b: Builder,
    optimizer: Optimizer,
    parameter: int,
    states: tuple[int, ...],
    grad: int,
    learning_rate: int,
    step: int,
    cycled: tuple[int, ...] = (),
) -> list[tuple[int, int]]:
    """Emit one parameter's update; return the (source, new value) pairs it makes.

    `grad` is the unscaled gradient, `step` a scalar that counts updates from 1, `cycled` the number
    that a schedule moves, if one does.
    """
    rule = optimizer.rule.of(b.shape(parameter))
    assert rule.emit is not None, rule.name
    decays = optimizer.decays == "all" or len(b.shape(parameter)) > 1
    decay = optimizer.weight_decay if decays else 0.0
    if decay and not rule.decoupled:
        grad = b.emit(weight_decay, grad, parameter, attrs={"weight_decay": decay})
    place = Place(parameter, states, grad, learning_rate, step, decay, cycled)
    new_states, new = rule.emit(b, optimizer, place)
    return [*zip(states, new_states, strict=True), (parameter, new)]


@cache
def timed_updates() -> Mapping[str, Rule]:
    """Return the optimizers that torch has as one kernel, by the op it is timed as."""
    rows = (row for row in rules().values() if row.emit and row.torch and row.torch.fused)
    return {_first_op(row): row for row in rows}


def _first_op(rule: Rule) -> str:
    """Return the first op of the update: after it the cost model names the kernel."""
    assert rule.emit is not None, rule.name
    b, count = Builder(), len(rule.states)
    fed = [b.emit(state, attrs={"shape": ()}, role="input") for _ in range(count + 4)]
    parameter, grad, rate, step = fed[count:]
    with b.scope(role="update"):
        place = Place(parameter, tuple(fed[:count]), grad, rate, step, 0.0)
        rule.emit(b, Optimizer(rule.name), place)
    return b.nodes[len(fed)].op.name
