"""Nets with hidden states, likelihoods and plans, as their users write them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, distributions, nn
from torch.nn import functional as F

from benchmarks.census.net import Net, both, normal, uniform, whole

WIDTH, CLASSES, TIME, WORDS = 16, 5, 7, 23


class Kalman(nn.Module):
    """A linear filter with learnt dynamics, by the likelihood of its innovations."""

    def __init__(self) -> None:
        super().__init__()
        self.A = nn.Parameter(0.9 * torch.eye(4) + 0.05 * torch.randn(4, 4))
        self.C = nn.Parameter(0.5 * torch.randn(2, 4))
        self.log_q, self.log_r = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(2))
        self.mu0 = nn.Parameter(torch.zeros(4))

    def forward(self, y: Tensor) -> Tensor:
        b, t, d = y.shape
        mu = self.mu0.expand(b, -1)
        P = torch.eye(4).repeat(b, 1, 1)
        Q, R = torch.diag(self.log_q.exp()), torch.diag_embed(self.log_r.exp())
        nll = torch.zeros(b)
        for i in range(t):
            mu = mu @ self.A.T
            P = self.A @ P @ self.A.T + Q
            S = self.C @ P @ self.C.T + R
            v = y[:, i] - mu @ self.C.T
            L = torch.linalg.cholesky(S)
            K = torch.linalg.solve(S, self.C @ P).transpose(-2, -1)
            z = torch.linalg.solve_triangular(L, v.unsqueeze(-1), upper=False).squeeze(-1)
            logdet = 2 * torch.diagonal(L, dim1=-2, dim2=-1).log().sum(-1)
            nll = nll + 0.5 * ((z**2).sum(-1) + logdet + d * math.log(2 * math.pi))
            mu = mu + (K @ v.unsqueeze(-1)).squeeze(-1)
            P = (torch.eye(4) - K @ self.C) @ P
        return nll.mean() / t


class DeepKernel(nn.Module):
    """A Gaussian process on features, by its marginal likelihood (Wilson et al. 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(3, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 2))
        self.raw_length, self.raw_noise = nn.Parameter(torch.zeros(2)), nn.Parameter(torch.zeros(1))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.net(x) / F.softplus(self.raw_length)
        d2 = (z.unsqueeze(-2) - z.unsqueeze(-3)).pow(2).sum(-1)
        n = x.shape[1]
        K = torch.exp(-0.5 * d2) + (F.softplus(self.raw_noise) + 1e-4) * torch.eye(n)
        L = torch.linalg.cholesky(K)
        alpha = torch.cholesky_solve(y.unsqueeze(-1), L)
        fit = 0.5 * (y.unsqueeze(1) @ alpha).squeeze()
        return (fit + L.diagonal(dim1=-2, dim2=-1).log().sum(-1)).mean() / n


class HiddenMarkov(nn.Module):
    """The forward algorithm in logarithms, Gaussian emissions."""

    def __init__(self) -> None:
        super().__init__()
        self.start, self.trans = nn.Parameter(torch.randn(4)), nn.Parameter(torch.randn(4, 4))
        self.loc, self.log_scale = nn.Parameter(torch.randn(4, 2)), nn.Parameter(torch.zeros(4, 2))

    def forward(self, x: Tensor) -> Tensor:
        emission = distributions.Independent(
            distributions.Normal(self.loc, self.log_scale.exp()), 1
        )
        log_e = emission.log_prob(x.unsqueeze(2))
        log_A = F.log_softmax(self.trans, dim=1)
        log_alpha = F.log_softmax(self.start, 0) + log_e[:, 0]
        for t in range(1, x.size(1)):
            log_alpha = torch.logsumexp(log_alpha.unsqueeze(2) + log_A, dim=1) + log_e[:, t]
        return -torch.logsumexp(log_alpha, dim=1).mean()


