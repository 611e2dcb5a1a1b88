"""Rows that a mask of the step chooses, and what else everyday nets were refused for."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import policysearch
from benchmarks.census import measure
from benchmarks.census.everyday import mlp
from benchmarks.census.measure import verdict
from benchmarks.census.net import Inputs, Net, both, normal, whole
from policysearch.values import InputError

pytestmark = pytest.mark.torch

ROWS, MASKED = normal((5, 8)), both(normal((5, 8)), whole((2, (5,))))
CHOSEN = both(normal((5, 8)), whole((8, (5,))))


class Of(nn.Module):
    """A function of a net of rows, and of what is fed."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function, self.body, self.head = function, mlp(8, 8), nn.Linear(8, 8)

    def forward(self, *fed: Tensor) -> Any:
        return self.function(self, *fed)


def _classes(net: Any, x: Tensor, y: Tensor) -> Tensor:
    """Both masks are computed, the second anew; class 1 is left out besides."""
    logits = net.head(net.body(x)[y > 0])
    return F.cross_entropy(logits, y[y > 0], ignore_index=1, label_smoothing=0.1)


def _likelihood(net: Any, x: Tensor, y: Tensor) -> Tensor:
    keep, weight = y > 2, torch.arange(1.0, 9.0).to(x)
    return F.nll_loss(F.log_softmax(net.body(x)[keep], dim=-1), y[keep], weight)


def _infinite(net: Any, x: Tensor) -> Tensor:
    """What is not chosen has no logarithm: it has no part in any gradient."""
    y = net.body(x)
    return torch.log(y[y > 0]).mean() + torch.masked_select(y, y <= 0).exp().sum()


def _by_row(net: Any, x: Tensor, m: Tensor) -> Tensor:
    y, keep = net.body(x), m.bool()
    each = F.smooth_l1_loss(y[keep], x[keep], reduction="none").mean(-1)
    normed = F.layer_norm(y[keep], (8,)) * torch.linspace(0.5, 1.0, 8).to(x)
    return (
        each.mean() + F.mse_loss(y[keep], x[keep], reduction="sum") + normed.pow(2)[:, 1:3].mean()
    )


def _written(net: Any, x: Tensor) -> Tensor:
    y = net.body(x) * 1.0
    y[y > 0] *= 2.0
    z, keep = torch.zeros_like(y), x[..., 0] > 0
    z[keep] = torch.softmax(net.head(x)[keep], -1)
    return torch.as_tensor(net.head(y + z))


SELECTIONS: Mapping[str, tuple[Callable[..., Any], Inputs, str]] = {
    "classes": (_classes, CHOSEN, "own"),
    "likelihood": (_likelihood, CHOSEN, "own"),
    "what has no logarithm": (_infinite, ROWS, "own"),
    "by row": (_by_row, MASKED, "own"),
    "written back": (_written, ROWS, "token_cross_entropy"),
}


@pytest.mark.parametrize("name", SELECTIONS)
def test_a_selection_counts_what_its_mask_chooses(name: str) -> None:
    torch.set_num_threads(1)
    function, inputs, loss = SELECTIONS[name]
    of_net = verdict(Net(lambda: Of(function), inputs, loss))
    assert not of_net.refusal
    assert of_net.single is not None and of_net.single.within(3.0, 1e-6), of_net.single
    assert of_net.half is None or of_net.half.within(2.0, 1e-6), of_net.half


