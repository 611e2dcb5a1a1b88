"""Sums and relu: one pass in the extension `_elementwise`; relu and masks in numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np

from policysearch.emulator.kernels.kernel import Kernel, Offer, Run, bind_stored, like
from policysearch.graph import Attrs, FloatArray, Shape, size
from policysearch.rounding.extension import extension

_elementwise = extension("emulator.kernels._elementwise")


def in_one_pass(name: str, *, rounds: bool = False) -> Offer:
    """Return the offer of the op that the extension has under `name`.

    Matrices and images are served, whole or some rows of them; vectors are left to numpy. `rounds`:
    the extension can round the output as well.
    """

    def offer(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
        function = getattr(_elementwise, name, None)
        if name == "bias":  # of one value per feature; others are broadcast, or scaled
            plain = len(inputs[1]) == 1 and not {"alpha", "beta"} & attrs.keys()
        else:
            plain = all(shape == out for shape in inputs)
        if not function or len(out) not in (2, 4) or not plain:
            return None
        return Kernel(bind_stored(function), rounds=rounds)

    return offer


C_KERNELS: Mapping[str, Offer] = MappingProxyType(
    {
        "add": in_one_pass("add", rounds=True),
        "bias": in_one_pass("bias", rounds=True),
        "relu": in_one_pass("relu"),
        "relu_grad": in_one_pass("relu_grad"),
    }
)


def _bind_relu(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    """A maximum with an array of zeros takes a third of the time of one with a scalar."""
    x, zeros = inputs[0], like(out, work)

    def run() -> None:
        zeros.fill(0.0)
        np.maximum(x, zeros, out=out)

    return run


def _bind_relu_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    """g where y > 0 without a boolean array: y is +0 or positive, so -bits has the sign set."""
    grad, y = (array.view(np.int32) for array in inputs)
    masked, mask = out.view(np.int32), like(y, work.view(np.int32))

    def run() -> None:
        np.negative(y, out=mask)
        np.right_shift(mask, 31, out=mask)
        np.bitwise_and(grad, mask, out=masked)

    return run


def _bind_masked_fill(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    x, mask = inputs
    value, chosen = np.float32(attrs["value"]), np.equal if attrs.get("outside") else np.not_equal
    apart = not np.may_share_memory(out, x)

    def run() -> None:
        if apart:
            np.copyto(out, x)
        np.copyto(out, value, where=chosen(mask, 0.0))

    return run


def _output_size(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> int:
    return size(out)


NUMPY_KERNELS: Mapping[str, Offer] = MappingProxyType(
    {
        "relu": lambda inputs, out, attrs: Kernel(_bind_relu, _output_size),
        "relu_grad": lambda inputs, out, attrs: Kernel(_bind_relu_grad, _output_size),
        "masked_fill": lambda inputs, out, attrs: Kernel(_bind_masked_fill),
    }
)
