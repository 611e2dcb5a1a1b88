"""Nets with weights made by others, windows and counts, as their users write them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

from benchmarks.census.net import Net, both, normal, whole

WIDTH, CLASSES, TIME, WORDS = 8, 5, 8, 20
words = whole((WORDS, (TIME,)))
labelled = both(normal((6,)), whole((CLASSES, ())))


class Orthogonal(nn.Module):
    """Layers kept orthogonal in one of torch's three ways."""

    def __init__(self, way: str) -> None:
        super().__init__()
        self.first = parametrizations.orthogonal(nn.Linear(6, 6), orthogonal_map=way)
        self.second = parametrizations.orthogonal(nn.Linear(6, 4), orthogonal_map=way)
        self.out = nn.Linear(4, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(torch.tanh(self.second(torch.tanh(self.first(x)))))


class Symmetric(nn.Module):
    def forward(self, X: Tensor) -> Tensor:
        return X.triu() + X.triu(1).transpose(-1, -2)


class Positive(nn.Module):
    def forward(self, X: Tensor) -> Tensor:
        return F.softplus(X) / F.softplus(X).sum(dim=-1, keepdim=True)


class InputConvex(nn.Module):
    """An input-convex net with parametrized weights, some of them twice (Amos et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 1)
        parametrize.register_parametrization(self.a, "weight", Symmetric())
        for layer in (self.b, self.c):
            parametrize.register_parametrization(layer, "weight", Positive())

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        with parametrize.cached():
            z = F.softplus(self.b(F.softplus(self.a(x))))
            return F.mse_loss(self.c(z + F.softplus(self.a(z))).flatten(), y)


class DoRA(nn.Module):
    """Weights decomposed in magnitude and direction, low-rank deltas (Liu et al. 2024)."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.empty(2, base.in_features))
        self.lora_B = nn.Parameter(torch.zeros(base.out_features, 2))
        nn.init.kaiming_uniform_(self.lora_A, a=math.sqrt(5))
        self.m = nn.Parameter(base.weight.norm(p=2, dim=1, keepdim=True))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.base.weight + self.lora_B @ self.lora_A * 2.0
        norm = torch.linalg.norm(weight, dim=1, keepdim=True).detach()
        return F.linear(x, self.m * weight / norm, self.base.bias)


class DoRANet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.layers = nn.ModuleDict({k: nn.Linear(WIDTH, WIDTH) for k in ("q", "k", "v", "o")})
        for name, layer in self.layers.items():
            self.layers[name] = DoRA(layer)
        self.prefix = nn.Parameter(torch.randn(2, 2, WIDTH))

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        x = self.embed(ids)
        q, k, v = (self.layers[n](x) for n in "qkv")
        k, v = (
            torch.cat([p.expand(x.size(0), -1, -1), t], 1)
            for p, t in zip(self.prefix.unbind(0), (k, v), strict=True)
        )
        keep = F.pad(mask.bool(), (2, 0), value=True)[:, None, None, :]
        out = F.scaled_dot_product_attention(q[:, None], k[:, None], v[:, None], attn_mask=keep)
        return F.linear(self.layers["o"](out.squeeze(1)), self.embed.weight)


class FunctionalHyper(nn.Module):
    """Weights of another net made from a code, called by functional_call (Ha et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.target = nn.Sequential(nn.Linear(2, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))
        self.sizes = {n: p.shape for n, p in self.target.named_parameters()}
        self.code = nn.Parameter(torch.randn(4))
        self.make = nn.Linear(4, sum(s.numel() for s in self.sizes.values()))
        self.target.requires_grad_(False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        flat = self.make(self.code).split([s.numel() for s in self.sizes.values()])
        made = {n: t.view(s) for (n, s), t in zip(self.sizes.items(), flat, strict=True)}
        out = torch.func.functional_call(self.target, made, (x,))
        return F.huber_loss(out.squeeze(-1), y)


class Ensemble(nn.Module):
    """Members stacked and mapped over by vmap."""

    def __init__(self) -> None:
        super().__init__()
        self.w1, self.b1 = (
            nn.Parameter(torch.randn(3, 6, WIDTH) * 0.4),
            nn.Parameter(torch.zeros(3, WIDTH)),
        )
        self.w2 = nn.Parameter(torch.randn(3, WIDTH, CLASSES) * 0.4)

    def forward(self, x: Tensor) -> Tensor:
        def member(w1: Tensor, b1: Tensor, w2: Tensor) -> Tensor:
            return torch.relu(x @ w1 + b1) @ w2

        return torch.func.vmap(member)(self.w1, self.b1, self.w2).mean(0)


class PINN(nn.Module):
    """The heat equation by derivatives of the net, as every tutorial has it (Raissi et al.)."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))

    def forward(self, x: Tensor, t: Tensor, u0: Tensor) -> Tensor:
        x = x.requires_grad_(True)
        u = self.net(torch.cat([x, t], 1))
        u_x = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)[0]
        return torch.mean(u_x**2) + torch.mean((u - u0) ** 2)