REFUSED: Mapping[str, tuple[Callable[..., Any], str]] = {
    "beside what is none": (
        lambda net, x: torch.cdist(net.body(x)[x[..., 0] > 0], net.body(x)[0]).sum(),
        "cdist: a selection whose size depends on values; keep all rows and multiply by the mask",
    ),
    "two masks": (
        lambda net, x: (net.body(x)[x > 0] * net.body(x)[x >= 0]).sum(),
        "mul: selections by two masks; keep all rows",
    ),
    "along the rows": (
        lambda net, x: net.body(x)[x > 0].softmax(0).sum(),
        "softmax: a selection along its rows; keep all rows",
    ),
    "the result": (
        lambda net, x: net.body(x)[x > 0],
        "model Of, result: as many rows as a mask chooses; keep all rows",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_needs_the_number_of_rows_is_refused(name: str) -> None:
    function, message = REFUSED[name]
    with pytest.raises(InputError, match=message) as refusal:
        loss = "token_cross_entropy" if name == "the result" else "own"
        policysearch.from_torch(Of(function), torch.randn(3, 5, 8), loss=loss)
    assert "\n" not in str(refusal.value)


class Late(nn.Module):
    """A buffer that the first forward registers, one part under two names, a causal mask."""

    bias: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.out = nn.Embedding(20, 8), nn.Linear(8, 20)
        self.layers = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 1
        )
        self.again = self.out

    def forward(self, ids: Tensor) -> Tensor:
        if not hasattr(self, "bias"):
            self.register_buffer("bias", torch.linspace(-1.0, 1.0, 8), persistent=False)
        mask = nn.Transformer.generate_square_subsequent_mask(ids.size(1))
        return torch.as_tensor(self.again(self.layers(self.embed(ids) + self.bias, mask=mask)))


def _numbers(net: Any, x: Tensor) -> Tensor:
    """A logarithm and pairs of the batch, one row of weights, a variance that torch checks."""
    count = len(x)
    y = F.linear(net.body(x[:, 0]), torch.linspace(-1.0, 1.0, 8).to(x))
    pairs = (y[:, None] - y[None, :]).square().sum() / (count * (count - 1))
    filled = torch.full_like(y, -0.5) + x.new_full((count,), 0.3)
    mutual = torch.logsumexp(y * filled, 0) - math.log(2.0) - math.log(count)
    return pairs + mutual + F.gaussian_nll_loss(y, x[:, 0, 0], torch.ones_like(y))


def _levels(net: Any, x: Tensor) -> Tensor:
    """What stands before the bytes has no gradient: torch's optimizers leave it alone."""
    levels = (net.body(x[:, 0]).sigmoid() * 255).round().to(torch.uint8) / 255.0
    return torch.as_tensor(net.head(levels).square().mean())


def _stages(net: Any, x: Tensor) -> Tensor:
    """Rows of an empty tensor are written one by one, as solvers do with their times."""
    y = torch.empty(2, len(x), 8, dtype=x.dtype)
    y[0] = hidden = net.body(x[:, 0])
    y[1] = net.head(hidden)
    return torch.as_tensor(y.square().mean())


def _recomputed(net: Any, x: Tensor) -> Tensor:
    """A layer that runs without gradients, and once more with them."""
    y = checkpoint(net.head, net.body(x[:, 0]).tanh(), use_reentrant=True)
    return torch.as_tensor(y.square().mean())


EVERYDAY: Mapping[str, tuple[Callable[[], Any], Inputs, str]] = {
    "registered late": (Late, whole((20, (6,))), "token_cross_entropy"),
    "numbers of the batch": (lambda: Of(_numbers), ROWS, "own"),
    "empty": (lambda: Of(_stages), ROWS, "own"),
    "recomputed": (lambda: Of(_recomputed), ROWS, "own"),
    "bytes": (lambda: Of(_levels), ROWS, "own"),
}


@pytest.mark.parametrize("name", EVERYDAY)
def test_an_everyday_net_is_as_in_torch(name: str) -> None:
    torch.set_num_threads(1)
    make, inputs, loss = EVERYDAY[name]
    of_net = verdict(Net(make, inputs, loss))
    assert not of_net.refusal
    assert of_net.single is not None and of_net.single.within(3.0, 1e-6), of_net.single
    # attention in bfloat16 is the subject of tests/test_attention_kernels.py
    assert name == "registered late" or (of_net.half and of_net.half.within(2.0, 1e-6))


def test_what_forward_registers_is_gone_after_the_import() -> None:
    net = Late()
    policysearch.from_torch(net, torch.zeros(2, 6, dtype=torch.long))
    assert not list(net.buffers()) and not hasattr(net, "bias")


def test_a_branch_of_the_users_own_stays_refused() -> None:
    def branch(net: Any, x: Tensor) -> Any:
        return net.body(x) if net.body(x).mean() > 0 else net.head(x)

    with pytest.raises(InputError, match="without branches on values"):
        policysearch.from_torch(Of(branch), torch.randn(2, 5, 8))


def test_the_yardstick_sees_a_gradient_that_is_off_by_little(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """However ReLUs at their edge move torch itself: it is no fault that all gradients share."""
    torch.set_num_threads(1)
    monkeypatch.setattr(measure, "_half", lambda *_: None)
    right = measure.emulated
    net = Net(_with_edges, normal((3, 8, 8)))
    assert _single(net).within(3.0, 1e-6)

    def broken(*arguments: Any) -> measure.Values:
        values = right(*arguments)
        name = next(iter(values.grads))
        return measure.Values(values.loss, {**values.grads, name: values.grads[name] * 1.0001})

    monkeypatch.setattr(measure, "emulated", broken)
    assert not _single(net).within(3.0, 1e-6)


def _with_edges() -> nn.Module:
    layers = (nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 5))
    return nn.Sequential(*layers)


def _single(net: Net) -> measure.Distance:
    found = verdict(net).single
    assert found is not None
    return found
