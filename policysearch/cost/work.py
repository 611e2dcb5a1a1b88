"""The kernels of a step as a library of one call per op runs them, and what each has to do."""

from __future__ import annotations

from dataclasses import dataclass

from policysearch.cost.devices import Device
from policysearch.cost.gemm import extents, flops_of, product_format
from policysearch.cost.kernels import Kernel, kernels_of
from policysearch.cost.stacks import Stack
from policysearch.cost.timings import Extents, Work
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
