"""Time of a step on a device whose kernels were timed: the sum of the library calls it makes.

A library runs one call for each op, so what is looked up are the calls that a step makes of it,
each with the share of its operands that the calls before it have left in the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from policysearch.cost.copies import copies_of, order_of
from policysearch.cost.devices import Device
from policysearch.cost.gemm import product_of
from policysearch.cost.kernels import Kernel, kernels_of
from policysearch.cost.memory import node_bytes, storage_of
from policysearch.cost.roofline import joined_seconds
from policysearch.cost.stacks import Stack
from policysearch.cost.time import KernelTime, StepTime, over_micro_batches, step_time
from policysearch.cost.timings import Extents, Work, is_product
from policysearch.graph import Graph, Node, Shape, size
from policysearch.ops.update import micro_batches

INSIDE = ("layer_statistics", "layer_norm_weight_grad")
"""Ops that a library computes in the same call as the op they belong to."""


@dataclass(frozen=True)
class Call:
    """One call of a library: the node it is called after, its nodes, and its work."""

    lead: Node
    nodes: tuple[Node, ...]
    work: Work


def time_on(graph: Graph, device: Device, stack: Stack) -> StepTime:
    """Return the time of a step, all its micro-batches: timed on the device, else modeled."""
    last = time_of_last(graph, device, stack)
    return over_micro_batches(last, micro_batches(graph), device)


def time_of_last(graph: Graph, device: Device, stack: Stack) -> StepTime:
    """Return the time of the last micro-batch of a step and of its update, the same way."""
    timed = bool(device.timings.rows)
    return measured_time(graph, device, stack) if timed else step_time(graph, device, stack)


def measured_time(graph: Graph, device: Device, stack: Stack) -> StepTime:
    """Return the time of one step from the `timings` of the device.

    Where the host "adds" (a CPU, which is its own) the step is the sum of the kernels and of what
    the host spends on each and on the step; where it "overlaps" (a GPU), the longer of the two.
    """
    calls = calls_of(graph, device, stack)
    shares = cached_shares(graph, calls, device.cache_bytes)
    times = tuple(_time(call, device, share) for call, share in zip(calls, shares, strict=True))
    kernel_seconds = sum(kernel.seconds for kernel in times)
    host = device.host_step_seconds + len(times) * device.host_seconds
    return StepTime(float(joined_seconds(kernel_seconds, host, device)), host, times)


def _time(call: Call, device: Device, cached_share: float) -> KernelTime:
    node, op = call.lead, call.work.op
    return KernelTime(
        node_ids=tuple(sorted(member.id for member in call.nodes or (node,))),
        layer=node.layer,
        op="convert" if not call.nodes else node.op.name,
        role=node.role,
        format=call.work.format.rpartition(">")[2],
        seconds=device.timings.seconds(call.work, cached_share),
        bound="compute" if is_product(op) else "bandwidth",
        bytes=0,
        flops=0,
        is_cast=op == "cast",
    )


def calls_of(graph: Graph, device: Device, stack: Stack) -> tuple[Call, ...]:
    """Return the calls of one step on a device, the passes around products it lacks included.

    A transposition that a reader needs in order is a copy of its own, and a bias beyond the first
    of a product is an addition. Work on single numbers is left out: a library does it on the host.
    """
    calls: list[Call] = []
    kernels = kernels_of(graph, stack)
    for kernel in kernels:
        if kernel.lead.op.kind == "gemm":
            calls += _product_calls(graph, kernel, device)
        elif kernel.lead.op.name not in INSIDE and _elements(graph, kernel.lead) > 1:
            calls.append(Call(kernel.lead, kernel.nodes, _pass(graph, kernel)))
    copies = (kernel.lead for kernel in copies_of(graph, kernels))
    calls += [Call(node, (node,), _copy(graph, node)) for node in copies]
    return tuple(calls)


def _product_calls(graph: Graph, kernel: Kernel, device: Device) -> list[Call]:
    """Return a product behind the casts into its format, and the biases that it does not add."""
    node, product = kernel.lead, product_of(graph, kernel.lead, device)
    e, runs = product.extents, product.format
    biases = [member for member in kernel.nodes if member.op.name == "bias"]
    sides = (node.attributes.get("transpose_a"), node.attributes.get("transpose_b"))
    op = f"matmul.{''.join('t' if side else 'n' for side in sides)}"
    extents = (e.batch, e.rows, e.columns, max(1, round(e.depth)))
    work = Work("linear" if biases and op == "matmul.nt" else op, runs, extents)
    return [
        *(
            Call(node, (), Work("cast", f"{x.format}>{runs}", _rows(x.shape)))
            for x in product.operands
            if x.format not in (runs, "tfloat32") and runs != "tfloat32"
        ),
        Call(node, kernel.nodes, work),
        *(Call(b, (b,), Work("add", b.format, _rows(b.shape))) for b in biases[1:]),
    ]


def _pass(graph: Graph, kernel: Kernel) -> Work:
    """Return the work of a kernel without a product, by its widest operand."""
    node = kernel.lead
    inputs = graph.inputs_of(node)
    if node.role == "update" and node.op.name != "cast":
        leads = [member for member in kernel.nodes if member.op is node.op]
        return Work(node.op.name, node.format, (len(leads), sum(size(n.shape) for n in leads)))
    widest = max(inputs, key=lambda operand: size(operand.shape))  # the first of several
    shape = widest.shape if size(widest.shape) > size(node.shape) else node.shape
    both = widest.format if widest.format == node.format else f"{widest.format}>{node.format}"
    return Work(node.op.name, both, _rows(shape))


def _copy(graph: Graph, node: Node) -> Work:
    """A transposition as [rows, middle, middle, row] of which the middle axes change places."""
    order = order_of(graph, node)
    return Work(f"transpose.{''.join(map(str, order.axes))}", node.format, order.split)


def _elements(graph: Graph, node: Node) -> int:
    return max(size(operand.shape) for operand in (node, *graph.inputs_of(node)))


def _rows(shape: Shape) -> Extents:
    return (size(shape[:-1]), shape[-1]) if shape else (1, 1)


def cached_shares(graph: Graph, calls: Sequence[Call], cache_bytes: int) -> list[float]:
    """Return, per call, the share of the bytes it reads that a cache of this size still holds.

    A value is held while no more than `cache_bytes` have been read and written since it was last
    touched (its reuse distance in a cache that evicts the least recently used: Mattson et al.,
    1970); parameters and state were last touched in the step before.
    """
    storage = storage_of(graph)
    sizes = [node_bytes(graph.nodes[i]) for i in storage]
    operands = [_operands(call, storage) for call in calls]
    order = sorted(range(len(calls)), key=lambda k: _position(calls[k]))
    shares = [1.0] * len(calls)
    last: dict[int, int] = {}
    traffic = 0  # bytes since the first call
    for _ in range(2):  # the second step finds what the first has left
        for k in order:
            reads, writes = operands[k]
            total = sum(sizes[i] for i in reads)
            near = sum(sizes[i] for i in reads if i in last and traffic - last[i] <= cache_bytes)
            shares[k] = near / total if total else 1.0
            traffic += total + sum(sizes[i] for i in writes)
            last.update(dict.fromkeys((*reads, *writes), traffic))
    return shares


def _position(call: Call) -> int:
    """Return where in the step a call runs: with the last of its nodes."""
    return max((node.id for node in call.nodes), default=call.lead.id)


def _operands(call: Call, storage: Sequence[int]) -> tuple[set[int], set[int]]:
    """Return the values a call reads and those it writes; a product writes its last alone."""
    nodes = call.nodes or (call.lead,)
    own = {node.id for node in nodes}
    reads = {storage[i] for node in nodes for i in node.inputs if storage[i] not in own}
    written = {max(own)} if call.lead.op.kind == "gemm" else own
    return reads, {storage[i] for i in written}
