"""What a model is to the trainer: named inputs, parameters, statistics, and how it is traced."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Literal

import numpy as np

from policysearch.graph import FloatArray, Op, Shape
from policysearch.ops.builder import Builder
from policysearch.ops.source import WHOLE, buffer, data, parameter
from policysearch.values import InputError, brief

DROPPED = "dropped"
"""The attribute of a data node that is the mask of a dropout: the share that is dropped."""

DRAWN = "drawn"
"""The attribute of a data node that is drawn in every step: (a key of train.feeding.DRAWS, the
numbers it takes)."""

NEXT = "next "
"""Before the name of a running statistic: the output of a step that holds its new value."""

OWN_LOSS = "own"
"""The `loss` of a model that returns its own."""

USUAL_LOSS = "softmax_cross_entropy"
"""The loss where neither a task nor its model names one."""

Attention = Literal["written", "math", "flash"]
"""What a call of attention is: products and a softmax, or one of torch's kernels."""

WRITTEN: Attention = "written"

NO_CONSTANTS: Mapping[str, FloatArray] = MappingProxyType({})


@dataclass(frozen=True)
class ParameterSpec:
    """One trained array, named as in torch: "<layer>.weight", "<layer>.bias" or any other.

    `owners` are the layers that hold it, `layer` the first of them: weights can be tied. `fan_in`
    is the number of inputs that one output of the layer sums over. `initial` is the value
    training starts from; None draws it. Where it is not `trained` it stays as it is; a
    `statistic` is moved by the forward pass instead.
    """

    name: str
    shape: Shape
    layer: str
    fan_in: int = 1
    initial: float | None = None
    others: tuple[str, ...] = ()
    trained: bool = True
    statistic: bool = False

    @property
    def owners(self) -> tuple[str, ...]:
        return (self.layer, *self.others)


@dataclass(frozen=True)
class Input:
    """One value of a batch: its name and the shape of one example.

    `whole` numbers (indices, labels) are fed as float32 and never rounded; those that look rows of
    a table up are from 0 and `below` their number, where that is not 0.
    """

    name: str
    shape: Shape
    whole: bool = False
    below: int = 0


@dataclass(frozen=True)
class Fed:
    """What layers are traced on: the nodes of parameters and statistics by their full names.

    In `training`, layers add the (name, node of its new value) of statistics to `new_statistics`.
    """

    nodes: Mapping[str, int]
    training: bool = False
    new_statistics: list[tuple[str, int]] = field(default_factory=list)

    def __getitem__(self, name: str) -> int:
        return self.nodes[name]


@dataclass(frozen=True)
class Traced:
    """A forward pass: the node of the `output`, that of the model's own `loss` if it has one.

    `statistics` are (buffer name, node of its new value) pairs, none in evaluation.
    """

    output: int
    loss: int | None = None
    statistics: tuple[tuple[str, int], ...] = ()


