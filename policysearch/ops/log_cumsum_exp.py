"""The logarithm of a running sum of exponentials, as scans in logarithms have it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Op, size
from policysearch.ops.elementwise import same_shape


def _log_cumsum_exp(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    return np.logaddexp.accumulate(inputs[0], attrs["axis"], np.float64).astype(np.float32)


def _log_cumsum_exp_gradient(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """e^x times the sum of grad e^-y from each place on, positive and negative parts apart.

    Both by logarithms, as torch (`FunctionsManual.cpp`): nothing overflows.
    """
    grad, x, y = (np.moveaxis(each.astype(np.float64), attrs["axis"], 0) for each in inputs)
    total = np.zeros_like(x)
    for sign in (1.0, -1.0):
        with np.errstate(divide="ignore"):
            logarithms = np.log(np.maximum(sign * grad, 0.0)) - y
        total += sign * np.exp(np.flip(np.logaddexp.accumulate(np.flip(logarithms, 0), 0), 0) + x)
    return np.moveaxis(total, 0, attrs["axis"]).astype(np.float32)


log_cumsum_exp_grad = Op(
    "logcumsumexp_grad",
    same_shape,
    _log_cumsum_exp_gradient,
    flops=lambda inputs, out, attrs: 24 * size(out),
    kind="reduce",
)

log_cumsum_exp = Op(
    "logcumsumexp",
    same_shape,
    _log_cumsum_exp,
    gradients=(
        lambda b, node, grad: b.emit(
            log_cumsum_exp_grad, grad, *node.inputs, node.id, attrs=node.attributes
        ),
    ),
    flops=lambda inputs, out, attrs: 12 * size(out),
    example=lambda rng: Example((rng.standard_normal((3, 4, 2)).astype(np.float32),), {"axis": 1}),
    kind="reduce",
)
"""log of the sum of e^x from the first value along `axis` to each."""
