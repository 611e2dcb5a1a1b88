"""When gradients are reduced over the groups of devices, and how long a step waits for it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from policysearch.cost.parallel.collectives import Interconnect, Kind
from policysearch.formats import format_named
from policysearch.policy.parallel import Parallel

REFERENCE_BYTES = 4
"""Bytes of an element by which buckets are filled, whatever it is reduced in.

So a narrower format has the same buckets, each over sooner.
"""


@dataclass(frozen=True)
class Gradient:
    """A gradient of so many elements, there `ready_seconds` after the step began."""

    elements: int
    ready_seconds: float


@dataclass(frozen=True)
class Message:
    """Gradients that are reduced together: elements, tensors, and when all of them are there."""

    elements: int
    tensors: int
    ready_seconds: float


def messages(gradients: Sequence[Gradient], parallel: Parallel) -> list[Message]:
    """Return what is reduced together, in the order in which it is ready."""
    ordered = sorted(gradients, key=lambda g: g.ready_seconds)
    if not ordered:
        return []
    if parallel.gradients == "tensors":
        return [Message(g.elements, 1, g.ready_seconds) for g in ordered]
    buckets = parallel.gradients == "buckets"
    full = parallel.bucket_mib * 2**20 / REFERENCE_BYTES if buckets else math.inf
    found = [Message(0, 0, 0.0)]
    for g in ordered:
        if found[-1].elements >= full:
            found.append(Message(0, 0, 0.0))
        last = found[-1]
        found[-1] = Message(last.elements + g.elements, last.tensors + 1, g.ready_seconds)
    return found


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
    """
    kind: Kind = "reduce_scatter" if parallel.zero else "all_reduce"
    bytes_each = format_named(format).bits / 8
    free, total = 0.0, 0.0
    for message in sent:
        taken = link.seconds(kind, message.elements * bytes_each)
        ready = message.ready_seconds if parallel.overlap else backward_ends
        free = max(free, ready) + taken
        total += taken
    return total, max(0.0, free - backward_ends)


def gathering_seconds(
    layers: Sequence[tuple[int, float]], overlap: bool, link: Interconnect
) -> tuple[float, float]:
    """Return (seconds of gathering the parameters of layers, those that computing waits for).

    `layers` holds (bytes, seconds of computing) in their order; with `overlap` a layer is
    gathered while earlier ones compute.
    """
    gathered = computed = total = 0.0
    for bytes, seconds in layers:
        taken = link.seconds("all_gather", bytes)
        total += taken
        start = gathered if overlap else max(gathered, computed)
        gathered = start + taken
        computed = max(computed, gathered) + seconds
    return total, max(0.0, computed - sum(seconds for _, seconds in layers))
