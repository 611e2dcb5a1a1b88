"""Powers, roots, exponentials and logarithms.

Gradients of powers are one op, or the several that torch has.
"""

from __future__ import annotations

import math
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from policysearch.graph import Attrs, FloatArray, GradientRule, Node, Op, size
from policysearch.ops.builder import Builder
from policysearch.ops.composite import INNER_FORMAT
from policysearch.ops.elementwise import divide, multiply, one_example, same_shape, scale, ufunc
from policysearch.ops.gather import STEPS
from policysearch.ops.rounded_arithmetic import inner_arithmetic
from policysearch.ops.unary import positive, scaled, shifted, stepwise, unary
from policysearch.rounding.rounder import quantise

_ONE, _HALF = np.float32(1.0), np.float32(0.5)

exp = Op(
    "exp",
    same_shape,
    ufunc(np.exp),
    gradients=(lambda b, node, grad: b.emit(multiply, grad, node.id),),
    flops=lambda inputs, out, attrs: 10 * size(out),
    example=one_example,
    placement="fp32",
    in_place=(0,),
)

log, log_grad = unary(
    "log",
    lambda x, attrs: np.log(x),
    lambda y, attrs: np.exp(-y),
    of_result=True,
    flops=10,
    placement="fp32",
)

sqrt, sqrt_grad = unary(
    "sqrt", lambda x, attrs: np.sqrt(x), lambda y, attrs: _HALF / y, of_result=True
)


def _or_steps(steps: GradientRule, op: Op, grad_op: Op) -> tuple[Op, Op]:
    """Return both, `steps` being the gradient of nodes with STEPS: the several ops of torch."""
    (whole,) = op.gradients
    assert whole is not None

    def rule(b: Builder, node: Node, grad: int) -> int:
        return (steps if node.attributes.get(STEPS) else whole)(b, node, grad)

    return replace(op, gradients=(rule,)), grad_op


def _inverse(x: FloatArray) -> FloatArray:
    return _ONE / x


def _rsqrt_steps(b: Builder, node: Node, grad: int) -> int:
    """-grad / 2 * y^3."""
    cube = b.emit(pow_constant, node.id, attrs={"exponent": 3.0, STEPS: True})
    return b.emit(multiply, b.emit(scale, grad, attrs={"factor": -0.5}), cube)


rsqrt, rsqrt_grad = _or_steps(
    _rsqrt_steps,
    *unary(
        "rsqrt",
        lambda x, attrs: _inverse(np.sqrt(x)),
        lambda y, attrs: y * y * y * -_HALF,
        of_result=True,
        flops=2,
        placement="fp32",
    ),
)
"""1 / sqrt(x)."""


def _power(x: FloatArray, exponent: float) -> FloatArray:
    """Small whole exponents and halves as the products and roots they are."""
    if exponent == 0.0:
        return np.ones_like(x)
    if abs(exponent) == 0.5:
        result: FloatArray = np.sqrt(x)
    elif abs(exponent) in (1.0, 2.0, 3.0):
        result = x
        for _ in range(int(abs(exponent)) - 1):
            result = result * x
    else:
        return np.power(x, np.float32(exponent))
    return _inverse(result) if exponent < 0.0 else result


def _power_of_format(x: FloatArray, attrs: Attrs) -> FloatArray:
    """As torch's kernels of 16 bits: the exponent is rounded to them, and a square in a power."""
    exponent = attrs["exponent"]
    if INNER_FORMAT not in attrs:
        return _power(x, exponent)
    rounded = inner_arithmetic(attrs[INNER_FORMAT], attrs)
    if exponent in (3.0, -2.0):
        square = rounded(x * x)
        return square * x if exponent > 0.0 else _inverse(square)
    return _power(x, float(quantise(np.array(exponent, np.float32), rounded.format)))


def _pow_slope(x: FloatArray, attrs: Attrs) -> FloatArray:
    if attrs["exponent"] == 0.0:  # at 0, too, where 0 * x^-1 is no number
        return np.zeros_like(x)
    return _power(x, attrs["exponent"] - 1.0) * np.float32(attrs["exponent"])


def _pow_steps(b: Builder, node: Node, grad: int) -> int:
    """grad * (exponent * x^(exponent - 1)), and -grad * y^2 of a reciprocal."""
    x, exponent = node.inputs[0], node.attributes["exponent"]
    if exponent in (0.0, 1.0, 2.0):  # no product but the last rounds
        return b.emit(pow_grad, grad, x, attrs={"exponent": exponent})
    if exponent == -1.0:
        slope = b.emit(multiply, node.id, node.id)
        return b.emit(multiply, b.emit(scale, grad, attrs={"factor": -1.0}), slope)
    slope = b.emit(pow_constant, x, attrs={"exponent": exponent - 1.0, STEPS: True})
    return b.emit(multiply, grad, b.emit(scale, slope, attrs={"factor": exponent}))


pow_constant, pow_grad = _or_steps(
    _pow_steps,
    *unary(
        "pow",
        _power_of_format,
        _pow_slope,
        flops=10,
        placement="fp32",
        attrs=MappingProxyType({"exponent": 2.0}),
    ),
)
"""x to the power of the constant `exponent`; with STEPS as torch in the format of the node."""


expm1 = stepwise(
    "expm1",
    lambda x, attrs: np.expm1(x),
    lambda b, x, y, grad: b.emit(multiply, grad, shifted(b, y, 1.0)),
    placement="fp32",
)
exp2 = stepwise(
    "exp2",
    lambda x, attrs: np.exp2(x),
    lambda b, x, y, grad: scaled(b, b.emit(multiply, grad, y), math.log(2.0)),
)
log = stepwise(
    "log",
    lambda x, attrs: np.log(x),
    lambda b, x, y, grad: b.emit(divide, grad, x),
    placement="fp32",
    example=positive,
)
log2 = stepwise(
    "log2",
    lambda x, attrs: np.log2(x),
    lambda b, x, y, grad: b.emit(divide, grad, scaled(b, x, math.log(2.0))),
    placement="fp32",
    example=positive,
)
log10 = stepwise(
    "log10",
    lambda x, attrs: np.log10(x),
    lambda b, x, y, grad: b.emit(divide, grad, scaled(b, x, math.log(10.0))),
    placement="fp32",
    example=positive,
)
log1p = stepwise(
    "log1p",
    lambda x, attrs: np.log1p(x),
    lambda b, x, y, grad: b.emit(divide, grad, shifted(b, x, 1.0)),
    placement="fp32",
    example=positive,
)