class ForwardPINN(nn.Module):
    """The same with torch.func.jvp."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(2, WIDTH), nn.Tanh(), nn.Linear(WIDTH, 1))

    def forward(self, x: Tensor, t: Tensor, u0: Tensor) -> Tensor:
        u, u_x = torch.func.jvp(
            lambda x: self.net(torch.cat([x, t], 1)), (x,), (torch.ones_like(x),)
        )
        return torch.mean(u_x**2) + torch.mean((u - u0) ** 2)


class SlidingWindow(nn.Module):
    """Longformer's local attention over chunks seen by as_strided (Beltagy et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS, WIDTH)
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.head = nn.Linear(WIDTH, WORDS)

    def chunks(self, x: Tensor) -> Tensor:
        x = F.pad(x, (0, 0, 2, 2)).contiguous()
        b, _, d = x.size()
        s = x.stride()
        return x.as_strided((b, TIME, 5, d), (s[0], s[1], s[1], s[2]))

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids)
        q, k, v = self.q(x), self.chunks(self.k(x)), self.chunks(self.v(x))
        scores = torch.einsum("btd,btwd->btw", q, k) / WIDTH**0.5
        return self.head(torch.einsum("btw,btwd->btd", scores.softmax(-1), v))


class Histogram(nn.Module):
    """Classes weighted by how many of them there are, and values by a histogram."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, WIDTH), nn.Hardswish(), nn.Linear(WIDTH, CLASSES))

    def forward(self, x: Tensor, labels: Tensor) -> Tensor:
        logits = self.net(x)
        with torch.no_grad():
            counts = torch.bincount(labels, minlength=CLASSES)
            weight = 1.0 / (counts.float() + 1)
            density = torch.histc(x, bins=4, min=-2, max=2) / x.numel()
        return F.cross_entropy(logits, labels, weight=weight) * (1 + density.max())


def _orthogonal(way: str) -> Net:
    return Net(lambda: Orthogonal(way), normal((6,)))


NETS: Mapping[str, Net] = MappingProxyType(
    {
        "orthogonal, householder": _orthogonal("householder"),
        "orthogonal, cayley": _orthogonal("cayley"),
        "orthogonal, matrix_exp": _orthogonal("matrix_exp"),
        "input convex, parametrized": Net(InputConvex, normal((6,), ()), "own"),
        "dora": Net(DoRANet, both(words, whole((2, (TIME,))))),
        "hypernetwork, functional_call": Net(FunctionalHyper, normal((2,), ()), "own"),
        "ensemble by vmap": Net(Ensemble, normal((6,))),
        "pinn": Net(PINN, normal((1,), (1,), (1,)), "own"),
        "pinn by jvp": Net(ForwardPINN, normal((1,), (1,), (1,)), "own"),
        "sliding window": Net(SlidingWindow, words),
        "class weights by bincount": Net(Histogram, labelled, "own"),
    }
)
