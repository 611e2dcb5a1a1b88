"""Nets of sound, time series, sequences and edges, as their users write them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from benchmarks.census.everyday import mlp, of
from benchmarks.census.net import Net, both, normal, uniform, whole

WIDTH, CLASSES, TIME, WORDS, NODES, EDGES = 8, 4, 8, 20, 6, 14


def lengths(generator: torch.Generator, batch: int) -> tuple[Tensor, ...]:
    """Draws lengths of which the first is the longest there is."""
    drawn = torch.randint(2, TIME + 1, (batch,), generator=generator)
    drawn[0] = TIME
    return (drawn.sort(descending=True)[0],)


class ConvTasNet(nn.Module):
    """Masks on a learnt filterbank, judged by SI-SNR of the better permutation (Luo 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.norm = (
            nn.Conv1d(1, WIDTH, 4, 2, bias=False),
            nn.GroupNorm(1, WIDTH, 1e-8),
        )
        self.dw, self.act = (
            nn.Conv1d(WIDTH, WIDTH, 3, padding=2, dilation=2, groups=WIDTH),
            nn.PReLU(),
        )
        self.mask = nn.Conv1d(WIDTH, 2 * WIDTH, 1)
        self.decoder = nn.ConvTranspose1d(WIDTH, 1, 4, 2, bias=False)

    def forward(self, x: Tensor, sources: Tensor) -> Tensor:
        w = self.encoder(x.unsqueeze(1))
        m = torch.sigmoid(self.mask(self.norm(self.act(self.dw(w))))).view(x.size(0), 2, WIDTH, -1)
        made = self.decoder((w.unsqueeze(1) * m).flatten(0, 1)).view(x.size(0), 2, -1)
        made, sources = made - made.mean(-1, keepdim=True), sources - sources.mean(-1, keepdim=True)
        s, e = sources.unsqueeze(1), made.unsqueeze(2)
        target = (e * s).sum(-1, keepdim=True) * s / (s.pow(2).sum(-1, keepdim=True) + 1e-8)
        snr = 10 * torch.log10(target.pow(2).sum(-1) / ((e - target).pow(2).sum(-1) + 1e-8) + 1e-8)
        perms = torch.tensor([[0, 1], [1, 0]])
        one_hot = torch.zeros(2, 2, 2).scatter_(2, perms.unsqueeze(2), 1)
        scores = torch.einsum("bij,pij->bp", snr, one_hot)
        return -scores.max(dim=1)[0].mean() / 2


class Conformer(nn.Module):
    """A block with GLU, depthwise convolution and relative positions by a shift (Gulati 2020)."""

    def __init__(self, heads: int = 2) -> None:
        super().__init__()
        self.heads, self.dim = heads, WIDTH // heads
        self.qkv, self.pos = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH, bias=False)
        self.u, self.v = (nn.Parameter(torch.randn(heads, self.dim) * 0.2) for _ in "uv")
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in range(3)])
        self.ff = nn.Sequential(nn.Linear(WIDTH, 16), nn.SiLU(), nn.Linear(16, WIDTH))
        self.up, self.down = nn.Conv1d(WIDTH, 2 * WIDTH, 1), nn.Conv1d(WIDTH, WIDTH, 1)
        self.dw, self.bn = (
            nn.Conv1d(WIDTH, WIDTH, 3, padding=1, groups=WIDTH),
            nn.BatchNorm1d(WIDTH),
        )
        self.head = nn.Linear(WIDTH, CLASSES)

    def shift(self, x: Tensor) -> Tensor:
        b, h, n, m = x.shape
        x = torch.cat([x.new_zeros(b, h, n, 1), x], -1).view(b, h, m + 1, n)
        return x[:, :, 1:].view(b, h, n, m)[..., : m // 2 + 1]

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        b, n, _ = x.shape
        x = x + 0.5 * self.ff(self.norms[0](x))
        q, k, v = self.qkv(self.norms[1](x)).view(b, n, 3, self.heads, self.dim).unbind(2)
        at = torch.arange(n - 1, -n, -1.0)
        angles = at[:, None] * torch.exp(torch.arange(0, WIDTH, 2) * -(math.log(1e4) / WIDTH))
        table = torch.stack([angles.sin(), angles.cos()], -1).flatten(1)
        p = self.pos(table).view(-1, self.heads, self.dim)
        content = torch.einsum("bihd,bjhd->bhij", q + self.u, k)
        scores = content + self.shift(torch.einsum("bihd,jhd->bhij", q + self.v, p))
        scores = (scores / self.dim**0.5).masked_fill(mask[:, None, None] == 0, -1e4)
        x = x + torch.einsum("bhij,bjhd->bihd", scores.softmax(-1), v).reshape(b, n, -1)
        c = F.silu(self.bn(self.dw(F.glu(self.up(self.norms[2](x).transpose(1, 2)), dim=1))))
        return self.head(x + self.down(c).transpose(1, 2))


def _packed(m: Any, words: Tensor, sizes: Tensor) -> Tensor:
    """A tagger over packed sentences."""
    packed = pack_padded_sequence(m.embed(words), sizes.cpu(), batch_first=True)
    out, _ = m.rnn(packed)
    return m.head(pad_packed_sequence(out, batch_first=True)[0])


def _packed_last(m: Any, words: Tensor, sizes: Tensor) -> Tensor:
    """The last states of packed sentences in any order."""
    packed = pack_padded_sequence(m.embed(words), sizes, batch_first=True, enforce_sorted=False)
    _, h = m.rnn(packed)
    return m.head(torch.cat([h[-2], h[-1]], 1))


class PatchTST(nn.Module):
    """Patches of channels apart, with reversible norms (Nie et al. 2023)."""

    def __init__(self) -> None:
        super().__init__()
        self.gain, self.bias = nn.Parameter(torch.ones(3)), nn.Parameter(torch.zeros(3))
        self.embed, self.place = nn.Linear(4, WIDTH), nn.Parameter(torch.randn(7, WIDTH) * 0.02)
        self.layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0, batch_first=True)
        self.head = nn.Linear(7 * WIDTH, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True).detach()
        std = torch.sqrt(torch.var(x, dim=1, keepdim=True, unbiased=False) + 1e-5).detach()
        z = ((x - mean) / std * self.gain + self.bias).permute(0, 2, 1)
        z = F.pad(z, (0, 2), mode="replicate").unfold(-1, 4, 2)[:, :, :7]
        b, c, n, _ = z.shape
        z = self.layer((self.embed(z) + self.place).view(b * c, n, -1)).view(b, c, -1)
        out = (self.head(z).transpose(1, 2) - self.bias) / (self.gain + 1e-10) * std + mean
        return F.mse_loss(out, y)


