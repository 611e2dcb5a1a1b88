"""Later variants of what codes, segments and finds, in pictures and in sounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.everyday import of
from benchmarks.census.net import Net, both, normal, uniform, whole

WIDTH, CLASSES, TIME, SIDE, WORDS = 16, 5, 8, 16, 20
rows, pictures = normal((TIME, WIDTH)), normal((3, SIDE, SIDE))


class GDN(nn.Module):
    """Generalised divisive normalisation of learnt codecs (Balle et al. 2016)."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.beta, self.gamma = nn.Parameter(torch.ones(c)), nn.Parameter(0.1 * torch.eye(c))

    def forward(self, x: Tensor) -> Tensor:
        c = x.size(1)
        beta = torch.max(self.beta, torch.full_like(self.beta, 1e-3)) ** 2
        gamma = (self.gamma**2).reshape(c, c, 1, 1)
        return x * torch.rsqrt(F.conv2d(x**2, gamma, beta))


def _gumbel(self: Any, x: Tensor, noise: Tensor) -> Tensor:
    logits = self.encode(x)
    soft = F.softmax((logits - torch.log(-torch.log(noise + 1e-6) + 1e-6)) / 0.9, dim=1)
    index = soft.max(1, keepdim=True)[1]
    hard = torch.zeros_like(logits).scatter_(1, index, 1.0) - soft.detach() + soft
    z = torch.einsum("bnhw,nd->bdhw", hard, self.codes.weight)
    log_q = F.log_softmax(logits, dim=1)
    kl = (log_q.exp() * (log_q + math.log(8))).sum((1, 2, 3)).mean()
    return F.mse_loss(self.decode(z), x) + 1e-3 * kl


def _lfq(self: Any, x: Tensor) -> Tensor:
    z = self.encode(x)
    q = torch.where(z > 0, 1.0, -1.0)
    commit = F.mse_loss(z, q.detach())
    p = torch.sigmoid(4 * z)
    entropy = F.binary_cross_entropy(p, p, reduction="mean")
    mean = p.mean(0)
    spread = -(mean * mean.log() + (1 - mean) * torch.log1p(-mean)).mean()
    return F.mse_loss(self.decode(z + (q - z).detach()), x) + commit + 0.1 * (entropy - spread)


