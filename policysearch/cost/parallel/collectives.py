"""Seconds of the exchanges between devices, and how long a step waits for its gradients.

The form and the latencies are those by which NCCL chooses its own protocol
(github:NVIDIA/nccl@01afd20a77b5:src/graph/tuning.cc, rings): a start, a latency for each step of
the ring, and the bytes that cross each link over its bandwidth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from policysearch.cost.devices import Device, Sourced
from policysearch.formats import format_named
from policysearch.policy.parallel import Parallel

Kind = Literal["all_reduce", "reduce_scatter", "all_gather"]

LINK_SHARE = 0.8
"""Share of a link's rate that is payload: 370 of 450 GB/s (github:NVIDIA/nccl-tests issue 212)."""

NODE_DEVICES = 8
"""Devices that share a node and its links."""

NODE_BYTES_PER_SECOND = 200e9
"""What the network cards of a node move each way: eight of 200 Gbit/s; assumed."""

FASTEST_PCIE = 64e9
"""Bytes per second of PCIe 5 with 16 lanes: links that are no faster have its latency."""


@dataclass(frozen=True)
class Protocol:
    """A way to move bytes around a ring.

    Seconds to start, of a step over NVLink and the like, over PCIe, and from node to node, and the
    share of the bandwidth that it reaches.
    """

    start_seconds: float
    link_seconds: float
    pcie_seconds: float
    network_seconds: float
    share: float


PROTOCOLS: Mapping[str, Protocol] = MappingProxyType(
    {
        "LL": Protocol(3.6e-6, 0.47e-6, 1.0e-6, 2.7e-6, 0.25),
        "Simple": Protocol(8.4e-6, 3.4e-6, 5.7e-6, 9.6e-6, 1.0),
    }
)
"""NCCL's for short and for long messages."""


@dataclass(frozen=True)
class Interconnect:
    """What joins `devices` of one kind in a ring through `nodes`.

    `bytes_per_second` is the payload that each sends while it receives as much; `pcie` whether
    steps within a node have the latency of PCIe.
    """

    devices: int
    bytes_per_second: float
    pcie: bool
    nodes: int

    def seconds(self, kind: Kind, bytes: float) -> float:
        """Return the seconds of exchanging a tensor of so many bytes as a whole.

        Zero on one device. In a ring of n devices a reduce-scatter or an all-gather takes n - 1
        steps, in each of which every device sends one n-th; an all-reduce is the one behind the
        other, twice the steps and bytes (Patarasu and Yuan, 2009), which no algorithm moves fewer
        of. The faster protocol is taken, as NCCL does.
        """
        if self.devices == 1 or not bytes:
            return 0.0
        rounds = 2 if kind == "all_reduce" else 1
        sent = rounds * (self.devices - 1) / self.devices * bytes
        between = rounds * (self.nodes - 1)
        within = rounds * (self.devices - 1) - between
        return min(
            way.start_seconds
            + within * (way.pcie_seconds if self.pcie else way.link_seconds)
            + between * way.network_seconds
            + sent / (self.bytes_per_second * way.share)
            for way in PROTOCOLS.values()
        )


def link_of(device: Device) -> Sourced:
    """Return the bytes per second each way of the links of a device, with their source."""
    other = dict(device.other)
    own = other.get("link_bytes_per_second") or other.get("pcie_bytes_per_second")
    return own or Sourced(FASTEST_PCIE / 2, "PCIe 4 with 16 lanes taken", "unsourced")


