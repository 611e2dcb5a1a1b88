"""Seconds of kernels on a device: one roofline for those of graphs and of layer lists.

The roofline is that of Williams, Waterman and Patterson (2009): a kernel takes the longest of what
its FLOPs, its bytes and here also its instructions take. Of the terms of one kernel the root of the
sum of squares is taken instead of the largest: they overlap, but not wholly where they are alike.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from policysearch.cost.devices import MINIMUM_KERNEL, Device
from policysearch.cost.gemm import Extents, aligned_share, utilisation
from policysearch.cost.stacks import Stack

Array = NDArray[np.float64]

Bound = Literal["compute", "bandwidth", "elements", "minimum", "link"]

BOUNDS: tuple[Bound, ...] = ("compute", "bandwidth", "elements", "minimum")

REFERENCE_INTENSITY = 100.0
"""FLOP per byte of a device at which its matrix unit achieves `Constants.matrix_share`."""

HIGHEST_SHARE = 0.97
"""No unit achieves more of its peak."""

DEPTHWISE_SHARE = 0.2
"""Share of the plain peak that depthwise convolutions achieve, of whatever shape; assumed."""

SHIFT_INSTRUCTIONS = 1.5
"""Instructions for each element of a layout change over those of a plain pass; assumed."""

ISSUES_PER_MULTIPLY_ADD = 1.4
"""Instructions that plain units issue for each multiply-add of a product; assumed.

Devices that issue no more than their multiply-adds lose by it, others do not.
"""

SHIFT_LAUNCHES = 2
"""Launches of the layout changes around one product: its input's and its output's."""


@dataclass(frozen=True)
class Constants:
    """Global constants of the roofline: one set for all networks, devices and stacks.

    `matrix_share`: share of its peak that a matrix unit achieves in a product that fills it, on a
    device of 100 FLOP per byte; it falls with that number to the power of `share_exponent`, and is
    `convolution_factor` times as high in convolutions. `plain_share`: that of units without
    matrices. `winograd_gain`: how many times as fast 3 x 3 convolutions of stride 1 are in
    float32. `launch_factor`: host seconds per launch over those of the stack's row. All eight are
    fitted to published speedups (`python -m benchmarks.validation`); `minimum_kernel_seconds` is
    not.
    """

    matrix_share: float
    share_exponent: float
    convolution_factor: float
    plain_share: float
    bandwidth_share: float
    instructions_per_element: float
    winograd_gain: float
    launch_factor: float
    minimum_kernel_seconds: float = MINIMUM_KERNEL.value


FITTED = Constants(
    matrix_share=0.498,
    share_exponent=0.0654,
    convolution_factor=1.274,
    plain_share=0.8383,
    bandwidth_share=0.8901,
    instructions_per_element=27.1,
    winograd_gain=1.818,
    launch_factor=2.811,
)
"""What `python -m benchmarks.validation` fits to all published rows that come with the package."""


@dataclass(frozen=True)
class Work:
    """What one kernel asks of a device: bytes moved, elements touched and, in a product, FLOPs.

    `format` is the one a product runs in, `rate` the share of the matrix unit's usual rate that its
    scaling leaves. `shifted_bytes` and `shifted_elements` are those of the
    layout changes that the matrix unit needs around it. It runs `count` times a step with
    `launches` launches each, and waits `host_seconds` for the host. `fresh`: what it reads was made
    just before, so that nothing passes the memory where the second-level cache holds it all.
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


@dataclass(frozen=True)
class Load:
    """Works on their devices as arrays [works]: all that the constants do not change.

    `plain_flops` and `matrix_flops` are FLOPs over utilisation, `matrix_flops` inf where the
    matrix unit does not run the work; rates are per second.
    """

    bytes: Array
    elements: Array
    plain_flops: Array
    matrix_flops: Array
    plain_peak: Array
    matrix_peak: Array
    bandwidth: Array
    issue_rate: Array
    convolution: Array
    winograd: Array
    depthwise: Array
    shifted_bytes: Array
    shifted_elements: Array
    count: Array
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
    e, peak = work.product, device.plain_peak
    if e is not None:
        filled = 1.0 if e.depthwise else utilisation(e, int(device.multiprocessors.value))
        plain = work.flops / filled
        share = 0.0
        if device.on_matrix_unit(work.format):
            share = aligned_share(e, device.align(work.format), stack.library)
            peak = device.peak(work.format)
        # inf: the matrix unit does not run it, and the plain units are faster than never
        matrix = plain / (share * work.rate) if share else np.inf
    return (
        0.0 if work.fresh and work.bytes <= device.cached_bytes else work.bytes,
        work.elements,
        plain,
        matrix,
        device.plain_peak,
        peak,
        device.bandwidth.value,
        device.issue_rate,
        e is not None and e.convolution,
        e is not None and e.winograd,
        e is not None and e.depthwise,
        work.shifted_bytes,
        work.shifted_elements,
        work.count,
        work.launches * stack.launch_seconds,
        work.host_seconds,
    )


def kernel_seconds(load: Load, c: Constants) -> Seconds:
    """Return the modeled seconds of every work.

    Per kernel: root of the sum of squares of its compute term, bytes / (bandwidth * share) and
    elements * instructions / issue rate, and at least the minimum. The compute term of a product
    is FLOPs / (peak * share * utilisation) on the matrix unit, with the layout changes it needs,
    or on the plain units, whichever is over first.
    """
    # the more FLOPs a unit has for each byte of the memory that feeds it, the smaller the share of
    # them that products achieve; `intensity` is 1 on a device of REFERENCE_INTENSITY
    intensity = load.matrix_peak / load.bandwidth / REFERENCE_INTENSITY
    factor = np.where(load.convolution > 0, c.convolution_factor, 1.0)
    share = c.matrix_share * factor * intensity**-c.share_exponent
    matrix = load.matrix_flops / (load.matrix_peak * np.minimum(share, HIGHEST_SHARE))
    gain = np.where(load.winograd > 0, c.winograd_gain, 1.0)
    plain_share = np.where(load.depthwise > 0, DEPTHWISE_SHARE, c.plain_share) * gain
    # a multiply-add is two FLOPs, and is issued with address and loop instructions
    issued = 2 * load.issue_rate / ISSUES_PER_MULTIPLY_ADD
    plain = load.plain_flops / (np.minimum(load.plain_peak, issued) * plain_share)
    bandwidth = load.bandwidth * c.bandwidth_share
    rate = load.issue_rate / c.instructions_per_element
    traffic, element = load.bytes / bandwidth, load.elements / rate
    shift = np.hypot(load.shifted_bytes / bandwidth, load.shifted_elements / rate)
    passes = np.hypot(traffic, element)
    # a framework moves to the matrix unit where that pays, its layout changes included
    shifts = np.hypot(passes, matrix) + shift < np.hypot(passes, plain)
    compute = np.where(shifts, matrix, plain)
    terms = np.stack([compute, traffic, element, np.full(len(traffic), c.minimum_kernel_seconds)])
    kernel = np.maximum(np.hypot(passes, compute), c.minimum_kernel_seconds) + load.host_seconds
    return Seconds(kernel, np.where(shifts, shift, 0.0), terms.argmax(axis=0))


def joined_seconds(kernels: ArrayLike, launches: ArrayLike, device: Device) -> Array:
    """Return the seconds of steps from those of their kernels and of the host that launches them.

    An accelerator works while the host launches; a processor that is its own host cannot.
    """
    join = np.add if device.is_its_host else np.maximum
    return np.asarray(join(kernels, launches))