class Model(ABC):
    """A graph of named layers; a frozen value.

    `loss` names the op its output goes through: "" takes the task's, OWN_LOSS none. `labels` is
    the input that takes the labels of the data set, if one does. `constants` are arrays by the
    names of the data nodes they are fed to once. `attention` is what calls of torch's are.
    `optimizer_state` are arrays ("<parameter>.<state>") that the optimizer starts from, after
    `updates_done` updates; those it has not are zero. Of a model that was kept to be looked at
    `study_name` is what its study calls it; any other has none.
    """

    name: str
    inputs: tuple[Input, ...]
    loss: str = ""
    labels: str = ""
    constants: Mapping[str, FloatArray] = NO_CONSTANTS
    attention: Attention = WRITTEN
    optimizer_state: Mapping[str, FloatArray] = NO_CONSTANTS
    updates_done: int = 0
    study_name: str = ""

    @property
    @abstractmethod
    def layer_names(self) -> tuple[str, ...]:
        """The layers a policy has formats for."""

    @abstractmethod
    def parameters(self) -> tuple[ParameterSpec, ...]:
        """Return every array of the model that an optimizer may move."""

    @abstractmethod
    def init(self, rng: np.random.Generator) -> dict[str, FloatArray]:
        """Return the float32 parameters and statistics that training starts from."""

    @abstractmethod
    def trace(self, b: Builder, fed: Mapping[str, int], training: bool) -> Traced:
        """Emit the forward pass; `fed` maps inputs, parameters and statistics to their nodes."""

    @property
    def calls_attention(self) -> bool:
        """Whether the model has calls of torch's `scaled_dot_product_attention`."""
        return False

    def with_attention(self, kind: Attention) -> Model:
        """Return the model whose calls of attention run so; InputError where it has none."""
        given = f"attention: {kind!r} with model {self.name}, which calls none of torch's"
        raise InputError(f"{given}; expected {WRITTEN!r}")

    def without_inner_masks(self) -> Model:
        """Return the model without the dropouts that torch has inside one call.

        Those of attention and between recurrent layers, whose masks torch draws where none sees it.
        """
        return self

    def __repr__(self) -> str:
        layers, inputs = len(self.layer_names), ", ".join(each.name for each in self.inputs)
        return brief(f"{type(self).__name__}({self.name!r}, {layers} layers, inputs {inputs})")

    @property
    def fingerprint(self) -> str:
        """SHA-256 in hex of what a task does not say of the model; "" where it says all.

        That is its forward pass node by node, ops by their names, and the arrays it starts from.
        """
        description = [self.inputs, self.parameters(), self.statistics(), self.loss, self.labels]
        digest = hashlib.sha256(repr(description).encode())
        for training in (True, False):
            b = Builder()
            fed = self.emit_inputs(b, 2) | emit_arrays(b, self.parameters())
            traced = self.trace(b, fed | self.emit_statistics(b), training)
            nodes = [(n.op.name, n.inputs, n.layer, n.name, n.attrs) for n in b.nodes]
            digest.update(repr((nodes, traced)).encode())
        for arrays in (self.constants, self.init(np.random.default_rng(0))):
            for name, array in sorted(arrays.items()):
                digest.update(name.encode() + np.ascontiguousarray(array).tobytes())
        return digest.hexdigest()

    def statistics(self) -> tuple[ParameterSpec, ...]:
        """Return the arrays that the forward pass moves: running means and variances."""
        return ()

    @property
    def layer_types(self) -> Mapping[str, str]:
        """The type of each layer, by its name, where the model knows it: "Conv2d", "LayerNorm"."""
        return {}

    def parameters_of(self, layer: str) -> tuple[ParameterSpec, ...]:
        """Return the arrays that one layer holds, tied ones included."""
        return self._by_owner.get(layer, ())

    @cached_property
    def _by_owner(self) -> Mapping[str, tuple[ParameterSpec, ...]]:
        found: dict[str, tuple[ParameterSpec, ...]] = {}
        for spec in self.parameters():
            for owner in dict.fromkeys(spec.owners):
                found[owner] = (*found.get(owner, ()), spec)
        return found

    def emit_inputs(self, b: Builder, batch_size: int) -> dict[str, int]:
        """Emit the sources of a batch; return {name: node}."""
        return {
            item.name: emit_data(b, item.name, (batch_size, *item.shape), whole=item.whole)
            for item in self.inputs
        }

    def emit_statistics(self, b: Builder) -> dict[str, int]:
        """Emit the sources of the running statistics; return {name: node}."""
        return emit_arrays(b, self.statistics(), buffer)


def emit_data(b: Builder, name: str, shape: Shape, *, whole: bool = False) -> int:
    """Emit a source that is fed from outside, `whole` numbers or not; return its node."""
    attrs = {"shape": shape, WHOLE: True} if whole else {"shape": shape}
    return b.emit(data, attrs=attrs, name=name, role="input")


def emit_arrays(b: Builder, specs: Iterable[ParameterSpec], op: Op = parameter) -> dict[str, int]:
    """Emit one source per spec; return {name: node}."""
    return {
        spec.name: b.emit(
            op, attrs={"shape": spec.shape}, name=spec.name, layer=spec.layer, role="input"
        )
        for spec in specs
    }
