"""Time of a step as the sum of kernels that were timed on its device."""

from __future__ import annotations

from policysearch.cost.devices import Device
from policysearch.cost.reuse import cached_shares
from policysearch.cost.roofline import joined_seconds
from policysearch.cost.stacks import Stack
from policysearch.cost.time import KernelTime, StepTime
from policysearch.cost.timings import is_product
from policysearch.cost.work import Task, tasks_of
from policysearch.graph import Graph


def measured_time(graph: Graph, device: Device, stack: Stack) -> StepTime:
    """Return the time of one step from the `timings` of the device.

    Where the host "adds" (a CPU, which is its own) the step is the sum of the kernels and of what
    the host spends on each and on the step; where it "overlaps" (a GPU), the longer of the two.
    """
    tasks = tasks_of(graph, device, stack)
    shares = cached_shares(graph, tasks, device.cache_bytes)
    times = tuple(_time(task, device, share) for task, share in zip(tasks, shares, strict=True))
    kernel_seconds = sum(kernel.seconds for kernel in times)
    host = device.host_step_seconds + len(times) * device.host_seconds
    return StepTime(float(joined_seconds(kernel_seconds, host, device)), host, times)


def _time(task: Task, device: Device, cached_share: float) -> KernelTime:
    node, op = task.lead, task.work.op
    return KernelTime(
        node_ids=tuple(sorted(made.id for made in task.nodes or (node,))),
        layer=node.layer,
        op="convert" if not task.nodes else node.op.name,
        role=node.role,
        format=task.work.format.rpartition(">")[2],
        seconds=device.timings.seconds(task.work, cached_share),
        bound="compute" if is_product(op) else "bandwidth",
        bytes=0,
        flops=0,
        is_cast=op == "cast",
    )