def _dlinear(m: Any, x: Tensor, y: Tensor) -> Tensor:
    """Trend and season apart (Zeng et al. 2023)."""
    front, end = x[:, 0:1].repeat(1, 2, 1), x[:, -1:].repeat(1, 2, 1)
    trend = F.avg_pool1d(torch.cat([front, x, end], 1).permute(0, 2, 1), 5, 1).permute(0, 2, 1)
    season = (x - trend).permute(0, 2, 1)
    made = m.season(season) + m.trend(trend.permute(0, 2, 1))
    return F.l1_loss(made.permute(0, 2, 1), y) + F.huber_loss(
        made.mean(1), y.mean((1, 2))[:, None].expand(-1, 16)
    )


class TFT(nn.Module):
    """Gated residuals and variable selection (Lim et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.ModuleList([nn.Linear(1, WIDTH) for _ in range(3)])
        self.select, self.gate = nn.Linear(3 * WIDTH, 3), nn.Linear(WIDTH, 2 * WIDTH)
        self.lstm, self.norm = nn.LSTM(WIDTH, WIDTH, batch_first=True), nn.LayerNorm(WIDTH)
        self.out = nn.Linear(WIDTH, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        parts = torch.stack([enter(x[..., i : i + 1]) for i, enter in enumerate(self.enter)], -1)
        weights = F.softmax(self.select(parts.flatten(2)), -1).unsqueeze(2)
        h = (parts * weights).sum(-1)
        h = self.norm(h + F.glu(self.gate(F.elu(self.lstm(h)[0])), -1))
        q, e = torch.tensor([0.1, 0.5, 0.9]), y.unsqueeze(-1) - self.out(h)
        return torch.max((q - 1) * e, q * e).sum(-1).mean()


def _deepar(m: Any, x: Tensor, y: Tensor) -> Tensor:
    """Likelihood of a normal distribution (Salinas et al. 2020)."""
    mu, sigma = m.head(m.rnn(x)[0]).chunk(2, -1)
    normal_ = torch.distributions.Normal(mu.squeeze(-1), F.softplus(sigma.squeeze(-1)) + 1e-4)
    return -normal_.log_prob(y).mean()


def _student(m: Any, x: Tensor, y: Tensor) -> Tensor:
    """Likelihood of Student's distribution, whose degrees are learnt."""
    df, loc, scale = m.head(m.rnn(x)[0]).unbind(-1)
    made = torch.distributions.StudentT(2 + F.softplus(df), loc, F.softplus(scale))
    return -made.log_prob(y).mean()


