"""What an import cannot say as torch does is refused, with the op and what to do."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch.nn import functional as F

from policysearch.values import InputError
from tests.imported_steps import imported
from tests.test_import_rules import MASK, ROWS, Function, Of

pytestmark = pytest.mark.torch


def _without_gradients(x: Any) -> Any:
    with torch.no_grad():
        return x * 2.0


def _under_autocast(x: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return x * 2.0


def _hooked(x: Any) -> Any:
    y = x * 2.0
    y.register_hook(lambda grad: 0.1 * grad)
    return y


class Reversed(torch.autograd.Function):
    """The identity, with another gradient."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return -grad


def _changed_below(x: Any) -> Any:
    y = x * 2.0
    y[:, 0].add_(1.0)
    return y


def _changed_above(x: Any) -> Any:
    y = x * 2.0
    part = y.mT
    y.relu_()
    return part * 1.5


REFUSED: dict[str, tuple[Function, str]] = {
    "a stop of gradients": (lambda x: x * x.detach(), r"detach: a stop of gradients; leave it out"),
    "trained targets": (lambda x: x * F.mse_loss(x, x * x), r"mse_loss: values .* on parameters"),
    "shares": (lambda x: x * F.cross_entropy(x[0], x[1]), r"targets \[4, 6\]; give class numbers"),
    "a sum": (lambda x: x * F.mse_loss(x, x, reduction="sum"), r"mse_loss: a sum; use the mean"),
    "an inner softmax": (lambda x: x.softmax(1), r"softmax over axis 1; move that axis"),
    "rounding": (lambda x: torch.div(x, 2.0, rounding_mode="floor"), r"rounding_mode 'floor'"),
    "a trained exponent": (lambda x: x.exp() ** x, r"pow: an exponent that is a tensor"),
    "a trained fill": (lambda x: x.masked_fill(MASK, x[0, 0, 0]), r"a fill value that is a tensor"),
    "a part in place": (_changed_below, r"add_: changes what another view reads later; write it"),
    "a whole in place": (_changed_above, r"relu_: changes what another view reads later"),
    "a number of the batch": (lambda x: x * (1.0 / len(x)), r"mul: 0.5 with 2 examples, 0.2 with"),
    "a product of batches": (lambda x: x * (len(x) * len(x)), r"mul: 4 with 2 examples, 25 with 5"),
    "half a batch": (lambda x: x + x[len(x) // 2 :][:1], r"slice: 1 with 2 examples, 2 with 5"),
    "a constant of the batch": (
        lambda x: x * torch.tensor([1.0 / len(x)]),
        r"constant \S+: differs from example to example, with their number or from run to run",
    ),
    "a random constant": (lambda x: x * torch.rand(6), r"aten.rand: no rule for this op"),
    "a random number": (
        lambda x: x * random.random(),
        r"mul: 0\.\d+ with 2 examples, .* random",
    ),
    "rounding to whole": (
        lambda x: x.long() * x,
        r"to: whole numbers made of floats; give",
    ),
    "a format of one's own": (lambda x: x.half().float(), r"a cast to torch.float16; leave it out"),
    "counted rows": (
        lambda x: F.embedding(torch.arange(6) % 4, x[0], scale_grad_by_freq=True) * x[:, :1],
        r"scale_grad_by_freq; leave it out",
    ),
    "a division by zero": (lambda x: x / 0, r"div: float division by zero; expected what the rule"),
    "no gradients": (_without_gradients, r"wrap_with_set_grad_enabled: .* requires_grad_\(False\)"),
    "autocast": (_under_autocast, r"wrap_with_autocast: .* leave it out: formats are the policy's"),
    "a gradient of one's own": (lambda x: Reversed.apply(x), r"autograd.Function Reversed: a grad"),
    "a hook on a tensor": (_hooked, r"Tensor.register_hook in forward: expected the gradients"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_wrong_is_refused(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        imported(Of(ROWS, function), (np.zeros((2, 24), np.float32),))
