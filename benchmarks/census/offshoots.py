"""Later variants of graph nets, policies, recommenders, sequences and point clouds."""

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

WIDTH, CLASSES, TIME, NODES, WORDS = 16, 5, 8, 6, 20
graph = both(normal((NODES, WIDTH)), whole((2, (NODES, NODES))))


def _gatv2(self: Any, x: Tensor, adj: Tensor) -> Tensor:
    left, right = self.left(x), self.right(x)
    e = self.score(F.leaky_relu(left.unsqueeze(2) + right.unsqueeze(1), 0.2)).squeeze(-1)
    adj = (adj + torch.eye(NODES, dtype=torch.long)).clamp(max=1)
    alpha = F.softmax(e.masked_fill(adj == 0, float("-inf")), dim=-1)
    return self.out(F.elu(alpha @ right).mean(1))


def _appnp(self: Any, x: Tensor, adj: Tensor) -> Tensor:
    a = adj.float() + torch.eye(NODES)
    d = a.sum(-1).pow(-0.5)
    a = d.unsqueeze(-1) * a * d.unsqueeze(-2)
    h0 = h = self.mlp(x)
    for _ in range(4):
        h = 0.9 * torch.bmm(a, h) + 0.1 * h0
    return h.logsumexp(1)


def _sage(self: Any, x: Tensor, adj: Tensor) -> Tensor:
    neighbours = x.unsqueeze(1).masked_fill(adj.unsqueeze(-1) == 0, -1e9).amax(2)
    neighbours = torch.where(adj.any(-1, keepdim=True), neighbours, torch.zeros_like(neighbours))
    h = F.normalize(F.relu(self.own(x) + self.others(neighbours)), dim=-1)
    return self.out(h.flatten(1))


class RGCN(nn.Module):
    """Relations by a basis of weights (Schlichtkrull et al. 2018)."""

    def __init__(self, relations: int = 3, bases: int = 2) -> None:
        super().__init__()
        self.bases = nn.Parameter(torch.randn(bases, WIDTH, WIDTH) / 4)
        self.comp = nn.Parameter(torch.randn(relations, bases))
        self.root = nn.Linear(WIDTH, WIDTH)
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        weight = torch.einsum("rb,bio->rio", self.comp, self.bases)
        hot = F.one_hot(edges, 4)[..., 1:].float()
        hot = hot / hot.sum(2, keepdim=True).clamp_min(1.0)
        h = torch.einsum("bijr,bjc,rco->bio", hot, x, weight)
        return self.out(F.relu(h + self.root(x)).max(dim=1)[0])


class DimeNet(nn.Module):
    """Distances by Bessel functions under a smooth envelope, angles by cosines."""

    def __init__(self, radial: int = 6, p: int = 6) -> None:
        super().__init__()
        self.freq = nn.Parameter(math.pi * torch.arange(1, radial + 1).float())
        self.p, self.mlp, self.out = p, mlp(radial, WIDTH), nn.Linear(WIDTH, 1)
        self.angle = nn.Linear(4, WIDTH)

    def forward(self, pos: Tensor) -> Tensor:
        v = pos.unsqueeze(2) - pos.unsqueeze(1)
        d = (v.square().sum(-1) + 1e-6).sqrt() / 4.0
        p = self.p + 1
        a, b, c = -(p + 1) * (p + 2) / 2, p * (p + 2), -p * (p + 1) / 2
        env = 1 / d + a * d.pow(p - 1) + b * d.pow(p) + c * d.pow(p + 1)
        env = torch.where(d < 1, env, torch.zeros_like(env))
        off = 1 - torch.eye(NODES)
        rbf = env.unsqueeze(-1) * torch.sin(self.freq * d.unsqueeze(-1)) * off.unsqueeze(-1)
        cos = F.cosine_similarity(v.unsqueeze(2), v.unsqueeze(3), dim=-1, eps=1e-4)
        cbf = torch.stack([cos**k for k in range(4)], -1)
        m = self.mlp(rbf).unsqueeze(2) * self.angle(cbf)
        return (self.out(m.sum((1, 2, 3))) ** 2).mean()


