"""The order in which torch sums the gradients of a value in 16 bits, where one op reads it twice.

A third reader shows it: of two addends there is but one sum. And what is changed in place by a
value of float32, which torch rounds in its gradient only once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.measure import verdict
from benchmarks.census.net import Net, normal

pytestmark = pytest.mark.torch

TWICE: Mapping[str, Callable[[Any, Tensor], Tensor]] = {
    "joined": lambda net, h: F.glu(torch.cat([h, h], -1)),
    "stacked": lambda net, h: (torch.stack([h, h], -1) * torch.tensor([0.3, 0.9])).sum(-1),
    "added to a product": lambda net, h: torch.addcmul(h, h, net.weight),
    "added to a quotient": lambda net, h: torch.addcdiv(h, h, net.weight.abs() + 1),
    "on the way to itself": lambda net, h: torch.lerp(h, 0.5 * h, h),
    "a product with itself": lambda net, h: (h @ h.mT) @ h,
    "in a stack": lambda net, h: torch.bmm(torch.bmm(h, h.mT), h),
    "views of it": lambda net, h: h.view(-1, 8).view_as(h) * h.mT.mT + h,
    "its halves": lambda net, h: torch.cat([h[..., :4] * h[..., 4:], h[..., 2:6]], -1) * h,
    "a share of it added": lambda net, h: torch.add(h, h, alpha=0.3),
    "added to in place": lambda net, h: h * net.weight + (2 * h).add_(h * net.weight),
    "changed in place": lambda net, h: (h * 1).mul_(net.weight),
}
"""What reads a value more than once, all of them beside one more product."""


class Twice(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 8), nn.Linear(8, 5)
        self.weight, self.function = nn.Parameter(torch.randn(8)), TWICE[name]

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        return torch.as_tensor(self.last(self.function(self, h) * h))


@pytest.mark.parametrize("name", TWICE)
def test_gradients_are_summed_in_the_order_of_torch(name: str) -> None:
    torch.set_num_threads(1)
    found = verdict(Net(lambda: Twice(name), normal((4, 6))))
    assert found.single is not None and found.single.within(3.0, 1e-6), found
    assert found.half is not None and found.half.within(2.0, 1e-6), found
