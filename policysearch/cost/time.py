"""Modeled time of one training step: a roofline over its kernels, bounded by the host."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from policysearch.cost.devices import MINIMUM_KERNEL, Device
from policysearch.cost.gemm import (
    Extents,
    extents,
    is_convolution,
    product_format,
    product_rates,
    utilisation,
)
from policysearch.cost.kernels import Kernel, kernels_of
from policysearch.cost.stacks import Stack
from policysearch.cost.storage import node_bytes
from policysearch.formats import format_named
from policysearch.graph import Graph, Node, Role, size

Bound = Literal["compute", "bandwidth", "elements", "minimum"]


@dataclass(frozen=True)
class Constants:
    """Global constants of the roofline. All assumed: none is fitted to a measurement."""

    bandwidth_efficiency: float = 0.85
    instructions_per_element: float = 12.0
    minimum_kernel_seconds: float = MINIMUM_KERNEL.value


ASSUMED = Constants()


@dataclass(frozen=True)
class KernelTime:
    """Modeled time of one kernel, and which of its limits set it.

    `op`, `layer`, `role` and `format` are those of the node the kernel is called after; for a
    product `format` is the one it runs in on the device. `op` is "convert" for the passes around
    a product whose format the device lacks and "transpose" for layout changes around a
    convolution. `launches` is 0 where a library call launches the kernel within another.
    """

    node_ids: tuple[int, ...]
    layer: str
    op: str
    role: Role
    format: str
    seconds: float
    bound: Bound
    bytes: int
    flops: int
    launches: int = 1
    is_cast: bool = False


@dataclass(frozen=True)
class StepTime:
    """Modeled time of one step: max(sum of kernel seconds, seconds the host needs to launch)."""

    step_seconds: float
    launch_seconds: float
    kernels: tuple[KernelTime, ...]

    @property
    def kernel_seconds(self) -> float:
        return sum(kernel.seconds for kernel in self.kernels)

    @property
    def cast_seconds(self) -> float:
        """Seconds of kernels that only change formats."""
        return sum(kernel.seconds for kernel in self.kernels if kernel.is_cast)

    @property
    def optimizer_seconds(self) -> float:
        """Seconds of unscale, finite check and update, their casts not counted."""
        return sum(k.seconds for k in self.kernels if k.role == "update" and not k.is_cast)

    @property
    def host_bound(self) -> bool:
        """Whether the host's launches take longer than the kernels."""
        return self.launch_seconds > self.kernel_seconds

    @property
    def layer_shares(self) -> tuple[tuple[str, float], ...]:
        """(layer, share of the kernel seconds), "" for kernels of no layer."""
        return _shares((kernel.layer, kernel.seconds) for kernel in self.kernels)

    @property
    def format_shares(self) -> tuple[tuple[str, float], ...]:
        """(format, share of the kernel seconds)."""
        return _shares((kernel.format, kernel.seconds) for kernel in self.kernels)


def _shares(parts: Iterable[tuple[str, float]]) -> tuple[tuple[str, float], ...]:
    sums: dict[str, float] = {}
    for key, seconds in parts:
        sums[key] = sums.get(key, 0.0) + seconds
    total = sum(sums.values()) or 1.0
    return tuple((key, seconds / total) for key, seconds in sums.items())


def step_time(
    graph: Graph, device: Device, stack: Stack, constants: Constants = ASSUMED
) -> StepTime:
    """Return the modeled time of one step of `graph`.

    Per kernel: max(flops / (peak * efficiency * utilisation), bytes / (bandwidth * efficiency),
    elements * instructions / issue rate, minimum). Absolute seconds are not validated: compare
    steps of one model on one device and stack.
    """
    pricer = _Pricer(graph, device, constants)
    times: list[KernelTime] = []
    for kernel in kernels_of(graph, stack):
        if kernel.lead.op.kind == "gemm":
            times += pricer.product(kernel, stack)
        else:
            times.append(pricer.other(kernel))
    launch_seconds = sum(kernel.launches for kernel in times) * stack.launch_seconds
    kernel_seconds = sum(kernel.seconds for kernel in times)
    whole = float(step_seconds(kernel_seconds, launch_seconds))
    return StepTime(whole, launch_seconds, tuple(times))


def step_seconds(kernel_seconds: ArrayLike, launch_seconds: ArrayLike) -> NDArray[np.float64]:
    """Return the seconds of steps: the host launches while the kernels before run."""
    return np.maximum(kernel_seconds, launch_seconds)


