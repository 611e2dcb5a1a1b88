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


def _under_autocast(x: Any) -> Any:
    with torch.autocast("cpu", torch.bfloat16):
        return x * 2.0


def _hooked(x: Any) -> Any:
    y = x * 2.0
    y.register_hook(lambda grad: 0.1 * grad)
    return y


class Clipped(torch.autograd.Function):
    """The identity, whose gradient is kept within 1."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, grad: Any) -> Any:
        return grad.clamp(-1.0, 1.0)


def _changed_windows(x: Any) -> Any:
    y = x * 2.0
    y.unfold(1, 2, 2).add_(1.0)
    return y


def _changed_diagonal(x: Any) -> Any:
    y = x * 2.0
    y.diagonal(1, 1, 2).add_(1.0)
    return y


REFUSED: dict[str, tuple[Function, str]] = {
    "a power of batches": (lambda x: x * len(x) ** 3, r"mul: 8 with 2 examples, 125 with 5"),
    "half a batch": (lambda x: x + x[len(x) // 2 :][:1], r"slice: 1 with 2 examples, 2 with 5"),
    "a constant of the batch": (
        lambda x: x * torch.tensor([1.0 / len(x)]),
        r"constant \S+: differs from example to example, with their number or from run to run",
    ),
    "a random number": (
        lambda x: x * random.random(),
        r"forward draws from random or numpy, and computes with that; expected torch to draw",
    ),
    "a format of one's own": (lambda x: x.half().float(), r"a cast to torch.float16; leave it out"),
    "counted rows": (
        lambda x: F.embedding(torch.arange(6) % 4, x[0], scale_grad_by_freq=True) * x[:, :1],
        r"scale_grad_by_freq; leave it out",
    ),
    "a division by zero": (lambda x: x / 0, r"div: float division by zero; expected what the rule"),
    "decimals": (lambda x: x.round(decimals=1), r"round: decimals 1; round to whole numbers"),
    "a base of 0": (lambda x: 0.0**x, r"pow: powers of 0.0; use a number above 0"),
    "slopes drawn at random": (
        lambda x: F.rrelu(x, training=True),
        r"rrelu: slopes drawn at random; use leaky_relu",
    ),
    "bits": (
        lambda x: x * ((x > 0).long() & 2),
        r"__and__: bits of whole numbers; compute them before, as an int64 input",
    ),
    "a part in place": (
        _changed_windows,
        r"add_: changes what another view reads later; write it out of place",
    ),
    "another diagonal": (
        _changed_diagonal,
        r"values on a diagonal; write them by a mask: torch.where",
    ),
    "a selection": (
        lambda x: x * x[:, x[0, :, 0] > 0].sum(),
        r"index: a selection whose size depends on values; keep all rows and multiply by the mask",
    ),
    "places": (
        lambda x: x * x.argmax(-1).nonzero().sum(),
        r"nonzero: places of several axes in one tensor",
    ),
    "values by a mask": (
        lambda x: x.masked_scatter(MASK, x * x),
        r"masked_scatter: a selection whose size depends on values; keep .* choose by torch.where",
    ),
    "bags that are fed": (
        lambda x: F.embedding_bag(torch.arange(6), x[0].T, x[0].long().flatten()[:2] * 0).sum() * x,
        r"embedding_bag: bags that are fed; give numbers \[batch, size of a bag\], and a padding",
    ),
    "products at places": (
        lambda x: x.scatter_reduce(1, MASK.long()[None].expand(len(x), 4, 6), x, "prod"),
        r"scatter_reduce: reduce 'prod'; use sum, mean, amax or amin",
    ),
    "complex numbers": (
        lambda x: torch.view_as_real(torch.complex(x, x).tanh()),
        r"tanh: complex numbers; compute it of their real and imag parts",
    ),
    "a draw by weights": (lambda x: x * x[0].exp().multinomial(1), r"multinomial: no rule for"),
    "autocast": (_under_autocast, r"wrap_with_autocast: .* leave it out: formats are the policy's"),
    "a gradient of one's own": (lambda x: Clipped.apply(x), r"autograd.Function Clipped: a grad"),
    "a hook on a tensor": (_hooked, r"Tensor.register_hook in forward: expected the gradients"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_would_be_wrong_is_refused(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(InputError, match=message):
        imported(Of(ROWS, function), (np.zeros((2, 24), np.float32),))
