"""Functions of coordinates, ordinary differential equations and losses of regression."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from types import MappingProxyType

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.net import Net, both, normal, uniform, whole

HIDDEN = 16


class SineLayer(nn.Module):
    """A layer of SIREN (Sitzmann et al. 2020)."""

    def __init__(self, inside: int, outside: int, is_first: bool = False) -> None:
        super().__init__()
        self.omega_0 = 30.0
        self.linear = nn.Linear(inside, outside)
        with torch.no_grad():
            bound = 1 / inside if is_first else np.sqrt(6 / inside) / self.omega_0
            self.linear.weight.uniform_(-bound, bound)

    def forward(self, input: Tensor) -> Tensor:
        return torch.sin(self.omega_0 * self.linear(input))


class Siren(nn.Module):
    """An image as a function of its coordinates."""

    def __init__(self) -> None:
        super().__init__()
        final = nn.Linear(HIDDEN, 1)
        self.net = nn.Sequential(SineLayer(2, HIDDEN, True), SineLayer(HIDDEN, HIDDEN), final)

    def forward(self, coords: Tensor, pixels: Tensor) -> tuple[Tensor, Tensor]:
        output = self.net(coords)
        return ((output - pixels) ** 2).mean(), output


class NeRF(nn.Module):
    """A radiance field with its volume rendering (Mildenhall et al. 2020)."""

    def __init__(self, bands: int = 3) -> None:
        super().__init__()
        self.freq_bands = 2.0 ** torch.linspace(0.0, bands - 1, steps=bands)
        channels = 3 + 3 * 2 * bands
        self.pts_linears = nn.ModuleList(
            [nn.Linear(channels, HIDDEN), nn.Linear(HIDDEN + channels, HIDDEN)]
        )
        self.alpha_linear = nn.Linear(HIDDEN, 1)
        self.rgb_linear = nn.Linear(HIDDEN, 3)

    def embed(self, x: Tensor) -> Tensor:
        out = [x]
        for freq in self.freq_bands:
            for function in (torch.sin, torch.cos):
                out.append(function(x * freq))
        return torch.cat(out, -1)

    def forward(self, origins: Tensor, directions: Tensor, target: Tensor) -> Tensor:
        z_vals = torch.linspace(2.0, 6.0, 6).expand(origins.shape[0], 6)
        pts = origins[..., None, :] + directions[..., None, :] * z_vals[..., :, None]
        x = self.embed(pts)
        h = F.relu(self.pts_linears[0](x))
        h = F.relu(self.pts_linears[1](torch.cat([x, h], -1)))
        rgb = torch.sigmoid(self.rgb_linear(h))
        dists = z_vals[..., 1:] - z_vals[..., :-1]
        dists = torch.cat([dists, torch.Tensor([1e10]).expand(dists[..., :1].shape)], -1)
        dists = dists * torch.norm(directions[..., None, :], dim=-1)
        alpha = 1.0 - torch.exp(-F.relu(self.alpha_linear(h)[..., 0]) * dists)
        ones = torch.ones((alpha.shape[0], 1))
        clear = torch.cumprod(torch.cat([ones, 1.0 - alpha + 1e-10], -1), -1)[:, :-1]
        rgb_map = torch.sum((alpha * clear)[..., None] * rgb, -2)
        return torch.mean((rgb_map - target) ** 2)


class FourierFeatures(nn.Module):
    """A net of Fourier features, random (Tancik et al. 2020) or learnt (Li et al. 2021)."""

    def __init__(self, learnt: bool) -> None:
        super().__init__()
        B = torch.randn(HIDDEN, 2)
        if learnt:
            self.B = nn.Parameter(B)
        else:
            self.register_buffer("B", B * 10)
        self.net = nn.Sequential(
            nn.Linear(2 * HIDDEN, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, 3), nn.Sigmoid()
        )

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x_proj = (2.0 * math.pi * x) @ self.B.T
        features = torch.cat([torch.sin(x_proj), torch.cos(x_proj)], dim=-1)
        return 0.5 * F.mse_loss(self.net(features / np.sqrt(HIDDEN)), y)


class NeuralODE(nn.Module):
    """A classifier whose middle is integrated (Chen et al. 2018), by Euler or Runge-Kutta."""

    def __init__(self, method: str, steps: int = 4) -> None:
        super().__init__()
        self.method, self.steps = method, steps
        self.stem = nn.Linear(6, HIDDEN)
        self.func = nn.Sequential(nn.Linear(HIDDEN + 1, HIDDEN), nn.Tanh())
        self.head = nn.Linear(HIDDEN, 3)

    def derivative(self, t: Tensor, y: Tensor) -> Tensor:
        tt = torch.ones_like(y[:, :1]) * t
        return self.func(torch.cat([tt, y], 1))

    def forward(self, x: Tensor) -> Tensor:
        y = self.stem(x)
        times = torch.linspace(0, 1, self.steps + 1)
        for t0, t1 in pairwise(times):
            h = t1 - t0
            k1 = self.derivative(t0, y)
            if self.method == "euler":
                y = y + h * k1
                continue
            k2 = self.derivative(t0 + h / 2, y + h / 2 * k1)
            k3 = self.derivative(t0 + h / 2, y + h / 2 * k2)
            k4 = self.derivative(t1, y + h * k3)
            y = y + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        return self.head(y)


class Perceptron(nn.Sequential):
    """A perceptron of two layers."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__(nn.Linear(inside, HIDDEN), nn.SELU(), nn.Linear(HIDDEN, outside))


