"""Nets that decide, rank, count and contrast, of tables, states and clouds."""

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

WIDTH, CLASSES, TIME, WORDS, NODES, EDGES = 8, 4, 8, 20, 6, 14


def _counts(m: Any, x: Tensor, y: Tensor) -> Tensor:
    """Likelihood of counts, negative binomial, as scVI writes it."""
    mu, theta = F.softplus(m.head(x)).chunk(2, -1)
    y = torch.floor(5 * y)
    log = torch.log(theta + mu + 1e-8)
    made = theta * (torch.log(theta + 1e-8) - log) + y * (torch.log(mu + 1e-8) - log)
    made = made + torch.lgamma(y + theta) - torch.lgamma(theta) - torch.lgamma(y + 1)
    return -made.mean()


def _a2c(m: Any, state: Tensor, action: Tensor, reward: Tensor, end: Tensor) -> Tensor:
    """Actor and critic with advantages by a loop back in time (GAE)."""
    h = m.body(state)
    made, value = torch.distributions.Categorical(logits=m.actor(h)), m.critic(h).squeeze(-1)
    live = 1.0 - end.float()
    with torch.no_grad():
        gae, found = torch.zeros_like(reward[:, 0]), list[Tensor]()
        for t in reversed(range(reward.size(1) - 1)):
            delta = reward[:, t] + 0.99 * value[:, t + 1] * live[:, t] - value[:, t]
            gae = delta + 0.99 * 0.95 * live[:, t] * gae
            found.insert(0, gae)
        advantage = torch.stack(found, 1)
        returns = advantage + value[:, :-1]
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    log = made.log_prob(action)[:, :-1]
    return (
        -(log * advantage).mean()
        + 0.5 * F.mse_loss(value[:, :-1], returns)
        - 0.01 * made.entropy().mean()
    )


def _td3(m: Any, state: Tensor, action: Tensor, reward: Tensor) -> Tensor:
    """Twin critics and a target without gradients (Fujimoto et al. 2018)."""
    both_ = torch.cat([state, action], 1)
    with torch.no_grad():
        after = m.actor(state).tanh().clamp(-1, 1)
        later = torch.cat([state, after], 1)
        target = reward.unsqueeze(1) + 0.99 * torch.min(m.q1(later), m.q2(later))
    critic = F.mse_loss(m.q1(both_), target) + F.mse_loss(m.q2(both_), target)
    return critic - m.q1(torch.cat([state, torch.tanh(m.actor(state))], 1)).mean()


def _qr(m: Any, state: Tensor, action: Tensor, target: Tensor) -> Tensor:
    """Quantile regression of returns (Dabney et al. 2018)."""
    q = m.body(state).view(-1, 3, 5)
    q = q.gather(1, action[:, None, None].expand(-1, 1, 5)).squeeze(1)
    u = target.unsqueeze(1) - q.unsqueeze(2)
    tau = (torch.arange(5).float() + 0.5) / 5
    huber = torch.where(u.abs() <= 1.0, 0.5 * u.pow(2), u.abs() - 0.5)
    return ((tau[None, :, None] - (u.detach() < 0).float()).abs() * huber).sum(1).mean()


