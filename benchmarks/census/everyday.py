"""Small nets as people write them for one paper or one afternoon."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.net import Net, both, normal, whole

WIDTH, CLASSES, LENGTH, WORDS = 16, 5, 6, 20


class Of(nn.Module):
    """Parts, and what `forward` does with them and its inputs."""

    def __init__(self, does: Callable[..., Any], **parts: nn.Module) -> None:
        super().__init__()
        self.does = does
        for name, part in parts.items():
            self.add_module(name, part)

    def forward(self, *inputs: Tensor) -> Any:
        return self.does(self, *inputs)


def mlp(inside: int, outside: int) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inside, WIDTH), nn.ReLU(), nn.Linear(WIDTH, outside))


class Spline(nn.Module):
    """A KAN's layer of B-splines (Liu et al. 2024), as efficient-kan writes it."""

    grid: Tensor

    def __init__(self, inside: int, outside: int, size: int = 4, order: int = 2) -> None:
        super().__init__()
        self.order = order
        steps = torch.arange(-order, size + order + 1) * 2 / size - 1
        self.register_buffer("grid", steps.expand(inside, -1).contiguous())
        self.base = nn.Parameter(torch.randn(outside, inside) * 0.3)
        self.spline = nn.Parameter(torch.randn(outside, inside, size + order) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        grid, x3 = self.grid, x.unsqueeze(-1)
        bases = ((x3 >= grid[:, :-1]) & (x3 < grid[:, 1:])).to(x.dtype)
        for k in range(1, self.order + 1):
            left = (x3 - grid[:, : -(k + 1)]) / (grid[:, k:-1] - grid[:, : -(k + 1)])
            right = (grid[:, k + 1 :] - x3) / (grid[:, k + 1 :] - grid[:, 1:(-k)])
            bases = left * bases[:, :, :-1] + right * bases[:, :, 1:]
        splines = F.linear(bases.flatten(1), self.spline.flatten(1))
        return F.linear(F.silu(x), self.base) + splines


class LoRA(nn.Module):
    """A frozen layer and a trained product of low rank (Hu et al. 2021)."""

    def __init__(self, inside: int, outside: int, rank: int = 2) -> None:
        super().__init__()
        self.base = nn.Linear(inside, outside)
        self.base.requires_grad_(False)
        self.lora_A = nn.Parameter(torch.randn(rank, inside) * 0.3)
        self.lora_B = nn.Parameter(torch.randn(outside, rank) * 0.3)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + (x @ self.lora_A.T @ self.lora_B.T) * 2.0


class ConditionalField(nn.Module):
    """Negative log likelihood of tags in a linear chain."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.emit = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.transitions = nn.Parameter(torch.randn(CLASSES, CLASSES) * 0.3)

    def forward(self, words: Tensor, tags: Tensor) -> Tensor:
        scores = self.emit(self.embed(words))
        gold = scores.gather(2, tags.unsqueeze(2)).squeeze(2).sum(1)
        gold = gold + self.transitions[tags[:, :-1], tags[:, 1:]].sum(1)
        alpha = scores[:, 0]
        for t in range(1, scores.size(1)):
            alpha = torch.logsumexp(alpha.unsqueeze(2) + self.transitions, dim=1) + scores[:, t]
        return (torch.logsumexp(alpha, 1) - gold).mean()


class Capsules(nn.Module):
    """Routing by agreement (Sabour et al. 2017)."""

    def __init__(self, count: int = 6, size: int = 4) -> None:
        super().__init__()
        self.primary = nn.Linear(WIDTH, count * size)
        self.count, self.size = count, size
        self.W = nn.Parameter(torch.randn(1, count, CLASSES, 8, size) * 0.3)

    def squash(self, s: Tensor) -> Tensor:
        norm2 = (s**2).sum(-1, keepdim=True)
        return norm2 / (1 + norm2) * s / (norm2.sqrt() + 1e-8)

    def forward(self, x: Tensor) -> Tensor:
        u = self.squash(self.primary(x).view(x.size(0), self.count, self.size))
        u_hat = (self.W @ u[:, :, None, :, None]).squeeze(-1)
        b = x.new_zeros(x.size(0), self.count, CLASSES, 1)
        for step in range(3):
            c = F.softmax(b, dim=2)
            v = self.squash((c * u_hat).sum(1, keepdim=True))
            if step < 2:
                b = b + (u_hat.detach() * v).sum(-1, keepdim=True)
        return v.squeeze(1).norm(dim=-1)


class Pointer(nn.Module):
    """Seq2seq attention by a GRUCell that points at its input (Vinyals et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.GRU(3, WIDTH, batch_first=True)
        self.cell, self.start = nn.GRUCell(WIDTH, WIDTH), nn.Parameter(torch.randn(WIDTH))
        self.W1, self.W2 = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)
        self.v = nn.Linear(WIDTH, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        outputs, h = self.encoder(x)
        h, step, pointers = h[0], self.start.expand(x.size(0), -1), []
        for _ in range(3):
            h = self.cell(step, h)
            scores = self.v(torch.tanh(self.W1(outputs) + self.W2(h).unsqueeze(1))).squeeze(-1)
            pointers.append(scores)
            step = torch.bmm(F.softmax(scores, -1).unsqueeze(1), outputs).squeeze(1)
        return torch.stack(pointers, 1)


class Experts(nn.Module):
    """A mixture whose two best experts of all that are computed count."""

    def __init__(self, count: int = 4) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, count, bias=False)
        self.experts = nn.ModuleList([mlp(WIDTH, WIDTH) for _ in range(count)])
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.gate(x)
        values, indices = logits.topk(2, dim=-1)
        weights = torch.zeros_like(logits).scatter(-1, indices, F.softmax(values, dim=-1))
        outputs = torch.stack([expert(x) for expert in self.experts], dim=1)
        return self.head((weights.unsqueeze(-1) * outputs).sum(1))


class Perceiver(nn.Module):
    """Latents that look at an image through cross attention (Jaegle et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.latents = nn.Parameter(torch.randn(4, WIDTH) * 0.3)
        self.project = nn.Linear(3, WIDTH)
        self.cross = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.layer = nn.TransformerEncoderLayer(
            WIDTH, 2, 32, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.project(x.flatten(2).transpose(1, 2))
        latents = self.latents.unsqueeze(0).expand(x.size(0), -1, -1)
        latents = latents + self.cross(latents, tokens, tokens, need_weights=False)[0]
        return self.head(self.layer(latents).mean(1))


class TimeUNet(nn.Module):
    """A denoiser with sinusoidal times and FiLM."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(8, WIDTH), nn.SiLU(), nn.Linear(WIDTH, 2 * WIDTH))
        self.down = nn.Conv2d(3, WIDTH, 3, stride=2, padding=1)
        self.norm, self.mid = nn.GroupNorm(4, WIDTH), nn.Conv2d(WIDTH, WIDTH, 3, padding=1)
        self.up = nn.ConvTranspose2d(WIDTH, WIDTH, 4, stride=2, padding=1)
        self.out = nn.Conv2d(WIDTH + 3, 3, 3, padding=1)

    def forward(self, x: Tensor, t: Tensor, noise: Tensor) -> Tensor:
        freqs = torch.exp(-math.log(10000) * torch.arange(4, device=x.device) / 4)
        angles = t[:, None].float() * freqs[None]
        shift, scale = self.time(torch.cat([angles.sin(), angles.cos()], -1)).chunk(2, dim=1)
        h = self.norm(self.down(x)) * (1 + scale[:, :, None, None]) + shift[:, :, None, None]
        h = self.up(h + self.mid(F.silu(h)))
        return F.mse_loss(self.out(torch.cat([h, x], 1)), noise)


class WaveNet(nn.Module):
    """Dilated causal convolutions with gates (van den Oord et al. 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, 8, 1)
        self.gates = nn.ModuleList([nn.Conv1d(8, 16, 2, dilation=2**i) for i in range(3)])
        self.skips = nn.ModuleList([nn.Conv1d(8, 8, 1) for _ in range(3)])
        self.last = nn.Conv1d(8, CLASSES, 1)

    def forward(self, x: Tensor) -> Tensor:
        x, total = self.first(x), 0
        for i, (gate, skip) in enumerate(zip(self.gates, self.skips, strict=True)):
            a, b = gate(F.pad(x, (2**i, 0))).chunk(2, 1)
            h = skip(torch.tanh(a) * torch.sigmoid(b))
            x, total = x + h, total + h
        return self.last(F.relu(total)).transpose(1, 2)


class GraphConv(nn.Module):
    """Messages along edges that are the same for all, by index_add."""

    edges: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("edges", torch.tensor([[0, 1, 2, 3, 4, 1], [1, 2, 3, 4, 0, 3]]))
        self.message, self.update = nn.Linear(8, WIDTH), nn.Linear(8 + WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        source, target = self.edges
        messages = F.relu(self.message(x[:, source]))
        total = x.new_zeros(x.size(0), x.size(1), WIDTH).index_add(1, target, messages)
        degree = torch.bincount(target, minlength=x.size(1)).clamp(min=1)
        return self.update(torch.cat([x, total / degree[None, :, None]], -1))


class Hyper(nn.Module):
    """A net that makes the weights of a layer for each example (Ha et al. 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.weights, self.head = mlp(4, 8 * WIDTH), nn.Linear(8, CLASSES)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        w = self.weights(condition).view(-1, 8, WIDTH)
        return self.head(torch.tanh(torch.einsum("boi,bi->bo", w, x)))


class Transformed(nn.Module):
    """An image seen through a learnt flow, by grid_sample."""

    def __init__(self) -> None:
        super().__init__()
        self.flow, self.head = nn.Conv2d(3, 2, 3, padding=1), nn.Linear(3 * 64, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        theta = torch.eye(2, 3).expand(x.size(0), -1, -1)
        grid = F.affine_grid(theta, list(x.shape), align_corners=False)
        grid = grid + 0.1 * torch.tanh(self.flow(x)).permute(0, 2, 3, 1)
        return self.head(F.grid_sample(x, grid, align_corners=False).flatten(1))


def _arcface(m: Any, x: Tensor, y: Tensor) -> Tensor:
    cosine = F.linear(F.normalize(m.body(x)), F.normalize(m.head.weight))
    sine = torch.sqrt((1.0 - cosine.pow(2)).clamp(0, 1))
    phi = cosine * math.cos(0.5) - sine * math.sin(0.5)
    phi = torch.where(cosine > math.cos(math.pi - 0.5), phi, cosine - 0.1)
    one_hot = F.one_hot(y, CLASSES).float()
    return F.cross_entropy(16.0 * (one_hot * phi + (1.0 - one_hot) * cosine), y)


def _focal(m: Any, x: Tensor, y: Tensor) -> Tensor:
    ce = F.cross_entropy(m.body(x), y, reduction="none")
    return ((1 - torch.exp(-ce)) ** 2 * ce).mean()


def _quantiles(m: Any, x: Tensor, y: Tensor) -> Tensor:
    errors = y - m.body(x)
    levels = torch.tensor([0.1, 0.25, 0.5, 0.75, 0.9], device=x.device)
    return torch.max((levels - 1) * errors, levels * errors).mean()


def _info_nce(m: Any, a: Tensor, b: Tensor) -> Tensor:
    za, zb = F.normalize(m.body(a), dim=1), F.normalize(m.body(b), dim=1)
    logits = za @ zb.t() / 0.1
    labels = torch.arange(len(a), device=a.device)
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.t(), labels)) / 2


def _triplets(m: Any, a: Tensor, p: Tensor, n: Tensor) -> Tensor:
    return F.triplet_margin_loss(m.body(a), m.body(p), m.body(n), margin=1.0)


def _siamese(m: Any, a: Tensor, b: Tensor, same: Tensor) -> Tensor:
    distance = (m.body(a) - m.body(b)).pow(2).sum(1).add(1e-6).sqrt()
    same = same.float()
    return (same * distance**2 + (1 - same) * F.relu(2.0 - distance) ** 2).mean()


def _joiner(m: Any, sound: Tensor, words: Tensor) -> Tensor:
    encoded, predicted = m.encoder(sound), m.predictor(m.embed(words))[0]
    return m.out(torch.tanh(encoded.unsqueeze(2) + predicted.unsqueeze(1)))


def _euler(m: Any, x: Tensor) -> Tensor:
    for _ in range(4):
        x = x + 0.25 * m.field(x)
    return m.head(x)


def _boltzmann(m: Any, v: Tensor) -> Tensor:
    def energy(v: Tensor) -> Tensor:
        hidden = F.softplus(F.linear(v, m.fc.weight, m.fc.bias)).sum(1)
        return -(v * m.visible.weight[0]).sum(1) - hidden

    with torch.no_grad():
        h = (torch.sigmoid(m.fc(v)) > 0.5).float()
        negative = (torch.sigmoid(h @ m.fc.weight + m.visible.weight[0]) > 0.5).float()
    return energy(v).mean() - energy(negative).mean()


def _tied(m: Any, words: Tensor) -> Tensor:
    return F.linear(m.rnn(m.embed(words))[0], m.embed.weight)


def _mixer(m: Any, x: Tensor) -> Tensor:
    x = x.flatten(2).transpose(1, 2)
    x = x + m.tokens(m.norm(x).mT).mT
    return m.head((x + m.channels(x)).mean(1))


def _squeeze(m: Any, x: Tensor) -> Tensor:
    x = m.conv(x)
    return m.head((x * torch.sigmoid(m.gate(x.mean((2, 3))))[:, :, None, None]).amax((2, 3)))


def _pyramid(m: Any, x: Tensor) -> Tensor:
    low = m.first(x)
    high = m.second(F.relu(low))
    merged = m.side(low) + F.interpolate(m.top(high), scale_factor=2, mode="nearest")
    return m.head(merged).permute(0, 2, 3, 1)


def _pixels(m: Any, x: Tensor, y: Tensor) -> Tensor:
    return F.l1_loss(F.pixel_shuffle(m.body(x), 2) + F.interpolate(x, scale_factor=2), y)


def _temporal(m: Any, x: Tensor) -> Tensor:
    for conv in (m.first, m.second):
        x = F.relu(conv(x)[..., : -conv.padding[0]] + x)
    return m.head(x[:, :, -1])


def _weighted(make: Callable[[nn.Module], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(make(nn.Linear(8, WIDTH)), nn.Tanh(), nn.Linear(WIDTH, CLASSES))


def of(does: Callable[..., Any], **parts: Callable[[], nn.Module]) -> Callable[[], nn.Module]:
    return lambda: Of(does, **{name: make() for name, make in parts.items()})


def _body(inside: int = 8, outside: int = CLASSES) -> Callable[[], nn.Module]:
    return lambda: mlp(inside, outside)


ROWS, IMAGES, LABELS = normal((8,)), normal((3, 8, 8)), whole((CLASSES, ()))
TEXT = whole((WORDS, (LENGTH,)))

CONV = nn.Conv2d

NETS: Mapping[str, Net] = MappingProxyType(
    {
        f"everyday {name}": net
        for name, net in {
            "kan": Net(lambda: nn.Sequential(Spline(8, WIDTH), Spline(WIDTH, CLASSES)), ROWS),
            "lora": Net(lambda: nn.Sequential(LoRA(8, WIDTH), nn.GELU(), LoRA(WIDTH, 5)), ROWS),
            "crf": Net(ConditionalField, both(TEXT, whole((CLASSES, (LENGTH,)))), "own", "tags"),
            "capsules": Net(Capsules, normal((WIDTH,))),
            "pointer": Net(Pointer, normal((LENGTH, 3))),
            "experts": Net(Experts, normal((WIDTH,))),
            "perceiver": Net(Perceiver, IMAGES),
            "unet with times": Net(
                TimeUNet, both(IMAGES, whole((100, ())), IMAGES), "own", "noise"
            ),
            "wavenet": Net(WaveNet, normal((1, 12))),
            "graph convolution": Net(GraphConv, normal((5, 8))),
            "hypernetwork": Net(Hyper, normal((WIDTH,), (4,))),
            "flow by grid_sample": Net(Transformed, IMAGES),
            "arcface": Net(
                of(_arcface, body=_body(8, 8), head=lambda: nn.Linear(8, CLASSES, bias=False)),
                both(ROWS, LABELS),
                "own",
            ),
            "focal loss": Net(of(_focal, body=_body()), both(ROWS, LABELS), "own"),
            "quantile loss": Net(of(_quantiles, body=_body()), normal((8,), (1,)), "own"),
            "info nce": Net(of(_info_nce, body=_body()), normal((8,), (8,)), "own"),
            "triplets": Net(of(_triplets, body=_body()), normal((8,), (8,), (8,)), "own"),
            "siamese": Net(of(_siamese, body=_body()), both(ROWS, ROWS, whole((2, ()))), "own"),
            "rnn-t joiner": Net(
                of(
                    _joiner,
                    encoder=lambda: nn.Linear(4, WIDTH),
                    embed=lambda: nn.Embedding(WORDS, 8),
                    predictor=lambda: nn.GRU(8, WIDTH, batch_first=True),
                    out=lambda: nn.Linear(WIDTH, CLASSES),
                ),
                both(normal((5, 4)), TEXT),
            ),
            "euler steps": Net(
                of(_euler, field=_body(8, 8), head=lambda: nn.Linear(8, CLASSES)), ROWS
            ),
            "boltzmann": Net(
                of(
                    _boltzmann,
                    fc=lambda: nn.Linear(8, WIDTH),
                    visible=lambda: nn.Embedding(1, 8),
                ),
                ROWS,
                "own",
            ),
            "tied embedding": Net(
                of(
                    _tied,
                    embed=lambda: nn.Embedding(WORDS, WIDTH),
                    rnn=lambda: nn.LSTM(WIDTH, WIDTH, batch_first=True),
                ),
                TEXT,
            ),
            "mixer": Net(
                of(
                    _mixer,
                    norm=lambda: nn.LayerNorm(3),
                    tokens=_body(64, 64),
                    channels=_body(3, 3),
                    head=lambda: nn.Linear(3, CLASSES),
                ),
                IMAGES,
            ),
            "squeeze and excite": Net(
                of(
                    _squeeze,
                    conv=lambda: CONV(3, 8, 3),
                    gate=_body(8, 8),
                    head=lambda: nn.Linear(8, CLASSES),
                ),
                IMAGES,
            ),
            "feature pyramid": Net(
                of(
                    _pyramid,
                    first=lambda: CONV(3, 8, 3, padding=1),
                    second=lambda: CONV(8, 16, 3, stride=2, padding=1),
                    side=lambda: CONV(8, 8, 1),
                    top=lambda: CONV(16, 8, 1),
                    head=lambda: CONV(8, CLASSES, 3, padding=1),
                ),
                IMAGES,
            ),
            "pixel shuffle": Net(
                of(_pixels, body=lambda: CONV(3, 12, 3, padding=1)),
                normal((3, 8, 8), (3, 16, 16)),
                "own",
            ),
            "temporal convolutions": Net(
                of(
                    _temporal,
                    first=lambda: nn.Conv1d(4, 4, 3, padding=2),
                    second=lambda: nn.Conv1d(4, 4, 3, padding=4, dilation=2),
                    head=lambda: nn.Linear(4, CLASSES),
                ),
                normal((4, 12)),
            ),
            "weight norm": Net(_weighted(nn.utils.parametrizations.weight_norm), ROWS),
            "spectral norm": Net(_weighted(nn.utils.parametrizations.spectral_norm), ROWS),
            "orthogonal": Net(_weighted(nn.utils.parametrizations.orthogonal), ROWS),
        }.items()
    }
)