class Regression(nn.Module):
    """A regression under a loss of torch."""

    def __init__(self, criterion: nn.Module) -> None:
        super().__init__()
        self.net = Perceptron(6, 1)
        self.criterion = criterion

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        prediction = self.net(x).squeeze(-1)
        return self.criterion(prediction, y), prediction


class Quantiles(nn.Module):
    """Quantile regression with the pinball loss (Koenker and Bassett 1978)."""

    def __init__(self, quantiles: tuple[float, ...] = (0.1, 0.5, 0.9)) -> None:
        super().__init__()
        self.quantiles = quantiles
        self.net = Perceptron(6, len(quantiles))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        preds = self.net(x)
        losses = []
        for i, q in enumerate(self.quantiles):
            errors = target - preds[:, i]
            losses.append(torch.max((q - 1) * errors, q * errors).unsqueeze(1))
        return torch.mean(torch.sum(torch.cat(losses, dim=1), dim=1))


class MDN(nn.Module):
    """Mixture density network (Bishop 1994)."""

    def __init__(self, mixtures: int = 3) -> None:
        super().__init__()
        self.z_h = nn.Sequential(nn.Linear(6, HIDDEN), nn.Tanh())
        self.z_pi = nn.Linear(HIDDEN, mixtures)
        self.z_mu = nn.Linear(HIDDEN, mixtures)
        self.z_sigma = nn.Linear(HIDDEN, mixtures)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.z_h(x)
        log_pi = F.log_softmax(self.z_pi(z), -1)
        sigma = torch.exp(self.z_sigma(z))
        component = torch.distributions.Normal(loc=self.z_mu(z), scale=sigma)
        log_prob = component.log_prob(y.unsqueeze(1).expand_as(sigma))
        return -torch.logsumexp(log_pi + log_prob, dim=1).mean()


class Evidential(nn.Module):
    """Deep evidential regression (Amini et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Perceptron(6, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        mu, logv, logalpha, logbeta = torch.split(self.net(x), 1, dim=-1)
        v, alpha = F.softplus(logv), F.softplus(logalpha) + 1
        beta = F.softplus(logbeta)
        y = y.unsqueeze(-1)
        omega = 2 * beta * (1 + v)
        nll = 0.5 * torch.log(np.pi / v) - alpha * torch.log(omega)
        nll = nll + (alpha + 0.5) * torch.log(v * (y - mu) ** 2 + omega)
        nll = nll + torch.lgamma(alpha) - torch.lgamma(alpha + 0.5)
        return torch.mean(nll + 0.01 * torch.abs(y - mu) * (2 * v + alpha))


regressed = normal((6,), ())
counted = both(normal((6,)), whole((9, ())))


def regression(criterion: type[nn.Module], **options: float) -> Net:
    """Returns a regression on real labels."""
    return Net(lambda: Regression(criterion(**options)), regressed, loss="own", labels="y")


NETS: Mapping[str, Net] = MappingProxyType(
    {
        "siren": Net(Siren, uniform((5, 2), (5, 1)), loss="own", labels="pixels"),
        "nerf": Net(NeRF, uniform((3,), (3,), (3,)), loss="own", labels="target"),
        "fourier features": Net(
            lambda: FourierFeatures(False), uniform((2,), (3,)), loss="own", labels="y"
        ),
        "learnt fourier features": Net(
            lambda: FourierFeatures(True), uniform((2,), (3,)), loss="own", labels="y"
        ),
        "neural ode, euler": Net(lambda: NeuralODE("euler"), normal((6,))),
        "neural ode, rk4": Net(lambda: NeuralODE("rk4"), normal((6,))),
        "mse": regression(nn.MSELoss),
        "huber": regression(nn.HuberLoss, delta=0.5),
        "smooth l1": regression(nn.SmoothL1Loss),
        "l1": regression(nn.L1Loss),
        "poisson": Net(lambda: Regression(nn.PoissonNLLLoss()), counted, loss="own", labels="y"),
        "quantiles": Net(Quantiles, regressed, loss="own", labels="target"),
        "mixture density": Net(MDN, regressed, loss="own", labels="y"),
        "evidential": Net(Evidential, regressed, loss="own", labels="y"),
    }
)
