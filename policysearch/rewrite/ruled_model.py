"""A model whose forward pass is rewritten by rules wherever it is traced."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import NoneType

import numpy as np

from policysearch.graph import FloatArray, Graph
from policysearch.nn.model import NEXT, Input, Model, ParameterSpec, Traced
from policysearch.ops.builder import Builder
from policysearch.rewrite.rules import Rule, apply_rules
from policysearch.values import InputError

OUTPUT, LOSS = "logits", "loss"


@dataclass(frozen=True, eq=False)
class RuledModel(Model):
    """`model` with `rules` of the stages "evaluation" and "forward" applied where they hold.

    Gradients are made after them, so they are those of the changed pass; rules of the stage "step"
    are applied where a whole step is traced. Inputs, layers, parameters and statistics are the
    model's own. Raises InputError for a rule of another stage, and in `trace` as `apply_rule` does.
    """

    model: Model
    rules: tuple[Rule, ...]

    def __post_init__(self) -> None:
        for rule in self.rules:
            if rule.stage == "formats":
                valid = "evaluation, forward or step"
                raise InputError(f"rule {rule.name!r}: stage {rule.stage!r}; expected {valid}")

    @property
    def name(self) -> str:  # type: ignore[override]
        return self.model.name

    @property
    def inputs(self) -> tuple[Input, ...]:  # type: ignore[override]
        return self.model.inputs

    @property
    def loss(self) -> str:  # type: ignore[override]
        return self.model.loss

    @property
    def labels(self) -> str:  # type: ignore[override]
        return self.model.labels

    @property
    def constants(self) -> Mapping[str, FloatArray]:  # type: ignore[override]
        return self.model.constants

    @property
    def layer_names(self) -> tuple[str, ...]:
        return self.model.layer_names

    @property
    def layer_types(self) -> Mapping[str, str]:
        return self.model.layer_types

    @property
    def fingerprint(self) -> str:
        """SHA-256 in hex of the model's own fingerprint, the rules' names and what they do.

        That is their code and the numbers, names and tuples of those that it reads from around it.
        """
        digest = hashlib.sha256(self.model.fingerprint.encode())
        for rule in self.rules:
            digest.update(f"{rule.name} {rule.pattern} {_code(rule.change)}".encode())
        return digest.hexdigest()

    def ruled_step(self, step: Graph) -> Graph:
        """Return the traced float32 step as rules of the stage "step" leave it."""
        holding = [rule for rule in self.rules if rule.stage == "step"]
        return apply_rules(step, holding, self.layer_types)[0]

    def parameters(self) -> tuple[ParameterSpec, ...]:
        return self.model.parameters()

    def statistics(self) -> tuple[ParameterSpec, ...]:
        return self.model.statistics()

    def init(self, rng: np.random.Generator) -> dict[str, FloatArray]:
        return self.model.init(rng)

    def trace(self, b: Builder, fed: Mapping[str, int], training: bool) -> Traced:
        """Emit the forward pass as the rules leave it."""
        part = Builder()
        inner = {name: part.copy(b.nodes[i], ()) for name, i in fed.items()}
        traced = self.model.trace(part, inner, training)
        outputs = {OUTPUT: traced.output, **{NEXT + name: i for name, i in traced.statistics}}
        if traced.loss is not None:
            outputs[LOSS] = traced.loss
        stages = ("forward",) if training else ("forward", "evaluation")
        holding = [rule for rule in self.rules if rule.stage in stages]
        graph, _ = apply_rules(part.graph(outputs), holding, self.layer_types)
        new = _copied(b, graph, fed)
        at = {name: new[i] for name, i in graph.outputs}
        moved = tuple((name, at[NEXT + name]) for name, _ in traced.statistics)
        return Traced(at[OUTPUT], at.get(LOSS), moved)


def _code(change: Callable[..., None]) -> str:
    function = inspect.unwrap(change)
    around = inspect.getclosurevars(function)
    read = {**around.globals, **around.nonlocals}
    plain = sorted((name, value) for name, value in read.items() if _is_plain(value))
    return f"{inspect.getsource(function)} {plain}"


def _is_plain(value: object) -> bool:
    if isinstance(value, tuple):
        return all(map(_is_plain, value))
    return isinstance(value, int | float | str | NoneType)


def _copied(b: Builder, graph: Graph, fed: Mapping[str, int]) -> dict[int, int]:
    """Copy the graph behind what `b` holds, its sources `fed` by name; return the new ids."""
    given = {b.nodes[i].name: i for i in fed.values()}
    new: dict[int, int] = {}
    for node in graph.nodes:
        known = node.op.kind == "source" and node.name in given
        new[node.id] = given[node.name] if known else b.copy(node, [new[i] for i in node.inputs])
    return new
