"""Convolutions of one to three dimensions as layers, and the update that ends a step."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import prod
from typing import Literal

from benchmarks.validation.layers.layers import Layers
from policysearch.cost.gemm import Extents, is_fast
from policysearch.cost.roofline import Work
from policysearch.optimizers.optimizer import rules

Extent = tuple[int, ...]

OptimizerName = Literal["momentum", "adam", "lamb"]

UNFUSED_UPDATE = {"momentum": 11, "adam": 22, "lamb": 30}
"""Tensors read and written per parameter where every operation of the update is a kernel of its
own; counted in torch 1.x."""

TENSORS_PER_LAUNCH = 4
"""Parameter tensors that a multi-tensor update takes along in a launch; assumed."""


def convolution(
    step: Layers,
    batch: int,
    c_in: int,
    c_out: int,
    extent: Extent,
    window: int | Extent,
    stride: int | Extent = 1,
    groups: int = 1,
    transposed: bool = False,
    first: bool = False,
    bias: bool = False,
    dilated: bool = False,
) -> Extent:
    """Add a convolution, padded to keep its extent, and its gradients; return the new extent.

    A stride multiplies it if `transposed`; `first` has no gradient of its input.
    """
    kernel, strides = _each(window, extent), _each(stride, extent)
    out = _extent_behind(extent, strides, transposed)
    depth = c_in // groups * prod(kernel)
    read, written, weight = batch * c_in * prod(extent), batch * c_out * prod(out), depth * c_out
    e = Extents(
        groups,
        batch * prod(out),
        c_out // groups,
        depth * prod(extent) / prod(out) if transposed else depth,
        (c_out,) if first else (c_in // groups, c_out // groups),
        convolution=True,
        winograd=not dilated and is_fast(c_out, c_in // groups, kernel, strides),
        depthwise=1 < groups == c_in,
    )
    shapes = [(c_out // groups, depth), (batch * prod(extent), c_in // groups)]
    for each in (e, *(_gradient(e, *shape, dilated) for shape in shapes[: 1 if first else 2])):
        step.single_product(each, read + written + weight, 2 * (read + written))
    step.tensor(read, written)
    step.weight(weight)
    if bias:
        step.bias(written, c_out)
    return out


def normed(
    step: Layers,
    batch: int,
    c_in: int,
    c_out: int,
    extent: Extent,
    window: int | Extent,
    stride: int = 1,
    groups: int = 1,
    *,
    relu: bool = True,
    add: bool = False,
    dilated: bool = False,
) -> Extent:
    """Add a convolution and its batch norm; return the new extent. Of 3 channels it is the first.

    `relu` and `add` as in `Layers.batch_norm`.
    """
    first = c_in == 3
    out = convolution(
        step, batch, c_in, c_out, extent, window, stride, groups, first=first, dilated=dilated
    )
    step.batch_norm(batch * c_out * prod(out), relu, add)
    return out


def _extent_behind(extent: Extent, strides: Extent, transposed: bool) -> Extent:
    pairs = tuple(zip(extent, strides, strict=True))
    return tuple(x * s for x, s in pairs) if transposed else tuple(-(-x // s) for x, s in pairs)


def _each(size: int | Extent, extent: Extent) -> Extent:
    return (size,) * len(extent) if isinstance(size, int) else size


def _gradient(forward: Extents, rows: int, columns: int, dilated: bool) -> Extents:
    """Return the product of a gradient of [rows, columns]: as many FLOPs as forward."""
    depth = forward.rows * forward.columns * forward.depth / (rows * columns)
    return replace(forward, rows=rows, columns=columns, depth=depth, dilated=dilated)


def update(step: Layers, optimizer: OptimizerName, accumulation: int = 1) -> None:
    """Add the update of all parameters so far, once in `accumulation` micro-batches.

    In a mixed step it also writes the narrow copies, and gradients are unscaled and checked
    before it.
    """
    step.accumulation = accumulation
    p, precision = step.parameters / accumulation, step.precision
    step.repeat(1)
    step.optimizer = optimizer
    if not precision.update:
        return
    fused = step.stack.fused_optimizer
    tensors = rules()[optimizer].fused_tensors if fused else UNFUSED_UPDATE[optimizer]
    launches = step.tensors / accumulation
    launches = launches / TENSORS_PER_LAUNCH if fused else launches * tensors / 3
    narrow = precision.bytes if precision.mixed else 0
    step.works.append(
        Work((4 * tensors + narrow) * p, tensors * p, launches=1 + launches, kind="update")
    )
    if precision.mixed:
        step.move(p, p, 4, kind="update")
    if accumulation > 1:
        step.move(2 * step.parameters, step.parameters, 4)


def classifier(step: Layers, batch: int, widths: tuple[int, ...], dropout: bool = True) -> None:
    """Add products of these widths, ReLU and dropout between them, the loss, and the update."""
    for n_in, n_out in pairwise(widths):
        step.linear(batch, n_in, n_out)
        if n_out != widths[-1]:
            step.relu(batch * n_out)
            if dropout:
                step.dropout(batch * n_out)
    step.cross_entropy(batch * widths[-1])
    update(step, "momentum")


def squeeze_excite(step: Layers, batch: int, channels: int, inner: int, elements: float) -> None:
    """Scale channels by two products of `inner` features over their means (Hu et al., 2018)."""
    step.move(elements, 0)
    step.linear(batch, channels, inner)
    step.linear(batch, inner, channels)
    step.elementwise(elements)