class Transducer(nn.Module):
    """RNN-T loss over its lattice, cell by cell (Graves 2012)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.embed = nn.LSTM(4, WIDTH, batch_first=True), nn.Embedding(WORDS, 8)
        self.predictor = nn.GRU(8, WIDTH, batch_first=True)
        self.joint = nn.Linear(WIDTH, WORDS)

    def forward(self, audio: Tensor, labels: Tensor) -> Tensor:
        f, _ = self.encoder(audio)
        g, _ = self.predictor(self.embed(F.pad(labels, (1, 0))))
        log_p = self.joint(torch.tanh(f[:, :, None] + g[:, None])).log_softmax(-1)
        T, U = f.shape[1], labels.shape[1]
        blank = log_p[..., 0]
        emit = log_p[:, :, :-1].gather(3, labels[:, None, :, None].expand(-1, T, -1, 1)).squeeze(3)
        alpha = [[None] * (U + 1) for _ in range(T)]
        for t in range(T):
            for u in range(U + 1):
                if t == 0 and u == 0:
                    alpha[t][u] = log_p.new_zeros(log_p.shape[0])
                elif u == 0:
                    alpha[t][u] = alpha[t - 1][u] + blank[:, t - 1, u]
                elif t == 0:
                    alpha[t][u] = alpha[t][u - 1] + emit[:, t, u - 1]
                else:
                    stay = alpha[t - 1][u] + blank[:, t - 1, u]
                    alpha[t][u] = torch.logaddexp(stay, alpha[t][u - 1] + emit[:, t, u - 1])
        return -(alpha[T - 1][U] + blank[:, T - 1, U]).mean()


class PixelCNNpp(nn.Module):
    """A mixture of discretised logistics, as published (Salimans et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Conv2d(1, WIDTH, (2, 3), padding=(1, 1))
        self.out = nn.Conv2d(2 * WIDTH, 3 * 5, 1)

    def forward(self, x: Tensor) -> Tensor:
        x = (2 * x - 1).clamp(-1, 1)
        h = F.pad(self.down(x)[:, :, :-1], (0, 0, 1, 0))[:, :, : x.shape[2]]
        params = self.out(F.elu(torch.cat([h, -h], 1))).permute(0, 2, 3, 1)
        x = x.permute(0, 2, 3, 1)
        logit_probs, means, log_scales = torch.split(params, 5, dim=-1)
        log_scales = torch.clamp(log_scales, min=-7.0)
        centered = x.contiguous() - means
        inv_stdv = torch.exp(-log_scales)
        plus_in, min_in = inv_stdv * (centered + 1 / 255.0), inv_stdv * (centered - 1 / 255.0)
        cdf_delta = torch.sigmoid(plus_in) - torch.sigmoid(min_in)
        log_cdf_plus = plus_in - F.softplus(plus_in)
        log_one_minus = -F.softplus(min_in)
        mid_in = inv_stdv * centered
        log_pdf_mid = mid_in - log_scales - 2.0 * F.softplus(mid_in)
        inner_cond = (cdf_delta > 1e-5).float()
        inner = inner_cond * torch.log(torch.clamp(cdf_delta, min=1e-12)) + (1.0 - inner_cond) * (
            log_pdf_mid - math.log(127.5)
        )
        cond = (x > 0.999).float()
        inner = cond * log_one_minus + (1.0 - cond) * inner
        cond = (x < -0.999).float()
        log_probs = cond * log_cdf_plus + (1.0 - cond) * inner + F.log_softmax(logit_probs, dim=-1)
        return -torch.logsumexp(log_probs, dim=-1).mean()


class Planar(nn.Module):
    """Planar flows with u kept invertible, by torch.distributions (Rezende & Mohamed 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.ParameterList([nn.Parameter(torch.randn(1, 3) * 0.5) for _ in range(3)])
        self.u = nn.ParameterList([nn.Parameter(torch.randn(1, 3) * 0.5) for _ in range(3)])
        self.b = nn.ParameterList([nn.Parameter(torch.zeros(1)) for _ in range(3)])
        self.loc, self.log_scale = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.zeros(3))

    def forward(self, eps: Tensor) -> Tensor:
        base = distributions.Normal(self.loc, self.log_scale.exp())
        z = self.loc + self.log_scale.exp() * eps
        log_q = base.log_prob(z).sum(1)
        for w, u, b in zip(self.w, self.u, self.b, strict=True):
            wu = (w @ u.t()).squeeze()
            u_hat = u + (-1 + F.softplus(wu) - wu) * w / (w @ w.t())
            lin = F.linear(z, w, b)
            z = z + u_hat * torch.tanh(lin)
            psi = (1 - torch.tanh(lin) ** 2) * w
            log_q = log_q - torch.log(torch.abs(1 + psi @ u_hat.t()).squeeze(1) + 1e-8)
        target = distributions.MultivariateNormal(torch.ones(3), 0.5 * torch.eye(3) + 0.2)
        return (log_q - target.log_prob(z)).mean()


class NeuralHawkes(nn.Module):
    """A continuous-time LSTM of events, its intensity integrated (Mei & Eisner 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.emb, self.rec = nn.Embedding(CLASSES + 1, 8), nn.Linear(8 + WIDTH, 7 * WIDTH)
        self.inten = nn.Linear(WIDTH, CLASSES)
        self.beta = nn.Parameter(torch.ones(CLASSES))

    def forward(self, types: Tensor, gaps: Tensor, u: Tensor) -> Tensor:
        b, t = types.shape
        h = c_bar = c = torch.zeros(b, WIDTH)
        logs, integral = [], 0.0
        for i in range(t - 1):
            gates = self.rec(torch.cat([self.emb(types[:, i]), h], 1))
            inp, forget, zz, out, inp_bar, forget_bar, decay = torch.chunk(gates, 7, dim=1)
            zz = torch.tanh(zz)
            c_i = torch.sigmoid(forget) * c + torch.sigmoid(inp) * zz
            c_bar = torch.sigmoid(forget_bar) * c_bar + torch.sigmoid(inp_bar) * zz
            delta, out = F.softplus(decay, 1.0), torch.sigmoid(out)
            dt = gaps[:, i + 1, None]
            c = c_bar + (c_i - c_bar) * torch.exp(-delta * dt)
            h = out * torch.tanh(c)
            lam = self.beta * F.softplus(self.inten(h) / self.beta)
            logs.append(torch.gather(lam, 1, types[:, i + 1, None] - 1).log())
            c_u = c_bar + (c_i - c_bar) * torch.exp(-delta * dt * u[:, i, None])
            sampled = self.beta * F.softplus(self.inten(out * torch.tanh(c_u)) / self.beta)
            integral = integral + sampled.sum(1) * dt.squeeze(1)
        return (integral - torch.stack(logs, 1).sum((1, 2))).mean()


class BetaActor(nn.Module):
    """A bounded policy by torch.distributions.Beta, and its entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, WIDTH), nn.Tanh())
        self.alpha, self.beta = nn.Linear(WIDTH, 2), nn.Linear(WIDTH, 2)

    def forward(self, state: Tensor, action: Tensor, advantage: Tensor, old: Tensor) -> Tensor:
        h = self.body(state)
        dist = distributions.Beta(F.softplus(self.alpha(h)) + 1, F.softplus(self.beta(h)) + 1)
        log_prob = dist.log_prob(0.01 + 0.98 * action).sum(-1)
        ratio = torch.exp(log_prob - old)
        surrogate = torch.min(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
        return -surrogate.mean() - 0.01 * dist.entropy().sum(-1).mean()


class Mixture(nn.Module):
    """MixtureSameFamily of torch.distributions, as in its documentation."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(4, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 3 * (1 + 2 * 2)))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        logits, loc, scale = torch.split(self.net(x), [3, 6, 6], dim=-1)
        mix = distributions.Categorical(logits=logits)
        parts = distributions.Independent(
            distributions.Normal(loc.reshape(-1, 3, 2), F.softplus(scale.reshape(-1, 3, 2)) + 1e-3),
            1,
        )
        return -distributions.MixtureSameFamily(mix, parts).log_prob(y).mean()


def symlog(x: Tensor) -> Tensor:
    return torch.sign(x) * torch.log1p(torch.abs(x))


class Dreamer(nn.Module):
    """Two-hot symlog targets, balanced KL with free bits, 1 % uniform (Hafner et al. 2023)."""

    def __init__(self) -> None:
        super().__init__()
        self.prior, self.post = nn.Linear(WIDTH, 3 * 4), nn.Linear(WIDTH + 6, 3 * 4)
        self.gru, self.act = nn.GRUCell(WIDTH, WIDTH), nn.Linear(3 * 4 + 2, WIDTH)
        self.reward, self.decoder = nn.Linear(WIDTH + 12, 21), nn.Linear(WIDTH + 12, 6)
        self.register_buffer("bins", torch.linspace(-5, 5, 21))

    def logits(self, raw: Tensor) -> Tensor:
        probs = F.softmax(raw.view(-1, 3, 4), -1)
        return torch.log(0.99 * probs + 0.01 / 4)

    def twohot(self, x: Tensor) -> Tensor:
        below = (self.bins <= x[..., None]).to(torch.int32).sum(dim=-1, dtype=torch.int64) - 1
        above = 21 - (self.bins > x[..., None]).to(torch.int32).sum(dim=-1, dtype=torch.int64)
        below, above = torch.clip(below, 0, 20), torch.clip(above, 0, 20)
        equal = below == above
        to_below = torch.where(equal, 1.0, torch.abs(self.bins[below] - x))
        to_above = torch.where(equal, 1.0, torch.abs(self.bins[above] - x))
        total = to_below + to_above
        target = F.one_hot(below, 21) * (to_above / total)[..., None]
        return target + F.one_hot(above, 21) * (to_below / total)[..., None]

    def kl(self, left: Tensor, right: Tensor) -> Tensor:
        return (left.exp() * (left - right)).sum((-1, -2)).clamp(min=1.0)

    def forward(self, obs: Tensor, action: Tensor, reward: Tensor) -> Tensor:
        h, z, loss = obs.new_zeros(len(obs), WIDTH), obs.new_zeros(len(obs), 12), 0.0
        for t in range(obs.shape[1]):
            h = self.gru(F.silu(self.act(torch.cat([z, action[:, t]], -1))), h)
            prior = self.logits(self.prior(h))
            post = self.logits(self.post(torch.cat([h, obs[:, t]], -1)))
            hard = F.one_hot(post.argmax(-1), 4).float()
            z = (hard + post.exp() - post.exp().detach()).flatten(1)
            feat = torch.cat([h, z], -1)
            rew = -(self.twohot(symlog(reward[:, t])) * self.reward(feat).log_softmax(-1)).sum(-1)
            rec = (self.decoder(feat) - symlog(obs[:, t])).pow(2).sum(-1)
            kl = self.kl(post.detach(), prior) + 0.1 * self.kl(post, prior.detach())
            loss = loss + (rew + rec + kl).mean()
        return loss


class MuZero(nn.Module):
    """Unrolled dynamics with halved gradients and min-max scaled states (Schrittwieser 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.representation = nn.Sequential(nn.Linear(6, WIDTH), nn.ELU(), nn.Linear(WIDTH, 8))
        self.dynamics = nn.Sequential(nn.Linear(8 + 3, WIDTH), nn.ELU(), nn.Linear(WIDTH, 8))
        self.reward, self.policy, self.value = nn.Linear(8, 7), nn.Linear(8, 3), nn.Linear(8, 7)

    def scaled(self, s: Tensor) -> Tensor:
        low, high = s.min(1, keepdim=True)[0], s.max(1, keepdim=True)[0]
        scale = high - low
        scale[scale < 1e-5] += 1e-5
        return (s - low) / scale

    def support(self, x: Tensor) -> Tensor:
        x = torch.sign(x) * (torch.sqrt(torch.abs(x) + 1) - 1) + 0.001 * x
        x = torch.clamp(x, -3, 3)
        floor = x.floor()
        prob = x - floor
        logits = torch.zeros(x.shape[0], x.shape[1], 7)
        logits.scatter_(2, (floor + 3).long().unsqueeze(-1), (1 - prob).unsqueeze(-1))
        indexes = floor + 3 + 1
        prob = prob.masked_fill_(indexes > 2 * 3, 0.0)
        indexes = indexes.masked_fill_(indexes > 2 * 3, 0.0)
        logits.scatter_(2, indexes.long().unsqueeze(-1), prob.unsqueeze(-1))
        return logits

    def forward(self, obs: Tensor, actions: Tensor, values: Tensor, pis: Tensor) -> Tensor:
        target = self.support(values)
        s = self.scaled(self.representation(obs))
        loss = 0
        for k in range(actions.shape[1]):
            loss = loss - (target[:, k] * self.value(s).log_softmax(1)).sum(1).mean()
            loss = loss - (pis[:, k].softmax(-1) * F.log_softmax(self.policy(s), 1)).sum(1).mean()
            one_hot = torch.zeros(len(s), 3).scatter_(1, actions[:, k : k + 1], 1.0)
            s = self.scaled(self.dynamics(torch.cat((s, one_hot), dim=1)))
            s = s * 0.5 + s.detach() * 0.5
        return loss / actions.shape[1]


class IQN(nn.Module):
    """Implicit quantiles by cosines of tau, quantile Huber loss (Dabney et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.head, self.cos = nn.Linear(6, WIDTH), nn.Linear(8, WIDTH)
        self.ff, self.norm = nn.Linear(WIDTH, 3), nn.LayerNorm(WIDTH)
        self.register_buffer(
            "pis", torch.FloatTensor([math.pi * i for i in range(8)]).view(1, 1, 8)
        )

    def quantiles(self, x: Tensor, taus: Tensor) -> Tensor:
        cos = torch.cos(taus.unsqueeze(-1) * self.pis).view(-1, 8)
        cos = torch.relu(self.cos(cos)).view(x.shape[0], taus.shape[1], WIDTH)
        h = (torch.relu(self.head(x)).unsqueeze(1) * cos).view(-1, WIDTH)
        return self.ff(self.norm(h)).view(x.shape[0], taus.shape[1], 3)

    def forward(
        self, x: Tensor, nxt: Tensor, action: Tensor, reward: Tensor, taus: Tensor, others: Tensor
    ) -> Tensor:
        with torch.no_grad():
            q = self.quantiles(nxt, others)
            best = q.mean(1).argmax(1)
            ahead = q.gather(2, best[:, None, None].expand(-1, q.shape[1], 1)).transpose(1, 2)
            target = reward[:, None, None] + 0.99 * ahead
        q = self.quantiles(x, taus)
        mine = q.gather(2, action[:, None, None].expand(x.shape[0], taus.shape[1], 1))
        td = target - mine
        huber = torch.where(td.abs() <= 1.0, 0.5 * td.pow(2), 1.0 * (td.abs() - 0.5))
        loss = abs(taus[..., None] - (td.detach() < 0).float()) * huber / 1.0
        return loss.sum(dim=1).mean(dim=1).mean()


class EDM(nn.Module):
    """Preconditioned denoising, noise levels by quantiles fed (Karras et al. 2022)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, WIDTH, 3, padding=1), nn.Conv2d(WIDTH, 1, 3, padding=1)
        self.norm, self.affine = nn.GroupNorm(4, WIDTH), nn.Linear(8, 2 * WIDTH)
        self.label = nn.Embedding(CLASSES, 8)
        self.register_buffer("freqs", torch.randn(4, generator=torch.Generator().manual_seed(0)))

    def forward(self, y: Tensor, n: Tensor, level: Tensor, label: Tensor) -> Tensor:
        sigma = (level * 1.2 - 1.2).exp().reshape(-1, 1, 1, 1)
        weight = (sigma**2 + 0.25) / (sigma * 0.5) ** 2
        c_skip, c_out = 0.25 / (sigma**2 + 0.25), sigma * 0.5 / (sigma**2 + 0.25).sqrt()
        c_in, c_noise = 1 / (0.25 + sigma**2).sqrt(), sigma.log() / 4
        x = (y + n * sigma) * c_in
        emb = torch.outer(c_noise.flatten(), 2 * math.pi * self.freqs)
        emb = F.silu(torch.cat([emb.cos(), emb.sin()], dim=1) + self.label(label))
        scale, shift = self.affine(emb).unsqueeze(2).unsqueeze(3).chunk(chunks=2, dim=1)
        h = F.silu(torch.addcmul(shift, self.norm(self.first(x)), scale + 1))
        denoised = c_skip * (y + n * sigma) + c_out * self.last(h).to(torch.float32)
        return (weight * ((denoised - y) ** 2)).sum().mul(1 / y.shape[0])


NETS: Mapping[str, Net] = MappingProxyType(
    {
        "kalman filter": Net(Kalman, normal((TIME, 2)), "own"),
        "deep kernel": Net(DeepKernel, normal((6, 3), (6,)), "own"),
        "hidden markov": Net(HiddenMarkov, normal((TIME, 2)), "own"),
        "rnn-t loss": Net(
            Transducer, both(normal((5, 4)), whole((WORDS, (3,)), lowest=1)), "own", "labels"
        ),
        "pixelcnn++": Net(PixelCNNpp, uniform((1, 6, 6)), "own"),
        "planar flows": Net(Planar, normal((3,)), "own"),
        "neural hawkes": Net(
            NeuralHawkes,
            both(whole((CLASSES + 1, (TIME,)), lowest=1), uniform((TIME,), (TIME,))),
            "own",
        ),
        "beta policy": Net(BetaActor, both(normal((6,)), uniform((2,)), normal((), ())), "own"),
        "mixture of distributions": Net(Mixture, normal((4,), (2,)), "own"),
        "dreamer v3": Net(Dreamer, normal((3, 6), (3, 2), (3,)), "own"),
        "muzero": Net(MuZero, both(normal((6,)), whole((3, (3,))), normal((3,), (3, 3))), "own"),
        "iqn": Net(
            IQN, both(normal((6,), (6,)), whole((3, ())), normal(()), uniform((8,), (8,))), "own"
        ),
        "edm": Net(EDM, both(normal((1, 8, 8), (1, 8, 8), ()), whole((CLASSES, ()))), "own"),
    }
)
