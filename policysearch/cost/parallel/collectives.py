"""Seconds of the exchanges between devices.

The form and the latencies are those by which NCCL chooses its own protocol
(github:NVIDIA/nccl@01afd20a77b5:src/graph/tuning.cc, rings): a start, a latency for each step of
the ring, and the bytes that cross each link over its bandwidth.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from policysearch.cost.devices import Device, Sourced

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
class Collective:
    """Exchanges of a tensor of so many bytes within a group of devices, `count` of them a step.

    `overlaps`: whether products that are cut in parts can hide them.
    """

    kind: Kind
    bytes: float
    count: float
    overlaps: bool = True


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

        An all-reduce scatters and gathers: twice the steps of either. Zero on one device.
        """
        if self.devices == 1 or not bytes:
            return 0.0
        rounds = 2 if kind == "all_reduce" else 1
        moved = rounds * (self.devices - 1) / self.devices * bytes
        between = rounds * (self.nodes - 1)
        within = rounds * (self.devices - 1) - between
        return min(
            way.start_seconds
            + within * (way.pcie_seconds if self.pcie else way.link_seconds)
            + between * way.network_seconds
            + moved / (self.bytes_per_second * way.share)
            for way in PROTOCOLS.values()
        )


def link_of(device: Device) -> Sourced:
    """Return the bytes per second each way of the links of a device, with their source."""
    other = dict(device.other)
    own = other.get("link_bytes_per_second") or other.get("pcie_bytes_per_second")
    return own or Sourced(FASTEST_PCIE / 2, "UNSOURCED (PCIe 4 with 16 lanes taken)")


def interconnect(device: Device, devices: int) -> Interconnect:
    """Return what joins so many of these devices, nodes of NODE_DEVICES filled one by one."""
    nodes = -(-devices // NODE_DEVICES)
    link = link_of(device).value
    slowest = min(link, NODE_BYTES_PER_SECOND) if nodes > 1 else link
    return Interconnect(devices, slowest * LINK_SHARE, link <= FASTEST_PCIE, nodes)
