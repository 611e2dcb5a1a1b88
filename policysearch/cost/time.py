"""Modeled time of one training step: a roofline over its kernels, bounded by the host."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from policysearch.cost.copies import copies_of
from policysearch.cost.devices import Device
from policysearch.cost.gemm import flops_of, is_convolution, product_of
from policysearch.cost.joined import Joined, joined
from policysearch.cost.kernels import PHASES, Kernel, fuse
from policysearch.cost.memory import node_bytes, traffic
from policysearch.cost.roofline import (
    BOUNDS,
    FITTED,
    POINTWISE_SHIFTS,
    SHIFT_INSTRUCTIONS,
    SHIFT_LAUNCHES,
    Bound,
    Constants,
    PassKind,
    Work,
    joined_seconds,
    kernel_seconds,
    load_of,
)
from policysearch.cost.stacks import Stack
from policysearch.formats import format_named
from policysearch.graph import Graph, Node, Role, size

STATISTICS = ("layer_statistics", "batch_mean")
"""Ops that libraries compute in the pass of the op that reads them, or of the other statistic."""

NORM_WEIGHT_GRADS = ("layer_norm_weight_grad", "batch_norm_weight_grad")
"""Ops in whose pass libraries sum the gradient of a norm's bias as well."""

LOOKED_UP = ("embedding", "index")
"""Ops that read some rows of their first operand."""


_OPS_OF: Mapping[PassKind, tuple[str, ...]] = {
    "norm": (
        *("batch_norm", "batch_norm_grad", "batch_norm_weight_grad", "batch_variance"),
        *("group_norm", "group_norm_grad"),
        *("layer_norm", "layer_norm_grad", "layer_norm_weight_grad"),
    ),
    "reduction": (
        *("bias_grad", "softmax", "softmax_grad", "log_softmax", "log_softmax_grad"),
        *("sum_to", "mean", "sum", "token_cross_entropy", "token_cross_entropy_grad"),
        "embedding_grad",
        *("amax", "mx_scale", "mx_rceil_scale", "nvfp4_scale", "block_cast", "dequantise"),
    ),
    "movement": (
        *("transpose", "concatenate", "slice", "slice_grad", "embedding", "index", "cast"),
        *("max_pool", "max_pool_grad"),
    ),
}

KINDS_OF: Mapping[str, PassKind] = MappingProxyType(
    {op: kind for kind, ops in _OPS_OF.items() for op in ops}
)
"""The kind of the pass of an op, elementwise where it is not here."""

DRAW_OPERATIONS = 20
"""Of whole numbers, to draw 32 random bits and round by them: Philox4x32-10 multiplies twice, with
both halves of the result, and adds or xors eight times in each of its ten rounds, of which four
words come (Salmon et al., SC 2011); a word is for two elements of 16 bits."""


@dataclass(frozen=True)
class KernelTime:
    """Modeled time of one kernel, and which of its limits set it.

    `op`, `layer`, `role` and `format` are those of the node the kernel is called after; for a
    product `format` is the one it runs in on the device. `op` is "convert" for the passes around
    a product whose format the device lacks and "transpose" for layout changes around a
    convolution.
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
    """Modeled time of one step: kernels and the launches of the host, see `joined_seconds`."""

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
        """Seconds of unscale, finite check and update, their casts and exchanges not counted."""
        own = (k for k in self.kernels if k.role == "update" and k.bound != "link")
        return sum(kernel.seconds for kernel in own if not kernel.is_cast)

    @property
    def host_bound(self) -> bool:
        """Whether the host's launches take longer than the kernels."""
        return self.launch_seconds > self.kernel_seconds

    @property
    def launch_bound(self) -> bool:
        """Whether launches set most of the time, not what kernels do: formats change little."""
        least = sum(kernel.seconds for kernel in self.kernels if kernel.bound == "minimum")
        return self.host_bound or 2.0 * least > self.kernel_seconds

    @property
    def layer_shares(self) -> tuple[tuple[str, float], ...]:
        """(layer, share of the kernel seconds), "" for kernels of no layer."""
        return self.shares(lambda kernel: kernel.layer)

    @property
    def format_shares(self) -> tuple[tuple[str, float], ...]:
        """(format, share of the kernel seconds)."""
        return self.shares(lambda kernel: kernel.format)

    def shares(self, key: Callable[[KernelTime], str]) -> tuple[tuple[str, float], ...]:
        """Return (key, share of the kernel seconds) of the kernels that have it."""
        sums: dict[str, float] = {}
        for kernel in self.kernels:
            sums[key(kernel)] = sums.get(key(kernel), 0.0) + kernel.seconds
        total = sum(sums.values()) or 1.0
        return tuple((name, seconds / total) for name, seconds in sums.items())


