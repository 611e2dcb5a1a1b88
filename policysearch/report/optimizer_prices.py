"""What the update of a step would take with each optimizer, as `profile --optimizers` says it."""

from __future__ import annotations

from typing import get_args

from policysearch.cost.update_price import Kernels, UpdatePrice, update_price
from policysearch.graph import Graph, size
from policysearch.objective.objective import Objective
from policysearch.optimizers.optimizer import rules
from policysearch.report.step_cost import MIB
from policysearch.report.text import aligned


def parameter_groups(graph: Graph, apart: bool) -> tuple[tuple[int, ...], ...]:
    """Return the elements of the parameters that a step updates, by parameter group.

    `apart`: matrices and the rest are groups of their own, as where weight decay is for the first.
    """
    nodes = [graph.nodes[old] for old, _ in graph.updates]
    shapes = [node.shape for node in nodes if node.op.name == "parameter"]
    if not apart:
        return (tuple(size(shape) for shape in shapes),)
    matrices = tuple(size(shape) for shape in shapes if len(shape) > 1)
    others = tuple(size(shape) for shape in shapes if len(shape) <= 1)
    return tuple(group for group in (matrices, others) if group)


def optimizer_lines(objective: Objective, graph: Graph) -> list[str]:
    """Return a line for each optimizer and form of its kernels.

    Time is over that of torch's fused Adam, state and temporaries are float32.
    """
    groups = parameter_groups(graph, objective.task.weight_decay_for == "matrices")
    if not groups or not groups[0]:
        return ["no parameters are updated"]

    def priced(name: str, kernels: Kernels) -> UpdatePrice:
        return update_price(name, kernels, groups, objective.device, objective.stack)

    reference = priced("adam", "fused").seconds
    rows = []
    for name, rule in rules().items():
        for kernels in get_args(Kernels):
            if kernels != "fused" or rule.fused:
                price = priced(name, kernels)
                rows.append(
                    (
                        name,
                        kernels,
                        f"{price.seconds / reference:.2f}",
                        str(price.launches),
                        f"{price.state_bytes / MIB:.4g}",
                        f"{price.aside_bytes / MIB:.4g}",
                    )
                )
    titles = ("update", "kernels", "time over fused Adam", "launches", "state MiB", "aside MiB")
    tensors = sum(map(len, groups))
    head = f"float32 update, {tensors} parameters, groups: {len(groups)}"
    return [head, *aligned([titles, *rows])]