class DecisionTransformer(nn.Module):
    """Returns, states and actions interleaved (Chen et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.r, self.s, self.a = nn.Linear(1, WIDTH), nn.Linear(3, WIDTH), nn.Embedding(4, WIDTH)
        self.time, self.norm = nn.Embedding(TIME, WIDTH), nn.LayerNorm(WIDTH)
        self.block = nn.TransformerEncoderLayer(WIDTH, 2, 16, 0.0, "gelu", batch_first=True)
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, returns: Tensor, states: Tensor, actions: Tensor, steps: Tensor) -> Tensor:
        at = self.time(steps)
        r, s, a = self.r(returns) + at, self.s(states) + at, self.a(actions) + at
        b, n = actions.shape
        x = torch.stack((r, s, a), 1).permute(0, 2, 1, 3).reshape(b, 3 * n, WIDTH)
        causal = nn.Transformer.generate_square_subsequent_mask(3 * n)
        x = self.block(self.norm(x), src_mask=causal, is_causal=True)
        return self.head(x.reshape(b, n, 3, WIDTH).permute(0, 2, 1, 3)[:, 1])


class TabNet(nn.Module):
    """Sparsemax masks and ghost batch norms (Arik and Pfister 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.bn, self.ghost = nn.BatchNorm1d(WIDTH), nn.BatchNorm1d(16)
        self.attend, self.feature = nn.Linear(8, WIDTH), nn.Linear(WIDTH, 16)
        self.head = nn.Linear(8, CLASSES)

    def sparsemax(self, z: Tensor) -> Tensor:
        z = z - z.max(-1, keepdim=True)[0]
        ordered, _ = torch.sort(z, dim=-1, descending=True)
        k = torch.arange(1, z.size(-1) + 1, dtype=z.dtype)
        sums = ordered.cumsum(-1)
        support = (1 + k * ordered > sums).sum(-1, keepdim=True)
        tau = (sums.gather(-1, support - 1) - 1) / support.to(z.dtype)
        return torch.clamp(z - tau, min=0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn(x)
        prior, total, a = torch.ones_like(x), 0, torch.ones(x.size(0), 8)
        for _ in range(2):
            mask = self.sparsemax(self.attend(a) * prior)
            prior = prior * (1.5 - mask)
            d, a = F.glu(torch.cat([self.ghost(self.feature(mask * x))] * 2, 1), 1).chunk(2, 1)
            total = total + F.relu(torch.cat([d, a], 1))[:, :8]
            a = torch.cat([a, d], 1)[:, :8]
        return self.head(total)


class SAINT(nn.Module):
    """Attention across the rows of a batch (Somepalli et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.b = nn.Parameter(torch.randn(3, WIDTH)), nn.Parameter(torch.randn(3, WIDTH))
        self.cat, self.qkv = nn.Embedding(12, WIDTH), nn.Linear(5 * WIDTH, 3 * 5 * WIDTH)
        self.norm, self.head = nn.LayerNorm(5 * WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, numbers: Tensor, kinds: Tensor) -> Tensor:
        x = torch.cat([numbers.unsqueeze(-1) * self.w + self.b, self.cat(kinds)], 1)
        rows = self.norm(x.reshape(1, x.size(0), -1))
        q, k, v = self.qkv(rows).chunk(3, -1)
        rows = rows + F.softmax(q @ k.transpose(1, 2) / math.sqrt(40), -1) @ v
        return self.head(rows.view(x.shape).mean(1))


class GShard(nn.Module):
    """Two experts of a limited capacity, dispatched by einsum (Lepikhin et al. 2020)."""

    def __init__(self, experts: int = 4, capacity: int = 6) -> None:
        super().__init__()
        self.gate, self.capacity = nn.Linear(WIDTH, experts, bias=False), capacity
        self.w1 = nn.Parameter(torch.randn(experts, WIDTH, 16) * 0.2)
        self.w2, self.head = (
            nn.Parameter(torch.randn(experts, 16, WIDTH) * 0.2),
            nn.Linear(WIDTH, CLASSES),
        )

    def forward(self, x: Tensor) -> Tensor:
        gates = self.gate(x).softmax(-1)
        first = gates.argmax(-1)
        mask = F.one_hot(first, gates.size(-1)).float()
        aux = (gates.mean(1) * mask.mean(1)).mean() * gates.size(-1)
        place = (mask.cumsum(1) - mask) * mask
        mask = mask * (place < self.capacity).float()
        slot = F.one_hot(place.sum(-1).clamp(max=self.capacity - 1).long(), self.capacity).float()
        combine = (gates * mask)[..., None] * slot[:, :, None]
        sent = torch.einsum("bnec,bnd->ebcd", combine.bool().to(x.dtype), x)
        h = torch.einsum(
            "ebch,ehd->ebcd", F.gelu(torch.einsum("ebcd,edh->ebch", sent, self.w1)), self.w2
        )
        return self.head(x + torch.einsum("ebcd,bnec->bnd", h, combine) + aux)


class SplineFlow(nn.Module):
    """A coupling of rational quadratic splines (Durkan et al. 2019)."""

    def __init__(self, bins: int = 4) -> None:
        super().__init__()
        self.bins, self.net = bins, mlp(2, 2 * (3 * bins - 1))

    def forward(self, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        w, h, d = (
            self.net(a).view(x.size(0), 2, -1).split([self.bins, self.bins, self.bins - 1], -1)
        )
        widths = 1e-3 + (1 - 1e-3 * self.bins) * F.softmax(w, -1)
        cum = 6 * F.pad(torch.cumsum(widths, -1), (1, 0)) - 3
        widths = cum[..., 1:] - cum[..., :-1]
        heights = 1e-3 + (1 - 1e-3 * self.bins) * F.softmax(h, -1)
        cumh = 6 * F.pad(torch.cumsum(heights, -1), (1, 0)) - 3
        heights = cumh[..., 1:] - cumh[..., :-1]
        d = 1e-3 + F.softplus(F.pad(d, (1, 1), value=math.log(math.exp(1 - 1e-3) - 1)))
        inside = (b >= -3) & (b <= 3)
        y = torch.where(inside, b, torch.zeros_like(b))
        k = (torch.sum(y[..., None] >= cum, -1) - 1)[..., None].clamp(0, self.bins - 1)

        def at(z: Tensor) -> Tensor:
            return z.gather(-1, k)[..., 0]

        theta = (y - at(cum)) / at(widths)
        slope, t = at(heights / widths), theta * (1 - theta)
        down = slope + (at(d) + at(d[..., 1:]) - 2 * slope) * t
        out = at(cumh) + at(heights) * (slope * theta.pow(2) + at(d) * t) / down
        up = slope.pow(2) * (
            at(d[..., 1:]) * theta.pow(2) + 2 * slope * t + at(d) * (1 - theta).pow(2)
        )
        log = torch.where(inside, torch.log(up) - 2 * torch.log(down), torch.zeros_like(b))
        out = torch.where(inside, out, b)
        return (0.5 * (out**2 + a**2) - log).sum(1).mean()


class MADE(nn.Module):
    """Masked layers of an autoregressive flow (Germain et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(5, 16), nn.Linear(16, 10)
        degrees = torch.arange(16) % 4
        self.register_buffer("m1", (degrees[:, None] >= torch.arange(5)[None]).float())
        self.register_buffer("m2", (torch.arange(5)[:, None] > degrees[None]).float().repeat(2, 1))

    def forward(self, x: Tensor) -> Tensor:
        h = F.relu(F.linear(x, self.fc1.weight * self.m1, self.fc1.bias))
        mu, alpha = F.linear(h, self.fc2.weight * self.m2, self.fc2.bias).chunk(2, 1)
        u = (x - mu) * torch.exp(-alpha)
        base = torch.distributions.Normal(torch.zeros(5), torch.ones(5))
        return -(base.log_prob(u) - alpha).sum(1).mean()


def _din(m: Any, history: Tensor, item: Tensor, click: Tensor) -> Tensor:
    """Attention of an item to a history with padding (Zhou et al. 2018)."""
    h, q = m.embed(history), m.embed(item).unsqueeze(1).expand(-1, history.size(1), -1)
    score = m.score(torch.cat([q, h, q - h, q * h], -1)).squeeze(-1)
    score = score.masked_fill(history == 0, -(2**32) + 1) / WIDTH**0.5
    pooled = torch.bmm(score.softmax(-1).unsqueeze(1), h).squeeze(1)
    z = torch.cat([pooled, m.embed(item)], 1)
    p = torch.sigmoid(m.norm(z))
    return F.binary_cross_entropy_with_logits(
        m.out(p * z + (1 - p) * m.alpha.weight * z).squeeze(1), click.float()
    )


def _xdeepfm(m: Any, fields: Tensor) -> Tensor:
    """A compressed interaction net (Lian et al. 2018) beside gates of tasks (MMoE)."""
    x0 = m.embed(fields + torch.tensor([0, 5, 10]))
    xk = F.relu(m.cin(torch.einsum("bhd,bmd->bhmd", x0, x0).reshape(x0.size(0), -1, x0.size(2))))
    experts = torch.stack([e(xk.sum(1)) for e in (m.e1, m.e2)], 1)
    gate = F.softmax(m.gate(x0.flatten(1)), 1).unsqueeze(-1)
    square = x0.sum(1) ** 2 - (x0**2).sum(1)
    return m.out((experts * gate).sum(1) + 0.5 * square)


def _vae(m: Any, x: Tensor, noise: Tensor) -> Tensor:
    """Importance weighted bounds (Burda et al. 2016) with distributions of torch."""
    mu, log = m.enc(x).chunk(2, 1)
    q = torch.distributions.Normal(mu.unsqueeze(1), (0.5 * log).exp().unsqueeze(1))
    z = q.loc + q.scale * noise
    p = torch.distributions.Bernoulli(logits=m.dec(z))
    prior = torch.distributions.Normal(torch.zeros_like(z), 1.0)
    kl = torch.distributions.kl_divergence(q, torch.distributions.Normal(0.0, 1.0)).sum(-1).mean()
    w = (
        p.log_prob((x > 0).float().unsqueeze(1)).sum(-1)
        + prior.log_prob(z).sum(-1)
        - q.log_prob(z).sum(-1)
    )
    return -(torch.logsumexp(w, 1) - math.log(noise.size(1))).mean() + 0.01 * kl


def _supcon(m: Any, x: Tensor, y: Tensor) -> Tensor:
    """Supervised contrast (Khosla et al. 2020) and a centre loss."""
    f = m.body(x)
    z = F.normalize(f, dim=1)
    logits = z @ z.T / 0.07
    logits = logits - logits.max(1, keepdim=True)[0].detach()
    eye = torch.eye(len(x))
    same = torch.eq(y.view(-1, 1), y.view(1, -1)).float() * (1 - eye)
    log = logits - torch.log((torch.exp(logits) * (1 - eye)).sum(1, keepdim=True))
    d = torch.cdist(f, m.centres.weight).pow(2)
    near = (d * F.one_hot(y, CLASSES)).clamp(1e-12, 1e12).sum() / len(x)
    return -((same * log).sum(1) / same.sum(1).clamp(min=1)).mean() + 0.01 * near


def _sinkhorn(m: Any, a: Tensor, b: Tensor) -> Tensor:
    """An optimal transport of two clouds by logarithms."""
    x, y = m.body(a), m.body(b)
    cost = (x.unsqueeze(2) - y.unsqueeze(1)).abs().pow(2).sum(-1)
    u, v = torch.zeros_like(cost[:, :, 0]), torch.zeros_like(cost[:, 0])

    def kernel() -> Tensor:
        return (-cost + u.unsqueeze(2) + v.unsqueeze(1)) / 0.5

    for _ in range(3):
        u = 0.5 * (-math.log(5) - torch.logsumexp(kernel(), 2)) + u
        v = 0.5 * (-math.log(5) - torch.logsumexp(kernel(), 1)) + v
    return (torch.exp(kernel()) * cost).sum((1, 2)).mean()


TEXT = whole((WORDS, (TIME,)))
NETS: Mapping[str, Net] = MappingProxyType(
    {
        "negative binomial": Net(
            of(_counts, head=lambda: nn.Linear(5, 10)), both(normal((5,)), uniform((5,))), "own"
        ),
        "a2c": Net(
            of(
                _a2c,
                body=lambda: nn.Sequential(nn.Linear(4, WIDTH), nn.Tanh()),
                actor=lambda: nn.Linear(WIDTH, 3),
                critic=lambda: nn.Linear(WIDTH, 1),
            ),
            both(normal((5, 4)), whole((3, (5,))), normal((5,)), whole((2, (5,)))),
            "own",
        ),
        "td3": Net(
            of(_td3, actor=lambda: mlp(4, 2), q1=lambda: mlp(6, 1), q2=lambda: mlp(6, 1)),
            both(normal((4,), (2,)), normal(())),
            "own",
        ),
        "quantile dqn": Net(
            of(_qr, body=lambda: mlp(4, 15)),
            both(normal((4,)), whole((3, ())), normal((5,))),
            "own",
        ),
        "decision transformer": Net(
            DecisionTransformer,
            both(normal((5, 1), (5, 3)), whole((4, (5,)), (TIME, (5,)))),
        ),
        "tabnet": Net(TabNet, normal((WIDTH,))),
        "saint": Net(SAINT, both(normal((3,)), whole((12, (2,))))),
        "gshard": Net(GShard, normal((TIME, WIDTH))),
        "spline flow": Net(SplineFlow, normal((4,)), "own"),
        "made": Net(MADE, normal((5,)), "own"),
        "din": Net(
            of(
                _din,
                embed=lambda: nn.Embedding(WORDS, WIDTH, padding_idx=0),
                score=lambda: nn.Sequential(nn.Linear(4 * WIDTH, 8), nn.PReLU(), nn.Linear(8, 1)),
                norm=lambda: nn.BatchNorm1d(2 * WIDTH, eps=1e-9, affine=False),
                alpha=lambda: nn.Linear(2 * WIDTH, 1, bias=False),
                out=lambda: nn.Linear(2 * WIDTH, 1),
            ),
            both(TEXT, whole((WORDS, ()), (2, ()))),
            "own",
        ),
        "xdeepfm": Net(
            of(
                _xdeepfm,
                embed=lambda: nn.Embedding(15, WIDTH),
                cin=lambda: nn.Conv1d(9, 4, 1),
                e1=lambda: mlp(WIDTH, WIDTH),
                e2=lambda: mlp(WIDTH, WIDTH),
                gate=lambda: nn.Linear(3 * WIDTH, 2),
                out=lambda: nn.Linear(WIDTH, 2),
            ),
            whole((5, (3,))),
        ),
        "importance weighted vae": Net(
            of(_vae, enc=lambda: mlp(10, 6), dec=lambda: mlp(3, 10)), normal((10,), (4, 3)), "own"
        ),
        "supcon": Net(
            of(_supcon, body=lambda: mlp(6, 5), centres=lambda: nn.Embedding(CLASSES, 5)),
            both(normal((6,)), whole((CLASSES, ()))),
            "own",
        ),
        "sinkhorn": Net(of(_sinkhorn, body=lambda: mlp(3, 4)), normal((5, 3), (5, 3)), "own"),
    }
)
