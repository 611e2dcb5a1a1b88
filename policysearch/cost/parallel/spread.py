"""Time and memory of one of several devices that share a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from policysearch.cost.devices import MINIMUM_KERNEL, Device
from policysearch.cost.memory import StepMemory
from policysearch.cost.parallel.collectives import Interconnect, interconnect
from policysearch.cost.parallel.reduction import (
    Gradient,
    gathering_seconds,
    messages,
    reduction_seconds,
)
from policysearch.cost.parallel.shards import Exchange, shard
from policysearch.cost.parallel.states import (
    Parameter,
    gradients_of,
    layer_bytes,
    parameters_of,
    spread_memory,
)
from policysearch.cost.scalings import amax_messages
from policysearch.cost.storage import roots
from policysearch.cost.time import KernelTime, StepTime
from policysearch.graph import Graph, Role, size
from policysearch.policy.parallel import Parallel

AMAX_BYTES = 4
"""The largest value of a tensor is a float32."""


@dataclass(frozen=True)
class Spread:
    """How a step is spread over devices of one kind.

    `all_reduce` is the format gradients are reduced in, `recipe` scales 8-bit operands.
    """

    parallel: Parallel
    all_reduce: str
    recipe: str
    device: Device

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
    alone = _divided_update(part, timed(part), spread.parallel)
    waits = [
        *_within_groups(part, exchanges, spread),
        *_between_groups(part, alone, spread),
        *_amaxes(part, spread),
    ]
    kernels = tuple(each for each in waits if each.seconds > 0)
    seconds = alone.step_seconds + sum(each.seconds for each in kernels)
    time = replace(alone, step_seconds=seconds, kernels=(*alone.kernels, *kernels))
    return time, spread_memory(part, spread.parallel, spread.all_reduce)


def _wait(op: str, role: Role, format: str, seconds: float, bytes: float) -> KernelTime:
    return KernelTime((), "", op, role, format, seconds, "link", int(bytes), 0, launches=0)


def _divided_update(graph: Graph, time: StepTime, parallel: Parallel) -> StepTime:
    """Return the time where the groups divide the update, and the casts of masters, by ZeRO."""
    if not parallel.zero or parallel.groups == 1:
        return time
    parameters, origin = parameters_of(graph), roots(graph)
    kernels = []
    for kernel in time.kernels:
        nodes = [graph.nodes[i] for i in kernel.node_ids]
        masters = kernel.is_cast and all(origin[n.inputs[0]] in parameters for n in nodes)
        least = min(kernel.seconds, MINIMUM_KERNEL.value)
        divided = max(kernel.seconds / parallel.groups, least)
        own = kernel.role == "update" or masters
        kernels.append(replace(kernel, seconds=divided) if own else kernel)
    saved = time.kernel_seconds - sum(kernel.seconds for kernel in kernels)
    seconds = max(time.step_seconds - saved, time.launch_seconds)
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


def _between_groups(graph: Graph, time: StepTime, spread: Spread) -> Iterator[KernelTime]:
    """Yield what a step waits for as the groups exchange gradients and parameters."""
    parallel, link = spread.parallel, spread.between
    if parallel.groups == 1:
        return
    stretch = time.step_seconds / time.kernel_seconds
    forward, backward = (_seconds(time, roles) * stretch for roles in _PASSES)
    sent = messages(_gradients(graph, time, stretch), parallel)
    ends = forward + backward
    total, late = reduction_seconds(sent, parallel, spread.all_reduce, ends, link)
    elements = sum(message.elements for message in sent)
    kind = "reduce_scatter" if parallel.zero else "all_reduce"
    yield _wait(kind, "update", spread.all_reduce, late, elements)
    parameters = parameters_of(graph)
    if parallel.zero:
        formats = sorted({p.working_format for p in parameters.values()})
        working = sum(p.working_bytes for p in parameters.values())
        waited = link.seconds("all_gather", working)
        if parallel.zero == 3:
            layers = [_layers(time, parameters, roles, stretch) for roles in _PASSES]
            first, second = (gathering_seconds(each, parallel.overlap, link) for each in layers)
            # backward gathers over the link that gradients are reduced over
            crowded = second[0] + total - backward - late if parallel.overlap else 0.0
            waited = first[1] + max(second[1], crowded)
        yield _wait("all_gather", "update", formats[0], waited, working)


_PASSES: tuple[tuple[Role, ...], ...] = (("fprop", "input"), ("dgrad", "wgrad"))
"""Roles of the forward pass and of the backward pass."""


def _seconds(time: StepTime, roles: tuple[Role, ...]) -> float:
    return sum(kernel.seconds for kernel in time.kernels if kernel.role in roles)


def _gradients(graph: Graph, time: StepTime, stretch: float) -> list[Gradient]:
    """Return the gradients with the seconds after which they are there."""
    origin, done, clock = roots(graph), {}, 0.0
    for kernel in time.kernels:
        if kernel.role != "update":
            clock += kernel.seconds * stretch
            done.update(dict.fromkeys(kernel.node_ids, clock))
    found = gradients_of(graph)
    return [Gradient(size(n.shape), done.get(origin[n.id], clock)) for n in found]


def _layers(
    time: StepTime, parameters: dict[int, Parameter], roles: tuple[Role, ...], stretch: float
) -> list[tuple[int, float]]:
    """Return (bytes to gather, seconds of computing) of the layers as they run in one pass."""
    held, seconds = layer_bytes(parameters), dict[str, float]()
    for kernel in time.kernels:
        if kernel.role in roles:
            seconds[kernel.layer] = seconds.get(kernel.layer, 0.0) + kernel.seconds * stretch
    return [(held.get(layer, 0), taken) for layer, taken in seconds.items()]


def _amaxes(graph: Graph, spread: Spread) -> Iterator[KernelTime]:
    """Yield the reductions of largest values over all devices, where the recipe agrees on them."""
    tensors = sum(node.op.name == "amax" and not node.shape for node in graph.nodes)
    count = amax_messages(spread.recipe, tensors)
    if count:
        link = interconnect(spread.device, spread.parallel.devices)
        seconds = count * link.seconds("all_reduce", AMAX_BYTES * tensors / count)
        yield _wait("amax_reduce", "update", "float32", seconds, AMAX_BYTES * tensors)
