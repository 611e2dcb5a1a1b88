"""Later variants of attention, state spaces, experts, flows and taggers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.everyday import mlp, of
from benchmarks.census.net import Net, both, normal, uniform, whole

WIDTH, CLASSES, TIME, SIDE, WORDS = 16, 5, 8, 16, 20
rows, pictures = normal((TIME, WIDTH)), normal((3, SIDE, SIDE))


def _qkv(self: Any, x: Tensor, heads: int = 4) -> tuple[Tensor, ...]:
    return tuple(y.unflatten(-1, (heads, -1)).transpose(1, 2) for y in self.qkv(x).chunk(3, dim=-1))


def _cosformer(self: Any, x: Tensor) -> Tensor:
    q, k, v = _qkv(self, x)
    q, k = F.relu(q), F.relu(k)
    at = (math.pi / 2 * torch.arange(1, TIME + 1) / TIME).view(1, 1, -1, 1)
    q = torch.cat([q * torch.sin(at), q * torch.cos(at)], dim=-1)
    k = torch.cat([k * torch.sin(at), k * torch.cos(at)], dim=-1)
    kv = torch.einsum("bhld,bhlm->bhldm", k, v).cumsum(2)
    z = 1 / torch.clamp_min(torch.einsum("bhld,bhld->bhl", q, k.cumsum(2)), 1e-2)
    y = torch.einsum("bhld,bhldm,bhl->bhlm", q, kv, z)
    return self.out(y.transpose(1, 2).flatten(2))


def _stick_breaking(self: Any, x: Tensor) -> Tensor:
    q, k, v = _qkv(self, x)
    logits = (q @ k.mT) / math.sqrt(q.size(-1))
    mask = torch.ones(TIME, TIME).triu(0).bool()
    z = F.logsigmoid(logits).masked_fill(mask, -1e5)
    beta = F.logsigmoid(-logits).masked_fill(mask, 0)
    cross = torch.ones(TIME, TIME).tril(-1)
    weights = (z + torch.einsum("bhij,jk->bhik", beta, cross)).exp()
    return self.out((weights @ v).transpose(1, 2).flatten(2))


def _forgetting(self: Any, x: Tensor) -> Tensor:
    q, k, v = _qkv(self, x)
    log_f = F.logsigmoid(self.gate(x)).transpose(1, 2).cumsum(-1)
    bias = log_f.unsqueeze(-1) - log_f.unsqueeze(-2)
    bias = bias.masked_fill(torch.ones(TIME, TIME).triu(1).bool(), float("-inf"))
    y = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
    return self.out(y.transpose(1, 2).flatten(2))


def _talking_heads(self: Any, x: Tensor) -> Tensor:
    q, k, v = _qkv(self, x)
    a = self.before(((q @ k.mT) / 2).permute(0, 2, 3, 1)).softmax(dim=2)
    a = self.after(a).permute(0, 3, 1, 2)
    return self.out((a @ v).transpose(1, 2).flatten(2))


def _aft(self: Any, x: Tensor) -> Tensor:
    q, k, v = self.qkv(x).chunk(3, dim=-1)
    w = (self.u.weight @ self.w.weight.mT).unsqueeze(0)
    w, k = torch.exp(w - w.max()), torch.exp(k - k.amax(dim=1, keepdim=True))
    return self.out(torch.sigmoid(q) * ((w @ (k * v)) / (w @ k)))


def _delta_gated(self: Any, x: Tensor) -> Tensor:
    q, k, v = _qkv(self, x, 2)
    q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
    beta = self.beta(x).sigmoid().transpose(1, 2).unsqueeze(-1)
    g = (-F.softplus(self.gate(x))).transpose(1, 2)[..., None, None].exp()
    state = x.new_zeros(x.shape[0], 2, 8, 8)
    out = []
    for t in range(TIME):
        state = state * g[:, :, t]
        error = v[:, :, t] - torch.einsum("bhkv,bhk->bhv", state, k[:, :, t])
        state = state + torch.einsum("bhk,bhv->bhkv", k[:, :, t], beta[:, :, t] * error)
        out.append(torch.einsum("bhkv,bhk->bhv", state, q[:, :, t]))
    return self.out(torch.stack(out, dim=1).flatten(2))


class RGLRU(nn.Module):
    """The gated linear recurrence of Griffin (De et al. 2024)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv1d(WIDTH, WIDTH, 4, groups=WIDTH, padding=3)
        self.a, self.i = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.lam = nn.Parameter(torch.empty(WIDTH).uniform_(0.9, 0.999).logit())
        self.gate, self.out = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        h = self.conv(x.mT)[..., :TIME].mT
        log_a = -8.0 * torch.sigmoid(self.a(h)) * F.softplus(-self.lam)
        a = torch.exp(log_a)
        scaled = torch.sqrt(-torch.expm1(2 * log_a)) * torch.sigmoid(self.i(h)) * h
        state, out = torch.zeros_like(scaled[:, 0]), []
        for t in range(TIME):
            state = a[:, t] * state + scaled[:, t]
            out.append(state)
        return self.out(torch.stack(out, 1) * F.gelu(self.gate(x), approximate="tanh"))