class EdgeAttention(nn.Module):
    """Graph attention over lists of edges, softmax by segments, as PyG's users write it."""

    def __init__(self) -> None:
        super().__init__()
        self.lin, self.a = nn.Linear(WIDTH, WIDTH), nn.Linear(2 * WIDTH, 1)
        self.head, self.edge = nn.Linear(4 * WIDTH, CLASSES), nn.Linear(1, WIDTH)

    def forward(self, x: Tensor, edges: Tensor, attr: Tensor) -> Tensor:
        b, n, _ = x.shape
        shift = (torch.arange(b) * n).view(b, 1)
        src, dst = (edges[:, 0] + shift).reshape(-1), (edges[:, 1] + shift).reshape(-1)
        h = self.lin(x).reshape(b * n, -1)
        message = h[src] + self.edge(attr.reshape(-1, 1))
        e = F.leaky_relu(self.a(torch.cat([h[dst], message], -1)), 0.2).squeeze(-1)
        top = torch.full((b * n,), -1e9).scatter_reduce(0, dst, e.detach(), "amax")
        w = torch.exp(e - top[dst])
        total = torch.zeros(b * n).index_add_(0, dst, w)
        w = w / (total[dst] + 1e-16)
        at = dst.unsqueeze(-1).expand(-1, WIDTH)
        zeros = torch.zeros(b * n, WIDTH)
        summed = zeros.scatter_add(0, at, message * w.unsqueeze(-1))
        mean = zeros.scatter_reduce(0, at, message, reduce="mean", include_self=False)
        top = zeros.scatter_reduce(0, at, message, reduce="amax", include_self=False)
        return self.head(torch.cat([h, summed, mean, top], -1)).view(b, n, -1)


