"""What a policy is modeled to cost against float32: speedup with its interval, and memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from policysearch.cost.device_file import device_at
from policysearch.cost.devices import Device
from policysearch.cost.gemm import flops_of
from policysearch.cost.measured import time_of_last, time_on
from policysearch.cost.memory import StepMemory, step_memory
from policysearch.cost.parallel.spread import Spread, spread_step
from policysearch.cost.stacks import Stack, stack_named
from policysearch.cost.time import StepTime, over_micro_batches
from policysearch.formats import format_named
from policysearch.graph import Graph
from policysearch.ops.update import micro_batches
from policysearch.policy.policy import Policy

EXCHANGES = ("all_reduce", "reduce_scatter", "all_gather", "amax_reduce")
"""Kernels, by op, in which a step waits for other devices."""

ZERO_AGAIN = ("reduce_scatter", "all_gather")
"""What every micro-batch exchanges from stage 2 of ZeRO on, and from stage 3: gradients, of which a
device keeps its part only, and parameters. Other exchanges wait for the last (DDP's `no_sync`)."""

MODEL_RESOLUTION: Mapping[str, float] = MappingProxyType({"speedup": 0.1, "memory_ratio": 0.15})
"""By axis, the least relative difference that the model can tell between two policies of one graph.

Errors that the policies share cancel; see docs/cost-model.md.
"""

Shares = tuple[tuple[str, float], ...]

SPEEDUP_INTERVAL = (0.818, 1.204)
"""Factors on a modeled speedup between which 80 % of published ones lie, their family or their
device held out, on devices that have numbers of what large products achieve there.

Every family and device counts once, however many rows it has. `policysearch validate-cost` prints
them.
"""

UNMEASURED_INTERVAL = (0.848, 1.287)
"""The same on devices that have no such number of their own."""


@dataclass(frozen=True)
class StepPrice:
    """Modeled time and memory of one step on one device and stack.

    `parallel` says of how many devices it is one, "" where it is alone.
    """

    device: Device
    stack: Stack
    time: StepTime
    memory: StepMemory
    emulated: tuple[str, ...]
    parallel: str = ""


@dataclass(frozen=True)
class PolicyCost:
    """A policy's modeled cost against float32, same model, batch, device and stack.

    `speedup` is float32 step time over the policy's, `memory_ratio` the policy's peak over
    float32's. `speedup_low` and `speedup_high` are those of `interval_on` times the speedup or, on
    a device whose prices were compared with steps measured there, within the error found, which
    `label` names; steps made of the same kernels have speedup 1 exactly. Shares are of the kernel
    seconds, except `low_precision_share`: of the FLOPs of products with every operand below 32
    bits. `emulated` lists operand formats of products that the device does not multiply itself.
    `host_bound` says that launches, not kernels, set the time. `step_seconds` and
    `float32_step_seconds` are for ratios only. `parallel` says how the step is spread over devices,
    "" on one; bytes are those of each, and `communication_share` is what it waits for the others.
    It `fits` where the most that a step may need is there, and `may_fit` where the least is.
    `parts`: (layer, role, share) of the kernel seconds by layer and role, "cast" the role of
    kernels that only change formats, to three digits; `live`: (kind, bytes) at the peak. Both are
    () in older records.
    """

    device: str
    stack: str
    speedup: float
    speedup_low: float
    speedup_high: float
    memory_ratio: float
    peak_bytes: int
    float32_peak_bytes: int
    reserved_low_bytes: int
    reserved_high_bytes: int
    fits: bool
    step_seconds: float
    float32_step_seconds: float
    cast_share: float
    optimizer_share: float
    low_precision_share: float
    host_bound: bool
    layer_shares: tuple[tuple[str, float], ...]
    format_shares: tuple[tuple[str, float], ...]
    emulated: tuple[str, ...]
    label: str = "modeled"
    parallel: str = ""
    communication_share: float = 0.0
    parts: tuple[tuple[str, str, float], ...] = ()
    live: tuple[tuple[str, int], ...] = ()
    may_fit: bool = True

    @property
    def summary(self) -> str:
        """One line for people: the speedup with its interval, and the memory."""
        spread = f" ({self.parallel})" * bool(self.parallel)
        return (
            f"{self.label} on {self.device}{spread}, {self.stack}: "
            f"{self.speedup:.2f}x float32 speed "
            f"({self.speedup_low:.2f} to {self.speedup_high:.2f}), "
            f"{self.memory_ratio:.2f}x its memory"
        )


@dataclass(frozen=True)
class Speedup:
    """How many times as fast a step is as that of `over`, modeled, between `low` and `high`."""

    over: str
    value: float
    low: float
    high: float


def speedup_over(cost: PolicyCost, reference: PolicyCost, name: str) -> Speedup:
    """Return the speedup over the step `reference`, called `name`, with its interval.

    Both of one model, batch, device and stack. Equal steps have speedup 1 exactly.
    """
    value = reference.step_seconds / cost.step_seconds
    low, high = _interval(device_at(cost.device), _shape(cost) == _shape(reference))
    return Speedup(name, value, value * low, value * high)


def interval_on(device: Device) -> tuple[float, float]:
    """Return the factors on modeled speedups that published ones lie between."""
    return SPEEDUP_INTERVAL if device.achieved else UNMEASURED_INTERVAL


def _interval(device: Device, same: bool) -> tuple[float, float]:
    """Prices that were measured against the machine carry the error found there."""
    if same:
        return (1.0, 1.0)
    if device.accuracy is None:
        return interval_on(device)
    error = device.accuracy.p90_error
    return (max(0.0, 1.0 - error), 1.0 + error)


def _shape(cost: PolicyCost) -> tuple[object, ...]:
    return cost.step_seconds, cost.layer_shares, cost.format_shares


def device_and_stack(device: Device | str, stack: Stack | str) -> tuple[Device, Stack]:
    """Return both as rows, a device also of a file; InputError for an unknown name."""
    return (
        device if isinstance(device, Device) else device_at(device),
        stack if isinstance(stack, Stack) else stack_named(stack),
    )


def step_price(
    graph: Graph, device: Device | str, stack: Stack | str, policy: Policy | None = None
) -> StepPrice:
    """Return the modeled time and memory of one step; InputError for an unknown name.

    With the `policy` that it is under, it is spread over devices as that says, and the graph is
    the step on the batch of one of their groups. Where the graph sums gradients over micro-batches
    it is the last of a step, and the step is all of them.
    """
    device, stack = device_and_stack(device, stack)
    products = [node for node in graph.nodes if node.op.kind == "gemm"]
    used = {graph.nodes[i].format for node in products for i in node.inputs}
    emulated = tuple(sorted(name for name in used if device.runs_as(name) != name))
    if policy is None or policy.parallel.devices == 1:
        return StepPrice(device, stack, time_on(graph, device, stack), step_memory(graph), emulated)
    recipe, apart = policy.scaling.recipe, policy.reductions
    spread = Spread(policy.parallel, policy.all_reduce, recipe, device, apart)
    time, memory = spread_step(graph, spread, lambda part: time_of_last(part, device, stack))
    again = ZERO_AGAIN[: max(0, policy.parallel.zero - 1)]
    time = over_micro_batches(time, micro_batches(graph), device, again)
    return StepPrice(device, stack, time, memory, emulated, policy.parallel.summary)


def _label(device: Device) -> str:
    return "modeled" if device.accuracy is None else f"modeled ({device.accuracy.summary})"


def price(
    policy_graph: Graph, float32_graph: Graph, device: Device | str, stack: Stack | str
) -> PolicyCost:
    """Return the modeled cost of a policy's step against the float32 step of the same model."""
    return compare(
        policy_graph,
        step_price(policy_graph, device, stack),
        step_price(float32_graph, device, stack),
    )


def compare(policy_graph: Graph, policy: StepPrice, float32: StepPrice) -> PolicyCost:
    """Return the cost from prices already made, so that float32 is priced once for many."""
    same = _kernels(policy.time) == _kernels(float32.time)
    speedup = float32.time.step_seconds / policy.time.step_seconds
    low, high = _interval(policy.device, same)
    kernel_seconds = policy.time.kernel_seconds
    memory = policy.memory
    return PolicyCost(
        device=policy.device.name,
        stack=policy.stack.name,
        speedup=speedup,
        speedup_low=speedup * low,
        speedup_high=speedup * high,
        memory_ratio=memory.peak_bytes / float32.memory.peak_bytes,
        peak_bytes=memory.peak_bytes,
        float32_peak_bytes=float32.memory.peak_bytes,
        reserved_low_bytes=memory.reserved_low_bytes,
        reserved_high_bytes=memory.reserved_high_bytes,
        fits=memory.fits(policy.device),
        step_seconds=policy.time.step_seconds,
        float32_step_seconds=float32.time.step_seconds,
        cast_share=policy.time.cast_seconds / kernel_seconds,
        optimizer_share=policy.time.optimizer_seconds / kernel_seconds,
        low_precision_share=low_precision_share(policy_graph),
        host_bound=policy.time.host_bound,
        layer_shares=policy.time.layer_shares,
        format_shares=policy.time.format_shares,
        emulated=policy.emulated,
        label=_label(policy.device),
        parallel=policy.parallel,
        communication_share=communication_seconds(policy.time) / kernel_seconds,
        parts=parts_of(policy.time),
        live=tuple((kind, count) for kind, count in memory.parts if count),
        may_fit=memory.may_fit(policy.device),
    )


def parts_of(time: StepTime) -> tuple[tuple[str, str, float], ...]:
    """Return (layer, role, share of the kernel seconds), "cast" for kernels that only convert."""
    sums: dict[tuple[str, str], float] = {}
    for kernel in time.kernels:
        key = kernel.layer, "cast" if kernel.is_cast else kernel.role
        sums[key] = sums.get(key, 0.0) + kernel.seconds
    total = sum(sums.values()) or 1.0
    return tuple((*key, float(f"{seconds / total:.3g}")) for key, seconds in sums.items())


def communication_seconds(time: StepTime) -> float:
    """Return the seconds that a step waits for other devices."""
    return sum(kernel.seconds for kernel in time.kernels if kernel.op in EXCHANGES)


def low_precision_share(graph: Graph) -> float:
    """Return the share of the FLOPs of products with every operand below 32 bits, updates apart."""
    low = total = 0
    for node in graph.nodes:
        if node.op.kind == "gemm" and node.role != "update":
            flops = flops_of(graph, node)
            total += flops
            low += flops * all(format_named(x.format).bits < 32 for x in graph.inputs_of(node))
    return low / total if total else 0.0


def _kernels(time: StepTime) -> list[tuple[str, str, str, str, float]]:
    return [(k.layer, k.op, k.role, k.format, k.seconds) for k in time.kernels]


def over_phases(parts: Sequence[tuple[int, PolicyCost]]) -> PolicyCost:
    """Return the cost of a run of `parts`, (steps, cost of one of them); of one, that cost.

    Seconds are the mean over the steps, speedups those of the whole run, shares weighted by time;
    memory is that of the phase with the largest peak. Raises ValueError for no steps.
    """
    spent = [(steps * cost.step_seconds, cost) for steps, cost in parts if steps]
    if not spent:
        raise ValueError("a run of no steps")
    largest = max((cost for _, cost in spent), key=lambda cost: cost.peak_bytes)
    total = math.fsum(seconds for seconds, _ in spent)
    steps = sum(count for count, _ in parts)

    def weighted(value: Callable[[PolicyCost], float]) -> float:
        return math.fsum(seconds * value(cost) for seconds, cost in spent) / total

    if len(spent) == 1:
        return largest
    speedup = largest.float32_step_seconds * steps / total
    return replace(
        largest,
        speedup=speedup,
        speedup_low=speedup * min(cost.speedup_low / cost.speedup for _, cost in spent),
        speedup_high=speedup * max(cost.speedup_high / cost.speedup for _, cost in spent),
        fits=all(cost.fits for _, cost in spent),
        may_fit=all(cost.may_fit for _, cost in spent),
        step_seconds=total / steps,
        cast_share=weighted(lambda cost: cost.cast_share),
        optimizer_share=weighted(lambda cost: cost.optimizer_share),
        low_precision_share=weighted(lambda cost: cost.low_precision_share),
        host_bound=any(cost.host_bound for _, cost in spent),
        layer_shares=_shares([(s / total, cost.layer_shares) for s, cost in spent]),
        format_shares=_shares([(s / total, cost.format_shares) for s, cost in spent]),
        emulated=tuple(sorted({name for _, cost in spent for name in cost.emulated})),
        communication_share=weighted(lambda cost: cost.communication_share),
        parts=_parts_over([(s / total, cost.parts) for s, cost in spent]),
    )


def _parts_over(
    parts: Sequence[tuple[float, tuple[tuple[str, str, float], ...]]],
) -> tuple[tuple[str, str, float], ...]:
    """Return the weighted sum of shares by layer and role."""
    summed: dict[tuple[str, str], float] = {}
    for weight, part in parts:
        for layer, role, share in part:
            summed[layer, role] = summed.get((layer, role), 0.0) + weight * share
    return tuple((*key, float(f"{share:.3g}")) for key, share in summed.items())


def _shares(parts: Sequence[tuple[float, Shares]]) -> Shares:
    """Return the weighted sum of shares by name."""
    summed: dict[str, float] = {}
    for weight, part in parts:
        for name, share in part:
            summed[name] = summed.get(name, 0.0) + weight * share
    return tuple(summed.items())
