"""Seconds of kernels on a device: one roofline for graphs and lists of products.

The roofline is that of Williams, Waterman and Patterson (2009): a kernel takes the longest of what
its FLOPs, its bytes and here also its instructions take. Of the terms of one kernel the root of the
sum of squares is taken instead of the largest: they overlap, but not wholly where they are alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Literal, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from policysearch.cost.devices import Device
from policysearch.cost.gemm import (
    OLDEST_UNALIGNED_LIBRARY,
    PIPELINE_DEPTH,
    Extents,
    aligned_share,
    utilisation,
)
from policysearch.cost.stacks import Stack

Array = NDArray[np.float64]

Bound = Literal["compute", "bandwidth", "elements", "minimum", "link"]

BOUNDS: tuple[Bound, ...] = ("compute", "bandwidth", "elements", "minimum")

HIGHEST_SHARE = 0.97
"""No unit achieves more of its peak."""

DEPTHWISE_SHARE = 0.12
"""Share of the plain peak that depthwise convolutions achieve, of whatever shape; assumed, with
five steps of timm in view."""

SHIFT_INSTRUCTIONS = 1.5
"""Instructions for each element of a layout change over those of a plain pass; assumed."""

ISSUES_PER_MULTIPLY_ADD = 1.4
"""Instructions that plain units issue for each multiply-add of a product; assumed.

Devices that issue no more than their multiply-adds lose by it, others do not.
"""

SHIFT_LAUNCHES = 2
"""Launches of the layout changes around one product: those of its two operands."""

POINTWISE_SHIFTS = 0.5
"""Share of convolutions of one pixel that need a layout change; assumed.

