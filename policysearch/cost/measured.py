"""Time of a step as the sum of kernels that were timed on its device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from policysearch.cost.devices import Device
from policysearch.cost.gemm import extents, flops_of, product_format
from policysearch.cost.kernels import Kernel, kernels_of
from policysearch.cost.memory import node_bytes, storage_of
from policysearch.cost.roofline import joined_seconds
from policysearch.cost.stacks import Stack
from policysearch.cost.time import KernelTime, StepTime
from policysearch.cost.timings import Extents, Work, is_product
from policysearch.graph import Graph, Node, Shape, size

INSIDE = ("layer_statistics", "layer_norm_weight_grad")
"""Ops that a library computes in the same call as the op they belong to."""


@dataclass(frozen=True)
class Task:
    """One kernel: the node it is called after, its nodes, and its work."""

    lead: Node
    nodes: tuple[Node, ...]
    work: Work


def tasks_of(graph: Graph, device: Device, stack: Stack) -> tuple[Task, ...]:
    """Return the kernels of one step on a device, the passes around products it lacks included.

    A transposition is a copy of its own, and a bias beyond the first of a product is an addition.
    Work on single numbers is left out: a library does it on the host.
    """
    found: list[Task] = []
    grouped: set[int] = set()
    for kernel in kernels_of(graph, stack):
        grouped.update(node.id for node in kernel.nodes)
        if kernel.lead.op.kind == "gemm":
            found += _product(graph, kernel, device)
        elif kernel.lead.op.name not in INSIDE and _elements(graph, kernel.lead) > 1:
            found.append(Task(kernel.lead, kernel.nodes, _other(graph, kernel)))
    copies = (n for n in graph.nodes if n.op.name == "transpose" and n.id not in grouped)
    found += [Task(node, (node,), _copy(node)) for node in copies]
    return tuple(found)


def _product(graph: Graph, kernel: Kernel, device: Device) -> list[Task]:
    node = kernel.lead
    operands = graph.inputs_of(node)[:2]  # scales of blocks follow
    runs = product_format(operands, device)
    e = extents(node, operands, flops_of(graph, node))
    biases = [made for made in kernel.nodes if made.op.name == "bias"]
    sides = (node.attributes.get("transpose_a"), node.attributes.get("transpose_b"))
    op = f"matmul.{''.join('t' if side else 'n' for side in sides)}"
    whole = (e.batch, e.rows, e.columns, max(1, round(e.depth)))
    work = Work("linear" if biases and op == "matmul.nt" else op, runs, whole)
    added = [Task(b, (b,), Work("add", b.format, _rows(b.shape))) for b in biases[1:]]
    return [
        *(
            Task(node, (), Work("cast", f"{x.format}>{runs}", _rows(x.shape)))
            for x in operands
            if x.format not in (runs, "tfloat32") and runs != "tfloat32"
        ),
        Task(node, kernel.nodes, work),
        *added,
    ]


def _other(graph: Graph, kernel: Kernel) -> Work:
    node = kernel.lead
    inputs = graph.inputs_of(node)
    if node.role == "update" and node.op.name != "cast":
        leads = [made for made in kernel.nodes if made.op is node.op]
        return Work(node.op.name, node.format, (len(leads), sum(size(n.shape) for n in leads)))
    widest = max(inputs, key=lambda made: size(made.shape))  # the first of several
    shape = widest.shape if size(widest.shape) > size(node.shape) else node.shape
    both = widest.format if widest.format == node.format else f"{widest.format}>{node.format}"
    return Work(node.op.name, both, _rows(shape))


def _copy(node: Node) -> Work:
    """A transposition as [rows, middle, middle, row] of which the middle axes change places."""
    split = node.attributes["split"]
    axes = "".join(str(axis) for axis in node.attributes["axes"])
    return Work(f"transpose.{axes}", node.format, tuple(split))


def _elements(graph: Graph, node: Node) -> int:
    return max(size(made.shape) for made in (node, *graph.inputs_of(node)))


def _rows(shape: Shape) -> Extents:
    return (size(shape[:-1]), shape[-1]) if shape else (1, 1)


def measured_time(graph: Graph, device: Device, stack: Stack) -> StepTime:
    """Return the time of one step from the `timings` of the device.

    Where the host "adds" (a CPU, which is its own) the step is the sum of the kernels and of what
    the host spends on each and on the step; where it "overlaps" (a GPU), the longer of the two.
    """
    tasks = tasks_of(graph, device, stack)
    shares = cached_shares(graph, tasks, device.cache_bytes)
    times = tuple(_time(task, device, share) for task, share in zip(tasks, shares, strict=True))
    kernel_seconds = sum(kernel.seconds for kernel in times)
    host = device.host_step_seconds + len(times) * device.host_seconds
    return StepTime(float(joined_seconds(kernel_seconds, host, device)), host, times)


def _time(task: Task, device: Device, cached_share: float) -> KernelTime:
    node, op = task.lead, task.work.op
    return KernelTime(
        node_ids=tuple(sorted(made.id for made in task.nodes or (node,))),
        layer=node.layer,
        op="convert" if not task.nodes else node.op.name,
        role=node.role,
        format=task.work.format.rpartition(">")[2],
        seconds=device.timings.seconds(task.work, cached_share),
        bound="compute" if is_product(op) else "bandwidth",
        bytes=0,
        flops=0,
        is_cast=op == "cast",
    )


def cached_shares(graph: Graph, tasks: Sequence[Task], cache_bytes: int) -> list[float]:
    """Return, per kernel, the share of the bytes it reads that a cache of this size still holds.

    A value is held while no more than `cache_bytes` have been read and written since it was last
    touched; parameters and state were last touched in the step before.
    """
    view = storage_of(graph)
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
