"""What an optimizer keeps below float32 with more than a rounding: scales of blocks, lost parts.

Sources: torchao 0.18 `torchao/optim/subclass_fp8.py` (`quantize_fp8`, `OptimStateFp8`); Kahan
sums as torchdistx's `AnyPrecisionAdamW` and optimi have them.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Op, Shape, size
from policysearch.ops.elementwise import same_shape
from policysearch.ops.optimizers import update_op

SMALLEST_AMAX = np.float32(1e-12)


def _in_blocks(array: FloatArray, attrs: Attrs) -> FloatArray:
    return array.reshape(-1, attrs["block"])


def _scales_shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return (size(inputs[0]) // int(attrs["block"]),)


def _state_scale(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    (values,) = inputs
    largest = np.abs(_in_blocks(values, attrs)).max(axis=1)
    return np.maximum(largest, SMALLEST_AMAX) / np.float32(attrs["maximum"])


def _state_codes(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    values, scales = inputs
    codes: FloatArray = (_in_blocks(values, attrs) / scales[:, None]).reshape(values.shape)
    return codes


def _state_values(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    codes, scales = inputs
    values: FloatArray = (_in_blocks(codes, attrs) * scales[:, None]).reshape(codes.shape)
    return values


def _examples(rng: np.random.Generator) -> Example:
    values = rng.standard_normal((4, 8)).astype(np.float32)
    return Example((values, np.full(2, 0.5, np.float32)), {"block": 16, "maximum": 448.0})


def _example_of_scales(rng: np.random.Generator) -> Example:
    example = _examples(rng)
    return Example(example.inputs[:1], example.attrs)


state_scale = Op(
    "state_scale",
    _scales_shape,
    _state_scale,
    flops=lambda inputs, out, attrs: size(inputs[0]),
    example=_example_of_scales,
    kind="reduce",
    placement="fp32",
)
"""amax / `maximum` of every `block` values, in the order in which they are stored."""
state_codes = Op(
    "state_codes",
    same_shape,
    _state_codes,
    flops=lambda inputs, out, attrs: size(out),
    example=_examples,
    placement="fp32",
)
"""Values over the scale of their `block`, to be rounded onto the format they are kept in."""
state_values = Op(
    "state_values",
    same_shape,
    _state_values,
    flops=lambda inputs, out, attrs: size(out),
    example=_examples,
    placement="fp32",
)
"""What codes stand for: times the scale of their `block`."""


def _gathered(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    lost, new, old = inputs
    return lost + (new - old)


def _stepped(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    old, gathered = inputs
    return old + gathered


def _lost(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    gathered, old, new = inputs
    return gathered + (old - new)


kahan_sum = update_op("kahan_sum", _gathered, 2)
"""(lost, new, old): what was lost before and this update, new - old."""
kahan_step = update_op("kahan_step", _stepped, 1)
"""(old, gathered): the parameter moved by all of it, rounded where it is stored."""
kahan_lost = update_op("kahan_lost", _lost, 2)
"""(gathered, old, new): what the rounding of the new parameter has lost."""