Libraries run the others as plain products, which read either layout: most of them in a profile of
ResNet-50 in float16 on an A100 with cuDNN 8.
"""


PassKind = Literal["elementwise", "norm", "reduction", "movement", "update"]

KINDS: tuple[PassKind, ...] = get_args(PassKind)
"""Of passes over memory: each has instructions per element of its own."""


@dataclass(frozen=True)
class Constants:
    """Global constants of the roofline: one set for all networks, devices and stacks.

    Of products on the matrix unit, as shares of what large square ones achieve there
    (`Device.achieved_share`): `product_share`, `convolution_share`, in tfloat32 `tfloat32_share`
    times as much, with libraries before CUDA 11 `older_share` times. A product loses what
    `pipeline_depth` more of contracted depth would take. Of the peak of units without matrices:
    `plain_share` and `plain_convolution_share`; `winograd_gain` is how many times as fast
    convolutions with a fast algorithm are there. Of the bandwidth: `bandwidth_share`. Instructions
    for each element read or written, by kind of pass: `elementwise` to `update`. Each launch costs
    the device `kernel_seconds` and the host `launch_factor` times what the stack's row says.
    `step_seconds` are what published steps take besides, in both precisions: loaders, logs and
    synchronisation. They are no part of a policy's price.

    All are fitted to published speedups and step times (`python -m benchmarks.validation --fit`).
    """

    product_share: float
    convolution_share: float
    tfloat32_share: float
    older_share: float
    pipeline_depth: float
    plain_share: float
    plain_convolution_share: float
    winograd_gain: float
    bandwidth_share: float
    elementwise: float
    norm: float
    reduction: float
    movement: float
    update: float
    kernel_seconds: float
    launch_factor: float
    step_seconds: float = 0.0

    def instructions(self, kind: NDArray[np.intp]) -> Array:
        """Return the instructions for each element of passes by their index in KINDS."""
        return np.array([getattr(self, name) for name in KINDS])[kind]


FITTED = Constants(
    product_share=0.8372,
    convolution_share=0.9403,
    tfloat32_share=0.7988,
    older_share=0.8268,
    pipeline_depth=75.77,
    plain_share=0.8861,
    plain_convolution_share=0.7647,
    winograd_gain=2.056,
    bandwidth_share=0.8034,
    elementwise=29.68,
    norm=11.51,
    reduction=25.98,
    movement=69.48,
    update=12.77,
    kernel_seconds=5e-06,
    launch_factor=3.906,
    step_seconds=0.006682,
)
"""What `python -m benchmarks.validation --fit` fits to all rows that come with the package."""


@dataclass(frozen=True)
class Work:
    """What one kernel asks of a device: bytes moved, elements touched and, in a product, FLOPs.

    `format` is the one a product runs in, `rate` the share of the matrix unit's usual rate that its
    scaling leaves. `shifted_bytes` and `shifted_elements` are those of the
    layout changes that the matrix unit needs around it. It runs `count` times a step with
    `launches` launches each, and takes `host_seconds` of the host besides. `fresh`: what it reads
    was made just before, so that nothing passes the memory where the second-level cache holds it
    all. `kind` is that of a pass.
    """

    bytes: float
    elements: float = 0.0
    flops: float = 0.0
    product: Extents | None = None
    format: str = "float32"
    shifted_bytes: float = 0.0
    shifted_elements: float = 0.0
    count: float = 1.0
    launches: float = 1.0
    host_seconds: float = 0.0
    rate: float = 1.0
    fresh: bool = False
    kind: PassKind = "elementwise"


@dataclass(frozen=True)
class Load:
    """Works on their devices as arrays [works]: all that the constants do not change.

    `plain_flops` and `matrix_flops` are FLOPs over utilisation, `matrix_flops` inf where the
    matrix unit does not run the work, and `achieved` what large products achieve there; rates are
    per second. `depth` is that of a product's sum, inf of a convolution's, `kind` an index in
    KINDS.
    """

    bytes: Array
    elements: Array
    plain_flops: Array
    matrix_flops: Array
    plain_peak: Array
    achieved: Array
    tfloat32: Array
    older: Array
    depth: Array
    bandwidth: Array
    issue_rate: Array
    convolution: Array
    winograd: Array
    depthwise: Array
    shifted_bytes: Array
    shifted_elements: Array
    count: Array
    kind: Array
    launches: Array
    launch_seconds: Array
    host_seconds: Array


@dataclass(frozen=True)
class Seconds:
    """Modeled seconds of works, arrays [works]: of one run, of its layout changes apart.

    `bound` is the index in BOUNDS of the largest term.
    """

    kernel: Array
    shift: Array
    bound: NDArray[np.intp]


def load_of(works: Iterable[Work], device: Device, stack: Stack) -> Load:
    """Return the works as arrays, with their utilisation on the device."""
    rows = [_row(work, device, stack) for work in works]
    columns = np.array(rows, np.float64).reshape(len(rows), len(fields(Load))).T
    return Load(*columns)


def _row(work: Work, device: Device, stack: Stack) -> tuple[float, ...]:
    plain = matrix = 0.0
    e, achieved = work.product, device.plain_peak
    if e is not None:
        filled = 1.0 if e.depthwise else utilisation(e, int(device.multiprocessors.value))
        plain = work.flops / filled
        share = 0.0
        if device.on_matrix_unit(work.format):
            share = aligned_share(e, device.align(work.format), stack.library)
            achieved = device.achieved_peak(work.format)
        # inf: the matrix unit does not run it, and the plain units are faster than never
        matrix = plain / (share * work.rate) if share else np.inf
    return (
        0.0 if work.fresh and work.bytes <= device.cached_bytes else work.bytes,
        work.elements,
        plain,
        matrix,
        device.plain_peak,
        achieved,
        work.format == "tfloat32",
        stack.library < OLDEST_UNALIGNED_LIBRARY,
        e.depth if e is not None and not e.convolution else np.inf,
        device.bandwidth.value,
        device.issue_rate,
        e is not None and e.convolution,
        e is not None and e.winograd,
        e is not None and e.depthwise,
        work.shifted_bytes,
        work.shifted_elements,
        work.count,
        KINDS.index(work.kind),
        work.launches,
        work.launches * stack.launch_seconds,
        work.host_seconds,
    )


def kernel_seconds(load: Load, c: Constants) -> Seconds:
    """Return the modeled seconds of every work.

    Per kernel: root of the sum of squares of its compute term, bytes / (bandwidth * share) and
    elements * instructions / issue rate, and `kernel_seconds` of each launch. The compute term of
    a product is FLOPs / (achieved * share * utilisation) on the matrix unit, with the layout
    changes it needs, or on the plain units, whichever is over first.
    """
    share = np.where(load.convolution > 0, c.convolution_share, c.product_share)
    share = share * np.where(load.tfloat32 > 0, c.tfloat32_share, 1.0)
    share = share * np.where(load.older > 0, c.older_share, 1.0)
    # the utilisation of a product counts PIPELINE_DEPTH already
    filled = 1 - (c.pipeline_depth - PIPELINE_DEPTH) / (load.depth + c.pipeline_depth)
    matrix = load.matrix_flops / (load.achieved * np.minimum(share * filled, HIGHEST_SHARE))
    gain = np.where(load.winograd > 0, c.winograd_gain, 1.0)
    share = np.where(load.convolution > 0, c.plain_convolution_share, c.plain_share)
    share = np.where(load.depthwise > 0, DEPTHWISE_SHARE, share)
    # a multiply-add is two FLOPs, and is issued with address and loop instructions
    issued = 2 * load.issue_rate / ISSUES_PER_MULTIPLY_ADD
    plain = load.plain_flops / (np.minimum(load.plain_peak * share, issued) * gain)
    bandwidth = load.bandwidth * c.bandwidth_share
    rate = load.issue_rate / c.instructions(load.kind.astype(np.intp))
    traffic, element = load.bytes / bandwidth, load.elements / rate
    moved = load.shifted_elements * c.movement / load.issue_rate
    shift = np.hypot(load.shifted_bytes / bandwidth, moved)
    passes = np.hypot(traffic, element)
    # a framework moves to the matrix unit where that pays, its layout changes included
    shifts = np.hypot(passes, matrix) + shift < np.hypot(passes, plain)
    compute = np.where(shifts, matrix, plain)
    overhead = load.launches * c.kernel_seconds
    terms = np.stack([compute, traffic, element, overhead])
    kernel = np.hypot(passes, compute) + overhead
    return Seconds(kernel, np.where(shifts, shift, 0.0), terms.argmax(axis=0))


def joined_seconds(kernels: ArrayLike, launches: ArrayLike, device: Device) -> Array:
    """Return the seconds of steps from those of their kernels and of the host that launches them.

    With timings of kernels it is the longer of the two where the host is another processor, else
    what `overlapped_seconds` says.
    """
    if device.timings.rows and not device.is_its_host:
        return np.asarray(np.maximum(kernels, launches))
    return overlapped_seconds(kernels, launches, device.is_its_host)


def overlapped_seconds(kernels: ArrayLike, launches: ArrayLike, own_host: ArrayLike) -> Array:
    """Return the seconds of steps whose host launches while the device works.

    A processor that is its `own_host` cannot: there the two are added. Where both take alike the
    one waits for the other in parts of the step, as the terms of a kernel do: the root of the sum
    of squares is taken.
    """
    return np.where(own_host, np.add(kernels, launches), np.hypot(kernels, launches))
