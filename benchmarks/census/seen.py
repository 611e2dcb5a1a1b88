"""Nets that find, segment, warp and compare what is seen, as their users write them."""

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

WIDTH, CLASSES, SIDE, POINTS = 8, 4, 16, 12
image = normal((3, SIDE, SIDE))


def conv(inside: int, outside: int, **options: Any) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, padding=1, bias=False, **options),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
    )


def boxes(generator: torch.Generator, batch: int) -> tuple[Tensor, ...]:
    """Draws images, a class for each of 16 anchors (0 is background) and boxes by their corners."""
    low = torch.rand(batch, 16, 2, generator=generator)
    high = low + torch.rand(batch, 16, 2, generator=generator) + 0.1
    classes = torch.randint(0, CLASSES, (batch, 16), generator=generator)
    return (*image(generator, batch), classes, torch.cat([low, high], -1))


class SSD(nn.Module):
    """Multibox loss with hard negatives (Liu et al. 2016) on one map of anchors."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(3, WIDTH, stride=2), conv(WIDTH, WIDTH, stride=2))
        self.where = nn.Conv2d(WIDTH, 4, 3, padding=1)
        self.what = nn.Conv2d(WIDTH, CLASSES, 3, padding=1)

    def forward(self, x: Tensor, classes: Tensor, targets: Tensor) -> Tensor:
        h = self.body(x)
        loc = self.where(h).permute(0, 2, 3, 1).reshape(x.size(0), -1, 4)
        conf = self.what(h).permute(0, 2, 3, 1).reshape(x.size(0), -1, CLASSES)
        positive = classes > 0
        count = positive.sum(1, keepdim=True)
        loc_loss = F.smooth_l1_loss(loc, targets, reduction="none").sum(-1)
        loc_loss = (loc_loss * positive.float()).sum(1)
        ce = F.cross_entropy(conf.transpose(1, 2), classes, reduction="none")
        negative = ce.detach().clone()
        negative[positive] = 0
        _, order = negative.sort(1, descending=True)
        _, rank = order.sort(1)
        chosen = rank < torch.clamp(3 * count, max=classes.size(1) - 1)
        ce = (ce * (positive | chosen).float()).sum(1)
        found = count.squeeze(1).float().clamp(min=1e-6)
        return ((loc_loss + ce) / found * (found > 1e-3).float()).mean()


class FCOS(nn.Module):
    """Anchor-free boxes with GIoU, centreness and sigmoid focal loss (Tian et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(3, WIDTH, stride=2), nn.Conv2d(WIDTH, WIDTH, 3, 2, 1))
        self.norm = nn.GroupNorm(2, WIDTH)
        self.cls, self.reg = nn.Conv2d(WIDTH, CLASSES, 1), nn.Conv2d(WIDTH, 4, 1)
        self.scale = nn.Parameter(torch.tensor(1.0))
        nn.init.constant_(self.cls.bias, -math.log(99.0))

    def forward(self, x: Tensor, classes: Tensor, targets: Tensor) -> Tensor:
        h = F.relu(self.norm(self.body(x)))
        logits = self.cls(h).flatten(2).transpose(1, 2)
        sides = torch.exp(self.scale * self.reg(h)).flatten(2).transpose(1, 2)
        t = F.one_hot(classes, CLASSES).to(logits.dtype)
        p = torch.sigmoid(logits)
        ce = F.binary_cross_entropy_with_logits(logits, t, reduction="none")
        p_t = p * t + (1 - p) * (1 - t)
        focal = ((0.25 * t + 0.75 * (1 - t)) * ce * (1 - p_t) ** 2).sum()
        mine = torch.cat([-sides[..., :2], sides[..., 2:]], -1)
        lt, rb = (
            torch.max(mine[..., :2], targets[..., :2]),
            torch.min(mine[..., 2:], targets[..., 2:]),
        )
        inter = (rb - lt).clamp(min=0).prod(-1)

        def area(box: Tensor) -> Tensor:
            return (box[..., 2] - box[..., 0]) * (box[..., 3] - box[..., 1])

        union = area(mine) + area(targets) - inter
        hull = torch.max(mine[..., 2:], targets[..., 2:]) - torch.min(
            mine[..., :2], targets[..., :2]
        )
        giou = inter / union - (hull.prod(-1) - union) / hull.prod(-1)
        found = (classes > 0).float()
        return focal / found.sum().clamp(min=1.0) + ((1 - giou) * found).mean()


