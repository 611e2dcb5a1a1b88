"""Which operands of a step's kernels are still in the cache when they are read."""

from __future__ import annotations

from collections.abc import Sequence

from policysearch.cost.storage import node_bytes, roots
from policysearch.cost.work import Task
from policysearch.graph import Graph


def cached_shares(graph: Graph, tasks: Sequence[Task], cache_bytes: int) -> list[float]:
    """Return, per kernel, the share of the bytes it reads that a cache of this size still holds.

    A value is held while no more than `cache_bytes` have been read and written since it was last
    touched; parameters and state were last touched in the step before.
    """
    view = roots(graph)
    sizes = [node_bytes(graph.nodes[i]) for i in view]
    touched = [_touched(task, view) for task in tasks]
    order = sorted(range(len(tasks)), key=lambda k: _place(tasks[k]))
    shares = [1.0] * len(tasks)
    last: dict[int, int] = {}
    moved = 0
    for _ in range(2):  # the second step finds what the first has left
        for k in order:
            reads, writes = touched[k]
            total = sum(sizes[i] for i in reads)
            near = sum(sizes[i] for i in reads if i in last and moved - last[i] <= cache_bytes)
            shares[k] = near / total if total else 1.0
            moved += total + sum(sizes[i] for i in writes)
            last.update(dict.fromkeys((*reads, *writes), moved))
    return shares


def _place(task: Task) -> int:
    return max((node.id for node in task.nodes), default=task.lead.id)


def _touched(task: Task, view: Sequence[int]) -> tuple[set[int], set[int]]:
    """Return the values a kernel reads and those it writes; a product writes its last alone."""
    nodes = task.nodes or (task.lead,)
    own = {node.id for node in nodes}
    reads = {view[i] for node in nodes for i in node.inputs if view[i] not in own}
    written = {max(own)} if task.lead.op.kind == "gemm" else own
    return reads, {view[i] for i in written}
