"""Import rules: activations, element by element."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from policysearch.graph import Op, size
from policysearch.importers.elementwise import plain
from policysearch.importers.tracer import Rule, Tensor, Tracer, refuse
from policysearch.ops import activations, elementwise, gates, softplus, thresholds
from policysearch.ops.gelu import gelu

SELU = (1.6732632423543772848170429916717, 1.0507009873554804934193349852946)
"""alpha and scale that keep mean and variance (arXiv 1706.02515)."""


def _numbers(op: Op, **defaults: float) -> Rule:
    """Return the rule of an op of one tensor and, in this order, of numbers that it has by name."""

    def rule(t: Tracer, x: Tensor, *numbers: float) -> Tensor:
        values = (*numbers, *list(defaults.values())[len(numbers) :])
        attrs = {name: float(value) for name, value in zip(defaults, values, strict=True)}
        return t.pointwise(op, x, **attrs)

    return rule


def _gelu(t: Tracer, x: Tensor, approximate: str = "none") -> Tensor:
    return t.pointwise(gelu, x, form="tanh" if approximate == "tanh" else "erf")


def _elu(
    t: Tracer, x: Tensor, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0
) -> Tensor:
    attrs = {"below": float(alpha * scale), "above": float(scale), "inner": float(input_scale)}
    return t.pointwise(thresholds.elu, x, **attrs)


def _glu(t: Tracer, x: Tensor, dim: int = -1) -> Tensor:
    return t.emit(gates.glu, x, axis=dim % len(x.shape))


def _prelu(t: Tracer, x: Tensor, weight: Tensor) -> Tensor:
    """A slope for all channels or one for each, along axis 1."""
    count = size(weight.shape)
    axes = (count,) if len(x.shape) < 2 else (count, *(1,) * (len(x.shape) - 2))
    return t.emit(gates.prelu, x, t.view(weight, axes if count > 1 else ()))


def _rrelu(
    t: Tracer,
    x: Tensor,
    lower: float = 0.125,
    upper: float = 1 / 3,
    training: bool = False,
    *_: Any,
) -> Tensor:
    if training and t.training:
        raise refuse("slopes drawn at random", "use leaky_relu, of their mean")
    return t.pointwise(activations.leaky_relu, x, negative_slope=(lower + upper) / 2)


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "relu": plain(elementwise.relu),
        "tanh": plain(activations.tanh),
        **dict.fromkeys(("sigmoid", "special_expit"), plain(activations.sigmoid)),
        "silu": plain(activations.silu),
        "mish": plain(softplus.mish),
        "gelu": _gelu,
        "hardswish": plain(activations.hardswish),
        "hardsigmoid": plain(activations.hardsigmoid),
        "relu6": plain(activations.hardtanh, minimum=0.0, maximum=6.0),
        "hardtanh": _numbers(activations.hardtanh, minimum=-1.0, maximum=1.0),
        "leaky_relu": _numbers(activations.leaky_relu, negative_slope=0.01),
        "prelu": _prelu,
        "rrelu": _rrelu,
        "elu": _elu,
        "selu": lambda t, x: _elu(t, x, *SELU),
        "celu": lambda t, x, alpha=1.0: _elu(t, x, alpha, 1.0, 1.0 / alpha),
        "glu": _glu,
        "softplus": _numbers(softplus.softplus, beta=1.0, threshold=20.0),
        "log_sigmoid": plain(softplus.log_sigmoid),
        "threshold": _numbers(thresholds.threshold, threshold=0.0, value=0.0),
        "hardshrink": _numbers(thresholds.hardshrink, width=0.5),
        "softshrink": _numbers(thresholds.softshrink, width=0.5),
    }
)