def _centers(m: Any, x: Tensor, heat: Tensor, places: Tensor) -> Tensor:
    """CenterNet's penalty-reduced focal loss and sizes read at the objects' places."""
    h = m.body(x)
    pred = torch.clamp(torch.sigmoid(m.heat(h)), min=1e-4, max=1 - 1e-4)
    positive = heat.gt(0.9).float()
    pos = torch.log(pred) * torch.pow(1 - pred, 2) * positive
    neg = torch.log(1 - pred) * torch.pow(pred, 2) * torch.pow(1 - heat, 4) * (1 - positive)
    sizes = m.size(h).permute(0, 2, 3, 1).contiguous().view(x.size(0), -1, 2)
    sizes = sizes.gather(1, places.unsqueeze(2).expand(-1, -1, 2))
    return -(pos + neg).sum() / (positive.sum() + 1) + F.l1_loss(sizes, torch.ones_like(sizes))


class SegNet(nn.Module):
    """Pools that say where, and unpools (Badrinarayanan et al. 2017), with a Dice loss."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.up = conv(3, WIDTH), nn.Conv2d(WIDTH, CLASSES, 3, padding=1)
        self.pool, self.unpool = nn.MaxPool2d(2, 2, return_indices=True), nn.MaxUnpool2d(2, 2)

    def forward(self, x: Tensor, masks: Tensor) -> Tensor:
        h, places = self.pool(self.down(x))
        logits = self.up(self.unpool(h, places))
        probabilities = F.softmax(logits, dim=1)
        target = F.one_hot(masks, CLASSES).permute(0, 3, 1, 2).float()
        inter = (probabilities * target).sum(dim=(0, 2, 3))
        both_ = probabilities.sum(dim=(0, 2, 3)) + target.sum(dim=(0, 2, 3))
        dice = (2 * inter + 1) / (both_ + 1)
        return F.cross_entropy(logits, masks) + 1 - dice.mean()


class LovaszHinge(nn.Module):
    """Lovasz hinge (Berman et al. 2018), image by image: sorts, cumulated sums and a gather."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(conv(3, WIDTH), nn.Conv2d(WIDTH, 1, 1))

    def forward(self, x: Tensor, masks: Tensor) -> Tensor:
        logits, labels = self.net(x).flatten(1), masks.flatten(1).float()
        errors = 1.0 - logits * (2.0 * labels - 1.0)
        errors_sorted, perm = torch.sort(errors, dim=1, descending=True)
        gt = labels.gather(1, perm)
        gts = gt.sum(1, keepdim=True)
        jaccard = 1.0 - (gts - gt.cumsum(1)) / (gts + (1 - gt).cumsum(1))
        jaccard = torch.cat([jaccard[:, :1], jaccard[:, 1:] - jaccard[:, :-1]], 1)
        return (F.relu(errors_sorted) * jaccard).sum(1).mean()