class MAF(nn.Module):
    """Masked autoregressive flow of two steps with a batch norm between."""

    def __init__(self, d: int = 6) -> None:
        super().__init__()
        self.first = nn.ParameterList(torch.randn(WIDTH, d) / 3 for _ in range(2))
        self.second = nn.ParameterList(torch.randn(2 * d, WIDTH) / 4 for _ in range(2))
        self.log_gamma, self.beta = nn.Parameter(torch.zeros(d)), nn.Parameter(torch.zeros(d))
        hidden = torch.arange(WIDTH) % (d - 1)
        self.register_buffer("m1", (hidden[:, None] >= torch.arange(d)).float())
        self.register_buffer("m2", (torch.arange(d)[:, None] > hidden).float().repeat(2, 1))

    def forward(self, x: Tensor) -> Tensor:
        logdet = x.new_zeros(x.shape[0])
        for i, (w1, w2) in enumerate(zip(self.first, self.second, strict=True)):
            m, s = F.linear(F.linear(x, w1 * self.m1).tanh(), w2 * self.m2).chunk(2, 1)
            x, logdet = (x - m) * torch.exp(-s), logdet - s.sum(1)
            if i == 0:
                var = x.var(0) + 1e-5
                x = self.log_gamma.exp() * (x - x.mean(0)) / var.sqrt() + self.beta
                logdet = logdet + (self.log_gamma - 0.5 * var.log()).sum()
                x = x.flip(1)
        return (0.5 * (x**2 + math.log(2 * math.pi)).sum(1) - logdet).mean()


def _crf(self: Any, ids: Tensor, tags: Tensor) -> Tensor:
    h, _ = self.gru(self.emb(ids))
    e, trans = self.out(h), self.trans.weight
    mask = (ids != 0).float()
    score = e.gather(2, tags.unsqueeze(2)).squeeze(2)
    moves = trans[tags[:, :-1], tags[:, 1:]]
    gold = (score * mask).sum(1) + (moves * mask[:, 1:]).sum(1)
    alpha = e[:, 0]
    for t in range(1, TIME):
        nxt = torch.logsumexp(alpha.unsqueeze(2) + trans + e[:, t].unsqueeze(1), dim=1)
        alpha = torch.where(mask[:, t].unsqueeze(1).bool(), nxt, alpha)
    return (alpha.logsumexp(1) - gold).mean()


def _colbert(self: Any, query: Tensor, doc: Tensor) -> Tensor:
    q, d = (F.normalize(self.out(self.emb(x)), p=2, dim=2) for x in (query, doc))
    d = d * (doc != 0).unsqueeze(2)
    scores = torch.einsum("iqd,jkd->ijqk", q, d).amax(3).sum(2)
    splade = torch.log1p(F.relu(q @ self.emb.weight.T)).amax(1)
    flops = splade.abs().mean(0).pow(2).sum()
    return F.cross_entropy(scores, torch.arange(len(query))) + 1e-2 * flops


