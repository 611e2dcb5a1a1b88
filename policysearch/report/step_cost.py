"""Where the modeled time and memory of one step go, as text; shares are of the kernels' time."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from policysearch.cost.device_file import device_at
from policysearch.cost.gemm import is_convolution
from policysearch.cost.memory import Kind, StepMemory
from policysearch.cost.price import PolicyCost, speedup_over
from policysearch.cost.time import KernelTime, StepTime
from policysearch.objective.objective import Objective
from policysearch.policy.policy import Policy
from policysearch.policy.presets import TF32, preset
from policysearch.report.text import aligned
from policysearch.train.step import SMALLEST_BATCH, trace_forward

MIB = 2.0**20

LIMITS: Mapping[str, str] = MappingProxyType(
    {
        "compute": "compute",
        "bandwidth": "bandwidth",
        "elements": "instructions per element",
        "minimum": "launch (shortest kernel)",
        "link": "links between devices",
    }
)
"""What sets the time of a kernel (`KernelTime.bound`), in words."""

KIND_NAMES: Mapping[Kind, str] = MappingProxyType(
    {
        "parameter": "parameters",
        "master": "master weights",
        "optimizer": "optimizer state",
        "gradient": "gradients",
        "weight_copy": "low copies of parameters",
        "activation": "activations and the rest",
        "mask": "dropout masks",
    }
)

LONGEST = 8
"""So many kernels are shown, the longest first."""


def phase_lines(objective: Objective, policy: Policy) -> list[str]:
    """Return the line that says what is told of one phase alone; none for a policy of one."""
    starts = objective.phase_starts(policy)
    if not starts:
        return []
    return [
        f"{1 + len(starts)} phases: kernels, and what is live, are those of the first, "
        f"until step {starts[0]} of {objective.task.steps}"
    ]


def default_float32(objective: Objective) -> Policy:
    """Return what the stack makes of float32 unless told otherwise: some products in tfloat32.

    The layers without such products, all of them where the device lacks tfloat32, compute in
    float32.
    """
    gemms = [n for n in trace_forward(objective.model, SMALLEST_BATCH).nodes if n.op.kind == "gemm"]
    narrow = {n.layer for n in gemms if objective.stack.float32_of(is_convolution(n)) == "tfloat32"}
    if "tfloat32" not in objective.device.formats:
        narrow = set()
    strict = {name: row for name, row in objective.float32.layers if name not in narrow}
    return preset(TF32, objective.model.layer_names).with_layers(strict, "default float32")


def default_line(objective: Objective, cost: PolicyCost) -> str:
    """Return the speedup over float32 as the stack runs it unless told, with its interval."""
    default_name = f"float32 as {objective.stack.name} runs it unless told"
    default = default_float32(objective)
    narrow = sum(layer.compute == "tfloat32" for _, layer in default.layers)
    if not narrow:
        return f"{default_name} is strict float32"
    beside = objective.price(replace(default, parallel=objective.parallel))
    over = speedup_over(cost, beside, default.name)
    return (
        f"{over.value:.2f}x ({over.low:.2f} to {over.high:.2f}) the speed of {default_name}: "
        f"tfloat32 in {narrow} of {len(default.layers)} layers"
    )


def baseline_line(objective: Objective, cost: PolicyCost, baseline: Policy) -> str:
    """Return the speedup over what is run today, with its interval."""
    beside = objective.price(replace(baseline, parallel=objective.parallel))
    over = speedup_over(cost, beside, baseline.name)
    named = f"the speed of your baseline {baseline.name}"
    return f"{over.value:.2f}x ({over.low:.2f} to {over.high:.2f}) {named}"


def time_lines(cost: PolicyCost, time: StepTime) -> list[str]:
    """Return what sets the step's time, and how it spreads over formats, ops, casts and limits."""
    bound = "launches by the host" if time.host_bound else "the kernels"
    launches = sum(kernel.launches for kernel in time.kernels)
    lines = [
        cost.summary,
        f"the step's time is set by {bound}: the host takes "
        f"{time.launch_seconds / time.kernel_seconds:.2f} of the kernels' time to launch "
        f"{launches} of them",
        f"kernels by format: {_spread(time, lambda k: k.format)}",
        f"kernels by op: {_spread(time, lambda k: k.op)}",
        f"kernels by what bounds them: {_spread(time, lambda k: LIMITS[k.bound])}",
        f"casts {cost.cast_share:.1%} of the kernels' time, optimizer {cost.optimizer_share:.1%}",
        f"products with every operand below 32 bits: {cost.low_precision_share:.1%} of the FLOPs",
    ]
    missing = f"the device does not multiply {', '.join(cost.emulated)}: widened first"
    return lines + [missing] * bool(cost.emulated)


def _spread(time: StepTime, key: Callable[[KernelTime], str]) -> str:
    ordered = sorted(time.shares(key), key=lambda pair: -pair[1])
    return ", ".join(f"{name} {share:.1%}" for name, share in ordered)


def kernel_lines(time: StepTime) -> list[str]:
    """Return one line per kernel, the longest first, and what the others take."""
    ordered = sorted(time.kernels, key=lambda kernel: -kernel.seconds)
    rows = [
        (
            kernel.op,
            kernel.layer or "-",
            kernel.role,
            kernel.format,
            f"{kernel.seconds / time.kernel_seconds:.1%}",
            LIMITS[kernel.bound],
        )
        for kernel in ordered[:LONGEST]
    ]
    titles = ("longest kernels", "layer", "role", "format", "modeled time", "bound by")
    rest = sum(kernel.seconds for kernel in ordered[LONGEST:]) / time.kernel_seconds
    more = f"{len(ordered) - LONGEST} shorter ones take {rest:.1%}"
    return aligned([titles, *rows]) + [more] * (len(ordered) > LONGEST)


def fitting(cost: PolicyCost) -> str:
    """Return whether a step fits its device, with its subject before it."""
    return "fits" if cost.fits else "may not fit" if cost.may_fit else "does not fit"


def memory_lines(cost: PolicyCost) -> list[str]:
    """Return what is live at the peak, what a process reserves, and whether the device holds it."""
    low, high = cost.reserved_low_bytes / MIB, cost.reserved_high_bytes / MIB
    sizes = "/".join(f"{size:g}" for size in device_at(cost.device).memory_gib)
    return [
        f"modeled memory: peak {cost.peak_bytes / MIB:.4g} MiB live "
        f"(float32 {cost.float32_peak_bytes / MIB:.4g} MiB), "
        f"reserved {low:.4g} to {high:.4g} MiB",
        f"{fitting(cost)} on {cost.device} ({sizes} GiB)",
    ]


def live_line(memory: StepMemory) -> str:
    """Return what the bytes that are live at the peak belong to."""
    parts = [(KIND_NAMES[kind], bytes) for kind, bytes in memory.parts if bytes]
    return "live at the peak: " + ", ".join(f"{name} {b / MIB:.4g} MiB" for name, b in parts)