class GraphWaveNet(nn.Module):
    """An adjacency learnt by embeddings, gated dilated convolutions over time."""

    def __init__(self) -> None:
        super().__init__()
        self.e1 = nn.Parameter(torch.randn(NODES, 4))
        self.e2 = nn.Parameter(torch.randn(4, NODES))
        self.start = nn.Conv2d(1, WIDTH, 1)
        self.filters = nn.ModuleList(nn.Conv2d(WIDTH, WIDTH, (1, 2), dilation=d) for d in (1, 2))
        self.gates = nn.ModuleList(nn.Conv2d(WIDTH, WIDTH, (1, 2), dilation=d) for d in (1, 2))
        self.mixes = nn.ModuleList(nn.Conv2d(3 * WIDTH, WIDTH, 1) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(WIDTH) for _ in range(2))
        self.end = nn.Conv2d(WIDTH, 3, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        adp = F.softmax(F.relu(self.e1 @ self.e2), dim=1)
        x = self.start(F.pad(x.unsqueeze(1), (1, 0, 0, 0)))
        for f, g, mix, norm in zip(self.filters, self.gates, self.mixes, self.norms, strict=True):
            res = x
            x = torch.tanh(f(x)) * torch.sigmoid(g(x))
            one = torch.einsum("ncvl,vw->ncwl", x, adp).contiguous()
            two = torch.einsum("ncvl,vw->ncwl", one, adp).contiguous()
            x = norm(mix(torch.cat([x, one, two], 1)) + res[..., -x.size(3) :])
        return F.l1_loss(self.end(F.relu(x))[..., -1], y)


def _vtrace(self: Any, x: Tensor, a: Tensor, mu: Tensor, r: Tensor) -> Tensor:
    h = self.body(x)
    logits, values = self.policy(h), self.value(h).squeeze(-1)
    logp = F.log_softmax(logits, -1).gather(-1, a.unsqueeze(-1)).squeeze(-1)
    with torch.no_grad():
        rho = (logp - mu).exp().clamp(max=1.0)
        nxt = torch.cat([values[:, 1:], values[:, -1:]], 1)
        delta = rho * (r + 0.99 * nxt - values)
        acc, out = torch.zeros(len(x)), []
        for t in reversed(range(TIME)):
            acc = delta[:, t] + 0.99 * rho[:, t] * acc
            out.append(acc)
        vs = torch.stack(out[::-1], 1) + values
        adv = rho * (r + 0.99 * torch.cat([vs[:, 1:], values[:, -1:]], 1) - values)
    entropy = -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()
    return -(adv * logp).mean() + 0.5 * (vs - values).pow(2).mean() - 0.01 * entropy


def _iql(self: Any, s: Tensor, a: Tensor, s2: Tensor, r: Tensor) -> Tensor:
    sa = torch.cat([s, a], -1)
    q1, q2, v = self.q1(sa), self.q2(sa), self.v(s)
    with torch.no_grad():
        q = torch.min(self.t1(sa), self.t2(sa))
        target = r + 0.99 * self.v(s2)
    diff = q - v
    value = (torch.where(diff > 0, 0.7, 0.3) * diff**2).mean()
    weight = torch.exp(3.0 * (q - v.detach())).clamp(max=100.0)
    mean = torch.tanh(self.actor(s))
    dist = torch.distributions.Normal(mean, self.std(s).clamp(-5, 2).exp())
    actor = -(weight.squeeze(-1) * dist.log_prob(a).sum(-1)).mean()
    return value + F.mse_loss(q1, target) + F.mse_loss(q2, target) + actor


def _cql(self: Any, s: Tensor, a: Tensor, s2: Tensor, r: Tensor) -> Tensor:
    q = self.q(s)
    taken = q.gather(1, a)
    with torch.no_grad():
        best = self.q(s2).argmax(1, keepdim=True)
        target = r + 0.99 * self.target(s2).gather(1, best)
    return F.smooth_l1_loss(taken, target) + (q.logsumexp(1, keepdim=True) - taken).mean()


class MDNRNN(nn.Module):
    """The memory of world models: an LSTM with a mixture for every latent."""

    def __init__(self, k: int = 3, z: int = 4) -> None:
        super().__init__()
        self.k, self.z = k, z
        self.rnn = nn.LSTM(z + 2, WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, k * (2 * z + 1))

    def forward(self, z: Tensor, a: Tensor) -> Tensor:
        h, _ = self.rnn(torch.cat([z, a], -1)[:, :-1])
        out = self.head(h)
        mu, logs, pi = out.split([self.k * self.z, self.k * self.z, self.k], -1)
        mu, logs = mu.unflatten(-1, (self.k, self.z)), logs.unflatten(-1, (self.k, self.z))
        normal = torch.distributions.Normal(mu, logs.exp())
        logp = normal.log_prob(z[:, 1:].unsqueeze(-2)).sum(-1)
        return -torch.logsumexp(F.log_softmax(pi, -1) + logp, -1).mean()


def _noisy_target(self: Any, x: Tensor, y: Tensor) -> Tensor:
    p = F.softplus(self.body(x))
    ranks = y.argsort(dim=1, descending=True).argsort(dim=1).float()
    gains = (2.0 ** y.float() - 1) / torch.log2(ranks + 2.0)
    diff = p.unsqueeze(2) - p.unsqueeze(1)
    delta = (gains.unsqueeze(2) - gains.unsqueeze(1)).abs()
    return (delta * F.softplus(-diff) * (y.unsqueeze(2) > y.unsqueeze(1))).sum((1, 2)).mean()


def _listmle(self: Any, x: Tensor, y: Tensor) -> Tensor:
    order = y.argsort(dim=-1, descending=True)
    scores = self.body(x).gather(1, order)
    tail = scores.flip(1).logcumsumexp(1).flip(1)
    return (tail - scores).sum(1).mean()


class PLE(nn.Module):
    """Progressive layered extraction: shared and own experts for two tasks."""

    def __init__(self) -> None:
        super().__init__()
        self.experts = nn.ModuleList(mlp(WIDTH, WIDTH) for _ in range(6))
        self.gates = nn.ModuleList(nn.Linear(WIDTH, 4) for _ in range(2))
        self.towers = nn.ModuleList(mlp(WIDTH, 1) for _ in range(2))

    def forward(self, x: Tensor, clicks: Tensor, buys: Tensor) -> Tensor:
        e = [expert(x) for expert in self.experts]
        loss = 0.0
        probs = []
        for i, (gate, tower) in enumerate(zip(self.gates, self.towers, strict=True)):
            mine = torch.stack([*e[2 * i : 2 * i + 2], *e[4:]], dim=1)
            mixed = (F.softmax(gate(x), -1).unsqueeze(-1) * mine).sum(1)
            probs.append(torch.sigmoid(tower(mixed)).squeeze(-1))
        both_ = probs[0] * probs[1]
        for p, y in zip((probs[0], both_), (clicks, buys), strict=True):
            loss = loss + F.binary_cross_entropy(p, (y > 0.5).float())
        return loss


class HSTU(nn.Module):
    """Pointwise aggregated attention of SiLU, gated (Zhai et al. 2024)."""

    def __init__(self) -> None:
        super().__init__()
        self.items = nn.Embedding(WORDS, WIDTH, padding_idx=0)
        self.uvqk = nn.Linear(WIDTH, 4 * WIDTH)
        self.bias = nn.Parameter(torch.randn(2 * TIME - 1))
        self.norm, self.o = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.items(ids) * WIDTH**0.5
        u, v, q, k = F.silu(self.uvqk(x)).chunk(4, -1)
        at = torch.arange(TIME)
        rel = self.bias[at[:, None] - at[None] + TIME - 1]
        a = F.silu(q @ k.transpose(-1, -2) + rel) / TIME
        a = a * torch.tril(torch.ones(TIME, TIME)) * (ids != 0).unsqueeze(1)
        x = x + self.o(self.norm(a @ v) * u)
        return F.linear(x, self.items.weight)


class AFM(nn.Module):
    """Attention over products of pairs of fields, with their factorisation machine."""

    def __init__(self, fields: int = 4) -> None:
        super().__init__()
        self.emb = nn.Embedding(fields * WORDS, 8)
        self.first = nn.Embedding(fields * WORDS, 1)
        self.att, self.h, self.p = nn.Linear(8, 8), nn.Linear(8, 1, bias=False), nn.Linear(8, 1)
        self.register_buffer("offsets", torch.arange(fields) * WORDS)
        self.row, self.col = torch.triu_indices(fields, fields, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = x + self.offsets
        e = self.emb(x)
        inner = e[:, self.row] * e[:, self.col]
        scores = F.softmax(self.h(F.relu(self.att(inner))), dim=1)
        logit = self.first(x).sum(1) + self.p(torch.sum(scores * inner, dim=1))
        return F.binary_cross_entropy_with_logits(logit.squeeze(1), y.round())


def _pct(self: Any, x: Tensor) -> Tensor:
    x = F.relu(self.norm(self.embed(x.transpose(1, 2))))
    q, k, v = self.q(x).permute(0, 2, 1), self.k(x), self.v(x)
    a = torch.softmax(q @ k, dim=-1)
    a = a / (1e-9 + a.sum(dim=1, keepdim=True))
    x = x + F.relu(self.after(self.trans(x - v @ a)))
    return self.out(torch.cat([x.amax(-1), x.mean(-1)], 1))


class KPConv(nn.Module):
    """Kernel points that weigh neighbours by distance (Thomas et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(5, 3), requires_grad=False)
        self.weights = nn.Parameter(torch.randn(5, 3, WIDTH) / 3)
        self.out = nn.Linear(WIDTH, CLASSES)

    def forward(self, pos: Tensor) -> Tensor:
        dist = torch.cdist(pos, pos)
        near = dist.topk(4, largest=False)[1]
        rows = torch.arange(pos.shape[0])[:, None, None]
        neighbours = pos[rows, near] - pos.unsqueeze(2)
        away = (neighbours.unsqueeze(3) - self.kernel).pow(2).sum(-1).sqrt()
        influence = torch.clamp(1 - away / 1.5, min=0.0)
        f = torch.einsum("bnkp,bnkc,pco->bno", influence, pos[rows, near], self.weights)
        return self.out(F.leaky_relu(f, 0.1).mean(1))


def _folding(self: Any, x: Tensor) -> Tensor:
    code = self.encode(x).max(1, keepdim=True)[0].expand(-1, 16, -1)
    u = torch.linspace(-1, 1, 4)
    grid = torch.stack(torch.meshgrid(u, u, indexing="ij"), -1).view(1, 16, 2)
    grid = grid.expand(x.shape[0], -1, -1)
    fold = self.one(torch.cat([grid, code], -1))
    y = self.two(torch.cat([fold, code], -1))
    d = torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
    return d.min(1)[0].mean() + d.min(2)[0].mean()


transitions = both(normal((WIDTH,), (3,), (WIDTH,), (1,)))
NETS: Mapping[str, Net] = MappingProxyType(
    {
        "gatv2": Net(
            of(
                _gatv2,
                left=lambda: nn.Linear(WIDTH, WIDTH),
                right=lambda: nn.Linear(WIDTH, WIDTH),
                score=lambda: nn.Linear(WIDTH, 1, bias=False),
                out=lambda: nn.Linear(WIDTH, CLASSES),
            ),
            graph,
        ),
        "appnp": Net(of(_appnp, mlp=lambda: mlp(WIDTH, CLASSES)), graph),
        "graphsage, max": Net(
            of(
                _sage,
                own=lambda: nn.Linear(WIDTH, WIDTH),
                others=lambda: nn.Linear(WIDTH, WIDTH, bias=False),
                out=lambda: nn.Linear(NODES * WIDTH, CLASSES),
            ),
            graph,
        ),
        "r-gcn": Net(RGCN, both(normal((NODES, WIDTH)), whole((4, (NODES, NODES))))),
        "dimenet": Net(DimeNet, normal((NODES, 3)), "own"),
        "graph wavenet": Net(GraphWaveNet, normal((NODES, 4), (3, NODES)), "own"),
        "v-trace": Net(
            of(
                _vtrace,
                body=lambda: mlp(WIDTH, WIDTH),
                policy=lambda: nn.Linear(WIDTH, CLASSES),
                value=lambda: nn.Linear(WIDTH, 1),
            ),
            both(
                normal((TIME, WIDTH)),
                whole((CLASSES, (TIME,))),
                lambda g, n: (-uniform((TIME,))(g, n)[0] - 1,),
                normal((TIME,)),
            ),
            "own",
        ),
        "iql": Net(
            of(
                _iql,
                **{name: lambda: mlp(WIDTH + 3, 1) for name in ("q1", "q2", "t1", "t2")},
                v=lambda: mlp(WIDTH, 1),
                actor=lambda: mlp(WIDTH, 3),
                std=lambda: mlp(WIDTH, 3),
            ),
            transitions,
            "own",
        ),
        "cql": Net(
            of(_cql, q=lambda: mlp(WIDTH, 3), target=lambda: mlp(WIDTH, 3)),
            both(normal((WIDTH,)), whole((3, (1,))), normal((WIDTH,), (1,))),
            "own",
        ),
        "mdn-rnn": Net(MDNRNN, normal((TIME, 4), (TIME, 2)), "own"),
        "lambdarank": Net(
            of(_noisy_target, body=lambda: nn.Sequential(mlp(WIDTH, 1), nn.Flatten(1))),
            both(normal((NODES, WIDTH)), whole((4, (NODES,)))),
            "own",
        ),
        "listmle": Net(
            of(_listmle, body=lambda: nn.Sequential(mlp(WIDTH, 1), nn.Flatten(1))),
            both(normal((NODES, WIDTH)), uniform((NODES,))),
            "own",
        ),
        "ple, esmm": Net(PLE, both(normal((WIDTH,)), uniform((), ())), "own"),
        "hstu": Net(HSTU, whole((WORDS, (TIME,)))),
        "afm": Net(AFM, both(whole((WORDS, (4,))), uniform(())), "own"),
        "pct": Net(
            of(
                _pct,
                embed=lambda: nn.Conv1d(3, WIDTH, 1),
                norm=lambda: nn.BatchNorm1d(WIDTH),
                q=lambda: nn.Conv1d(WIDTH, 4, 1, bias=False),
                k=lambda: nn.Conv1d(WIDTH, 4, 1, bias=False),
                v=lambda: nn.Conv1d(WIDTH, WIDTH, 1),
                trans=lambda: nn.Conv1d(WIDTH, WIDTH, 1),
                after=lambda: nn.BatchNorm1d(WIDTH),
                out=lambda: nn.Linear(2 * WIDTH, CLASSES),
            ),
            normal((12, 3)),
        ),
        "kpconv": Net(KPConv, normal((10, 3))),
        "foldingnet": Net(
            of(
                _folding,
                encode=lambda: mlp(3, 8),
                one=lambda: mlp(10, 3),
                two=lambda: mlp(11, 3),
            ),
            normal((12, 3)),
            "own",
        ),
    }
)