def _flow_matching(self: Any, x1: Tensor, x0: Tensor, t: Tensor) -> Tensor:
    t = t.view(-1, 1)
    xt = (1 - (1 - 1e-4) * t) * x0 + t * x1
    freq = torch.exp(-math.log(1e4) * torch.arange(4) / 4)
    emb = torch.cat([torch.cos(1000 * t * freq), torch.sin(1000 * t * freq)], -1)
    shift, scale, gate = self.mod(F.silu(emb)).chunk(3, -1)
    h = self.inner(F.layer_norm(xt, xt.shape[-1:]) * (1 + scale) + shift)
    return F.mse_loss(xt + gate * h, x1 - (1 - 1e-4) * x0)


def _soft_moe(self: Any, x: Tensor) -> Tensor:
    logits = F.normalize(x, dim=-1) @ (self.phi.weight / self.phi.weight.norm(dim=0)) * 5.0
    slots = torch.einsum("bnd,bns->bsd", x, logits.softmax(1)).chunk(4, dim=1)
    y = torch.cat([f(s) for f, s in zip(self.experts, slots, strict=True)], dim=1)
    return self.out(torch.einsum("bsd,bns->bnd", y, logits.softmax(2)))


def _expert_choice(self: Any, x: Tensor) -> Tensor:
    probs = self.route(x).softmax(-1).transpose(1, 2)
    gates, at = probs.topk(3, dim=-1)
    hot = F.one_hot(at, TIME).to(x.dtype)
    taken = torch.einsum("bekn,bnd->bekd", hot, x)
    done = torch.einsum("bekd,edh->bekh", taken, self.weights.weight.view(4, WIDTH, WIDTH)).relu()
    return self.out(x + torch.einsum("bekn,bek,bekh->bnh", hot, gates, done))


def _fast_kan(self: Any, x: Tensor) -> Tensor:
    grid = torch.linspace(-2, 2, 5)
    basis = torch.exp(-(((self.norm(x).unsqueeze(-1) - grid) / 1.0) ** 2)).flatten(1)
    wave = (x.square() - 1) * torch.exp(-0.5 * x.square()) * (2 / (math.sqrt(3) * math.pi**0.25))
    k = torch.arange(1, 4)
    fourier = torch.cat([torch.cos(k * x.unsqueeze(-1)), torch.sin(k * x.unsqueeze(-1))], -1)
    h = self.basis(basis) + self.base(F.silu(x)) + self.wave(wave)
    return self.out(h + self.fourier(fourier.flatten(1)))


