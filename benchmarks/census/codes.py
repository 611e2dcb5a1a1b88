"""Nets that make pictures or codes of them, and metrics of codes, as their users write them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.net import Net, both, normal, uniform, whole

SIDE, WIDTH, CLASSES = 16, 8, 5
image = normal((3, SIDE, SIDE))


labelled = both(normal((22,)), whole((CLASSES, ())))


class ESRGAN(nn.Module):
    """Dense residual blocks of leaky units, pixels shuffled, Charbonnier (Wang et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(3, WIDTH, 3, 1, 1), nn.Conv2d(WIDTH, 3, 3, 1, 1)
        self.convs = nn.ModuleList([nn.Conv2d(WIDTH + 4 * i, 4, 3, 1, 1) for i in range(2)])
        self.fuse = nn.Conv2d(WIDTH + 8, WIDTH, 3, 1, 1)
        self.up, self.act = nn.Conv2d(WIDTH, 4 * WIDTH, 3, 1, 1), nn.PReLU(WIDTH)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        f = self.first(x)
        maps = [f]
        for c in self.convs:
            maps.append(F.leaky_relu(c(torch.cat(maps, 1)), 0.2, inplace=True))
        f = f + self.fuse(torch.cat(maps, 1)).mul(0.2)
        out = self.last(self.act(F.pixel_shuffle(self.up(f), 2)))
        out = out + F.interpolate(x, scale_factor=2, mode="bicubic", align_corners=False)
        return torch.sqrt((out - y) ** 2 + 1e-6).mean()


class CycleGAN(nn.Module):
    """Reflected borders, instance norms, cycles and identities (Zhu et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.ab, self.ba = self.generator(), self.generator()
        self.disc = nn.Sequential(
            *(nn.Conv2d(3, WIDTH, 4, 2, 1), nn.LeakyReLU(0.2, True)),
            *(nn.Conv2d(WIDTH, WIDTH, 4, 2, 1), nn.InstanceNorm2d(WIDTH), nn.LeakyReLU(0.2, True)),
            nn.Conv2d(WIDTH, 1, 4, 1, 1),
        )

    @staticmethod
    def generator() -> nn.Sequential:
        return nn.Sequential(
            *(nn.ReflectionPad2d(3), nn.Conv2d(3, 4, 7), nn.InstanceNorm2d(4), nn.ReLU(True)),
            *(
                nn.Conv2d(4, 8, 3, 2, 1),
                nn.InstanceNorm2d(8, track_running_stats=False),
                nn.ReLU(True),
            ),
            nn.ConvTranspose2d(8, 4, 3, stride=2, padding=1, output_padding=1),
            *(
                nn.InstanceNorm2d(4),
                nn.ReLU(True),
                nn.ReflectionPad2d(3),
                nn.Conv2d(4, 3, 7),
                nn.Tanh(),
            ),
        )

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        fake_b = self.ab(a)
        rec_a = self.ba(fake_b)
        pred = self.disc(fake_b)
        gan = nn.MSELoss()(pred, torch.tensor(1.0).expand_as(pred))
        return gan + 10 * nn.L1Loss()(rec_a, a) + 5 * nn.L1Loss()(self.ab(b), b)


class BigGAN(nn.Module):
    """Class-conditional norms, self-attention, spectral norms, hinge (Brock et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        sn = nn.utils.parametrizations.spectral_norm
        self.embed, self.linear = nn.Embedding(CLASSES, 4), sn(nn.Linear(8, 4 * 4 * WIDTH))
        self.bn = nn.BatchNorm2d(WIDTH, affine=False)
        self.gain, self.bias = (sn(nn.Linear(8, WIDTH, bias=False)) for _ in range(2))
        self.theta, self.phi = (sn(nn.Conv2d(WIDTH, 2, 1, bias=False)) for _ in range(2))
        self.g, self.o = sn(nn.Conv2d(WIDTH, 4, 1)), sn(nn.Conv2d(4, WIDTH, 1))
        self.gamma, self.rgb = (
            nn.Parameter(torch.tensor(0.5)),
            sn(nn.Conv2d(WIDTH, 3, 3, padding=1)),
        )
        self.d, self.dy = sn(nn.Conv2d(3, WIDTH, 3, 2, 1)), sn(nn.Embedding(CLASSES, WIDTH))
        self.dl = sn(nn.Linear(WIDTH, 1))

    def forward(self, z: Tensor, y: Tensor) -> Tensor:
        z = torch.cat([self.embed(y), z], 1)
        h = self.linear(z).view(-1, WIDTH, 4, 4)
        gain, bias = (1 + self.gain(z)).view(-1, WIDTH, 1, 1), self.bias(z).view(-1, WIDTH, 1, 1)
        h = F.interpolate(F.relu(self.bn(h) * gain + bias), scale_factor=2)
        theta = self.theta(h).view(-1, 2, 64)
        phi = F.max_pool2d(self.phi(h), [2, 2]).view(-1, 2, 16)
        g = F.max_pool2d(self.g(h), [2, 2]).view(-1, 4, 16)
        beta = F.softmax(torch.bmm(theta.transpose(1, 2), phi), -1)
        h = h + self.gamma * self.o(torch.bmm(g, beta.transpose(1, 2)).view(-1, 4, 8, 8))
        f = torch.sum(F.relu(self.d(torch.tanh(self.rgb(h)))), [2, 3])
        out = self.dl(f) + torch.sum(self.dy(y) * f, 1, keepdim=True)
        return -torch.mean(out) + torch.mean(F.relu(1.0 - out))


class Hyperprior(nn.Module):
    """Codes with an entropy model of their scales, GDN (Ballé et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.ga, self.gs = nn.Conv2d(3, WIDTH, 5, 2, 2), nn.ConvTranspose2d(WIDTH, 3, 5, 2, 2, 1)
        self.beta, self.gamma = (
            nn.Parameter(torch.ones(WIDTH)),
            nn.Parameter(0.1 * torch.eye(WIDTH)),
        )
        self.ha, self.hs = (
            nn.Conv2d(WIDTH, 4, 3, 2, 1),
            nn.ConvTranspose2d(4, 2 * WIDTH, 3, 2, 1, 1),
        )
        self.matrix, self.factor = (
            nn.Parameter(torch.ones(4, 1, 1)),
            nn.Parameter(torch.zeros(4, 1, 1)),
        )

    def gdn(self, x: Tensor) -> Tensor:
        gamma = torch.max(self.gamma, torch.tensor(1e-3)).reshape(WIDTH, WIDTH, 1, 1)
        norm = F.conv2d(x**2, gamma, self.beta.clamp(min=1e-3))
        return x * torch.rsqrt(norm)

    def forward(self, x: Tensor, noise_y: Tensor, noise_z: Tensor) -> Tensor:
        y = self.gdn(self.ga(x))
        z_hat = self.ha(torch.abs(y)) + noise_z - 0.5
        flat = z_hat.permute(1, 0, 2, 3).reshape(4, 1, -1)

        def cumulative(v: Tensor) -> Tensor:
            v = torch.matmul(F.softplus(self.matrix), v)
            return v + torch.tanh(self.factor) * torch.tanh(v)

        lower, upper = cumulative(flat - 0.5), cumulative(flat + 0.5)
        sign = -torch.sign(torch.add(lower, upper)).detach()
        p_z = torch.abs(torch.sigmoid(sign * upper) - torch.sigmoid(sign * lower))
        scales, means = self.hs(z_hat).chunk(2, 1)
        scales = torch.max(F.softplus(scales), torch.full_like(scales, 0.11))
        y_hat = y + noise_y - 0.5
        v = torch.abs(y_hat - means)
        p_y = 0.5 * torch.erfc(-(2**-0.5) * ((0.5 - v) / scales)) - 0.5 * torch.erfc(
            -(2**-0.5) * ((-0.5 - v) / scales)
        )
        bpp = sum(torch.log(torch.clamp(p, min=1e-9)).sum() for p in (p_y, p_z)) / (
            -math.log(2) * x.numel()
        )
        return 255**2 * 0.01 * F.mse_loss(self.gs(y_hat), x) + bpp


class LSQ(nn.Module):
    """Weights and activations in four bits with learnt steps, straight through (Esser 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, WIDTH, 3, padding=1), nn.Linear(WIDTH, CLASSES)
        self.s_w, self.s_a = nn.Parameter(torch.tensor(0.05)), nn.Parameter(torch.tensor(0.1))

    @staticmethod
    def quantised(x: Tensor, s: Tensor, low: int, high: int) -> Tensor:
        g = 1.0 / math.sqrt(x.numel() / x.shape[0] * high)
        s = (s - s * g).detach() + s * g
        x = torch.clamp(x / s, low, high)
        return ((torch.round(x) - x).detach() + x) * s

    def forward(self, x: Tensor) -> Tensor:
        w = self.quantised(self.conv.weight, self.s_w, -8, 7)
        x = F.relu(F.conv2d(x, w, self.conv.bias, padding=1))
        x = self.quantised(x, self.s_a, 0, 15)
        return self.fc(x.mean((-2, -1)))


class Metric(nn.Module):
    """Codes of 22 numbers with one of the losses of metric learning."""

    def __init__(self, loss: str) -> None:
        super().__init__()
        self.loss = loss
        self.fc = nn.Linear(22, WIDTH)
        self.proxies = nn.Parameter(torch.randn(CLASSES, WIDTH))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        e = F.normalize(self.fc(x), dim=-1)
        return getattr(self, self.loss)(e, y)

    def proxy_anchor(self, e: Tensor, y: Tensor) -> Tensor:
        cos = F.linear(e, F.normalize(self.proxies, p=2, dim=1))
        positive = F.one_hot(y, CLASSES)
        pos, neg = torch.exp(-32 * (cos - 0.1)), torch.exp(32 * (cos + 0.1))
        present = (positive.sum(dim=0) != 0).sum()
        p = torch.where(positive == 1, pos, torch.zeros_like(pos)).sum(dim=0)
        n = torch.where(positive == 0, neg, torch.zeros_like(neg)).sum(dim=0)
        return torch.log(1 + p).sum() / present + torch.log(1 + n).sum() / CLASSES

    def multi_similarity(self, e: Tensor, y: Tensor) -> Tensor:
        sim, y = e @ e.t(), y % 2
        same = y.unsqueeze(0) == y.unsqueeze(1)
        pos = same & ~torch.eye(len(y), dtype=torch.bool)
        low = torch.finfo(sim.dtype).min
        hard_p = sim.masked_fill(~pos, 2.0).min(1, keepdim=True)[0]
        hard_n = sim.masked_fill(same, low).max(1, keepdim=True)[0]
        p = (pos & (sim - 0.9 < hard_n)).float()
        n = (~same & (sim + 0.9 > hard_p)).float()
        p_loss = torch.log1p((p * torch.exp(-2 * (sim - 0.5))).sum(1)) / 2
        return (p_loss + torch.log1p((n * torch.exp(50 * (sim - 0.5))).sum(1)) / 50).mean()

    def sphereface(self, e: Tensor, y: Tensor) -> Tensor:
        cos = F.linear(e, F.normalize(self.proxies)).clamp(-1 + 1e-7, 1 - 1e-7)
        theta = torch.acos(cos)
        k = (4 * theta / math.pi).floor().detach()
        phi = ((-1.0) ** k) * torch.cos(4 * theta) - 2 * k
        logits = cos + F.one_hot(y, CLASSES) * (phi - cos)
        return F.cross_entropy(8 * logits, y)

    def poincare(self, e: Tensor, y: Tensor) -> Tensor:
        u, v = 0.6 * e, 0.9 * torch.tanh(self.proxies)
        v = v / v.norm(dim=-1, keepdim=True).clamp_min(1.0) * 0.9
        gap = (u[:, None] - v).pow(2).sum(-1)
        a, b = 1 - u.pow(2).sum(-1, keepdim=True), 1 - v.pow(2).sum(-1)
        return F.cross_entropy(-torch.acosh(1 + 2 * gap / (a * b) + 1e-5), y)

    def ordinal(self, e: Tensor, y: Tensor) -> Tensor:
        logits = e.sum(-1, keepdim=True) + self.proxies[:-1, 0]
        levels = (torch.arange(CLASSES - 1)[None] < y[:, None]).type_as(logits)
        terms = F.logsigmoid(logits) * levels + (F.logsigmoid(logits) - logits) * (1 - levels)
        return torch.mean(-torch.sum(terms, dim=1))


NETS: Mapping[str, Net] = MappingProxyType(
    {
        "esrgan": Net(ESRGAN, normal((3, SIDE, SIDE), (3, 2 * SIDE, 2 * SIDE)), "own"),
        "cyclegan": Net(CycleGAN, normal((3, SIDE, SIDE), (3, SIDE, SIDE)), "own"),
        "biggan": Net(BigGAN, both(normal((4,)), whole((CLASSES, ()))), "own"),
        "scale hyperprior": Net(Hyperprior, both(image, uniform((WIDTH, 8, 8), (4, 4, 4))), "own"),
        "lsq": Net(LSQ, image),
        **{
            name: Net(partial(Metric, loss), labelled, "own")
            for name, loss in {
                "proxy anchor": "proxy_anchor",
                "multi-similarity": "multi_similarity",
                "sphereface": "sphereface",
                "poincare": "poincare",
                "coral, ordinal": "ordinal",
            }.items()
        },
    }
)