def step_time(
    graph: Graph, device: Device, stack: Stack, constants: Constants = FITTED
) -> StepTime:
    """Return the modeled time of one step of `graph`; the terms are in `roofline.kernel_seconds`.

    Absolute seconds are not validated: compare steps of one model on one device and stack.
    """
    parts = parts_of(graph, device, stack)
    load = load_of((part.work for part in parts), device, stack)
    seconds = kernel_seconds(load, constants)
    times: list[KernelTime] = []
    for i, part in enumerate(parts):
        times.append(part.time(float(seconds.kernel[i]), BOUNDS[seconds.bound[i]]))
        if seconds.shift[i]:
            times.append(part.shift(float(seconds.shift[i])))
    launch_seconds = float(load.launch_seconds.sum()) * constants.launch_factor
    total = sum(kernel.seconds for kernel in times)
    whole = float(joined_seconds(total, launch_seconds, device))
    return StepTime(whole, launch_seconds, tuple(times))


def parts_of(graph: Graph, device: Device, stack: Stack) -> list[Part]:
    """Return what a step asks of a device, kernel by kernel."""
    one = joined(graph)
    steps = one.steps(graph)
    kernels = fuse(graph, stack, steps).kernels
    if not stack.elementwise_fusion:  # a compiler writes a value where its reader wants it
        kernels += copies_of(graph, kernels)
    beside = _beside_others(graph)
    kept = [
        kernel
        for kernel in kernels
        if not all(n.id in beside for n in kernel.nodes)
        and not all(_is_within(n, one, steps) for n in kernel.nodes)
    ]
    cells = Counter(_cell(kernel, steps) for kernel in kept)
    return [
        _launch_share(part, steps[layer] / cells[layer, phase]) if layer else part
        for kernel in kept
        for layer, phase in (_cell(kernel, steps),)
        for part in _parts(graph, kernel, device, stack, one)
    ]


def _beside_others(graph: Graph) -> set[int]:
    """Return the nodes that libraries compute in the pass of another: statistics, norms' biases."""
    read = {i for node in graph.nodes for i in node.inputs}
    norms = {(n.layer, n.inputs[0]) for n in graph.nodes if n.op.name in NORM_WEIGHT_GRADS}
    return {
        n.id
        for n in graph.nodes
        if (n.op.name in STATISTICS and n.id in read)
        or (n.op.name == "bias_grad" and (n.layer, n.inputs[0]) in norms)
    }


def _is_within(node: Node, one: Joined, steps: Collection[str]) -> bool:
    """Return whether a node asks for nothing: cells write the parts of their gates in place."""
    return node.id in one.free or (node.id in one.placed and node.layer in steps)


def _cell(kernel: Kernel, steps: Collection[str]) -> tuple[str, int]:
    """Return the layer whose cells a kernel is of, "" for none, and its phase."""
    node = kernel.lead
    inside = node.layer in steps and node.op.kind == "elementwise" and node.role != "update"
    return (node.layer if inside else "", PHASES[node.role])


def _launch_share(part: Part, launches: float) -> Part:
    """Return a part of cells that are one kernel a step, as a share of that."""
    work = dataclasses.replace(part.work, launches=min(1.0, launches))
    return dataclasses.replace(part, work=work)


EACH_MICRO_BATCH = ("amax_history", "delayed_scale", "amax_reduce")
"""Kernels of the update, by op, that run with every micro-batch: states of scales."""


def over_micro_batches(
    time: StepTime, count: int, device: Device, again: Sequence[str] = ()
) -> StepTime:
    """Return the time of a step of `count` micro-batches from that of its last one.

    The others do all but the update; a gradient is added from the second on, the first being the
    sum as it is. `again` names ops by which devices exchange gradients or parameters every time.
    The sums over all are joined as those of one are: the host runs ahead from one to the next.
    """
    if count == 1:
        return time

    def repeats(kernel: KernelTime) -> int:
        if kernel.op == "accumulate":
            return count - 1
        once = kernel.role == "update" and kernel.op not in (*EACH_MICRO_BATCH, *again)
        return 1 if once else count

    kernels = tuple(
        dataclasses.replace(
            kernel,
            seconds=times * kernel.seconds,
            bytes=times * kernel.bytes,
            flops=times * kernel.flops,
            launches=times * kernel.launches,
        )
        for kernel in time.kernels
        for times in (repeats(kernel),)
    )
    before = sum(kernel.launches for kernel in time.kernels)
    launched = sum(kernel.launches for kernel in kernels)
    launch_seconds = time.launch_seconds * launched / max(before, 1)
    waits = sum(kernel.seconds for kernel in kernels if kernel.bound == "link")
    alone = sum(kernel.seconds for kernel in kernels if kernel.bound != "link")
    joined = float(joined_seconds(alone, launch_seconds, device))
    return StepTime(joined + waits, launch_seconds, kernels)


