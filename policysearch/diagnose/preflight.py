"""What a policy cannot hold, told before anything is trained: numbers, masks, losses, scales.

Epsilons are read from the step as the policy makes it. All else is compared with one step of
float32 from the initial values, which is not applied.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from policysearch.diagnose.shadow import Shadows
from policysearch.formats import format_named
from policysearch.graph import Graph, Node
from policysearch.objective.objective import Objective
from policysearch.objective.rounding_errors import named_values
from policysearch.policy.policy import Policy
from policysearch.rounding.rounder import quantise
from policysearch.train.loss_scale import initial_state
from policysearch.train.lost_values import listed_op
from policysearch.train.origin import Traced, largest_of

SKIPPED = 0.1
"""Share of the steps that a dynamic loss scale may skip until it fits."""


def preflight(objective: Objective, policy: Policy, seed: int) -> tuple[str, ...]:
    """Return what is wrong with a policy before it is trained, a line each; () where nothing is.

    Numbers that are zero in their format, values of the first batch beyond it (first of them,
    not what is computed of these), and a loss scale that gradients do not bear.
    """
    shadows = Shadows(objective, seed, (0.0,))
    exact = shadows.traced(objective.float32)
    low = objective.task.tracing(objective.model, objective.task.batch_size)
    graph = low.step_graph(policy.at_step(0))
    return (
        *_vanishing_numbers(graph, objective.task.epsilon),
        *_beyond(graph, exact, policy, objective),
    )


def _vanishing_numbers(graph: Graph, epsilon: float) -> Iterator[str]:
    """Yield numbers that are added and are zero in the format of what they are added to."""
    said = set()
    for node in graph.nodes:
        given = node.attributes
        amount = given.get("amount") if node.op.name == "shift" else given.get("epsilon")
        if node.role == "update" and amount == 0.0:
            line = f"{listed_op(node)}: epsilon {epsilon:g} is zero in {node.format}, kept so"
        elif node.op.name == "shift" and amount and not _in(node, amount):
            line = f"{_place(node)}: {amount:g} that is added is zero in {node.format}"
        else:
            continue
        if line not in said:
            said.add(line)
            yield line


def _in(node: Node, amount: float) -> bool:
    """Return whether a number is not zero in a node's format."""
    return bool(quantise(np.array([amount], np.float32), format_named(node.format))[0])


def _beyond(graph: Graph, exact: Traced, policy: Policy, objective: Objective) -> Iterator[str]:
    places = {key: node.id for key, node in named_values(exact.graph)}
    of = {node.id: places[key] for key, node in named_values(graph) if key in places}
    sizes = {i: largest_of(exact.values[place]) for i, place in of.items()}
    yield from _too_large(graph, sizes)
    yield from _scale(graph, sizes, policy, objective.task.steps)


def _too_large(graph: Graph, sizes: Mapping[int, float]) -> Iterator[str]:
    """Yield the values going forward that are beyond their formats though all they read is not."""
    beyond, fixed = set[int](), set[int]()
    for node in graph.nodes:
        if node.role not in ("input", "fprop"):
            break
        if fixed.issuperset(node.inputs) and node.op.name != "parameter":
            fixed.add(node.id)  # of no parameter
        if beyond.intersection(node.inputs):
            beyond.add(node.id)
            continue
        size, limit = sizes.get(node.id, 0.0), format_named(node.format).max
        if node.op.name == "cast":
            size = sizes.get(node.inputs[0], 0.0)
        if size <= limit or node.fused:
            continue
        beyond.add(node.id)
        if node.shape == ():
            what = "a loss"
        else:
            what = "a mask or constant" if node.id in fixed else "values"
        where = f"{_place(node)}: {what} of {size:.3g} in the first batch"
        yield f"{where}, {node.format}'s largest is {limit:.5g}"


def _scale(graph: Graph, sizes: Mapping[int, float], policy: Policy, steps: int) -> Iterator[str]:
    """Yield the loss scale where the gradients of the first batch do not bear it."""
    scale = initial_state(policy.loss_scale).scale
    rows = [
        (sizes[node.id] * scale / format_named(node.format).max, node)
        for node in graph.nodes
        if node.role in ("dgrad", "wgrad") and node.id in sizes and not node.fused
    ]
    times, worst = max(rows, key=lambda row: row[0], default=(0.0, None))
    if policy.loss_scale.kind == "none" or times <= 1.0 or worst is None:
        return
    words = f"loss scale {scale:g}: gradients of {_place(worst)} up to "
    words += f"{times * format_named(worst.format).max:.3g}, {worst.format}'s largest is "
    words += f"{format_named(worst.format).max:.5g}"
    if policy.loss_scale.kind != "dynamic":
        yield words
        return
    halvings = math.ceil(math.log(times) / -math.log(policy.loss_scale.backoff_factor))
    if halvings > SKIPPED * steps:
        skipped = f"about {halvings} steps are" if halvings < steps else f"all {steps} steps are"
        yield f"{words}; {skipped} skipped until it fits"


def _place(node: Node) -> str:
    line = f"{node.line}: " if node.line else ""
    return f"{line}{listed_op(node)} of {node.layer or 'no layer'} ({node.role})"