class SegFormer(nn.Module):
    """Efficient attention with reduced keys and an MLP decoder (Xie et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.reduce = nn.Conv2d(3, WIDTH, 7, 4, 3), nn.Conv2d(WIDTH, WIDTH, 2, 2)
        self.norm, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.q, self.kv = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.fc1, self.fc2 = nn.Linear(WIDTH, 16), nn.Linear(16, WIDTH)
        self.dw, self.head = nn.Conv2d(16, 16, 3, 1, 1, groups=16), nn.Conv2d(WIDTH, CLASSES, 1)

    def forward(self, x: Tensor, masks: Tensor) -> Tensor:
        h = self.patch(x)
        b, c, height, width = h.shape
        tokens = self.norm(h.flatten(2).transpose(1, 2))
        less = tokens.transpose(1, 2).reshape(b, c, height, width)
        less = self.norm2(self.reduce(less).reshape(b, c, -1).permute(0, 2, 1))
        k, v = self.kv(less).reshape(b, -1, 2, 2, c // 2).permute(2, 0, 3, 1, 4)
        q = self.q(tokens).reshape(b, -1, 2, c // 2).permute(0, 2, 1, 3)
        a = ((q @ k.transpose(-2, -1)) * (c // 2) ** -0.5).softmax(dim=-1)
        tokens = tokens + (a @ v).transpose(1, 2).reshape(b, -1, c)
        f = self.fc1(tokens).transpose(1, 2).view(b, 16, height, width)
        tokens = tokens + self.fc2(F.gelu(self.dw(f).flatten(2).transpose(1, 2)))
        h = self.head(tokens.permute(0, 2, 1).reshape(b, c, height, width))
        h = F.interpolate(h, size=x.shape[2:], mode="bilinear", align_corners=False)
        return F.cross_entropy(h, masks, ignore_index=0)


class Flow(nn.Module):
    """A correlation volume and a warp, as PWC-Net has them (Sun et al. 2018)."""

    def __init__(self, reach: int = 1) -> None:
        super().__init__()
        self.reach, self.features = reach, nn.Conv2d(3, WIDTH, 3, 2, 1)
        self.flow = nn.Conv2d((2 * reach + 1) ** 2, 2, 3, padding=1)

    def warp(self, x: Tensor, flow: Tensor) -> Tensor:
        b, _, h, w = x.size()
        xx = torch.arange(0, w).view(1, -1).repeat(h, 1).view(1, 1, h, w).repeat(b, 1, 1, 1)
        yy = torch.arange(0, h).view(-1, 1).repeat(1, w).view(1, 1, h, w).repeat(b, 1, 1, 1)
        grid = torch.cat((xx, yy), 1).float() + flow
        u = 2.0 * grid[:, 0] / max(w - 1, 1) - 1.0
        v = 2.0 * grid[:, 1] / max(h - 1, 1) - 1.0
        return F.grid_sample(x, torch.stack((u, v), -1), align_corners=True)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        a, b = F.leaky_relu(self.features(first), 0.1), F.leaky_relu(self.features(second), 0.1)
        padded, n = F.pad(b, [self.reach] * 4), 2 * self.reach + 1
        height, width = a.shape[2:]
        cost = [
            (a * padded[:, :, i : i + height, j : j + width]).mean(1, keepdim=True)
            for i in range(n)
            for j in range(n)
        ]
        flow = self.flow(F.leaky_relu(torch.cat(cost, 1), 0.1))
        flow = F.interpolate(flow, scale_factor=2, mode="bilinear", align_corners=True) * 2
        error = self.warp(second, flow) - first
        smooth = (flow[..., 1:] - flow[..., :-1]).abs().mean()
        return torch.sqrt(error**2 + 1e-6).mean() + 0.1 * smooth


class Deformable(nn.Module):
    """Deformable attention of one scale (Zhu et al. 2021), by grid_sample as written first."""

    def __init__(self, heads: int = 2, points: int = 3) -> None:
        super().__init__()
        self.heads, self.points = heads, points
        self.stem, self.value = nn.Conv2d(3, WIDTH, 4, 4), nn.Linear(WIDTH, WIDTH)
        self.offsets = nn.Linear(WIDTH, heads * points * 2)
        self.weights = nn.Linear(WIDTH, heads * points)
        self.query, self.out = nn.Embedding(5, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.reference = nn.Linear(WIDTH, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        b, c, height, width = h.shape
        value = self.value(h.flatten(2).transpose(1, 2)).view(b, -1, self.heads, c // self.heads)
        value = value.permute(0, 2, 3, 1).reshape(b * self.heads, -1, height, width)
        q = self.query.weight.unsqueeze(0).expand(b, -1, -1)
        offsets = self.offsets(q).view(b, -1, self.heads, self.points, 2)
        weights = self.weights(q).view(b, -1, self.heads, self.points).softmax(-1)
        at = self.reference(q).sigmoid()[:, :, None, None] + offsets / torch.tensor([width, height])
        grid = (2 * at - 1).transpose(1, 2).flatten(0, 1)
        sampled = F.grid_sample(value, grid, "bilinear", "zeros", align_corners=False)
        weights = weights.transpose(1, 2).reshape(b * self.heads, 1, -1, self.points)
        out = (sampled * weights).sum(-1).view(b, c, -1).transpose(1, 2)
        return self.out(out + q)


def square_distance(a: Tensor, b: Tensor) -> Tensor:
    d = -2 * torch.matmul(a, b.permute(0, 2, 1))
    return d + torch.sum(a**2, -1, keepdim=True) + torch.sum(b**2, -1).unsqueeze(1)


def index_points(points: Tensor, idx: Tensor) -> Tensor:
    shape = [points.shape[0]] + [1] * (idx.dim() - 1)
    batch = torch.arange(points.shape[0]).view(shape).expand_as(idx)
    return points[batch, idx, :]


class PointNet2(nn.Module):
    """Farthest points, balls and interpolation by distance (Qi et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.mlp, self.bn = nn.Conv2d(6, WIDTH, 1), nn.BatchNorm2d(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)

    def farthest(self, xyz: Tensor, count: int) -> Tensor:
        b, n, _ = xyz.shape
        chosen = torch.zeros(b, count, dtype=torch.long)
        distance = torch.ones(b, n) * 1e10
        far = torch.zeros(b, dtype=torch.long)
        rows = torch.arange(b, dtype=torch.long)
        for i in range(count):
            chosen[:, i] = far
            d = torch.sum((xyz - xyz[rows, far, :].view(b, 1, 3)) ** 2, -1)
            distance = torch.minimum(distance, d)
            far = torch.max(distance, -1)[1]
        return chosen

    def forward(self, xyz: Tensor) -> Tensor:
        b, n, _ = xyz.shape
        centers = index_points(xyz, self.farthest(xyz, 4))
        d = square_distance(centers, xyz)
        idx = torch.arange(n).view(1, 1, n).repeat([b, 4, 1])
        idx = torch.where(d > 1.0, torch.full_like(idx, n), idx)
        idx = idx.sort(dim=-1)[0][:, :, :3]
        first = idx[:, :, 0].view(b, 4, 1).repeat([1, 1, 3])
        idx = torch.where(idx == n, first, idx)
        grouped = index_points(xyz, idx)
        local = torch.cat([grouped - centers.view(b, 4, 1, 3), grouped], -1).permute(0, 3, 2, 1)
        f = torch.max(F.relu(self.bn(self.mlp(local))), 2)[0].permute(0, 2, 1)
        dists, near = square_distance(xyz, centers).sort(dim=-1)
        weight = 1.0 / (dists[:, :, :3] + 1e-8)
        weight = weight / weight.sum(dim=2, keepdim=True)
        f = torch.sum(index_points(f, near[:, :, :3]) * weight.view(b, n, 3, 1), dim=2)
        return self.head(f)


def _chamfer(m: Any, a: Tensor, b: Tensor) -> Tensor:
    """An autoencoder of clouds with the Chamfer distance."""
    made = m.decode(m.encode(a).amax(1)).view(a.size(0), -1, 3)
    d = torch.cdist(made, b)
    return d.min(2)[0].mean() + d.min(1)[0].mean()


def _hausdorff(m: Any, a: Tensor, b: Tensor) -> Tensor:
    """Clouds moved together, by pairwise distances of all orders."""
    moved = a + m.move(a)
    d1, d2 = torch.cdist(moved, b, p=1), torch.cdist(b, moved, p=2.0)
    return d1.amin(-1).amax(-1).mean() + torch.logsumexp(-d2, -1).neg().mean()


def _ssim(m: Any, x: Tensor, y: Tensor) -> Tensor:
    """Structural similarity with a Gaussian window (Wang et al. 2004)."""
    x, g = torch.sigmoid(m.net(x)), torch.exp(-((torch.arange(5.0) - 2) ** 2) / 4.5)
    window = ((g / g.sum())[:, None] @ (g / g.sum())[None])[None, None].expand(3, 1, 5, 5)

    def blur(z: Tensor) -> Tensor:
        return F.conv2d(z, window.contiguous(), padding=2, groups=3)

    mx, my = blur(x), blur(y)
    sx, sy, sxy = blur(x * x) - mx.pow(2), blur(y * y) - my.pow(2), blur(x * y) - mx * my
    up = (2 * mx * my + 1e-4) * (2 * sxy + 9e-4)
    return 1 - (up / ((mx.pow(2) + my.pow(2) + 1e-4) * (sx + sy + 9e-4))).mean()


class RoIHead(nn.Module):
    """Boxes read from a map by affine grids, as RoIAlign is written without its kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.fc = conv(3, WIDTH), nn.Linear(WIDTH * 9, CLASSES)

    def forward(self, x: Tensor, box: Tensor) -> Tensor:
        h = self.body(x)
        x1, y1, x2, y2 = box.unbind(-1)
        zero = torch.zeros_like(x1)
        theta = torch.stack(
            [
                torch.stack([(x2 - x1).abs(), zero, x1 + x2 - 1], -1),
                torch.stack([zero, (y2 - y1).abs(), y1 + y2 - 1], -1),
            ],
            1,
        )
        grid = F.affine_grid(theta, [x.size(0), WIDTH, 3, 3], align_corners=True)
        crops = F.grid_sample(h, grid, padding_mode="border", align_corners=True)
        return self.fc(crops.flatten(1))


class MaxViT(nn.Module):
    """Attention within blocks and along grids (Tu et al. 2022) behind an MBConv."""

    def __init__(self, size: int = 4) -> None:
        super().__init__()
        self.size, self.stem = size, nn.Conv2d(3, WIDTH, 3, 2, 1)
        self.conv = nn.Sequential(nn.BatchNorm2d(WIDTH), nn.Conv2d(WIDTH, 16, 1), nn.GELU())
        self.back = nn.Conv2d(16, WIDTH, 1)
        self.attn = nn.ModuleList([nn.MultiheadAttention(WIDTH, 2, batch_first=True) for _ in "bg"])
        self.norms = nn.ModuleList([nn.LayerNorm(WIDTH) for _ in "bg"])
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x, p = self.stem(x), self.size
        x = x + self.back(self.conv(x))
        b, c, h, w = x.shape
        t = x.view(b, c, h // p, p, w // p, p).permute(0, 2, 4, 3, 5, 1).reshape(-1, p * p, c)
        n = self.norms[0](t)
        t = t + self.attn[0](n, n, n, need_weights=False)[0]
        x = t.view(b, h // p, w // p, p, p, c).permute(0, 1, 3, 2, 4, 5).reshape(b, h, w, c)
        t = x.view(b, p, h // p, p, w // p, c).permute(0, 2, 4, 1, 3, 5).reshape(-1, p * p, c)
        n = self.norms[1](t)
        t = t + self.attn[1](n, n, n, need_weights=False)[0]
        return self.head(t.view(b, -1, c).mean(1))


class XCiT(nn.Module):
    """Cross-covariance attention with a learnt temperature (El-Nouby et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.qkv = nn.Linear(3 * 9, WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.temperature = nn.Parameter(torch.ones(2, 1, 1))
        self.cls, self.head = nn.Parameter(torch.randn(1, 1, WIDTH)), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        t = self.enter(F.unfold(x, 3, stride=2, padding=1).transpose(1, 2))
        t = torch.cat((self.cls.expand(t.size(0), -1, -1), t), dim=1)
        b, n, c = t.shape
        q, k, v = self.qkv(t).reshape(b, n, 3, 2, c // 2).permute(2, 0, 3, 4, 1).unbind(0)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        a = ((q @ k.transpose(-2, -1)) * self.temperature).softmax(dim=-1)
        return self.head((t + (a @ v).permute(0, 3, 1, 2).reshape(b, n, c))[:, 0])


class CondConv(nn.Module):
    """Kernels mixed anew for every example, run as groups of one convolution (Yang et al. 2019)."""

    def __init__(self, experts: int = 3) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, WIDTH, 3, 3, 3) * 0.2)
        self.route, self.head = nn.Linear(3, experts), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        b, c, h, w = x.shape
        r = torch.sigmoid(self.route(F.adaptive_avg_pool2d(x, 1).flatten(1)))
        kernels = (r @ self.weight.view(r.size(1), -1)).view(b * WIDTH, c, 3, 3)
        y = F.conv2d(x.view(1, b * c, h, w), kernels, padding=1, groups=b).view(b, WIDTH, h, w)
        return self.head(F.relu(y).mean((2, 3)))


class DINO(nn.Module):
    """A student that meets a centred teacher (Caron et al. 2021); the centre is a buffer."""

    center: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.student = nn.Sequential(
            conv(3, WIDTH, stride=2), nn.AdaptiveAvgPool2d(1), nn.Flatten()
        )
        self.head = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, 6, bias=False))
        self.teacher = nn.Linear(WIDTH, 6)
        self.register_buffer("center", torch.zeros(1, 6))

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        s = self.head(F.normalize(self.student(torch.cat([a, b])), dim=-1, p=2)) / 0.1
        with torch.no_grad():
            t = self.teacher(self.student(torch.cat([b, a])))
            sharp = F.softmax((t - self.center) / 0.04, dim=-1)
            self.center = self.center * 0.9 + t.mean(0, keepdim=True) * 0.1
        return torch.sum(-sharp * F.log_softmax(s, dim=-1), dim=-1).mean()