@dataclass(frozen=True)
class Part:
    """What a kernel of the graph asks for: itself, or a conversion of one of its operands."""

    kernel: Kernel
    work: Work
    format: str
    op: str
    is_cast: bool

    def time(self, seconds: float, bound: Bound) -> KernelTime:
        node = self.kernel.lead
        return KernelTime(
            tuple(sorted(n.id for n in self.kernel.nodes)),
            node.layer,
            self.op,
            node.role,
            self.format,
            seconds,
            bound,
            int(self.work.bytes),
            int(self.work.flops),
            is_cast=self.is_cast,
        )

    def shift(self, seconds: float) -> KernelTime:
        """Return the time of the layout changes around the product."""
        return dataclasses.replace(
            self.time(seconds, "bandwidth"),
            op="transpose",
            bytes=int(self.work.shifted_bytes),
            flops=0,
            launches=SHIFT_LAUNCHES,
        )


def drawn_operations(node: Node) -> int:
    """Return what rounding by chance adds to the operations of a node."""
    drawn = node.rounding.mode == "stochastic" and node.role == "update"
    return DRAW_OPERATIONS * size(node.shape) * (drawn and node.format != "float32")


def _parts(
    graph: Graph, kernel: Kernel, device: Device, stack: Stack, one: Joined
) -> Iterator[Part]:
    """Yield the work of a kernel behind the conversions of its operands."""
    node, repeats = kernel.lead, one.repeats.get(kernel.lead.id, 1)
    placed = kernel.nodes == (node,) and node.id in one.placed
    bytes, elements = traffic(2 * kernel.reads if placed else (*kernel.reads, *kernel.writes))
    if node.op.kind != "gemm":
        bytes -= _unread_bytes(graph, kernel)
        flops = sum([flops_of(graph, n) + drawn_operations(n) for n in kernel.nodes])
        kind = "update" if node.role == "update" else KINDS_OF.get(node.op.name, "elementwise")
        work = Work(repeats * bytes, repeats * elements, repeats * flops, kind=kind)
        yield Part(kernel, work, node.format, node.op.name, kernel.only_casts)
        return
    product = product_of(graph, node, device).over(repeats)
    bytes = repeats * bytes - (repeats - 1) * node_bytes(node)
    runs = product.format
    for x in product.widened:
        # a pass of its own writes what the product then reads instead
        both = traffic((x, dataclasses.replace(x, format=runs)))
        bytes += both[0] - 2 * node_bytes(x)
        yield Part(kernel, Work(*both, kind="movement"), runs, "convert", True)
    shift = _layout_traffic(product.operands, node, stack)
    # by the operands, not by what the device makes of them: launches are no device's advantage
    shifts = shift[0] and product.operands[0].format != "float32"
    work = Work(
        bytes,
        0,  # the epilogue's instructions hide behind the products'
        product.flops,
        product.extents,
        runs,
        *shift,
        launches=1 + (SHIFT_LAUNCHES if shifts else 0),
        rate=product.rate,
    )
    yield Part(kernel, work, runs, node.op.name, False)


def _unread_bytes(graph: Graph, kernel: Kernel) -> int:
    """Return the bytes of operands that a kernel does not read.

    A mask of dropout is a byte an element; of a table only the rows that are looked up are read.
    """
    unread, reads = 0, {operand.id for operand in kernel.reads}
    for node in kernel.nodes:
        place = {"dropout": 1}.get(node.op.name, 0 if node.op.name in LOOKED_UP else None)
        if place is None:
            continue
        operand = graph.nodes[node.inputs[place]]
        while operand.op.kind == "move":
            operand = graph.nodes[operand.inputs[0]]
        if operand.id in reads:
            told = size(node.shape)
            told *= 1 if place else format_named(operand.format).bits // 8
            unread += max(0, node_bytes(operand) - told)
    return unread


def _layout_traffic(operands: Sequence[Node], node: Node, stack: Stack) -> tuple[float, float]:
    """Return bytes and elements of the layout changes around a convolution on the matrix unit.

    The unit's convolutions want NHWC, so a stack in NCHW reads and writes the images that they
    read once more; results they mostly write in NCHW themselves (cuDNN's "nhwckrsc_nchw").
    """
    if stack.layout == "NHWC" or not is_convolution(node):
        return 0.0, 0.0
    weight = node if node.role == "wgrad" else operands[1]
    images = operands if node.role == "wgrad" else operands[:1]
    bytes, elements = traffic(images)
    share = 2 * (POINTWISE_SHIFTS if size(weight.shape[2:]) == 1 else 1.0)
    return share * bytes, share * SHIFT_INSTRUCTIONS * elements
