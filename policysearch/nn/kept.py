"""The forward pass of a model kept as plain data: what views of a finished study trace again.

A forward pass is recorded on two batches. Numbers that differ between them grow with the batch,
by so much per example; all others stay. So the kept pass is traced on any batch, without the code
that made it and without an array.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from policysearch.graph import FloatArray, Node
from policysearch.nn.model import (
    WRITTEN,
    Attention,
    Input,
    Model,
    ParameterSpec,
    Traced,
    emit_arrays,
)
from policysearch.ops.builder import Builder
from policysearch.ops.catalogue import OPS
from policysearch.values import InputError, from_plain, one_line, to_plain

SMALLER, LARGER, OTHER = 2, 3, 7
"""The batches that a pass is recorded on, and the one that it is compared on."""

PER_EXAMPLE, BESIDE, OVER, UNBIASED = "per_example", "beside", "over", "unbiased"
"""Of a batch b and numbers k, c: k b + c; c / b; and n / (n - 1) of n = k b, as of a variance."""

Plain = dict[str, Any]


class Unkept(Exception):
    """A forward pass that plain data cannot say."""


@dataclass(frozen=True, eq=False, repr=False)
class KeptModel(Model):
    """A model of which the forward pass and the shapes were kept, and no values.

    `study_name` is what a study file calls it, `kept` the passes of training and evaluation as
    `kept_model` gives them. It is traced and priced; it cannot be trained.
    """

    name: str
    study_name: str = field()
    inputs: tuple[Input, ...]
    layers: tuple[str, ...]
    types: Mapping[str, str]
    specs: tuple[ParameterSpec, ...]
    moved: tuple[ParameterSpec, ...]
    print_of_model: str
    kept: Mapping[str, Plain]
    loss: str = ""
    labels: str = ""
    attention: Attention = WRITTEN
    updates_done: int = 0

    @property
    def layer_names(self) -> tuple[str, ...]:
        return self.layers

    @property
    def layer_types(self) -> Mapping[str, str]:
        return self.types

    @property
    def fingerprint(self) -> str:
        """That of the model that was kept."""
        return self.print_of_model

    def parameters(self) -> tuple[ParameterSpec, ...]:
        return self.specs

    def statistics(self) -> tuple[ParameterSpec, ...]:
        return self.moved

    def init(self, rng: np.random.Generator) -> dict[str, FloatArray]:
        given = f"model {self.study_name}: of it only the graph was kept"
        raise InputError(f"{given}; expected the file that makes it, to train it")

    def trace(self, b: Builder, fed: Mapping[str, int], training: bool) -> Traced:
        """Emit the kept forward pass on the batch that is fed; InputError where it is none."""
        try:
            return self._net_trace(b, fed, self.kept[_mode(training)])
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            given = f"model {self.study_name}: the graph that was kept of it: {error!r}"
            raise InputError(f"{given}; expected one that `run` kept, or none") from None

    def _net_trace(self, b: Builder, fed: Mapping[str, int], kept: Plain) -> Traced:
        batch = b.shape(fed[self.inputs[0].name])[0]
        new = {int(old): fed[name] for old, name in kept["sources"]}
        first = kept["first"]
        for place, (op, inputs, role, layer, name, source, attrs) in enumerate(kept["nodes"]):
            one_line("nodes", "".join((role, layer, name, source)))  # views print them
            new[first + place] = b.emit(
                OPS[op],
                *(new[i] for i in inputs),
                attrs={key: _at(value, batch) for key, value in attrs},
                role=role,
                layer=layer,
                name=name,
                source=source,
            )
        output, loss, statistics = kept["traced"]
        moved = tuple((name, new[i]) for name, i in statistics)
        return Traced(new[output], None if loss is None else new[loss], moved)


def kept_model(model: Model, study_name: str) -> Plain | None:
    """Return a model as plain data, to be kept; None where plain data cannot say it.

    That is so where an op or an attribute is of the user's own, or where numbers of the pass do
    not grow in a line with the batch: the kept pass is compared with the model's on another batch.
    """
    try:
        passes = {_mode(training): _pass_of(model, training) for training in (True, False)}
    except Unkept:
        return None
    plain = {
        "name": model.name,
        "study_name": study_name,
        "inputs": to_plain(model.inputs),
        "layers": list(model.layer_names),
        "types": dict(model.layer_types),
        "specs": to_plain(model.parameters()),
        "moved": to_plain(model.statistics()),
        "print_of_model": model.fingerprint,
        "kept": passes,
        "loss": model.loss,
        "labels": model.labels,
        "attention": model.attention,
        "updates_done": model.updates_done,
    }
    again = model_from_kept(plain)
    same = all(_nodes(again, mode, OTHER) == _nodes(model, mode, OTHER) for mode in (True, False))
    return plain if same else None


def model_from_kept(plain: Plain) -> KeptModel:
    """Return the model that `kept_model` made plain; InputError where it is none."""
    return from_plain(KeptModel, plain, "the graph that was kept")


def _mode(training: bool) -> str:
    return "training" if training else "evaluation"


def _net_trace(model: Model, training: bool, batch: int) -> tuple[Builder, dict[str, int], Traced]:
    b = Builder()
    fed = model.emit_inputs(b, batch) | emit_arrays(b, model.parameters())
    fed |= model.emit_statistics(b)
    return b, fed, model.trace(b, fed, training)


def _nodes(model: Model, training: bool, batch: int) -> tuple[list[Node | Any], Traced]:
    b, _, traced = _net_trace(model, training, batch)
    said = [(n.op.name, n.inputs, n.shape, n.role, n.layer, n.name, n.source) for n in b.nodes]
    return [(*one, n.attrs, n.format) for one, n in zip(said, b.nodes, strict=True)], traced


def _pass_of(model: Model, training: bool) -> Plain:
    small, fed, traced = _net_trace(model, training, SMALLER)
    large, _, _ = _net_trace(model, training, LARGER)
    first = max(fed.values(), default=-1) + 1
    if len(small.nodes) != len(large.nodes):
        raise Unkept
    nodes = []
    for one, other in zip(small.nodes[first:], large.nodes[first:], strict=True):
        if OPS.get(one.op.name) is not one.op or (one.op, one.inputs) != (other.op, other.inputs):
            raise Unkept
        named = dict(other.attrs)
        if list(named) != [key for key, _ in one.attrs]:
            raise Unkept
        attrs = [[key, _said(value, named[key])] for key, value in one.attrs]
        said = (one.op.name, list(one.inputs), one.role, one.layer, one.name, one.source, attrs)
        nodes.append(list(said))
    statistics = [[name, place] for name, place in traced.statistics]
    return {
        "sources": [[place, name] for name, place in fed.items()],
        "first": first,
        "nodes": nodes,
        "traced": [traced.output, traced.loss, statistics],
    }


def _said(small: Any, large: Any) -> Any:
    """Return an attribute as plain data: what changes with the batch as what it is of it."""
    if isinstance(small, tuple | list) and isinstance(large, tuple | list):
        if len(small) != len(large):
            raise Unkept
        return [_said(*pair) for pair in zip(small, large, strict=True)]
    if type(small) is not type(large) or not isinstance(small, bool | int | float | str | None):
        raise Unkept
    if small == large:
        return small
    if type(small) is int:
        slope = (large - small) // (LARGER - SMALLER)
        return {PER_EXAMPLE: slope, BESIDE: small - SMALLER * slope}
    if type(small) is not float:
        raise Unkept
    guesses: list[Plain] = [{OVER: small * SMALLER}]
    if small > 1.0:
        guesses.append({UNBIASED: round(small / (small - 1.0)) // SMALLER})
    for guess in guesses:
        if (_at(guess, SMALLER), _at(guess, LARGER)) == (small, large):
            return guess
    raise Unkept


def _at(value: Any, batch: int) -> Any:
    if isinstance(value, list):
        return tuple(_at(item, batch) for item in value)
    if not isinstance(value, dict):
        return value
    if OVER in value:
        return value[OVER] / batch
    if UNBIASED in value:
        count = value[UNBIASED] * batch
        return count / (count - 1)
    return value[PER_EXAMPLE] * batch + value[BESIDE]
