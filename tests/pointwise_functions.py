"""Functions of torch element by element, comparisons and softmaxes, as cases of import rules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

Function = Callable[[Any], Any]


def positive(x: Any) -> Any:
    """Return x under values that no function has a pole at: 0.5 and above."""
    return 0.5 + x.abs()


def _slopes(x: Any) -> Any:
    """Return a slope for each of the entries along axis 1."""
    return x[0].reshape(x.shape[1], -1)[:, 0]


ONE_KERNEL: dict[str, Function] = {
    "abs": torch.abs,
    "clamp": lambda x: torch.clamp(x, -0.3, 0.55),
    "clamp_min": lambda x: torch.clamp_min(x, 0.1),
    "clamp_max": lambda x: torch.clamp_max(x, 0.1),
    "hardsigmoid": lambda x: F.hardsigmoid(4.0 * x),
    "hardswish": lambda x: F.hardswish(4.0 * x),
    "hardtanh": lambda x: F.hardtanh(x, -0.25, 0.5),
    "hardshrink": lambda x: F.hardshrink(x, 0.25),
    "softshrink": lambda x: F.softshrink(x, 0.25),
    "threshold": lambda x: F.threshold(x, 0.125, -0.75),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "elu": lambda x: F.elu(x, 1.3),
    "selu": F.selu,
    "celu": lambda x: F.celu(x, 1.3),
    "softplus": lambda x: F.softplus(x, 2.0, 1.5),
    "log_sigmoid": F.logsigmoid,
    "mish": F.mish,
    "silu": F.silu,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "gelu": F.gelu,
    "glu": lambda x: F.glu(x, 1),
    "exp": torch.exp,
    "sign": lambda x: torch.sign(x) + x,
    "floor": lambda x: torch.floor(3.0 * x) + x,
    "ceil": lambda x: torch.ceil(3.0 * x) + x,
    "trunc": lambda x: torch.trunc(3.0 * x) + x,
    "round": lambda x: torch.round(2.0 * x) + x,
    "nan_to_num": lambda x: torch.nan_to_num(x.masked_fill(x > 0.25, math.inf), 0.5, 2.0) * 1.5,
    "log_softmax": lambda x: F.log_softmax(x, 1),
    "log_softmax of the last": lambda x: F.log_softmax(x, -1),
    "softmax": lambda x: F.softmax(x, 1),
}
"""Functions whose value, and whose gradient, is one kernel of torch."""

SEVERAL: dict[str, Function] = {
    "log": lambda x: torch.log(positive(x)),
    "log2": lambda x: torch.log2(positive(x)),
    "log10": lambda x: torch.log10(positive(x)),
    "log1p": lambda x: torch.log1p(positive(x)),
    "expm1": torch.expm1,
    "exp2": torch.exp2,
    "sin": torch.sin,
    "cos": torch.cos,
    "tan": lambda x: torch.tan(0.25 * x),
    "atan": torch.atan,
    "asin": lambda x: torch.asin(0.9 * torch.tanh(x)),
    "acos": lambda x: torch.acos(0.9 * torch.tanh(x)),
    "sinh": torch.sinh,
    "cosh": torch.cosh,
    "asinh": torch.asinh,
    "acosh": lambda x: torch.acosh(1.0 + positive(x)),
    "atanh": lambda x: torch.atanh(0.9 * torch.tanh(x)),
    "atan2": lambda x: torch.atan2(x, positive(x)),
    "erf": torch.erf,
    "erfc": torch.erfc,
    "maximum": lambda x: torch.maximum(x, 1.5 * x.mT if x.shape[-1] == x.shape[-2] else 0.5 - x),
    "minimum": lambda x: torch.minimum(x, 0.5 - x),
    "pow of a number": lambda x: 2.5**x,
    "pow of -1": lambda x: (-1.0) ** torch.round(2.0 * x).detach() * x,
    "pow of tensors": lambda x: positive(x) ** x,
    "remainder": lambda x: torch.remainder(x, 0.75) * x,
    "fmod": lambda x: torch.fmod(x, 0.75) * x,
    "remainder of tensors": lambda x: torch.remainder(x, positive(x)),
    "div to the floor": lambda x: torch.div(x, 0.25, rounding_mode="floor") * x,
    "div towards 0": lambda x: torch.div(4.0 * x, positive(x), rounding_mode="trunc") * x,
    "addcmul": lambda x: torch.addcmul(x, x, torch.tanh(x), value=0.75),
    "addcdiv": lambda x: torch.addcdiv(x, x, positive(x), value=0.75),
    "lerp": lambda x: torch.lerp(x, torch.tanh(x), 0.3),
    "lerp by a tensor": lambda x: torch.lerp(x, torch.tanh(x), torch.cos(x)),
    "prelu": lambda x: F.prelu(x, _slopes(x)),
    "prelu of one slope": lambda x: F.prelu(x, _slopes(x)[:1]),
    "abs of softsign": F.softsign,
    "sub of tanhshrink": F.tanhshrink,
    "clamp between tensors": lambda x: torch.clamp(x, -torch.tanh(positive(x)), positive(x) - 0.5),
}
"""Functions that are several kernels of torch, forwards or backwards."""

OTHERS: dict[str, Function] = {
    "lgamma": lambda x: torch.lgamma(positive(x)),
    "digamma": lambda x: torch.digamma(positive(x)),
    "clip": lambda x: torch.clip(x, max=0.3),
    "rrelu": lambda x: F.rrelu(x, 0.1, 0.3),
    "max": lambda x: torch.max(x, 0.5 - x),
    "min": lambda x: torch.min(x, x[:, :1]),
    "maximum with ties": lambda x: torch.maximum(x, torch.relu(x)),
    "negative": lambda x: torch.negative(x) * x,
    "positive": lambda x: torch.positive(x) * x,
    "sgn": lambda x: torch.sgn(x) * x,
    "arctan": lambda x: torch.ops.aten.arctan(x),
    "arcsin": lambda x: torch.ops.aten.arcsin(0.9 * torch.tanh(x)),
    "arccos": lambda x: torch.ops.aten.arccos(0.9 * torch.tanh(x)),
    "absolute": torch.absolute,
    "fix": lambda x: torch.fix(3.0 * x) * x,
    "special_erf": torch.special.erf,
    "special_erfc": torch.special.erfc,
    "arctan2": lambda x: torch.ops.aten.arctan2(x, positive(x)),
    "special_exp2": torch.special.exp2,
    "special_expm1": torch.special.expm1,
    "special_expit": torch.special.expit,
    "special_log1p": lambda x: torch.special.log1p(positive(x)),
    "masked_fill by a tensor": lambda x: x.masked_fill(x > 0.1, x.mean()),
    "softmax over every axis": lambda x: x.softmax(1) + x.softmax(2) + x.softmax(-1),
}

TRUTHS: dict[str, Function] = {
    "eq": lambda x: torch.eq(torch.relu(x), 0.0),
    "ne": lambda x: torch.relu(x) != 0.0,
    "not_equal": lambda x: torch.not_equal(torch.relu(x), x),
    "lt": lambda x: x < 0.3,
    "less": lambda x: torch.less(x, -x),
    "le": lambda x: x <= 0.3,
    "less_equal": lambda x: torch.less_equal(x, x[:, :1]),
    "gt": lambda x: x > x[:1],
    "greater": lambda x: torch.greater(x, 1.0),
    "ge": lambda x: x >= -0.2,
    "greater_equal": lambda x: torch.greater_equal(x, x[:, :1]),
    "logical_not": lambda x: torch.logical_not(torch.relu(x)),
    "logical_and": lambda x: torch.logical_and(x > 0, x < 0.5),
    "logical_or": lambda x: torch.logical_or(x < 0, x > 0.5),
    "logical_xor": lambda x: torch.logical_xor(x < 0, torch.relu(0.5 - x)),
    "bitwise_not": lambda x: torch.bitwise_not(x > 0),
    "bitwise_and": lambda x: torch.bitwise_and(x > 0, x < 0.5),
    "bitwise_or": lambda x: torch.bitwise_or(x < 0, x > 0.5),
    "bitwise_xor": lambda x: torch.bitwise_xor(x < 0, x < 0.5),
    "__and__": lambda x: (x > 0) & (x < 0.5),
    "__or__": lambda x: (x < 0) | (x > 0.5),
    "__xor__": lambda x: (x < 0) ^ (x < 0.5),
    "isnan": lambda x: torch.isnan(torch.sqrt(x)),
    "isfinite": lambda x: torch.isfinite(x / torch.relu(x)),
    "isinf": lambda x: torch.isinf(x / torch.relu(x)),
    "isposinf": lambda x: torch.isposinf(1.0 / torch.relu(x)),
    "isneginf": lambda x: torch.isneginf(-1.0 / torch.relu(x)),
}
"""Functions whose results are truth values."""
