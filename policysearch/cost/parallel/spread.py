"""Time and memory of one of several devices that share a step.

What ZeRO divides among them is as in Rajbhandari et al., "ZeRO: Memory Optimizations Toward
Training Trillion Parameter Models" (2020): of parameters, gradients, and masters with optimizer
state, each stage divides one more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import get_args

from policysearch.cost.devices import MINIMUM_KERNEL, Device
from policysearch.cost.memory import (
    Kind,
    Life,
    Occupancy,
    StepMemory,
    block_share,
    labelled,
    live_along,
    lives,
    same_bytes,
    storage_of,
    workspace_bytes,
)
from policysearch.cost.parallel.collectives import (
    Gradient,
    Interconnect,
    amax_messages,
    gathering_seconds,
    interconnect,
    messages,
    reduction_seconds,
)
from policysearch.cost.parallel.shards import Exchange, shard
from policysearch.cost.roofline import joined_seconds
from policysearch.cost.time import KernelTime, StepTime
from policysearch.formats import format_named
from policysearch.graph import Graph, Node, Role, size
from policysearch.policy.parallel import Parallel

AMAX_BYTES = 4
"""The largest value of a tensor is a float32."""

PREFETCHED = 2
"""Layers whose parameters are gathered at once under stage 3: the one that runs and the next."""

NONE: Mapping[str, str] = MappingProxyType({})
"""No layer whose gradients are reduced in a format of their own."""


@dataclass(frozen=True)
class Spread:
    """How a step is spread over devices of one kind.

    `all_reduce` is the format gradients are reduced in, but for those of the layers `apart`;
    `recipe` scales 8-bit operands.
    """

    parallel: Parallel
    all_reduce: str
    recipe: str
    device: Device
    apart: Mapping[str, str] = field(default_factory=lambda: NONE)

    @property
    def between(self) -> Interconnect:
        """What joins the devices that have the same part of their groups."""
        whole = interconnect(self.device, self.parallel.devices)
        groups = self.parallel.groups
        return replace(whole, devices=groups, nodes=min(whole.nodes, groups))


def spread_step(
    graph: Graph, spread: Spread, timed: Callable[[Graph], StepTime]
) -> tuple[StepTime, StepMemory]:
    """Return the modeled time and memory of each device.

    `graph` is the step of one group, on its part of the batch; `timed` gives the time of a step on
    one device. What the step waits for is among its kernels as all_reduce, reduce_scatter,
    all_gather or amax_reduce, in no layer.
    """
    part, exchanges = shard(graph, spread.parallel.tensor)
    parameters, storage = parameters_of(part), storage_of(part)
    alone = _divided_update(part, timed(part), spread, parameters, storage)
    waits = [
        *_within_groups(part, exchanges, spread),
        *_between_groups(_gradients(part, alone, storage, spread.apart), alone, spread, parameters),
        *_amaxes(part, spread),
    ]
    kernels = tuple(wait for wait in waits if wait.seconds > 0)
    seconds = alone.step_seconds + sum(wait.seconds for wait in kernels)
    time = replace(alone, step_seconds=seconds, kernels=(*alone.kernels, *kernels))
    return time, spread_memory(part, spread.parallel, spread.all_reduce, spread.apart)


def _wait(op: str, role: Role, format: str, seconds: float, bytes: float) -> KernelTime:
    return KernelTime((), "", op, role, format, seconds, "link", int(bytes), 0, launches=0)


def _divided_update(
    graph: Graph,
    time: StepTime,
    spread: Spread,
    parameters: Mapping[int, Parameter],
    storage: Sequence[int],
) -> StepTime:
    """Return the time where the groups divide the update, and the casts of masters, by ZeRO.

    Each works on its part, but no kernel takes less than the shortest.
    """
    parallel = spread.parallel
    if not parallel.zero or parallel.groups == 1:
        return time
    kernels = []
    for kernel in time.kernels:
        nodes = [graph.nodes[i] for i in kernel.node_ids]
        masters = kernel.is_cast and all(storage[n.inputs[0]] in parameters for n in nodes)
        least = min(kernel.seconds, MINIMUM_KERNEL.value)
        divided = max(kernel.seconds / parallel.groups, least)
        own = kernel.role == "update" or masters
        kernels.append(replace(kernel, seconds=divided) if own else kernel)
    total = sum(kernel.seconds for kernel in kernels)
    seconds = float(joined_seconds(total, time.launch_seconds, spread.device))
    return replace(time, step_seconds=seconds, kernels=tuple(kernels))


def _within_groups(
    graph: Graph, exchanges: tuple[Exchange, ...], spread: Spread
) -> Iterator[KernelTime]:
    """Yield what the devices of a group exchange for the products that they split."""
    link = interconnect(spread.device, spread.parallel.tensor)
    for exchange in exchanges:
        node = graph.nodes[exchange.node]
        if node.op.name == "amax" and amax_messages(spread.recipe, 1):
            continue  # reduced over all devices, with the others
        op = "amax_reduce" if node.op.name == "amax" else exchange.kind
        seconds = link.seconds(exchange.kind, exchange.bytes)
        yield _wait(op, node.role, node.format, seconds, exchange.bytes)


def _between_groups(
    gradients: Sequence[Gradient],
    time: StepTime,
    spread: Spread,
    parameters: Mapping[int, Parameter],
) -> Iterator[KernelTime]:
    """Yield what a step waits for as the groups exchange gradients and parameters."""
    parallel, link = spread.parallel, spread.between
    if parallel.groups == 1:
        return
    stretch = _stretch(time)
    forward, backward = (_seconds(time, roles) * stretch for roles in _PASSES)
    ends = forward + backward
    sent = messages(gradients, parallel)
    total, late = reduction_seconds(sent, parallel, spread.all_reduce, ends, link)
    elements = sum(message.elements for message in sent)
    kind = "reduce_scatter" if parallel.zero else "all_reduce"
    yield _wait(kind, "update", spread.all_reduce, late, elements)
    if parallel.zero:
        formats = sorted({p.working_format for p in parameters.values()})
        working = sum(p.working_bytes for p in parameters.values())
        waited = link.seconds("all_gather", working)
        if parallel.zero == 3:
            layers = [_layers(time, parameters, roles) for roles in _PASSES]
            first, second = (gathering_seconds(part, parallel.overlap, link) for part in layers)
            # backward gathers over the link that gradients are reduced over
            crowded = second[0] + total - backward - late if parallel.overlap else 0.0
            waited = first[1] + max(second[1], crowded)
        yield _wait("all_gather", "update", formats[0], waited, working)


_PASSES: tuple[tuple[Role, ...], ...] = (("fprop", "input"), ("dgrad", "wgrad"))
"""Roles of the forward pass and of the backward pass."""


def _seconds(time: StepTime, roles: tuple[Role, ...]) -> float:
    return sum(kernel.seconds for kernel in time.kernels if kernel.role in roles)


def _stretch(time: StepTime) -> float:
    """Return by how much a step is longer than its kernels: where its launches set its time, the
    gradients are ready in theirs."""
    return time.step_seconds / time.kernel_seconds


def _gradients(
    graph: Graph, time: StepTime, storage: Sequence[int], apart: Mapping[str, str]
) -> list[Gradient]:
    """Return the gradients with the seconds after which they are there."""
    stretch, done, clock = _stretch(time), dict[int, float](), 0.0
    for kernel in time.kernels:
        if kernel.role != "update":
            clock += kernel.seconds * stretch
            done.update(dict.fromkeys(kernel.node_ids, clock))
    nodes, own = gradients_of(graph), _reduced_apart(graph, apart)
    return [
        Gradient(size(n.shape), done.get(storage[n.id], clock), own.get(n.id, "")) for n in nodes
    ]


def _layers(
    time: StepTime, parameters: Mapping[int, Parameter], roles: tuple[Role, ...]
) -> list[tuple[int, float]]:
    """Return (bytes to gather, seconds of computing) of the layers as they run in one pass."""
    bytes, seconds, stretch = layer_bytes(parameters), dict[str, float](), _stretch(time)
    for kernel in time.kernels:
        if kernel.role in roles:
            seconds[kernel.layer] = seconds.get(kernel.layer, 0.0) + kernel.seconds * stretch
    return [(bytes.get(layer, 0), computing) for layer, computing in seconds.items()]


def _amaxes(graph: Graph, spread: Spread) -> Iterator[KernelTime]:
    """Yield the reductions of largest values over all devices, where the recipe agrees on them."""
    tensors = sum(node.op.name == "amax" and not node.shape for node in graph.nodes)
    count = amax_messages(spread.recipe, tensors)
    if count:
        link = interconnect(spread.device, spread.parallel.devices)
        seconds = count * link.seconds("all_reduce", AMAX_BYTES * tensors / count)
        yield _wait("amax_reduce", "update", "float32", seconds, AMAX_BYTES * tensors)


@dataclass(frozen=True)
class Parameter:
    """A parameter of the step, and the format in which the forward pass reads it.

    `master` says that it is only read through a copy of fewer bits.
    """

    node: Node
    working_format: str

    @property
    def working_bytes(self) -> int:
        return -(-size(self.node.shape) * format_named(self.working_format).bits // 8)

    @property
    def master(self) -> bool:
        return format_named(self.working_format).bits < format_named(self.node.format).bits


def parameters_of(graph: Graph) -> dict[int, Parameter]:
    """Return the parameters that the step updates, by node id.

    Of an 8-bit layer a copy in bfloat16 is kept: its scale is that of the whole tensor.
    """
    trained = {old for old, _ in graph.updates}
    read: dict[int, list[str]] = {
        n.id: [] for n in graph.nodes if n.op.name == "parameter" and n.id in trained
    }
    for node in graph.nodes:
        for i in node.inputs:
            if i in read and node.role != "update" and node.op.name != "amax":
                format = node.format if node.op.converts else graph.nodes[i].format
                read[i].append(format if format_named(format).bits >= 16 else "bfloat16")
    parameters = {}
    for i, formats in read.items():
        own = graph.nodes[i].format
        widest = max(formats, key=lambda name: format_named(name).bits, default=own)
        narrower = format_named(widest).bits < format_named(own).bits
        parameters[i] = Parameter(graph.nodes[i], widest if narrower else own)
    return parameters


def gradients_of(graph: Graph) -> list[Node]:
    """Return the gradients of parameters as backward leaves them, in the order they are made."""
    read = {i for node in graph.nodes if node.role == "update" for i in node.inputs}
    nodes = (graph.nodes[i] for i in sorted(read))
    return [n for n in nodes if n.role in ("wgrad", "dgrad") and n.op.name != "amax"]


def _reduced_apart(graph: Graph, apart: Mapping[str, str]) -> dict[int, str]:
    """Return the format of each gradient, by node id, whose parameter is of a layer `apart`."""
    return {
        i: apart[node.layer]
        for node in graph.nodes
        if node.role == "update" and node.layer in apart
        for i in node.inputs
    }


def spread_memory(
    graph: Graph, parallel: Parallel, all_reduce: str, apart: Mapping[str, str] = NONE
) -> StepMemory:
    """Return the modeled memory of one device; `graph` is its part of the step.

    Under ZeRO the low copies of parameters are the parameters, and stay; what is reduced in
    another format than the gradient's takes a buffer of a bucket, or of all gradients combined.
    """
    rows = tuple(_occupancies(graph, parallel, all_reduce, apart))
    moments = live_along(graph, rows)
    along = [sum(moment.values()) for moment in moments]
    most = max(along)
    peak = along.index(most)
    parts = {f"{kind}_bytes": round(moments[peak].get(kind, 0.0)) for kind in get_args(Kind)}
    return StepMemory(
        *(round(most), peak),
        **parts,
        workspace_bytes=workspace_bytes(graph, along),
        block_share=block_share(rows, most),
    )


def spread_live(
    graph: Graph, parallel: Parallel, all_reduce: str, apart: Mapping[str, str] = NONE
) -> tuple[tuple[str, Mapping[Kind, int]], ...]:
    """Return what `memory.live_by_kind` does, of one device."""
    return labelled(graph, live_along(graph, _occupancies(graph, parallel, all_reduce, apart)))


def _occupancies(
    graph: Graph, parallel: Parallel, all_reduce: str, apart: Mapping[str, str]
) -> Iterator[Occupancy]:
    """Yield everything that a device holds."""
    parameters = parameters_of(graph)
    masters = {i for i, parameter in parameters.items() if parameter.master}
    end = len(graph.nodes)
    for life in lives(graph):
        share = _share(life, parallel, masters, parameters)
        first, last = life.first, life.last
        if life.kind == "weight_copy" and parallel.zero and parallel.groups > 1:
            if _is_kept(graph, life.owner, parameters):
                first, last = 0, end
            else:
                share = 1.0
        yield life.kind, first, last, life.bytes * share
    if parallel.groups == 1:
        return
    gradients = gradients_of(graph)
    if gradients:
        last = max(node.id for node in graph.nodes if node.role != "update")
        own = _reduced_apart(graph, apart)
        formats = [own.get(node.id, all_reduce) for node in gradients]
        parts = (
            reduction_buffer_bytes(
                [n for n, format in zip(gradients, formats, strict=True) if format == name],
                parallel,
                name,
            )
            for name in dict.fromkeys(formats)
        )
        buffer = max(parts) if parallel.gradients == "tensors" else sum(parts)
        yield "gradient", gradients[0].id, max(last, gradients[0].id), buffer
    if parallel.zero == 3:
        layers = list(layer_bytes(parameters).values())
        at_once = (sum(layers[i : i + PREFETCHED]) for i in range(len(layers)))
        yield "weight_copy", 0, end, max(at_once, default=0)


def _is_kept(graph: Graph, copy: Node, parameters: Mapping[int, Parameter]) -> bool:
    """Whether a copy of a parameter is what ZeRO keeps of it; others are made of that when needed.

    The 8-bit copies of a layer stand for the one in bfloat16.
    """
    origin = copy
    while origin.op.converts:
        origin = graph.nodes[origin.inputs[0]]
    parameter = parameters.get(origin.id)
    if parameter is None or not parameter.master:
        return False
    return format_named(copy.format).bits < 16 or copy.format == parameter.working_format


def layer_bytes(parameters: Mapping[int, Parameter]) -> dict[str, int]:
    """Return the bytes that stage 3 gathers for each layer."""
    bytes: dict[str, int] = {}
    for parameter in parameters.values():
        layer = parameter.node.layer
        bytes[layer] = bytes.get(layer, 0) + parameter.working_bytes
    return bytes


def reduction_buffer_bytes(gradients: list[Node], parallel: Parallel, all_reduce: str) -> float:
    """Return the bytes of the buffer that gradients of another format are reduced in."""
    sizes = [size(n.shape) for n in gradients if not same_bytes(n.format, all_reduce)]
    copied = sum(sizes)
    if parallel.gradients == "tensors":
        copied = max(sizes, default=0)
    if parallel.gradients == "buckets":
        copied = min(copied, int(parallel.bucket_mib * 2**20 / 4))
    return copied * format_named(all_reduce).bits / 8


def _share(
    life: Life, parallel: Parallel, masters: set[int], parameters: dict[int, Parameter]
) -> float:
    """Return the share of a buffer that one device holds: one of its group's from a stage on.

    Stage 1 divides optimizer state and masters, 2 gradients too, 3 all parameters (Rajbhandari).
    """
    owner, kind = life.owner, life.kind
    stage = 4  # from which on it is divided: never
    if (
        kind == "optimizer"
        or owner.id in masters
        or (kind == "gradient" and owner.role == "update")
    ):
        stage = 1
    elif kind == "gradient":
        stage = 2
    elif kind == "weight_copy" or owner.id in parameters:
        stage = 3
    return 1 / parallel.groups if parallel.zero >= stage else 1.0