class MinGRU(nn.Module):
    """A GRU in parallel by a scan in logarithms (Feng et al. 2024)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.gates = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        hidden, gate = self.gates(self.embed(words)).chunk(2, -1)
        log_coeffs, log_z = -F.softplus(gate), -F.softplus(-gate)
        log_h = torch.where(hidden >= 0, (F.relu(hidden) + 0.5).log(), -F.softplus(-hidden))
        a = log_coeffs.cumsum(1)
        return self.head((a + (log_z + log_h - a).logcumsumexp(1)).exp())


class LinearAttention(nn.Module):
    """Causal attention without softmax by cumulated products (Katharopoulos et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.qkv = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor) -> Tensor:
        q, k, v = self.qkv(self.embed(words)).chunk(3, -1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        kv = torch.einsum("bnd,bne->bnde", k, v).cumsum(1)
        z = 1 / (torch.einsum("bnd,bnd->bn", q, k.cumsum(1)) + 1e-6)
        return self.head(torch.einsum("bnd,bnde,bn->bne", q, kv, z))


class NTM(nn.Module):
    """A memory addressed by content and by shifts (Graves et al. 2014)."""

    def __init__(self, rows: int = 5) -> None:
        super().__init__()
        self.rows, self.cell = rows, nn.LSTMCell(3 + WIDTH, 16)
        self.read, self.write = nn.Linear(16, WIDTH + 6), nn.Linear(16, 2 * WIDTH)
        self.start, self.out = (
            nn.Parameter(torch.randn(rows, WIDTH) * 0.2),
            nn.Linear(16 + WIDTH, 3),
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        b = x.size(0)
        memory, r = self.start.clone().repeat(b, 1, 1), x.new_zeros(b, WIDTH)
        w, state, outs = torch.zeros(b, self.rows), None, []
        for t in range(x.size(1)):
            state = self.cell(torch.cat([x[:, t], r], 1), state)
            k, beta, g, s, gamma = torch.split(self.read(state[0]), [WIDTH, 1, 1, 3, 1], 1)
            content = F.cosine_similarity(memory + 1e-16, k.unsqueeze(1) + 1e-16, dim=-1)
            content = F.softmax(F.softplus(beta) * content, dim=1)
            wg = torch.sigmoid(g) * content + (1 - torch.sigmoid(g)) * w
            s = F.softmax(s, 1)
            turned = torch.cat([wg[:, -1:], wg, wg[:, :1]], 1).unfold(1, 3, 1)
            w = (turned * s.unsqueeze(1)).sum(-1) ** (1 + F.softplus(gamma))
            w = w / (w.sum(1, keepdim=True) + 1e-16)
            erase, added = self.write(state[0]).chunk(2, 1)
            memory = memory * (1 - torch.matmul(w.unsqueeze(-1), torch.sigmoid(erase).unsqueeze(1)))
            memory = memory + w.unsqueeze(-1) * added.unsqueeze(1)
            r = torch.matmul(w.unsqueeze(1), memory).squeeze(1)
            outs.append(self.out(torch.cat([state[0], r], 1)))
        return F.binary_cross_entropy(torch.sigmoid(torch.stack(outs, 1)), y)


def _soft_dtw(m: Any, x: Tensor, y: Tensor) -> Tensor:
    """A soft alignment of two series (Cuturi and Blondel 2017), cell by cell."""
    d = torch.cdist(m.net(x), y, p=2) ** 2
    inf = torch.full_like(d[:, 0, 0], 1e4)
    rows = [[torch.zeros_like(inf)] + [inf] * d.size(2)]
    for i in range(d.size(1)):
        row = [inf]
        for j in range(d.size(2)):
            best = torch.stack([rows[i][j], rows[i][j + 1], row[j]], -1)
            row.append(d[:, i, j] - torch.logsumexp(-best, -1))
        rows.append(row)
    return rows[-1][-1].mean()


TEXT = whole((WORDS, (TIME,)))
NETS: Mapping[str, Net] = MappingProxyType(
    {
        "conv-tasnet": Net(ConvTasNet, normal((34,), (2, 34)), "own"),
        "conformer": Net(Conformer, both(normal((TIME, WIDTH)), whole((2, (TIME,))))),
        "packed tagger": Net(
            of(
                _packed,
                embed=lambda: nn.Embedding(WORDS, WIDTH),
                rnn=lambda: nn.LSTM(WIDTH, WIDTH, 2, batch_first=True, bidirectional=True),
                head=lambda: nn.Linear(2 * WIDTH, CLASSES),
            ),
            both(TEXT, lengths),
        ),
        "packed last states": Net(
            of(
                _packed_last,
                embed=lambda: nn.Embedding(WORDS, WIDTH),
                rnn=lambda: nn.GRU(WIDTH, WIDTH, bidirectional=True),
                head=lambda: nn.Linear(2 * WIDTH, CLASSES),
            ),
            both(TEXT, whole((TIME + 1, ()), lowest=1)),
        ),
        "patchtst": Net(PatchTST, normal((16, 3), (4, 3)), "own"),
        "dlinear": Net(
            of(_dlinear, season=lambda: nn.Linear(12, 16), trend=lambda: nn.Linear(12, 16)),
            normal((12, 16), (16, 16)),
            "own",
        ),
        "tft": Net(TFT, normal((TIME, 3), (TIME,)), "own"),
        **{
            name: Net(
                of(does, rnn=partial(nn.LSTM, 3, WIDTH, batch_first=True), head=head),
                normal((TIME, 3), (TIME,)),
                "own",
            )
            for name, does, head in (
                ("deepar", _deepar, partial(nn.Linear, WIDTH, 2)),
                ("student's t", _student, partial(nn.Linear, WIDTH, 3)),
            )
        },
        "edge attention": Net(
            EdgeAttention,
            both(normal((NODES, WIDTH)), whole((NODES, (2, EDGES))), normal((EDGES,))),
        ),
        "mingru": Net(MinGRU, TEXT),
        "linear attention": Net(LinearAttention, TEXT),
        "neural turing machine": Net(NTM, both(normal((4, 3)), uniform((4, 3))), "own"),
        "soft dtw": Net(of(_soft_dtw, net=lambda: mlp(2, 2)), normal((5, 2), (4, 2)), "own"),
    }
)
