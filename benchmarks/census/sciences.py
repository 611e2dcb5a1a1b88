"""Nets of science, of survival and of control, as their users write them."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributions import Independent, Normal, kl_divergence
from torch.nn import functional as F

from benchmarks.census.net import Net, both, normal, uniform, whole

WIDTH, CLASSES, TIME = 16, 5, 12


series = normal((TIME, 4))


class DeepONet(nn.Module):
    """Operators by branch and trunk, relative error (Lu et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.branch = nn.Sequential(nn.Linear(10, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 8))
        self.trunk = nn.Sequential(nn.Linear(1, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 8), nn.Tanh())
        self.b = nn.Parameter(torch.tensor(0.0))

    def forward(self, u: Tensor, y: Tensor, target: Tensor) -> Tensor:
        out = torch.einsum("bp,bqp->bq", self.branch(u), self.trunk(y.unsqueeze(-1))) + self.b
        diff = torch.linalg.norm(out - target, ord=2, dim=-1)
        return torch.mean(diff / torch.linalg.norm(target, dim=-1))


class Triangles(nn.Module):
    """Pairs updated by the triangles they are in, torsions from points (Jumper et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.norm_out = nn.LayerNorm(8), nn.LayerNorm(8)
        self.a, self.b, self.ag, self.bg, self.gate, self.out = (nn.Linear(8, 8) for _ in range(6))
        self.embed, self.dist = nn.Embedding(20, 8), nn.Linear(8, 10)

    def forward(self, residues: Tensor, xyz: Tensor) -> Tensor:
        s = self.embed(residues)
        pair = s[:, :, None] + s[:, None]
        z = self.norm(pair)
        a, b = self.a(z) * self.ag(z).sigmoid(), self.b(z) * self.bg(z).sigmoid()
        z = torch.sigmoid(self.gate(z)) * self.out(
            self.norm_out(torch.einsum("bikc,bjkc->bijc", a, b))
        )
        logits = self.dist(pair + z)
        logits = logits + logits.transpose(1, 2)
        boundaries = torch.linspace(0.5, 3.0, 9)
        dists = torch.cdist(xyz, xyz)
        bins = torch.sum(dists.unsqueeze(-1) > boundaries, dim=-1)
        return F.cross_entropy(logits.permute(0, 3, 1, 2), bins)


class EEGNet(nn.Module):
    """Depthwise filters over electrodes, norms of weights kept (Lawhern et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.bn1 = (
            nn.Conv2d(1, 4, (1, 8), padding=(0, 4), bias=False),
            nn.BatchNorm2d(4),
        )
        self.depth = nn.Conv2d(4, 8, (6, 1), groups=4, bias=False)
        self.bn2 = nn.BatchNorm2d(8, momentum=0.01, eps=1e-3)
        self.separable = nn.Sequential(
            nn.Conv2d(8, 8, (1, 5), padding=(0, 2), groups=8, bias=False),
            nn.Conv2d(8, 8, 1, bias=False),
        )
        self.bn3, self.classifier = nn.BatchNorm2d(8), nn.Linear(16, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.bn1(self.conv1(x.unsqueeze(1)))
        weight = torch.renorm(self.depth.weight, p=2, dim=0, maxnorm=1.0)
        x = F.elu(self.bn2(F.conv2d(x, weight, groups=4)))
        x = F.avg_pool2d(x, (1, 4))
        x = F.avg_pool2d(F.elu(self.bn3(self.separable(x))), (1, 3))
        return self.classifier(x.flatten(1))


class Cox(nn.Module):
    """Survival by the partial likelihood of sorted times (Katzman et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(6, WIDTH), nn.SELU(), nn.AlphaDropout(0.0), nn.Linear(WIDTH, 1)
        )

    def forward(self, x: Tensor, time: Tensor, event: Tensor) -> Tensor:
        risk, event = self.net(x).view(-1), (event > 0.3).float()
        order = time.sort(descending=True)[1]
        risk, event = risk[order], event[order]
        gamma = risk.max()
        log_cumsum = risk.sub(gamma).exp().cumsum(0).add(1e-7).log().add(gamma)
        return -risk.sub(log_cumsum).mul(event).sum().div(event.sum() + 1e-7)


class ZINB(nn.Module):
    """Counts of genes with zeros inflated, cells in a latent space (Lopez et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.enc, self.dec = nn.Linear(10, WIDTH), nn.Linear(4, WIDTH)
        self.mean, self.scale, self.drop = (
            nn.Linear(WIDTH, 4),
            nn.Linear(WIDTH, 10),
            nn.Linear(WIDTH, 10),
        )
        self.px_r = nn.Parameter(torch.randn(10))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.floor(10 * x)
        library = torch.log(x.sum(1, keepdim=True) + 1)
        h = F.relu(self.dec(self.mean(F.relu(self.enc(torch.log1p(x))))))
        mu, pi = torch.exp(library) * torch.softmax(self.scale(h), -1), self.drop(h)
        theta, eps = torch.exp(self.px_r), 1e-8
        softplus_pi = F.softplus(-pi)
        log_theta = torch.log(theta + eps)
        log_theta_mu = torch.log(theta + mu + eps)
        pi_theta = -pi + theta * (log_theta - log_theta_mu)
        zero = F.softplus(pi_theta) - softplus_pi
        other = -softplus_pi + pi_theta + x * (torch.log(mu + eps) - log_theta_mu)
        other = other + torch.lgamma(x + theta) - torch.lgamma(theta) - torch.lgamma(x + 1)
        res = torch.mul((x < eps).type(torch.float32), zero) + torch.mul(
            (x > eps).type(torch.float32), other
        )
        return -res.sum(-1).mean()


class NeuralProcess(nn.Module):
    """Functions from points seen, with a latent that is drawn (Garnelo et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(2, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.mu, self.sigma = nn.Linear(WIDTH, 4), nn.Linear(WIDTH, 4)
        self.decode = nn.Sequential(nn.Linear(5, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 2))

    def latent(self, x: Tensor, y: Tensor) -> Any:
        r = self.encode(torch.cat((x, y), dim=-1)).mean(dim=1)
        return Normal(self.mu(r), 0.1 + 0.9 * torch.sigmoid(self.sigma(r)))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x, y = x.unsqueeze(-1), y.unsqueeze(-1)
        q_target, q_context = self.latent(x, y), self.latent(x[:, :4], y[:, :4])
        z = q_target.mean.unsqueeze(1).expand(-1, x.size(1), -1)
        mu, raw = self.decode(torch.cat((x, z), -1)).chunk(2, -1)
        p = Independent(Normal(mu, 0.1 + 0.9 * F.softplus(raw)), 1)
        kl = kl_divergence(q_target, q_context).mean(dim=0).sum()
        return -p.log_prob(y).mean(dim=0).sum() + kl


class QMIX(nn.Module):
    """Values of agents mixed by weights that a hypernet makes positive (Rashid et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.rnn, self.fc2 = (
            nn.Linear(6, WIDTH),
            nn.GRUCell(WIDTH, WIDTH),
            nn.Linear(WIDTH, 4),
        )
        self.w1, self.b1 = nn.Linear(8, 3 * 8), nn.Linear(8, 8)
        self.w_final, self.v = (
            nn.Linear(8, 8),
            nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1)),
        )

    def forward(
        self, obs: Tensor, state: Tensor, actions: Tensor, avail: Tensor, r: Tensor
    ) -> Tensor:
        b, n = obs.shape[:2]
        h = self.fc1.weight.new(1, WIDTH).zero_().expand(b * n, -1)
        q = self.fc2(self.rnn(F.relu(self.fc1(obs.reshape(b * n, -1))), h)).view(b, n, -1)
        chosen = torch.gather(q, dim=2, index=actions.unsqueeze(2)).squeeze(2)
        best = q.clone().detach()
        best[avail == 0] = -9999999
        w1 = torch.abs(self.w1(state)).view(-1, n, 8)
        hidden = F.elu(torch.bmm(chosen.view(-1, 1, n), w1) + self.b1(state).view(-1, 1, 8))
        w_final = torch.abs(self.w_final(state)).view(-1, 8, 1)
        q_tot = (torch.bmm(hidden, w_final) + self.v(state).view(-1, 1, 1)).view(b)
        td_error = q_tot - (r + 0.99 * best.max(dim=2)[0].mean(1)).detach()
        mask = torch.ones_like(td_error)
        return ((td_error * mask) ** 2).sum() / mask.sum()


class RSSM(nn.Module):
    """A world model of straight-through categories, KL balanced, twohot rewards (Hafner 2023)."""

    def __init__(self) -> None:
        super().__init__()
        self.obs, self.cell = nn.Linear(6, WIDTH), nn.GRUCell(8 + 2, WIDTH)
        self.prior, self.post = nn.Linear(WIDTH, 8), nn.Linear(2 * WIDTH, 8)
        self.decoder, self.reward = nn.Linear(WIDTH + 8, 6), nn.Linear(WIDTH + 8, 11)

    def stats(self, x: Tensor) -> Tensor:
        probs = F.softmax(x.view(-1, 2, 4), -1)
        return torch.log(0.99 * probs + 0.01 / 4)

    def forward(self, obs: Tensor, action: Tensor, reward: Tensor) -> Tensor:
        b = obs.shape[0]
        embed = F.silu(self.obs(torch.sign(obs) * torch.log1p(torch.abs(obs))))
        h, z = torch.zeros(b, WIDTH), torch.zeros(b, 8)
        bins, losses = torch.linspace(-2, 2, 11), torch.zeros(())
        for i in range(3):
            h = self.cell(torch.cat([z, action[:, i]], -1), h)
            prior, post = (
                self.stats(self.prior(h)),
                self.stats(self.post(torch.cat([h, embed[:, i]], -1))),
            )
            hard = F.one_hot(post.argmax(-1), 4).to(post.dtype)
            z = (hard + post.exp() - post.exp().detach()).flatten(1)
            feat = torch.cat([h, z], -1)
            kl = (post.detach().exp() * (post.detach() - prior)).sum((-1, -2)).clip(min=1.0)
            kl = 0.5 * kl + 0.1 * (post.exp() * (post - prior.detach())).sum((-1, -2)).clip(min=1.0)
            r = reward[:, i].unsqueeze(-1)
            below = (bins <= r).sum(-1).clamp(1, 11) - 1
            above = (below + 1).clamp(max=10)
            share = ((r.squeeze(-1) - bins[below]) / 0.4).clamp(0, 1)
            twohot = (
                F.one_hot(below, 11) * (1 - share)[:, None] + F.one_hot(above, 11) * share[:, None]
            )
            logp = self.reward(feat).log_softmax(-1)
            losses = (
                losses
                + kl
                - (twohot * logp).sum(-1)
                + (self.decoder(feat) - obs[:, i]).pow(2).sum(-1)
            )
        return losses.mean()


NETS: Mapping[str, Net] = MappingProxyType(
    {
        "deeponet": Net(DeepONet, both(normal((10,)), uniform((7,), (7,))), "own"),
        "triangles, distogram": Net(Triangles, both(whole((20, (6,))), normal((6, 3))), "own"),
        "eegnet": Net(EEGNet, normal((6, 24))),
        "deepsurv": Net(Cox, both(normal((6,)), uniform((), ())), "own"),
        "scvi, zinb": Net(ZINB, uniform((10,)), "own"),
        "neural process": Net(NeuralProcess, normal((8,), (8,)), "own"),
        "qmix": Net(
            QMIX,
            both(normal((3, 6), (8,)), whole((4, (3,)), (2, (3, 4))), normal(())),
            "own",
        ),
        "rssm": Net(RSSM, normal((3, 6), (3, 2), (3,)), "own"),
    }
)
