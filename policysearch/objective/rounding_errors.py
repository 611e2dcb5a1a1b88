"""What each layer's rounding does by itself, seen at steps of float32's own training.

A step under a policy is run node by node, and every node reads what float32 has there: so what it
gives is off by its own rounding and that of its operands alone, and one pass says it of all layers.
To first order the loss moves by the gradient times that error (arXiv 2505.13060 ranks layers by
it).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from threadpoolctl import threadpool_limits

from policysearch.emulator.compile import Step
from policysearch.emulator.reference import Reference
from policysearch.formats import format_named
from policysearch.graph import FloatArray, Graph, Node
from policysearch.objective.objective import Objective
from policysearch.policy.policy import Policy
from policysearch.rounding.rounder import quantise
from policysearch.train.loss_scale import initial_state
from policysearch.train.origin import Tracer
from policysearch.train.paired_run import Moment, PairedRun, moments
from policysearch.train.trainer import Trainer

TINY = 1e-30
"""Added to energies that may be zero."""

Name = tuple[str, str, str, int]
"""What a computed value is, the same under every policy: op, layer, role and which of those."""


@dataclass(frozen=True)
class LayerErrors:
    """What rounding in one layer does, as means over the moments seen.

    `loss`: the square of the change of the loss to first order, gradient times error, added up over
    the forward values, in nats squared. `lost`: the energy of what updates lose where parameters
    are stored, over that of the updates; 0 with masters.
    """

    loss: float = 0.0
    lost: float = 0.0

    def __add__(self, other: LayerErrors) -> LayerErrors:
        return LayerErrors(self.loss + other.loss, self.lost + other.lost)

    def __mul__(self, share: float) -> LayerErrors:
        return LayerErrors(self.loss * share, self.lost * share)


def named_values(graph: Graph) -> Iterator[tuple[Name, Node]]:
    """Yield the computed values of a step with their names, casts and updates passed over."""
    seen: Counter[tuple[str, str, str]] = Counter()
    for node in graph.nodes:
        if node.op.kind == "source" or node.op.name in ("cast", "scale_loss"):
            continue
        if node.role == "update":
            continue
        key = node.op.name.removesuffix("_inner"), node.layer, node.role
        seen[key] += 1
        yield (*key, seen[key]), node


class Forced(Reference):
    """A step in which what one layer reads of another is float32's; `errors` are what layers give.

    That is, by name, how far the values that other layers read are off.
    """

    def __init__(self, graph: Graph, seed: int, scale: float, exact: Mapping[Name, FloatArray]):
        super().__init__(graph, seed, {}, None)
        self.errors: dict[Name, FloatArray] = {}
        self._exact, self._scale, self._own = exact, np.float32(scale), dict[int, FloatArray]()
        self._names = {node.id: name for name, node in named_values(graph)}
        self._leaving = _read_by_others(graph)

    def _node_value(self, node: Node) -> FloatArray:
        forced = super()._node_value(node)
        name, own = self._names.get(node.id), forced
        inside = {i for i in node.inputs if i in self._own}
        inside = {i for i in inside if self.graph.nodes[i].layer == node.layer}
        if inside:
            values = {i: self._values[i] for i in inside}
            self._values.update({i: self._own[i] for i in inside})
            own = super()._node_value(node)
            self._values.update(values)
            self._own[node.id] = own
        if name is None or name not in self._exact or self._exact[name].shape != own.shape:
            return forced
        by = self._scale if node.role in ("dgrad", "wgrad") else np.float32(1.0)
        self._own[node.id] = own
        if node.id in self._leaving:
            there = own / by
            # A mask of -inf that is kept is no error.
            same = there == self._exact[name]
            with np.errstate(invalid="ignore"):
                self.errors[name] = np.where(same, np.float32(0.0), there - self._exact[name])
        return np.asarray(self._exact[name] * by)


def _read_by_others(graph: Graph) -> set[int]:
    """Return the forward values that nodes of other layers read, casts passed over."""
    found: set[int] = set()
    for node in graph.nodes:
        if node.role == "fprop" and not node.op.converts:
            for i in node.inputs:
                while graph.nodes[i].op.converts:
                    i = graph.nodes[i].inputs[0]
                if graph.nodes[i].layer != node.layer:
                    found.add(i)
    return found


def rounding_errors(
    objective: Objective, policies: Sequence[Policy], seed: int, steps: Sequence[int]
) -> list[dict[str, LayerErrors]]:
    """Return per policy, by layer, what its rounding does at `steps` of float32's training.

    It takes float32's run up to the last of the steps, and a pass for each policy at each of them.
    What is not finite counts as infinite.
    """
    found: list[dict[str, LayerErrors]] = [{} for _ in policies]
    with threadpool_limits(1), np.errstate(all="ignore"):
        wanted = {place for step in steps for place in (step, step + 1)}
        trainer = Trainer(objective.model, objective.task, objective.float32, seed)
        met = {moment.step: moment for moment in moments(trainer, objective.dataset, wanted)}
        for step in steps:
            exact = _Exact(objective, seed, met[step])
            after = met.get(step + 1, met[step]).params
            moves = {name: after[name] - value for name, value in met[step].params.items()}
            for place, policy in enumerate(policies):
                for layer, errors in exact.errors(policy, moves).items():
                    whole = found[place].get(layer, LayerErrors())
                    found[place][layer] = whole + errors * (1.0 / len(steps))
    return found


class _Exact:
    """Float32's step at one moment: its values by name, and the gradient of each forward one."""

    def __init__(self, objective: Objective, seed: int, moment: Moment) -> None:
        self._objective, self._seed, self._moment = objective, seed, moment
        self._tracing = objective.task.tracing(objective.model, objective.task.batch_size)
        # Before a policy is put on it the step knows which value a gradient node is behind.
        tracer = Tracer(self._tracing.float32, seed, {})
        self._run(objective.float32, tracer.step)
        graph, values = tracer.traced().graph, tracer.traced().values
        self.values = {name: values[node.id] for name, node in named_values(graph)}
        self.gradients = _gradients(graph, values)

    def forced(self, policy: Policy) -> Forced:
        """Return the step under a policy, run once with float32's values."""
        scale = initial_state(policy.loss_scale).scale
        graph = _as_far_as_gradients(self._tracing.step_graph(policy))
        step = Forced(graph, self._seed, scale, self.values)
        self._run(policy, step)
        return step

    def _run(self, policy: Policy, step: Step) -> None:
        task, model = self._objective.task, self._objective.model
        PairedRun(task, model, policy, self._seed, step=step).at(self._moment)

    def errors(self, policy: Policy, moves: Mapping[str, FloatArray]) -> Mapping[str, LayerErrors]:
        """Return what the rounding of a policy does, by layer."""
        step = self.forced(policy)
        found: dict[str, LayerErrors] = {}
        for name, error in step.errors.items():
            _, layer, role, _ = name
            if role == "fprop" and name in self.gradients:
                change = float(np.sum(self.gradients[name] * error, dtype=np.float64))
                found[layer] = found.get(layer, LayerErrors()) + LayerErrors(loss=change**2)
        for layer, formats in () if policy.master_weights else policy.layers:
            lost = self._lost(layer, formats.param, moves)
            found[layer] = found.get(layer, LayerErrors()) + LayerErrors(lost=lost)
        return found

    def _lost(self, layer: str, format: str, moves: Mapping[str, FloatArray]) -> float:
        """Return the share of the energy of a layer's updates that storing them in a format loses.

        To nearest: an update below half a unit in the last place is lost whole.
        """
        lost, whole = 0.0, TINY
        for name, move in moves.items():
            if name.rpartition(".")[0] == layer and format != "float32":
                stored = quantise(self._moment.params[name], format_named(format))
                kept = quantise(stored + move, format_named(format)) - stored
                lost, whole = lost + _energy(kept - move), whole + _energy(move)
        return lost / whole