def interconnect(device: Device, devices: int) -> Interconnect:
    """Return what joins so many of these devices, nodes of NODE_DEVICES filled one by one."""
    nodes = -(-devices // NODE_DEVICES)
    link = link_of(device).value
    slowest = min(link, NODE_BYTES_PER_SECOND) if nodes > 1 else link
    return Interconnect(devices, slowest * LINK_SHARE, link <= FASTEST_PCIE, nodes)


def amax_messages(recipe: str, tensors: int) -> int:
    """Return how many times a step reduces the largest values of so many tensors over devices.

    Transformer Engine reduces delayed ones over devices once each way, all tensors together
    (`fp8_autocast(fp8_group=...)`); of other recipes each device scales by its own part.
    """
    return min(2, tensors) if recipe == "delayed" else 0


REFERENCE_BYTES = 4
"""Bytes of an element by which buckets are filled, whatever it is reduced in.

So a narrower format has the same buckets, each over sooner.
"""


@dataclass(frozen=True)
class Gradient:
    """A gradient of so many elements, there `ready_seconds` after the step began.

    `format` is what it is reduced in, "" where that is the usual one.
    """

    elements: int
    ready_seconds: float
    format: str = ""


@dataclass(frozen=True)
class Message:
    """Gradients of one format that are reduced together, and when all of them are there."""

    elements: int
    tensors: int
    ready_seconds: float
    format: str = ""


def messages(gradients: Sequence[Gradient], parallel: Parallel) -> list[Message]:
    """Return what is reduced together, in the order in which it is ready.

    A bucket goes once it is full, as in torch's DistributedDataParallel (Li et al., 2020): in fewer
    messages, of which the first leave while backward still runs. None holds two formats.
    """
    by_format: dict[str, list[Gradient]] = {}
    for g in sorted(gradients, key=lambda g: g.ready_seconds):
        by_format.setdefault(g.format, []).append(g)
    sent = (m for ordered in by_format.values() for m in _messages(ordered, parallel))
    return sorted(sent, key=lambda message: message.ready_seconds)


def _messages(ordered: Sequence[Gradient], parallel: Parallel) -> list[Message]:
    """Return the messages of gradients of one format, of which there are some."""
    format = ordered[0].format
    if parallel.gradients == "tensors":
        return [Message(g.elements, 1, g.ready_seconds, format) for g in ordered]
    buckets = parallel.gradients == "buckets"
    full = parallel.bucket_mib * 2**20 / REFERENCE_BYTES if buckets else math.inf
    sent = [Message(0, 0, 0.0, format)]
    for g in ordered:
        if sent[-1].elements >= full:
            sent.append(Message(0, 0, 0.0, format))
        last = sent[-1]
        sent[-1] = Message(last.elements + g.elements, last.tensors + 1, g.ready_seconds, format)
    return sent


def reduction_seconds(
    sent: Sequence[Message],
    parallel: Parallel,
    format: str,
    backward_ends: float,
    link: Interconnect,
) -> tuple[float, float]:
    """Return (seconds of all reductions, seconds of them that end after the backward pass).

    One after the other on the link, each from when its gradients are there or, without overlap,
    from the end of the backward pass on. With ZeRO every group is left with its own part alone.
    `format` is the usual one.
    """
    kind: Kind = "reduce_scatter" if parallel.zero else "all_reduce"
    free, total = 0.0, 0.0  # when the link is free again
    for message in sent:
        element_bytes = format_named(message.format or format).bits / 8
        seconds = link.seconds(kind, message.elements * element_bytes)
        ready = message.ready_seconds if parallel.overlap else backward_ends
        free = max(free, ready) + seconds
        total += seconds
    return total, max(0.0, free - backward_ends)


def gathering_seconds(
    layers: Sequence[tuple[int, float]], overlap: bool, link: Interconnect
) -> tuple[float, float]:
    """Return (seconds of gathering the parameters of layers, those that computing waits for).

    `layers` holds (bytes, seconds of computing) in their order; with `overlap` a layer is
    gathered while earlier ones compute.
    """
    gathered = computed = total = 0.0  # when the link, and when the device, is done with a layer
    for bytes, seconds in layers:
        exchange = link.seconds("all_gather", bytes)
        total += exchange
        start = gathered if overlap else max(gathered, computed)
        gathered = start + exchange
        computed = max(computed, gathered) + seconds
    return total, max(0.0, computed - sum(seconds for _, seconds in layers))
