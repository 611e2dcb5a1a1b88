"""A user's `autograd.Function`: what its backward pass states, in calls that torch derives alike.

torch.export reads its forward pass alone. Where its backward pass says the same as torch would
derive, as those that save memory do, nothing is lost by that. Where it multiplies what enters, as
reversed, straight-through and surrogate gradients do, calls with that gradient are written instead.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
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
    """What a forward pass calls on its context, and what a backward pass reads of it.

    `mark_dirty` is not there: what changes its arguments in place raises.
    """

    def __init__(self, arguments: tuple[Any, ...]) -> None:
        self.needs_input_grad = tuple(isinstance(x, torch.Tensor) for x in arguments)
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def mark_non_differentiable(self, *_: Any) -> None:
        return

    def set_materialize_grads(self, _: bool) -> None:
        return


@dataclass(frozen=True)
class Stated:
    """The gradient that a function states: by default that which torch derives.

    Else the argument at `place`, of the shape of the result, gets what enters times `factor`, or
    where that is None times what the backward pass makes of ones.
    """

    place: int | None = None
    factor: float | None = None


DERIVED = Stated()


def applied(function: Any, *arguments: Any, **options: Any) -> Any:
    """Return what the function gives, by its own apply: with the gradient it states."""
    return _apply.__get__(None, function)(*arguments, **options)


def written_out(function: Any, arguments: tuple[Any, ...], stated: Stated = DERIVED) -> Any:
    """Return what the function's forward pass gives, written where it is applied.

    Its gradient is the stated one: x - x is 0 and has the gradient of x.
    """
    context = _Context(arguments)
    if function.setup_context is torch.autograd.Function.setup_context:
        result = function.forward(context, *arguments)
    else:
        result = function.forward(*arguments)
        function.setup_context(context, arguments, result)
    if stated.place is None:
        return result
    x, factor = arguments[stated.place], stated.factor
    if factor is None:
        with torch.no_grad():
            factor = _tuple(function.backward(context, torch.ones_like(x)))[stated.place]
    return result.detach() + (x - x.detach()) * factor


def kind(function: Any, arguments: tuple[Any, ...]) -> Hashable:
    """Return what two calls of a function have alike that need one answer of `stated` alone.

    Sizes are no part of it, which would ask of large ones for seconds, but where they are 1: what
    is summed or spread along such an axis shows nothing.
    """

    def alike(x: Any) -> Hashable:
        if isinstance(x, torch.Tensor):
            return x.dtype, tuple(size == 1 for size in x.shape)
        return repr(x)

    return function, tuple(map(alike, arguments))


def stated(function: Any, arguments: tuple[Any, ...]) -> Stated | None:
    """Return the gradient that the function states, None where it is no such one.

    It is taken in float64, at drawn values and drawn gradients of its results, of several scales.
    None as well where it cannot be told: other arguments than tensors of floating point and plain
    values, casts for autocast, values that are not finite, a forward that raises.
    """
    plain = all(isinstance(x, PLAIN) or _is_float(x) for x in arguments)
    if not plain or hasattr(function.forward, "__wrapped__"):  # custom_fwd
        return None
    places = [place for place, x in enumerate(arguments) if _is_float(x)]
    with (
        _disable_current_modes(),
        torch._C.DisableTorchFunction(),
        mock.patch.object(torch.autograd, "_engine_run_backward", _engine_run_backward),
        torch.enable_grad(),
    ):
        for form in (DERIVED, *(Stated(place) for place in places)):
            if _agrees_at_all_scales(function, arguments, form):
                return form if form.place is None else _with_a_number(function, arguments, form)
    return None


def _agrees_at_all_scales(function: Any, arguments: tuple[Any, ...], form: Stated) -> bool:
    generator = torch.Generator().manual_seed(0)
    try:
        return all(_agrees(function, arguments, form, scale, generator) for scale in SCALES)
    except Exception:  # the user's code, at values that it did not expect
        return False


def _with_a_number(function: Any, arguments: tuple[Any, ...], form: Stated) -> Stated:
    """Return the form with the factor as a number where it is one: nothing rounds that."""
    generator, factors = torch.Generator().manual_seed(0), list[Any]()
    for scale in SCALES:
        values = _drawn(arguments, scale, generator)
        result = applied(function, *values)
        x = values[form.place or 0]
        factors.append(torch.autograd.grad(result, x, torch.ones_like(result))[0].flatten())
    first = float(factors[0][0])
    alike = all(bool((each == first).all()) for each in factors)
    return replace(form, factor=first) if alike else form


def _is_float(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype.is_floating_point


def _drawn(arguments: tuple[Any, ...], scale: float, generator: Any) -> tuple[Any, ...]:
    """Return arguments whose tensors are drawn, in float64."""
    return tuple(
        _normal(x, scale, generator).requires_grad_() if _is_float(x) else x for x in arguments
    )


def _normal(like: Any, scale: float, generator: Any) -> Any:
    return scale * torch.randn(tuple(like.shape), generator=generator, dtype=torch.float64)


def _agrees(
    function: Any, arguments: tuple[Any, ...], form: Stated, scale: float, generator: Any
) -> bool:
    values = _drawn(arguments, scale, generator)
    leaves = [x for x in values if _is_float(x)]
    own, written = applied(function, *values), written_out(function, values, form)
    pairs = list(zip(_tuple(own), _tuple(written), strict=True))
    entering = [_normal(x, scale, generator) for x, _ in pairs]
    gradients = [
        torch.autograd.grad(results, leaves, entering, allow_unused=True, materialize_grads=True)
        for results in zip(*pairs, strict=True)
    ]
    return all(_close(a, b) for a, b in [*pairs, *zip(*gradients, strict=True)])


def _tuple(result: Any) -> tuple[Any, ...]:
    return result if isinstance(result, tuple) else (result,)


def _close(a: Any, b: Any) -> bool:
    finite = bool(torch.isfinite(a).all() and torch.isfinite(b).all())
    return finite and bool((a - b).abs().max() <= SAME * b.abs().max())
