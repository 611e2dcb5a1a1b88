"""How ops pass a split along: of their result, given how their inputs are split.

A split is the product of the extents before it, so that a change of shape leaves it as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from policysearch.graph import Node, Shape

Split = int
"""Where a value is split: how many elements lie before the split extent, in row-major order."""

WHOLE: Split = 0
"""Every device has all of it."""

PARTIAL: Split = -1
"""Every device has a summand of it."""

ROWWISE = frozenset(
    {
        "softmax",
        "softmax_grad",
        "layer_norm",
        "layer_norm_grad",
        "layer_statistics",
        "amax",
    }
)
"""Ops that need whole rows, and treat every row alike."""

IMAGES = frozenset({"max_pool", "max_pool_grad", "average_pool", "average_pool_grad"})
"""Ops that treat every image and channel by itself."""

SUMS = frozenset({"amax", "all_finite", "global_norm"})
"""Ops whose scalar is made of one scalar from each part."""

CHANNELS = frozenset({"bias_grad", "batch_mean", "batch_variance", "batch_norm_weight_grad"})
"""Ops that sum over all axes but the second."""

LINEAR = frozenset({"add", "cast", "reshape", "transpose", "scale", "descale"})
"""Ops that may be done before the summands are summed."""

Found = tuple[Split, tuple[int, ...]]
"""The split of a result, and the places of the inputs that have to be whole for it."""


def split_of(node: Node, inputs: Sequence[Node], given: Sequence[Split], ways: int) -> Found:
    """Return how the result of `node` is split, and which inputs must be made whole first."""
    if all(split == WHOLE for split in given):
        return WHOLE, ()
    summed = [i for i, made in enumerate(inputs) if made.shape == inputs[0].shape]
    if node.op.name in LINEAR and {given[i] for i in summed} == {PARTIAL}:
        return PARTIAL, ()
    partial = tuple(i for i, split in enumerate(given) if split == PARTIAL)
    rest = [WHOLE if split == PARTIAL else split for split in given]
    made, wholes = _of_parts(node, inputs, rest, ways)
    return made, (*partial, *wholes)


def _of_parts(node: Node, inputs: Sequence[Node], given: list[Split], ways: int) -> Found:
    split = [i for i, each in enumerate(given) if each != WHOLE]
    if not split:
        return WHOLE, ()
    name, first = node.op.name, given[split[0]]
    if node.op.kind == "gemm":
        made = _of_product(node, inputs, given)
    elif name == "transpose":
        made = _transposed(node, inputs[0].shape, first, ways)
    elif name == "reshape":
        made = first
    elif name in IMAGES:
        made = first if first < math.prod(node.shape[:2]) else WHOLE
    elif name in CHANNELS:
        made = _channel(inputs[split[0]].shape, first)
    elif name in ROWWISE:
        last = inputs[split[0]].shape[-1]
        made = WHOLE if first * last >= math.prod(inputs[split[0]].shape) else first
        if made != WHOLE and name == "layer_statistics":
            made = first // last * node.shape[-1]
    else:
        made = _elementwise(node, inputs, given, split)
    if made == WHOLE or (made != PARTIAL and not _divides(node.shape, made, ways)):
        return WHOLE, tuple(split)
    return made, ()


def _divides(shape: Shape, split: Split, ways: int) -> bool:
    before = 1
    for extent in shape:
        if before <= split < before * extent:
            return extent % ways == 0
        before *= extent
    return False


def _elementwise(
    node: Node, inputs: Sequence[Node], given: Sequence[Split], split: Sequence[int]
) -> Split:
    """Follow an input of the result's shape; whole ones beside it are read in part."""
    alike = {given[i] for i in split if inputs[i].shape == node.shape}
    known = node.op.kind == "elementwise" and node.op.pointwise
    known |= node.op.name == "batch_norm_grad"
    return alike.pop() if known and len(alike) == 1 else WHOLE


def _channel(shape: Shape, split: Split) -> Split:
    """Return the split of sums over all axes but the second."""
    rows = shape[0]
    return split // rows if rows <= split < rows * shape[1] else WHOLE


def _transposed(node: Node, shape: Shape, split: Split, ways: int) -> Split:
    attrs = node.attributes
    seen, axes = tuple(attrs.get("split", shape)), tuple(attrs["axes"])
    axis, offset = _place(seen, split)
    before: int = math.prod(seen[i] for i in axes[: axes.index(axis)])
    return before * offset if seen[axis] % ways == 0 else WHOLE


def _place(shape: Shape, split: Split) -> tuple[int, int]:
    """Return the axis a split lies in, and how much of that axis lies before it."""
    before = 1
    for axis, extent in enumerate(shape):
        if before <= split < before * extent:
            return axis, split // before
        before *= extent
    raise ValueError(f"{shape} is not split at {split}")


def _of_product(node: Node, inputs: Sequence[Node], given: Sequence[Split]) -> Split:
    """Return the split of a product: that of an axis it keeps, PARTIAL where it sums over it."""
    if node.attributes.get("groups", 1) != 1:
        return WHOLE
    left, right = _letters(node, inputs)
    out = _result_letters(node, left, right)
    marks = set()
    for letters, made, split in zip((left, right), inputs[:2], given[:2], strict=True):
        if split != WHOLE:
            axis, offset = _place(made.shape, split)
            marks.add((letters[axis], offset))
    if len(marks) != 1:
        return WHOLE
    ((letter, offset),) = marks
    if letter not in out:
        # both operands have their part of what is summed over, or the whole one is read in part
        return PARTIAL
    axis = out.index(letter)
    return math.prod(node.shape[:axis]) * offset


def _letters(node: Node, inputs: Sequence[Node]) -> tuple[str, str]:
    """Return the axes of both operands by letter: equal letters are the same index."""
    name = node.op.name.removesuffix("_blocks")
    if name == "conv2d":
        return "nchw", "ocij"
    if name == "conv2d_dgrad":
        return "nohw", "ocij"
    if name == "conv2d_wgrad":
        return "nohw", "ncij"
    if name == "conv_transpose2d":
        return "nchw", "coij"
    attrs, batch = node.attributes, "xyz"[: len(inputs[0].shape) - 2]
    left = batch + ("km" if attrs.get("transpose_a") else "mk")
    right = batch + ("nk" if attrs.get("transpose_b") else "kn")
    return left, right


def _result_letters(node: Node, left: str, right: str) -> str:
    name = node.op.name.removesuffix("_blocks")
    if name in ("conv2d", "conv_transpose2d"):
        return "nohw"
    if name == "conv2d_dgrad":
        return "nchw"
    if name == "conv2d_wgrad":
        return "ocij"
    return left[: len(left) - 2] + "mn"
