"""The logarithm of a running sum of exponentials, as scans in logarithms have it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, size

# The order of the catalogue, and so of every op list, is that of the first file that names an op.
from policysearch.ops import masks, shape
from policysearch.ops.builder import Builder
from policysearch.ops.comparison import compare
from policysearch.ops.elementwise import add, same_shape, scale, subtract
from policysearch.ops.exponentials import exp, log

LOWEST = float(np.finfo(np.float32).min)


def _log_cumsum_exp(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    return np.logaddexp.accumulate(inputs[0], attrs["axis"], np.float64).astype(np.float32)


def _log_cumsum_exp_gradient(b: Builder, node: Node, grad: int) -> int:
    """e^x times the sum of grad e^-y from each place on, positive and negative parts apart.

    By logarithms, in the steps of torch (`FunctionsManual.cpp`), each of which rounds.
    """
    axis = {"axes": (node.attributes["axis"],)}

    def summed(part: int) -> int:
        there = b.emit(compare, part, attrs={"relation": "greater", "number": 0.0})
        held = b.emit(masks.masked_fill, part, there, attrs={"value": 1.0, "outside": True})
        logs = b.emit(log, held)
        logs = b.emit(masks.masked_fill, logs, there, attrs={"value": LOWEST, "outside": True})
        behind = b.emit(shape.flip, b.emit(subtract, logs, node.id), attrs=axis)
        run = b.emit(shape.flip, b.emit(log_cumsum_exp, behind, attrs=node.attributes), attrs=axis)
        return b.emit(exp, b.emit(add, run, node.inputs[0]))

    negative = b.emit(scale, grad, attrs={"factor": -1.0})
    return b.emit(subtract, summed(grad), summed(negative))


log_cumsum_exp: Op = Op(
    "logcumsumexp",
    same_shape,
    _log_cumsum_exp,
    gradients=(_log_cumsum_exp_gradient,),
    flops=lambda inputs, out, attrs: 12 * size(out),
    example=lambda rng: Example((rng.standard_normal((3, 4, 2)).astype(np.float32),), {"axis": 1}),
    kind="reduce",
)
"""log of the sum of e^x from the first value along `axis` to each."""
