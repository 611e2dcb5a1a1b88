"""What the step of a layer list waits for other devices, from its sums alone."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.validation.narrow.layers import Layers
from policysearch.cost.devices import Device
from policysearch.cost.parallel.collectives import (
    Gradient,
    amax_messages,
    gathering_seconds,
    interconnect,
    messages,
    reduction_seconds,
)
from policysearch.formats import format_named
from policysearch.policy.parallel import Parallel

BACKWARD_SHARE = 2 / 3
"""Share of a step's kernels that are of its backward pass: two products for one forward."""

SLICES = 48
"""Equal parts of the parameters, whose gradients are ready one after the other."""

AMAX_BYTES = 4
"""The largest value of a tensor is a float32."""


@dataclass(frozen=True)
class Run:
    """A step of a layer list as one of several devices runs it.

    `seconds` are those of a micro-batch on a device alone, `accumulation` how many of them make a
    step. Gradients are reduced in the format `gradients`. `asynchronous`: products are cut in
    parts, which overlap what a group of devices exchanges for them.
    """

    step: Layers
    seconds: float
    device: Device
    parallel: Parallel
    gradients: str
    accumulation: int = 1
    asynchronous: bool = False


def waited_seconds(run: Run) -> float:
    """Return the seconds that a micro-batch waits for other devices.

    Parameters and their gradients are taken to be spread evenly over the step. Gradients are
    reduced once in a step, but for stage 3 of ZeRO in every micro-batch, as parameters are
    gathered then.
    """
    parallel = run.parallel
    groups = parallel.groups
    if parallel.devices == 1:
        return 0.0
    link, seconds = interconnect(run.device, groups), 0.0
    elements = run.step.parameters / parallel.tensor
    backward = BACKWARD_SHARE * run.seconds
    forward = run.seconds - backward
    if groups > 1:
        each = [
            Gradient(round(elements / SLICES), forward + backward * (i + 1) / SLICES)
            for i in range(SLICES)
        ]
        total, late = reduction_seconds(
            messages(each, parallel), parallel, run.gradients, run.seconds, link
        )
        bytes = elements * format_named(run.step.precision.activations).bits / 8
        if parallel.zero == 3:
            part = round(bytes / SLICES)
            passes = [
                gathering_seconds([(part, taken / SLICES)] * SLICES, parallel.overlap, link)
                for taken in (forward, backward)
            ]
            crowded = passes[1][0] + total - backward - late if parallel.overlap else 0.0
            seconds = late + passes[0][1] + max(passes[1][1], crowded)
        else:
            gathered = link.seconds("all_gather", bytes) if parallel.zero else 0.0
            seconds = (late + gathered) / run.accumulation
    return seconds + _amax_seconds(run) + _group_seconds(run)


def _group_seconds(run: Run) -> float:
    """Return the seconds that products wait for the devices among which they are split."""
    link = interconnect(run.device, run.parallel.tensor)
    waits = (e for e in run.step.collectives if not (run.asynchronous and e.overlaps))
    return sum(each.count * link.seconds(each.kind, each.bytes) for each in waits)


def _amax_seconds(run: Run) -> float:
    """Return the seconds of reducing largest values, where the recipe agrees on them."""
    scaling = run.step.precision.scaling
    if scaling is None:
        return 0.0
    products = sum(w.count for w in run.step.works if w.product and w.format == scaling.format)
    count = amax_messages(scaling.name, round(products))
    if not count:
        return 0.0
    link = interconnect(run.device, run.parallel.devices)
    return count * link.seconds("all_reduce", AMAX_BYTES * products / count)