class ProGAN(nn.Module):
    """Pixel norms, equalised rates and the deviation of a minibatch (Karras et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(WIDTH, 3, 3, 3))
        self.b, self.last = nn.Parameter(torch.zeros(WIDTH)), nn.Conv2d(WIDTH + 1, 1, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.conv2d(x, self.w * math.sqrt(2 / 27), self.b, padding=1)
        x = F.leaky_relu(x / torch.sqrt(torch.mean(x**2, dim=1, keepdim=True) + 1e-8), 0.2)
        x = F.avg_pool2d(x, 2)
        std = torch.sqrt(x.var(dim=0, unbiased=False) + 1e-8).mean()
        x = torch.cat([x, std.expand(x.size(0), 1, x.size(2), x.size(3))], 1)
        return F.softplus(-self.last(x)).mean()


masks = whole((CLASSES, (SIDE, SIDE)))
NETS: Mapping[str, Net] = MappingProxyType(
    {
        "ssd": Net(SSD, boxes, "own"),
        "fcos": Net(FCOS, boxes, "own"),
        "centernet": Net(
            of(
                _centers,
                body=lambda: conv(3, WIDTH, stride=4),
                heat=lambda: nn.Conv2d(WIDTH, 1, 1),
                size=lambda: nn.Conv2d(WIDTH, 2, 1),
            ),
            both(image, uniform((1, 4, 4)), whole((16, (3,)))),
            "own",
        ),
        "segnet": Net(SegNet, both(image, masks), "own"),
        "lovasz hinge": Net(LovaszHinge, both(image, whole((2, (SIDE, SIDE)))), "own"),
        "segformer": Net(SegFormer, both(image, masks), "own"),
        "pwc flow": Net(Flow, normal((3, SIDE, SIDE), (3, SIDE, SIDE)), "own"),
        "deformable attention": Net(Deformable, image),
        "pointnet++": Net(PointNet2, normal((POINTS, 3))),
        "chamfer": Net(
            of(
                _chamfer,
                encode=lambda: nn.Sequential(nn.Linear(3, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 8)),
                decode=lambda: nn.Linear(8, 30),
            ),
            normal((POINTS, 3), (POINTS, 3)),
            "own",
        ),
        "point distances": Net(
            of(_hausdorff, move=lambda: nn.Linear(3, 3)), normal((6, 3), (POINTS, 3)), "own"
        ),
        "ssim": Net(
            of(_ssim, net=lambda: nn.Conv2d(3, 3, 3, padding=1)),
            both(image, uniform((3, SIDE, SIDE))),
            "own",
        ),
        "roi by affine grids": Net(RoIHead, both(image, uniform((4,)))),
        "maxvit": Net(MaxViT, image),
        "xcit": Net(XCiT, image),
        "condconv": Net(CondConv, image),
        "dino": Net(DINO, normal((3, SIDE, SIDE), (3, SIDE, SIDE)), "own"),
        "progan critic": Net(ProGAN, normal((3, 8, 8)), "own"),
    }
)
