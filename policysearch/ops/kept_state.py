"""What an optimizer keeps below float32 with more than a rounding: scales of blocks, lost parts.

Sources: torchao 0.18 `torchao/optim/subclass_fp8.py` (`quantize_fp8`, `OptimStateFp8`); Kahan
sums as torchdistx's `AnyPrecisionAdamW` and optimi have them; remainders as Transformer Engine's
`common/multi_tensor/adam.cu` (`AdamFunctorMasterParamRemainder`).
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


def _gathered_loss(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    lost, new, old = inputs
    return lost + (new - old)


def _stepped_value(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    old, gathered = inputs
    return old + gathered


def _lost(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    gathered, old, new = inputs
    return gathered + (old - new)


kahan_sum = update_op("kahan_sum", _gathered_loss, 2)
"""(lost, new, old): what was lost before and this update, new - old."""
kahan_step = update_op("kahan_step", _stepped_value, 1)
"""(old, gathered): the parameter moved by all of it, rounded where it is stored."""
kahan_lost = update_op("kahan_lost", _lost, 2)
"""(gathered, old, new): what the rounding of the new parameter has lost."""

HALF, UP = np.int32(0xFFFF), np.int32(0x8000)
INTEGERS = np.float32(2**23)
"""From here on float32's numbers are the integers, and its mantissa counts them."""


def _joined_halves(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    kept, remainder = inputs
    low = (remainder + INTEGERS).view(np.int32) & HALF
    # of a low half from 0x8000 on the kept half was rounded up
    return (kept.view(np.int32) - ((low & UP) << 1) | low).view(np.float32)


def _remainder(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    (whole,) = inputs
    low: FloatArray = (whole.view(np.int32) & HALF | INTEGERS.view(np.int32)).view(np.float32)
    return low - INTEGERS


def _example_of_halves(rng: np.random.Generator) -> Example:
    kept = (rng.integers(-(2**14), 2**14, (3, 5)).astype(np.int32) << 16).view(np.float32)
    return Example((kept, rng.integers(0, 2**16, (3, 5)).astype(np.float32)))


joined_halves = Op(
    "joined_halves",
    same_shape,
    _joined_halves,
    flops=lambda inputs, out, attrs: 3 * size(out),
    example=_example_of_halves,
    placement="fp32",
)
"""The float32 of which bfloat16, to nearest and ties away from zero, keeps the first half.

Inputs what it keeps, and the lower 16 bits, as a number.
"""
lower_half = Op(
    "lower_half",
    same_shape,
    _remainder,
    flops=lambda inputs, out, attrs: 2 * size(out),
    example=lambda rng: Example((rng.standard_normal((3, 5)).astype(np.float32),)),
    placement="fp32",
)
"""The lower 16 bits of float32, as a number."""