class Kronecker(nn.Module):
    """LoKr, LoHa, VeRA and IA3 beside frozen layers."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4)).requires_grad_(False)
        self.k1, self.k2 = nn.Parameter(torch.randn(4, 4)), nn.Parameter(0.1 * torch.randn(4, 4))
        self.h = nn.ParameterList(0.1 * torch.randn(2, WIDTH) for _ in range(4))
        self.register_buffer("A", torch.randn(4, WIDTH))
        self.register_buffer("B", torch.randn(WIDTH, 4))
        self.d, self.b = nn.Parameter(torch.ones(4)), nn.Parameter(torch.zeros(WIDTH))
        self.ia3 = nn.Parameter(torch.ones(WIDTH))
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = F.gelu(F.linear(x, self.base[0].weight + torch.kron(self.k1, self.k2)))
        hada = (self.h[0].T @ self.h[1]) * (self.h[2].T @ self.h[3])
        x = F.gelu(F.linear(x, self.base[1].weight + hada, self.base[1].bias))
        x = x + self.base[2](x) + self.b * (((x @ self.A.T) * self.d) @ self.B.T)
        return self.out(self.base[3](x) * self.ia3)


def _deq(self: Any, x: Tensor) -> Tensor:
    inject = self.inject(x)
    z = torch.zeros_like(inject)
    with torch.no_grad():
        for _ in range(6):
            z = torch.tanh(self.cell(z) + inject)
    for _ in range(2):
        z = 0.5 * z.detach() + 0.5 * torch.tanh(self.cell(z) + inject)
    return self.out(z)


attention = {"qkv": lambda: nn.Linear(WIDTH, 3 * WIDTH), "out": lambda: nn.Linear(WIDTH, CLASSES)}
NETS: Mapping[str, Net] = MappingProxyType(
    {
        "cosformer": Net(of(_cosformer, **attention), rows),
        "stick-breaking attention": Net(of(_stick_breaking, **attention), rows),
        "forgetting transformer": Net(
            of(_forgetting, gate=lambda: nn.Linear(WIDTH, 4), **attention), rows
        ),
        "talking heads": Net(
            of(
                _talking_heads,
                before=lambda: nn.Linear(4, 4, bias=False),
                after=lambda: nn.Linear(4, 4, bias=False),
                **attention,
            ),
            rows,
        ),
        "attention-free transformer": Net(
            of(
                _aft,
                u=lambda: nn.Embedding(TIME, 4),
                w=lambda: nn.Embedding(TIME, 4),
                qkv=lambda: nn.Linear(WIDTH, 3 * WIDTH),
                out=lambda: nn.Linear(WIDTH, CLASSES),
            ),
            rows,
        ),
        "gated delta net": Net(
            of(
                _delta_gated,
                beta=lambda: nn.Linear(WIDTH, 2),
                gate=lambda: nn.Linear(WIDTH, 2),
                **attention,
            ),
            rows,
        ),
        "rg-lru": Net(RGLRU, rows),
        "maf": Net(MAF, normal((6,)), "own"),
        "crf tagger": Net(
            of(
                _crf,
                emb=lambda: nn.Embedding(WORDS, WIDTH, padding_idx=0),
                gru=lambda: nn.GRU(WIDTH, 8, batch_first=True, bidirectional=True),
                out=lambda: nn.Linear(WIDTH, CLASSES),
                trans=lambda: nn.Embedding(CLASSES, CLASSES),
            ),
            whole((WORDS, (TIME,)), (CLASSES, (TIME,))),
            "own",
        ),
        "colbert, splade": Net(
            of(
                _colbert,
                emb=lambda: nn.Embedding(WORDS, WIDTH),
                out=lambda: nn.Linear(WIDTH, WIDTH, bias=False),
            ),
            whole((WORDS, (4,)), (WORDS, (TIME,))),
            "own",
        ),
        "flow matching": Net(
            of(_flow_matching, mod=lambda: nn.Linear(8, 18), inner=lambda: mlp(6, 6)),
            both(normal((6,), (6,)), uniform(())),
            "own",
        ),
        "soft moe": Net(
            of(
                _soft_moe,
                phi=lambda: nn.Linear(8, WIDTH, bias=False),
                experts=lambda: nn.ModuleList(mlp(WIDTH, WIDTH) for _ in range(4)),
                out=lambda: nn.Linear(WIDTH, CLASSES),
            ),
            rows,
        ),
        "expert choice": Net(
            of(
                _expert_choice,
                route=lambda: nn.Linear(WIDTH, 4),
                weights=lambda: nn.Linear(WIDTH, 4 * WIDTH, bias=False),
                out=lambda: nn.Linear(WIDTH, CLASSES),
            ),
            rows,
        ),
        "fast kan, waves": Net(
            of(
                _fast_kan,
                norm=lambda: nn.LayerNorm(6),
                basis=lambda: nn.Linear(30, WIDTH),
                base=lambda: nn.Linear(6, WIDTH),
                wave=lambda: nn.Linear(6, WIDTH),
                fourier=lambda: nn.Linear(36, WIDTH),
                out=lambda: nn.Linear(WIDTH, CLASSES),
            ),
            normal((6,)),
        ),
        "lokr, loha, vera, ia3": Net(Kronecker, normal((WIDTH,))),
        "deep equilibrium": Net(
            of(
                _deq,
                inject=lambda: nn.Linear(6, WIDTH),
                cell=lambda: nn.Linear(WIDTH, WIDTH),
                out=lambda: nn.Linear(WIDTH, CLASSES),
            ),
            normal((6,)),
        ),
    }
)
