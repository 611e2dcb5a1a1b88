"""Adafactor (Shazeer and Stern, arXiv 1804.04235), as torch 2.13's `torch/optim/_adafactor.py`.

Of a matrix the means of squares of its rows and columns are kept, along the last two axes; of a
vector those of all its values. A step is clipped to a root mean square of 1 and grows with that of
the parameter. Numbers that torch takes by default are constants here: shares of new squares step^
-0.8, parameters taken for at least 1e-3, and as the least variance the epsilon of the format that a
parameter is stored in.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from policysearch.graph import Attrs, FloatArray, Op, Shape, size
from policysearch.ops.builder import Builder
from policysearch.ops.optimizers import double, single, update_op
from policysearch.optimizers.lamb import NORM, tensor_norm
from policysearch.optimizers.muon import eager_own_rate_step, own_rate_step
from policysearch.optimizers.optimizer import (
    ADD,
    MULTIPLY,
    ROOT,
    Array,
    EmitOne,
    Optimizer,
    Place,
    Rule,
    TorchClass,
)

DECAY, SMALLEST_PARAMETER = -0.8, 1e-3
ROWS, COLUMNS = -1, -2
"""Axes that the means of rows, and of columns, are taken along."""
EPSILON = 2.0**-23


def _along(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    shape = list(inputs[0])
    shape[attrs["axis"]] = 1
    return tuple(shape)


def _norm_along(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    squares = np.sum(inputs[0] * inputs[0], axis=attrs["axis"], keepdims=True)
    norm: FloatArray = np.sqrt(squares)
    return norm


def _mean_square(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    norm = _norm_along(inputs, attrs)
    return norm * norm / np.float32(attrs["count"])


def _lerp(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """As torch's `lerp_`, whose formula changes at a half."""
    kept, new, step = inputs
    share = double(step) ** DECAY
    weight, rest = single(share), single(1.0 - share)
    apart = new - kept
    moved: FloatArray = np.where(weight < 0.5, kept + apart * weight, new - apart * rest)
    return moved


