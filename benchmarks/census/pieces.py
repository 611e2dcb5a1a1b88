"""Single ops, losses and layers of everyday nets, each in a small net of its own.

The ops are one expression each of `h` [batch, 4, 8] and the module, the losses of `h` and the input
`x`, so that a table by name says which go in.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.net import Net, normal

ROWS, WIDTH, CLASSES = 4, 8, 5

Does = Callable[[Tensor, Any], Tensor]


class Piece(nn.Module):
    """A linear, the piece, and a linear on whatever shape it leaves."""

    def __init__(self, does: Does) -> None:
        super().__init__()
        self.first, self.does = nn.Linear(WIDTH, WIDTH), does
        self.weight, self.slope = nn.Parameter(torch.rand(WIDTH)), nn.Parameter(torch.rand(1))
        with torch.no_grad():
            left = does(self.first(torch.randn(2, ROWS, WIDTH)), self).flatten(1).shape[1]
        self.last = nn.Linear(left, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.does(self.first(x), self).flatten(1))


class Loss(nn.Module):
    """A linear and a loss of its result and its input."""

    def __init__(self, does: Does) -> None:
        super().__init__()
        self.first, self.does = nn.Linear(WIDTH, WIDTH), does

    def forward(self, x: Tensor) -> Tensor:
        return self.does(self.first(x), x)


class Layer(nn.Module):
    """A linear, a layer of torch, and a linear on the last step of its result."""

    def __init__(self, layer: nn.Module, result: Callable[[Any], Tensor] = lambda y: y) -> None:
        super().__init__()
        self.first, self.layer, self.result = nn.Linear(WIDTH, WIDTH), layer, result
        self.last = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.result(self.layer(self.first(x))))


class Stepping(nn.Module):
    """A recurrent cell, stepped through by hand."""

    def __init__(self, cell: nn.Module, states: int) -> None:
        super().__init__()
        self.cell, self.states, self.last = cell, states, nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        zeros = x.new_zeros(len(x), WIDTH)
        state: Any = (zeros, zeros) if self.states == 2 else zeros
        for step in x.unbind(1):
            state = self.cell(step, state)
        return self.last(state[0] if self.states == 2 else state)


def _ids(x: Tensor) -> Tensor:
    """Return [batch, ROWS] whole numbers 0 to 3 that no gradient goes through."""
    return torch.arange(ROWS).repeat(len(x), 1)


POINTWISE: Mapping[str, Does] = MappingProxyType(
    {
        "clamp": lambda h, m: h.clamp(-0.5, 0.5),
        "log": lambda h, m: (h.abs() + 1).log(),
        "log_softmax": lambda h, m: F.log_softmax(h, 1),
        "softplus": lambda h, m: F.softplus(h),
        "hardsigmoid": lambda h, m: F.hardsigmoid(h),
        "hardswish": lambda h, m: F.hardswish(h),
        "elu": lambda h, m: F.elu(h),
        "selu": lambda h, m: F.selu(h),
        "mish": lambda h, m: F.mish(h),
        "glu": lambda h, m: F.glu(h),
        "prelu": lambda h, m: F.prelu(h, m.slope),
        "softsign": lambda h, m: F.softsign(h),
        "logsigmoid": lambda h, m: F.logsigmoid(h),
        "threshold": lambda h, m: F.threshold(h, 0.1, 0.2),
        "abs": lambda h, m: h.abs(),
        "max": lambda h, m: h.max(1).values,
        "amax": lambda h, m: h.amax(1),
        "min": lambda h, m: h.min(1).values,
        "maximum": lambda h, m: torch.maximum(h, h.flip(1)),
        "minimum": lambda h, m: torch.minimum(h, h.flip(1)),
        "sin": lambda h, m: h.sin(),
        "cos": lambda h, m: h.cos(),
        "erf": lambda h, m: h.erf(),
        "repeat": lambda h, m: h.repeat(1, 2, 1),
        "einsum": lambda h, m: torch.einsum("bij,bkj->bik", h, h),
        "baddbmm": lambda h, m: torch.baddbmm(h[:, :, :4], h, h.transpose(1, 2)),
        "reshape_as": lambda h, m: h.transpose(1, 2).reshape_as(h),
        "new_zeros": lambda h, m: h + h.new_zeros(ROWS, 1),
        "cumsum": lambda h, m: h.cumsum(1),
        "std": lambda h, m: h.std(2),
        "var": lambda h, m: h.var(2),
        "F.normalize": lambda h, m: F.normalize(h, dim=-1),
        "softmax, axis 1": lambda h, m: h.softmax(1),
        "ids == 0": lambda h, m: h.masked_fill((_ids(h) == 0)[..., None], 0.0),
        "ne": lambda h, m: h * _ids(h).ne(1)[..., None],
        "logical_not": lambda h, m: h.masked_fill(~(_ids(h) > 1)[..., None], -1.0),
        "pad, constant": lambda h, m: F.pad(h, (1, 2)),
        "pad, reflect": lambda h, m: F.pad(h, (1, 2), mode="reflect"),
        "pad, replicate": lambda h, m: F.pad(h, (1, 2), mode="replicate"),
        "pad, circular": lambda h, m: F.pad(h, (1, 2), mode="circular"),
        "gather": lambda h, m: h.gather(1, _ids(h)[..., None].expand(-1, -1, WIDTH)),
        "index, constant": lambda h, m: h[:, torch.tensor([0, 2, 2])],
        "index_select": lambda h, m: h.index_select(2, torch.tensor([1, 1, 3])),
        "scatter_add": lambda h, m: torch.zeros_like(h).scatter_add(
            1, (_ids(h)[..., None] // 2).expand_as(h), h
        ),
        "index_add": lambda h, m: h.index_add(1, torch.tensor([0, 0]), h[:, :2]),
        "upsample_nearest": lambda h, m: F.interpolate(h, scale_factor=2),
        "upsample_bilinear": lambda h, m: F.interpolate(
            h[:, None], scale_factor=2, mode="bilinear"
        ),
        "adaptive_max_pool": lambda h, m: F.adaptive_max_pool2d(h[:, None], 2),
        "view_as_complex": lambda h, m: torch.view_as_real(
            torch.view_as_complex(h.reshape(-1, ROWS, 4, 2)) * torch.polar(*torch.ones(2, 4))
        ),
        "detach": lambda h, m: h - h.detach().mean(),
        "topk": lambda h, m: h.topk(3).values,
        "sort": lambda h, m: h.sort(1).values,
        "scatter": lambda h, m: torch.zeros_like(h).scatter(2, h.topk(2).indices, h[..., :2]),
        "randn_like": lambda h, m: h + torch.randn_like(h) * m.weight,
        "arange of the batch": lambda h, m: h + torch.arange(len(h))[:, None, None] * m.weight,
    }
)

LOSSES: Mapping[str, Does] = MappingProxyType(
    {
        "binary cross entropy": lambda h, x: F.binary_cross_entropy(h.sigmoid(), x.sigmoid()),
        "binary cross entropy with logits": lambda h, x: F.binary_cross_entropy_with_logits(
            h, x.sigmoid()
        ),
        "cross entropy, weighted": lambda h, x: F.cross_entropy(
            h.flatten(0, 1), x.argmax(-1).flatten(), weight=torch.arange(1.0, WIDTH + 1)
        ),
        "cross entropy, soft targets": lambda h, x: F.cross_entropy(
            h.mean(1), x.mean(1).softmax(1)
        ),
        "cross entropy, summed": lambda h, x: F.cross_entropy(
            h.mean(1), x.mean(1).argmax(1), reduction="sum"
        ),
        "cross entropy, [b, c, h, w]": lambda h, x: F.cross_entropy(
            h[..., None], x[..., None].argmax(1)
        ),
        "cross entropy, label smoothing": lambda h, x: F.cross_entropy(
            h.mean(1), x.mean(1).argmax(1), label_smoothing=0.1
        ),
        "nll": lambda h, x: F.nll_loss(F.log_softmax(h.mean(1), 1), x.mean(1).argmax(1)),
        "smooth l1": lambda h, x: F.smooth_l1_loss(h, x),
        "huber": lambda h, x: F.huber_loss(h, x, delta=0.5),
        "l1": lambda h, x: F.l1_loss(h, x),
        "kl": lambda h, x: F.kl_div(h.log_softmax(-1), x.softmax(-1), reduction="batchmean"),
        "cosine embedding": lambda h, x: F.cosine_embedding_loss(
            h[:, 0], h[:, 1], x[:, 0, 0].sign()
        ),
        "triplet": lambda h, x: F.triplet_margin_loss(h[:, 0], h[:, 1], x[:, 2]),
        "ctc": lambda h, x: F.ctc_loss(
            h.transpose(0, 1).log_softmax(-1),
            torch.tensor([[1, 2]]).repeat(len(x), 1),
            torch.full((len(x),), ROWS),
            torch.full((len(x),), 2),
        ),
    }
)

LAYERS: Mapping[str, Callable[[], nn.Module]] = MappingProxyType(
    {
        "GRU": lambda: Layer(nn.GRU(WIDTH, WIDTH, batch_first=True), lambda y: y[0][:, -1]),
        "RNN": lambda: Layer(nn.RNN(WIDTH, WIDTH, batch_first=True), lambda y: y[0][:, -1]),
        "LSTM, projected": lambda: Layer(
            nn.LSTM(WIDTH, 12, proj_size=WIDTH, batch_first=True), lambda y: y[0][:, -1]
        ),
        "LSTMCell": lambda: Stepping(nn.LSTMCell(WIDTH, WIDTH), 2),
        "GRUCell": lambda: Stepping(nn.GRUCell(WIDTH, WIDTH), 1),
        "packed lengths": lambda: Layer(_Packed(), lambda y: y[:, -1]),
        "conv3d": lambda: Layer(
            nn.Sequential(nn.Unflatten(1, (1, 2, 2)), nn.Conv3d(1, 2, 2)),
            lambda y: y.flatten(1)[:, :WIDTH],
        ),
        "conv1d, dilated groups": lambda: Layer(
            nn.Conv1d(ROWS, ROWS, 3, padding=2, dilation=2, groups=2), lambda y: y[:, -1]
        ),
        "spectral norm": lambda: Layer(
            nn.utils.parametrizations.spectral_norm(nn.Linear(WIDTH, WIDTH)), lambda y: y[:, -1]
        ),
        "embedding bag": lambda: Layer(_Bag(), lambda y: y),
        "mixture of experts": lambda: Layer(_Experts(), lambda y: y[:, -1]),
    }
)


class _Packed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        lengths = torch.full((len(x),), ROWS - 1)
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True)
        return nn.utils.rnn.pad_packed_sequence(self.gru(packed)[0], batch_first=True)[0]


class _Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(ROWS, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.bag(_ids(x)) * x.mean(1)


class _Experts(nn.Module):
    """Two of four experts for each row, weighted by a softmax over the two."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(WIDTH, 4)
        self.experts = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        top, chosen = self.router(x).topk(2)
        shares = torch.zeros(*x.shape[:2], 4).scatter(2, chosen, top.softmax(-1))
        made = torch.stack([expert(x) for expert in self.experts], 2)
        return (made * shares[..., None]).sum(2)


def _op(does: Does) -> Net:
    return Net(lambda: Piece(does), normal((ROWS, WIDTH)))


def _loss(does: Does) -> Net:
    return Net(lambda: Loss(does), normal((ROWS, WIDTH)), loss="own")


NETS: Mapping[str, Net] = MappingProxyType(
    {
        **{f"op {name}": _op(does) for name, does in POINTWISE.items()},
        **{f"loss {name}": _loss(does) for name, does in LOSSES.items()},
        **{f"layer {name}": Net(make, normal((ROWS, WIDTH))) for name, make in LAYERS.items()},
    }
)
