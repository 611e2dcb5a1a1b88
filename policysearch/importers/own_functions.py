"""A user's `autograd.Function`: whether its gradient is the derivative of what it computes.

torch.export reads its forward pass alone. Where its backward pass says the same as torch would
derive, as those that save memory do, nothing is lost by that; a reversed or straight-through
gradient would be.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any
from unittest import mock

import torch
from torch.autograd.graph import _engine_run_backward
from torch.utils._python_dispatch import _disable_current_modes

SCALES = (1e-2, 1.0, 30.0)
"""Of values and of the gradients that enter: a bound on either shows at one of them."""

SAME = 1e-6
"""Largest difference in float64, of the largest gradient: constants are written to eight digits."""

PLAIN = (type(None), bool, int, float, str)

_apply: Any = torch.autograd.Function.__dict__["apply"]
"""A descriptor: a classmethod, since torch 2.14 one of C."""


class _Context:
    """What a forward pass calls on its context. Nothing that it keeps is read here.

    `mark_dirty` is not there: what changes its arguments in place raises.
    """

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self.needs_input_grad = tuple(isinstance(x, torch.Tensor) for x in arguments)

    def save_for_backward(self, *_: Any) -> None:
        return

    def mark_non_differentiable(self, *_: Any) -> None:
        return

    def set_materialize_grads(self, _: bool) -> None:
        return


def applied(function: Any, *arguments: Any, **options: Any) -> Any:
    """Return what the function gives, by its own apply: with the gradient it states."""
    return _apply.__get__(None, function)(*arguments, **options)


def written_out(function: Any, arguments: tuple[Any, ...]) -> Any:
    """Return what the function's forward pass gives, written where it is applied."""
    if function.setup_context is torch.autograd.Function.setup_context:
        return function.forward(_Context(arguments), *arguments)
    return function.forward(*arguments)


def kind(function: Any, arguments: tuple[Any, ...]) -> Hashable:
    """Return what two calls of a function have alike that need one answer of `derives` alone.

    Sizes are no part of it, which would ask of large ones for seconds, but where they are 1: what
    is summed or spread along such an axis shows nothing.
    """

    def alike(x: Any) -> Hashable:
        if isinstance(x, torch.Tensor):
            return x.dtype, tuple(size == 1 for size in x.shape)
        return repr(x)

    return function, tuple(map(alike, arguments))


def derives(function: Any, arguments: tuple[Any, ...]) -> bool:
    """Return whether the function states the gradient that torch derives of its forward pass.

    Both are taken in float64, at drawn values and drawn gradients of its results, of several
    scales. False as well where that cannot be told: other arguments than tensors of floating point
    and plain values, casts for autocast, values that are not finite, a forward that raises.
    """
    plain = all(isinstance(x, PLAIN) or _is_float(x) for x in arguments)
    if not plain or hasattr(function.forward, "__wrapped__"):  # custom_fwd
        return False
    generator = torch.Generator().manual_seed(0)
    try:
        with (
            _disable_current_modes(),
            torch._C.DisableTorchFunction(),
            mock.patch.object(torch.autograd, "_engine_run_backward", _engine_run_backward),
            torch.enable_grad(),
        ):
            return all(_agrees(function, arguments, scale, generator) for scale in SCALES)
    except Exception:  # the user's code, at values that it did not expect
        return False


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


def _agrees(function: Any, arguments: tuple[Any, ...], scale: float, generator: Any) -> bool:
    def draw(like: Any) -> Any:
        return scale * torch.randn(tuple(like.shape), generator=generator, dtype=torch.float64)

    values = tuple(draw(x).requires_grad_() if _is_float(x) else x for x in arguments)
    leaves = [x for x in values if _is_float(x)]
    stated, derived = applied(function, *values), written_out(function, values)
    pairs = list(zip(_results(stated), _results(derived), strict=True))
    entering = [draw(x) for x, _ in pairs]
    gradients = [
        torch.autograd.grad(results, leaves, entering, allow_unused=True, materialize_grads=True)
        for results in zip(*pairs, strict=True)
    ]
    return all(_close(a, b) for a, b in [*pairs, *zip(*gradients, strict=True)])


def _results(result: Any) -> list[Any]:
    return list(result) if isinstance(result, tuple) else [result]


def _close(a: Any, b: Any) -> bool:
    finite = bool(torch.isfinite(a).all() and torch.isfinite(b).all())
    return finite and bool((a - b).abs().max() <= SAME * b.abs().max())
