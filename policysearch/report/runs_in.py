"""In which format each layer of a training step really runs, as its graph has it.

Formats below 16 bits are formats of products: a norm between two of them runs in another.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from policysearch.graph import Graph, Node
from policysearch.policy.policy import Policy
from policysearch.report.operands import operands_of
from policysearch.study.kept import PACKAGED
from policysearch.study.specification import StudySpec, objective_of
from policysearch.train.step import Tracing
from policysearch.train.user_code import is_user_code
from policysearch.values import InputError

BACKWARD = ("dgrad", "wgrad")


@dataclass(frozen=True)
class RunsIn:
    """The formats of one layer, each once.

    `forward`: those of the operands of its forward products and, `product` false, of a layer that
    has none, those of its results. `backward`: the same of the gradients it multiplies, or gives.
    `ops`: what is computed there forward, as op lists name it. `weights`: it has parameters.
    """

    forward: tuple[str, ...]
    backward: tuple[str, ...]
    product: bool
    ops: tuple[str, ...] = ()
    weights: bool = False


Runs = Mapping[str, RunsIn]


def tracing_of(spec: StudySpec, own_code: bool = False) -> Tracing | None:
    """Return what traces the step of a study that is trained; None where that cannot be.

    Unless `own_code` may run, and files of data be read, it is made of what the package has, what
    was kept beside the journal, and values alone.
    """
    task = spec.task
    if not own_code and isinstance(task.data, str) and task.data not in PACKAGED:
        return None
    if not own_code and isinstance(task.model, str) and is_user_code(task.model):
        return None
    try:
        objective = objective_of(spec)
        return task.tracing(objective.model, task.batch_size)
    except InputError:
        return None


def runs_of(tracing: Tracing | None, policy: Policy) -> Runs | None:
    """Return what every layer runs in under a policy, at first; None where it is of another net."""
    try:
        return None if tracing is None else runs_in(tracing.step_graph(policy.at_step(0)))
    except InputError:
        return None


def runs_in(graph: Graph) -> dict[str, RunsIn]:
    """Return what every layer of a step, a policy applied to it, runs in."""
    products: dict[str, list[tuple[bool, str]]] = {}
    for row in operands_of(graph):
        if row.product == "fprop" or row.tensor == "gradient":
            own = products.setdefault(row.layers, [])
            own.append((row.product == "fprop", row.format))
    found, readers = {}, graph.readers()
    kept = {node.layer for node in graph.nodes if node.op.name == "parameter"}
    for name, nodes in _nodes_by_layer(graph).items():
        pairs = products.get(name or "-") or _results(name, nodes, readers)
        forward, backward = (_once(f for first, f in pairs if first is w) for w in (True, False))
        ops = _once(node.source for node in nodes if node.role == "fprop")
        found[name] = RunsIn(forward, backward, (name or "-") in products, ops, name in kept)
    return found


def _once(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _nodes_by_layer(graph: Graph) -> dict[str, list[Node]]:
    """Return by layer what is computed there, forward and backward, casts left out."""
    found: dict[str, list[Node]] = {}
    for node in graph.nodes:
        if node.role in ("fprop", *BACKWARD) and node.op.kind != "source" and not node.op.converts:
            found.setdefault(node.layer, []).append(node)
    return found


def _results(name: str, nodes: list[Node], readers: list[list[Node]]) -> list[tuple[bool, str]]:
    """Return (forward, format) of what others read of a layer; of all it has, if they read none."""
    pairs = []
    for forward in (True, False):
        mine = [n for n in nodes if (n.role == "fprop") is forward and n.role != "wgrad"]
        given = [
            node
            for node in mine
            if any(r.layer != name and r.role == node.role for r in readers[node.id])
        ]
        pairs += [(forward, node.format) for node in given or mine]
    return pairs