def _gradients(graph: Graph, values: Mapping[int, FloatArray]) -> dict[Name, FloatArray]:
    """Return the gradients of forward values of a traced step."""
    found: dict[int, FloatArray] = {}
    for node in graph.nodes:
        if node.of < 0 or node.id not in values:
            continue
        if "gradient_of" in node.attributes:
            found[node.of] = values[node.id]  # the last of the sums is the whole
            continue
        for read in graph.inputs_of(node):
            # What a rule made itself on the way is no gradient of the value.
            whole = read.of != node.of or "gradient_of" in read.attributes
            if read.role == "dgrad" and read.shape == graph.nodes[node.of].shape and whole:
                found.setdefault(node.of, values[read.id])
    readers = graph.readers()
    named = list(named_values(graph))
    for _, node in named:  # a sum hands its gradient on as it is
        for i in node.inputs if node.id not in found else ():
            alone = sum(reader.role == "fprop" for reader in readers[i]) == 1
            if node.op.name == "add" and alone and i in found:
                found.setdefault(node.id, found[i])
    return {name: found[node.id] for name, node in named if node.id in found}


def _as_far_as_gradients(graph: Graph) -> Graph:
    names = [name for name, _ in graph.outputs if name.startswith("grad:")]
    return graph.wanting("loss", *names)


def _energy(values: FloatArray) -> float:
    return float(np.sum(np.square(values, dtype=np.float64)))
