"""A user's autograd.Function goes in where its gradient is derived, or multiplies what enters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from benchmarks.census import net as census
from benchmarks.census.measure import verdict
from benchmarks.census.moved import Reversal
from policysearch.values import InputError
from tests.imported_steps import assert_as_torch, imported

pytestmark = pytest.mark.torch


class Swish(torch.autograd.Function):
    """x sigmoid(x), which keeps x alone for its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        share = torch.sigmoid(x)
        return grad * share * (1 + x * (1 - share))


class Mixed(torch.autograd.Function):
    """scale x y and x + y, with a context of its own function."""

    @staticmethod
    def forward(x: Any, y: Any, scale: float) -> Any:
        return scale * x * y, x + y

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, y, ctx.scale = inputs
        ctx.save_for_backward(x, y)

    @staticmethod
    def backward(ctx: Any, product: Any, total: Any) -> Any:
        x, y = ctx.saved_tensors
        return ctx.scale * product * y + total, ctx.scale * product * x + total, None


class First(torch.autograd.Function):
    """Twice the first of two, the second unread."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return 2 * grad, None


class Product(torch.autograd.Function):
    """A product whose second gradient is left out."""

    @staticmethod
    def forward(ctx: Any, x: Any, y: Any) -> Any:
        ctx.save_for_backward(x, y)
        return x * y

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad * ctx.saved_tensors[1], None


class Summed(torch.autograd.Function):
    """Sums of rows, whose gradient takes an axis for one of a single element."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        ctx.size = x.shape[1]
        return x.sum(1, keepdim=True)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad.expand(-1, ctx.size) / ctx.size


class Clipped(Swish):
    """Swish whose gradient is kept within 5."""

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return Swish.backward(ctx, grad).clamp(-5, 5)


class Straight(torch.autograd.Function):
    """Rounds, with the gradient of the identity."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.round()

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad


class Bounded(Straight):
    """Rounds, with the gradient of the identity, kept within 5."""

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad.clamp(-5, 5)


class Turned(Straight):
    """Rounds; each element gets the gradient of its neighbour."""

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad.roll(1, -1)


class Spike(torch.autograd.Function):
    """1 above 0, with the gradient of a fast sigmoid, as in spiking nets."""

    @staticmethod
    def forward(x: Any, slope: float) -> Any:
        return (x > 0).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        x, ctx.slope = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        (x,) = ctx.saved_tensors
        return grad / (ctx.slope * x.abs() + 1.0) ** 2, None


class Cast(Swish):
    """Swish in float32 wherever autocast runs it."""

    forward = staticmethod(
        torch.amp.custom_fwd(Swish.forward, device_type="cpu", cast_inputs=torch.float32)
    )


def _beside(x: Any, y: Any) -> Any:
    class Scaled(torch.autograd.Function):
        """x y, where only x is an argument: torch has no gradient for y."""

        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * y

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return grad * y

    return Scaled.apply(x)


class Net(nn.Module):
    """A function between two layers."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.function = function
        self.before, self.after = nn.Linear(6, 8), nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        hidden = self.before(x)
        return self.after(self.function(hidden, hidden.tanh()))


def _inputs() -> tuple[Any, ...]:
    return (np.random.default_rng(0).standard_normal((5, 6)).astype(np.float32),)


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: Swish.apply(x) + y,
        lambda x, y: sum(Mixed.apply(x, y, 0.7)),
        lambda x, y: First.apply(x, y),
        lambda x, y: Product.apply(x, y),
        lambda x, y: Straight.apply(x) + y,
        lambda x, y: Reversal.apply(x, 0.3) * y,
        lambda x, y: Spike.apply(y, 4.0) + x,
    ],
)
def test_a_function_whose_gradient_can_be_written_trains_as_in_torch(
    function: Callable[[Any, Any], Any],
) -> None:
    assert_as_torch(Net(function), _inputs())


@pytest.mark.parametrize(
    "function",
    [
        lambda x, y: Summed.apply(y[:, :1]) + Summed.apply(x),
        lambda x, y: Swish.apply(y) + Swish.apply((x > 0).long()),
        lambda x, y: Clipped.apply(x),
        lambda x, y: Bounded.apply(x) + y,
        lambda x, y: Straight.apply(x[:, :1]) + Turned.apply(x) + y,
        lambda x, y: Cast.apply(x),
        _beside,
    ],
)
def test_a_gradient_that_cannot_be_written_is_refused(
    function: Callable[[Any, Any], Any],
) -> None:
    with pytest.raises(InputError, match=r"autograd.Function \w+: a gradient of its own"):
        imported(Net(function), _inputs())


@pytest.mark.parametrize(
    "function",
    [lambda x, y: Straight.apply(x) + y, lambda x, y: Reversal.apply(x, 0.3) * y],
)
def test_a_number_that_multiplies_a_gradient_is_not_rounded(
    function: Callable[[Any, Any], Any],
) -> None:
    torch.set_num_threads(1)
    half = verdict(census.Net(lambda: Net(function), census.normal((6,)), "token_cross_entropy"))
    assert half.half is not None and half.half.within(2.0, 1e-6), half