class CrissCross(nn.Module):
    """Attention along the row and the column of every position (Huang et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, WIDTH, 3, stride=4, padding=1)
        self.q, self.k = nn.Conv2d(WIDTH, 4, 1), nn.Conv2d(WIDTH, 4, 1)
        self.v, self.gamma = nn.Conv2d(WIDTH, WIDTH, 1), nn.Parameter(torch.zeros(1))
        self.out = nn.Conv2d(WIDTH, CLASSES, 1)

    def forward(self, image: Tensor) -> Tensor:
        x = self.body(image)
        b, _, h, w = x.shape
        q, k, v = self.q(x), self.k(x), self.v(x)
        qh, kh, vh = (t.permute(0, 3, 1, 2).contiguous().view(b * w, -1, h) for t in (q, k, v))
        qw, kw, vw = (t.permute(0, 2, 1, 3).contiguous().view(b * h, -1, w) for t in (q, k, v))
        inf = -torch.diag(torch.tensor(float("inf")).repeat(h), 0).unsqueeze(0).repeat(b * w, 1, 1)
        eh = (torch.bmm(qh.mT, kh) + inf).view(b, w, h, h).permute(0, 2, 1, 3)
        ew = torch.bmm(qw.mT, kw).view(b, h, w, w)
        a = torch.softmax(torch.cat([eh, ew], 3), dim=3)
        ah = a[..., :h].permute(0, 2, 1, 3).contiguous().view(b * w, h, h)
        aw = a[..., h:].contiguous().view(b * h, w, w)
        oh = torch.bmm(vh, ah.mT).view(b, w, -1, h).permute(0, 2, 3, 1)
        ow = torch.bmm(vw, aw.mT).view(b, h, -1, w).permute(0, 2, 1, 3)
        return self.out(self.gamma * (oh + ow) + x).mean((2, 3))


def _pointrend(self: Any, image: Tensor, points: Tensor, labels: Tensor) -> Tensor:
    fine = self.body(image)
    coarse = self.head(F.avg_pool2d(fine, 4))
    at = points.unsqueeze(2) * 2 - 1
    both_ = [F.grid_sample(f, at, align_corners=False).squeeze(3) for f in (fine, coarse)]
    return F.cross_entropy(self.mlp(torch.cat(both_, 1)), labels)


def _dice3d(self: Any, volume: Tensor, labels: Tensor) -> Tensor:
    low = self.down(volume)
    deep = self.deep(low)
    logits = self.up(torch.cat([F.interpolate(deep, scale_factor=2, mode="trilinear"), low], 1))
    hot = F.one_hot(labels, 3).permute(0, 4, 1, 2, 3).float()
    loss = torch.zeros(())
    for scale, out in ((1.0, logits), (0.5, self.side(deep))):
        y = hot if scale == 1.0 else F.interpolate(hot, scale_factor=0.5, mode="nearest")
        p = out.softmax(1)
        inter, total = (p * y).sum((0, 2, 3, 4)), (p + y).sum((0, 2, 3, 4))
        loss = loss + scale * (1 - ((2 * inter + 1e-5) / (total + 1e-5))[1:].mean())
    return loss


def _blur_frelu(self: Any, x: Tensor) -> Tensor:
    x = self.conv(x)
    x = torch.max(x, self.norm(self.funnel(x)))
    kernel = torch.tensor([1.0, 2.0, 1.0])
    kernel = (kernel[:, None] * kernel[None] / 16).expand(WIDTH, 1, 3, 3)
    x = F.conv2d(F.pad(x, (1, 1, 1, 1), mode="reflect"), kernel, stride=2, groups=WIDTH)
    p = self.acon.weight
    x = (p[0] - p[1]).view(1, -1, 1, 1) * x * torch.sigmoid(x) + p[1].view(1, -1, 1, 1) * x
    return self.out(F.lp_pool2d(F.softplus(x), 2.0, 4).flatten(1))


def _cycle_mlp(self: Any, image: Tensor) -> Tensor:
    x = self.body(image)
    parts = x.chunk(4, 1)
    moved = [
        torch.roll(p, s, d) for p, s, d in zip(parts, (1, -1, 1, -1), (2, 2, 3, 3), strict=True)
    ]
    x = x + self.mix(torch.cat(moved, 1))
    a = self.split(x.mean((2, 3))).view(-1, 2, WIDTH).softmax(1)
    x = (torch.stack([x, x.transpose(2, 3)], 1) * a[..., None, None]).sum(1)
    return self.out(x.mean((2, 3)))


def _fastspeech(self: Any, ids: Tensor, durations: Tensor, mel: Tensor) -> Tensor:
    h = self.encoder(self.emb(ids).mT).mT
    log_d = self.duration(h).squeeze(-1)
    ends = durations.cumsum(1).unsqueeze(1)
    frames = torch.arange(2 * TIME).view(1, -1, 1)
    path = ((frames < ends) & (frames >= F.pad(ends, (1, 0))[..., :-1])).float()
    out = self.decoder(path @ h)
    return F.l1_loss(out, mel) + F.mse_loss(log_d, torch.log(durations.float() + 1))


def _rvq(self: Any, wave: Tensor) -> Tensor:
    z = self.encode(wave.unsqueeze(1))
    residual, total, commit = z, torch.zeros_like(z), torch.zeros(())
    for book in (self.one, self.two, self.three):
        flat = residual.transpose(1, 2)
        d = flat.pow(2).sum(-1, keepdim=True) - 2 * flat @ book.weight.t()
        q = book((d + book.weight.pow(2).sum(1)).argmin(-1)).transpose(1, 2)
        commit = commit + F.mse_loss(residual, q.detach()) + F.mse_loss(q, residual.detach())
        q = residual + (q - residual).detach()
        residual, total = residual - q.detach(), total + q
    return F.l1_loss(self.decode(total).squeeze(1), wave) + 0.25 * commit


def _giou(self: Any, image: Tensor, boxes: Tensor) -> Tensor:
    b = self.head(self.body(image).flatten(1)).view(-1, 3, 4).sigmoid()
    xy1, xy2 = b[..., :2] - b[..., 2:] / 2, b[..., :2] + b[..., 2:] / 2
    t1, t2 = boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2
    inter = (torch.min(xy2, t2) - torch.max(xy1, t1)).clamp(min=0).prod(-1)
    union = b[..., 2:].prod(-1) + boxes[..., 2:].prod(-1) - inter
    hull = (torch.max(xy2, t2) - torch.min(xy1, t1)).clamp(min=0)
    iou = inter / (union + 1e-7)
    rho = (b[..., :2] - boxes[..., :2]).pow(2).sum(-1) / (hull.pow(2).sum(-1) + 1e-7)
    angle = [torch.atan(y[..., 2] / (y[..., 3] + 1e-7)) for y in (b, boxes)]
    v = (4 / math.pi**2) * (angle[1] - angle[0]).pow(2)
    with torch.no_grad():
        alpha = v / (1 - iou + v + 1e-7)
    return (1 - iou + rho + alpha * v).sum(1).mean()


body = {"body": lambda: nn.Conv2d(3, WIDTH, 3, padding=1), "out": lambda: nn.Linear(WIDTH, CLASSES)}
conv = nn.Conv2d
NETS: Mapping[str, Net] = MappingProxyType(
    {
        "gdn codec": Net(
            of(
                lambda self, x: F.mse_loss(self.up(self.two(self.one(self.down(x)))), x),
                down=lambda: conv(3, 8, 5, stride=2, padding=2),
                one=lambda: GDN(8),
                two=lambda: GDN(8),
                up=lambda: nn.ConvTranspose2d(8, 3, 5, 2, 2, output_padding=1),
            ),
            pictures,
            "own",
        ),
        "discrete vae": Net(
            of(
                _gumbel,
                encode=lambda: conv(3, 8, 4, stride=4),
                codes=lambda: nn.Embedding(8, 4),
                decode=lambda: nn.ConvTranspose2d(4, 3, 4, stride=4),
            ),
            both(pictures, uniform((8, 4, 4))),
            "own",
        ),
        "lookup-free codes": Net(
            of(
                _lfq,
                encode=lambda: conv(3, 6, 4, stride=4),
                decode=lambda: nn.ConvTranspose2d(6, 3, 4, stride=4),
            ),
            pictures,
            "own",
        ),
        "criss-cross attention": Net(CrissCross, pictures),
        "pointrend": Net(
            of(
                _pointrend,
                body=lambda: conv(3, 8, 3, padding=1),
                head=lambda: conv(8, CLASSES, 1),
                mlp=lambda: nn.Conv1d(8 + CLASSES, CLASSES, 1),
            ),
            both(pictures, uniform((10, 2)), whole((CLASSES, (10,)))),
            "own",
        ),
        "deep supervision, dice": Net(
            of(
                _dice3d,
                down=lambda: nn.Sequential(nn.Conv3d(1, 4, 3, padding=1), nn.InstanceNorm3d(4)),
                deep=lambda: nn.Sequential(nn.Conv3d(4, 8, 3, 2, 1), nn.LeakyReLU(0.01)),
                up=lambda: nn.Conv3d(12, 3, 1),
                side=lambda: nn.Conv3d(8, 3, 1),
            ),
            both(normal((1, 8, 8, 8)), whole((3, (8, 8, 8)))),
            "own",
        ),
        "blur pool, frelu, acon": Net(
            of(
                _blur_frelu,
                conv=lambda: conv(3, WIDTH, 3, padding=1),
                funnel=lambda: conv(WIDTH, WIDTH, 3, padding=1, groups=WIDTH),
                norm=lambda: nn.BatchNorm2d(WIDTH),
                acon=lambda: nn.Embedding(2, WIDTH),
                out=lambda: nn.Linear(4 * WIDTH, CLASSES),
            ),
            pictures,
        ),
        "shifted mlp": Net(
            of(
                _cycle_mlp,
                mix=lambda: conv(WIDTH, WIDTH, 1),
                split=lambda: nn.Linear(WIDTH, 2 * WIDTH),
                **body,
            ),
            pictures,
        ),
        "fastspeech 2": Net(
            of(
                _fastspeech,
                emb=lambda: nn.Embedding(WORDS, WIDTH),
                encoder=lambda: nn.Conv1d(WIDTH, WIDTH, 3, padding=1),
                duration=lambda: nn.Linear(WIDTH, 1),
                decoder=lambda: nn.Linear(WIDTH, 4),
            ),
            both(whole((WORDS, (TIME,)), (4, (TIME,))), normal((2 * TIME, 4))),
            "own",
        ),
        "soundstream": Net(
            of(
                _rvq,
                encode=lambda: nn.Sequential(
                    nn.Conv1d(1, 8, 7, 4, 3), nn.ELU(), nn.Conv1d(8, 4, 1)
                ),
                **{name: lambda: nn.Embedding(8, 4) for name in ("one", "two", "three")},
                decode=lambda: nn.ConvTranspose1d(4, 1, 4, stride=4),
            ),
            normal((64,)),
            "own",
        ),
        "complete iou": Net(
            of(
                _giou,
                body=lambda: nn.Conv2d(3, 4, 4, stride=4),
                head=lambda: nn.Linear(64, 12),
            ),
            both(pictures, uniform((3, 4))),
            "own",
        ),
    }
)