@dataclass(frozen=True)
class _Pricer:
    graph: Graph
    device: Device
    constants: Constants

    def limit(self, bytes: float, elements: int = 0, compute: float = 0.0) -> tuple[float, Bound]:
        """Return the seconds of a kernel and the limit that sets them."""
        c, device = self.constants, self.device
        limits: tuple[tuple[float, Bound], ...] = (
            (compute, "compute"),
            (bytes / (device.bandwidth.value * c.bandwidth_efficiency), "bandwidth"),
            (elements * c.instructions_per_element / device.issue_rate, "elements"),
            (c.minimum_kernel_seconds, "minimum"),
        )
        return max(limits, key=lambda limit: limit[0])

    def flops(self, node: Node) -> int:
        shapes = [made.shape for made in self.graph.inputs_of(node)]
        return node.op.flops(shapes, node.shape, node.attributes)

    def other(self, kernel: Kernel) -> KernelTime:
        moved = sum(node_bytes(node) for node in (*kernel.reads, *kernel.writes))
        elements = sum(size(node.shape) for node in (*kernel.reads, *kernel.writes))
        return _time(
            kernel,
            self.limit(moved, elements),
            format=kernel.lead.format,
            bytes=moved,
            flops=sum(self.flops(node) for node in kernel.nodes),
            is_cast=kernel.only_casts,
        )

    def product(self, kernel: Kernel, stack: Stack) -> list[KernelTime]:
        """Return the kernel of a product, with the conversions and transposes it needs."""
        node = kernel.lead
        operands = self.graph.inputs_of(node)[:2]  # scales of blocks follow
        runs = product_format(operands, self.device)
        converted = [x for x in operands if format_named(x.format).bits != format_named(runs).bits]
        extra = sum(self.widened(x, runs) - node_bytes(x) for x in converted)
        moved = sum(node_bytes(n) for n in (*kernel.reads, *kernel.writes)) + extra
        flops = self.flops(node)
        e = extents(node, operands, flops)
        ways = [
            self.way(kernel, e, flops, moved, runs, stack, rate, alignment)
            for rate, alignment in product_rates(runs, self.device)
        ]
        best = min(ways, key=lambda way: sum(k.seconds for k in way))
        return [*(self.conversion(kernel, x, runs) for x in converted), *best]

    def widened(self, operand: Node, runs: str) -> int:
        return node_bytes(dataclasses.replace(operand, format=runs))

    def conversion(self, kernel: Kernel, operand: Node, runs: str) -> KernelTime:
        moved = node_bytes(operand) + self.widened(operand, runs)
        limit = self.limit(moved, 2 * size(operand.shape))
        return _time(kernel, limit, format=runs, bytes=moved, op="convert", is_cast=True)

    def way(
        self,
        kernel: Kernel,
        e: Extents,
        flops: int,
        moved: int,
        runs: str,
        stack: Stack,
        rate: float,
        alignment: int,
    ) -> list[KernelTime]:
        """Return the kernels of one way to run a product: the product, and its transposes."""
        used = utilisation(e, int(self.device.multiprocessors.value), alignment)
        limit = self.limit(moved, compute=flops / (rate * used))
        times = [_time(kernel, limit, format=runs, bytes=moved, flops=flops)]
        node = kernel.lead
        if stack.layout == "NCHW" and alignment > 1 and is_convolution(node):
            tensors = [*self.graph.inputs_of(node), node]
            shifted = 2 * sum(node_bytes(tensor) for tensor in tensors)
            elements = 2 * sum(size(tensor.shape) for tensor in tensors)
            shift = self.limit(shifted, elements)
            times.append(
                _time(kernel, shift, format=runs, bytes=shifted, op="transpose", launches=0)
            )
        return times


def _time(
    kernel: Kernel,
    limit: tuple[float, Bound],
    *,
    format: str,
    bytes: int,
    flops: int = 0,
    op: str = "",
    launches: int = 1,
    is_cast: bool = False,
) -> KernelTime:
    node = kernel.lead
    ids = tuple(sorted(n.id for n in kernel.nodes))
    seconds, bound = limit
    return KernelTime(
        ids,
        node.layer,
        op or node.op.name,
        node.role,
        format,
        seconds,
        bound,
        bytes,
        flops,
        launches,
        is_cast,
    )