def _lerp_square(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    kept, grad, step = inputs
    return _lerp((kept, grad * grad, step), attrs)


def _estimate(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    rows, columns = inputs[:2]
    return _over((rows * columns, _mean((rows,), {"axis": COLUMNS})), attrs)


def _mean(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    mean: FloatArray = inputs[0].mean(axis=attrs["axis"], keepdims=True, dtype=np.float32)
    return mean


def _over(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    least: Any = np.float32(attrs["epsilon"])
    quotient: FloatArray = inputs[0] / np.maximum(inputs[1], least)
    return quotient


def _inverse_root(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    least: Any = np.float32(attrs["epsilon"] ** 2)
    inverse: FloatArray = np.float32(1.0) / np.sqrt(np.maximum(inputs[0], least))
    return inverse


def _over_root(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    return _inverse_root(inputs, attrs) * inputs[1]


def _direction(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    return _over_root((_estimate(inputs, attrs), inputs[2]), attrs)


def _rate(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    length, reach, rate, step = map(double, inputs)
    root = math.sqrt(attrs["elements"])
    relative = np.minimum(rate, 1.0 / step**0.5)
    alpha = np.maximum(SMALLEST_PARAMETER, length / root) * relative
    own: FloatArray = single(alpha / np.maximum(1.0, reach / root))
    return own


def _reduction_op(name: str, forward: Any) -> Op:
    return Op(
        name,
        _along,
        forward,
        flops=lambda inputs, out, attrs: 2 * size(inputs[0]),
        kind="reduce",
        placement="fp32",
    )


def _like(place: int, name: str, forward: Any, flops: int) -> Op:
    """Return an op of the shape of one of its inputs."""
    return replace(
        update_op(name, forward, flops),
        shape=lambda inputs, attrs: inputs[place],
        in_place=(place,),
        pointwise=False,
    )


adafactor_length = replace(tensor_norm, name="adafactor_length")
"""The Euclidean norm of one tensor."""
mean_square = _reduction_op("mean_square", _mean_square)
"""The mean of `count` squares along `axis`, kept as an axis of one."""
norm_along = _reduction_op("norm_along", _norm_along)
"""The Euclidean norm along `axis`, kept as an axis of one."""
squared = update_op("squared", lambda inputs, attrs: inputs[0] * inputs[0], 1)
"""x^2."""
shared = update_op("shared", lambda inputs, attrs: inputs[0] / np.float32(attrs["count"]), 1)
"""x / `count`."""
adafactor_mean = update_op("adafactor_mean", _lerp, 3)
"""kept + step^-0.8 * (new - kept)."""
adafactor_variance = update_op("adafactor_variance", _lerp_square, 4)
"""kept + step^-0.8 * (grad^2 - kept)."""
adafactor_direction = _like(2, "adafactor_direction", _direction, 6)
"""grad over the root of (rows * columns / mean of rows), which is at least `epsilon`."""
over_root = _like(1, "over_root", _over_root, 3)
"""grad / max(sqrt(variance), epsilon)."""
outer = Op(
    "outer",
    lambda inputs, attrs: (*inputs[0][:-1], inputs[1][-1]),
    lambda inputs, attrs: inputs[0] * inputs[1],
    placement="fp32",
    pointwise=False,
)
"""The product of a column and a row."""
mean_of_rows = Op(
    "mean_of_rows",
    _along,
    _mean,
    flops=lambda inputs, out, attrs: size(inputs[0]),
    kind="reduce",
    placement="fp32",
)
"""The mean along `axis`, kept as an axis of one."""
divided = _like(0, "divided", _over, 2)
"""x / max(y, `epsilon`)."""
inverse_root = update_op("inverse_root", _inverse_root, 2)
"""1 / sqrt(max(x, epsilon^2))."""
multiplied = update_op("multiplied", lambda inputs, attrs: inputs[0] * inputs[1], 1)
"""x * y."""
adafactor_rate = Op("adafactor_rate", lambda inputs, attrs: (), _rate, placement="fp32")
"""min(learning_rate, 1 / sqrt(step)) * max(1e-3, root mean square of the parameter) / max(1, that
of the direction), of their lengths and number of `elements`."""


def _emit_matrix(b: Builder, optimizer: Optimizer, at: Place) -> tuple[tuple[int, ...], int]:
    rows, columns = (
        b.emit(
            adafactor_mean,
            kept,
            b.emit(mean_square, at.grad, attrs={"axis": axis, "count": b.shape(at.grad)[axis]}),
            at.step,
        )
        for kept, axis in zip(at.states, (ROWS, COLUMNS), strict=True)
    )
    attrs = {"epsilon": EPSILON}
    direction = b.emit(adafactor_direction, rows, columns, at.grad, attrs=attrs)
    return (rows, columns), _moved_parameter(b, at, direction)


def _emit_vector(b: Builder, optimizer: Optimizer, at: Place) -> tuple[tuple[int, ...], int]:
    variance = b.emit(adafactor_variance, at.states[0], at.grad, at.step)
    direction = b.emit(over_root, variance, at.grad, attrs={"epsilon": EPSILON})
    return (variance,), _moved_parameter(b, at, direction)


def _moved_parameter(b: Builder, at: Place, direction: int) -> int:
    length, reach = (b.emit(adafactor_length, tensor) for tensor in (at.parameter, direction))
    elements = {"elements": size(b.shape(at.parameter))}
    own = b.emit(adafactor_rate, length, reach, at.rate, at.step, attrs=elements)
    attrs = {"weight_decay": at.decay}
    return b.emit(own_rate_step, at.parameter, direction, at.rate, own, attrs=attrs)


def _eager_mean_square(emit: EmitOne, attrs: Attrs, inputs: Sequence[int]) -> int:
    """As `torch.norm(grad, dim, keepdim=True).square_().div_(count)`."""
    square = emit(squared, emit(norm_along, *inputs, attrs=attrs))
    return emit(shared, square, attrs=attrs)


def _eager_variance(emit: EmitOne, attrs: Attrs, inputs: Sequence[int]) -> int:
    """As `variance.lerp_(grad * grad, share)`."""
    kept, grad, step = inputs
    return emit(adafactor_mean, kept, emit(squared, grad), step)


def _eager_direction(emit: EmitOne, attrs: Attrs, inputs: Sequence[int]) -> int:
    """As `(row_var @ col_var).div_(row_var.mean(-2).clamp_(eps)).clamp_().rsqrt_().mul_(grad)`."""
    rows, columns, grad = inputs
    mean = emit(mean_of_rows, rows, attrs={"axis": COLUMNS})
    estimate = emit(divided, emit(outer, rows, columns), mean, attrs=attrs)
    return emit(multiplied, emit(inverse_root, estimate, attrs=attrs), grad)


def _eager_over_root(emit: EmitOne, attrs: Attrs, inputs: Sequence[int]) -> int:
    variance, grad = inputs
    return emit(multiplied, emit(inverse_root, variance, attrs=attrs), grad)


def _plain(
    optimizer: Optimizer,
    parameter: Array,
    states: tuple[Array, ...],
    grad: Array,
    rate: float,
    step: int,
) -> tuple[tuple[Array, ...], Array]:
    share = step**DECAY
    new: tuple[Array, ...] = (grad**2,)
    if len(states) == 2:
        new = tuple((grad**2).mean(axis=axis, keepdims=True) for axis in (ROWS, COLUMNS))
    kept = tuple((1.0 - share) * old + share * x for old, x in zip(states, new, strict=True))
    estimate = kept[0]
    if len(kept) == 2:
        estimate = kept[0] * kept[1] / np.maximum(kept[0].mean(COLUMNS, keepdims=True), EPSILON)
    direction = grad / np.sqrt(np.maximum(estimate, EPSILON**2))
    scale = max(SMALLEST_PARAMETER, float(np.sqrt(np.mean(parameter**2))))
    clipped = direction / max(1.0, float(np.sqrt(np.mean(direction**2))))
    moved = scale * min(rate, step**-0.5) * clipped
    return kept, parameter * (1.0 - rate * optimizer.weight_decay) - moved


def _factors(shape: Shape) -> tuple[Shape, ...]:
    return (*shape[:-1], 1), (*shape[:-2], 1, shape[-1])


_ENDS = (NORM, MULTIPLY, ADD)
"""The length of the direction, decay and step; that of the parameter comes first."""

ADAFACTOR = Rule(
    "adafactor",
    "variances of rows and columns (of vectors: of each value) move by step^-0.8 to grad^2; "
    "parameter - min(learning_rate, step^-0.5) * root mean square of parameter * grad / "
    "sqrt(variance), clipped",
    "torch.optim.Adafactor; arXiv 1804.04235",
    states=("row_var", "col_var"),
    reads=("weight_decay",),
    # lengths of the parameter, of rows and columns; their product, the root and the gradient
    separate=(NORM, NORM, NORM, (0, 1), MULTIPLY, MULTIPLY, ROOT, ADD, *_ENDS),
    aside=1,
    norms=4,
    emit=_emit_matrix,
    plain=_plain,
    decoupled=True,
    torch=TorchClass("Adafactor", lambda optimizer: {}, fused=False),
    eager={
        "mean_square": _eager_mean_square,
        "adafactor_direction": _eager_direction,
        "own_rate_step": eager_own_rate_step,
    },
    gradients=("mean_square", "adafactor_direction", "adafactor_length"),
    numbers=("adafactor_rate",),
    epsilon_of=("adafactor_direction",),
    elementwise=False,
    shapes=_factors,
    axes=(2, 99),
    others=Rule(
        "adafactor",
        "",
        "",
        states=("variance",),
        reads=("weight_decay",),
        separate=(NORM, ADD, ADD, (1, 1), MULTIPLY, ROOT, ADD, *_ENDS),
        aside=1,
        norms=2,
        emit=_emit_vector,
        plain=_plain,
        decoupled=True,
        torch=TorchClass("Adafactor", lambda optimizer: {}, fused=False),
        eager={"adafactor_variance": _eager_variance, "over_root": _eager_over_root},
        gradients=("over_root",),
        epsilon_of=("over_root",),
        elementwise=False,
    ),
)
