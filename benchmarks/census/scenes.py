"""Nets that restore, render, find and draw pictures and points, as their users write them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.net import Net, both, normal, uniform, whole

WIDTH, CLASSES, SIDE, POINTS = 8, 5, 16, 12
image = normal((3, SIDE, SIDE))


class LayerNorm2d(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.ones(channels)),
            nn.Parameter(torch.zeros(channels)),
        )

    def forward(self, x: Tensor) -> Tensor:
        mu = x.mean(1, keepdim=True)
        var = (x - mu).pow(2).mean(1, keepdim=True)
        y = (x - mu) / (var + 1e-6).sqrt()
        return self.weight.view(1, -1, 1, 1) * y + self.bias.view(1, -1, 1, 1)


class NAFBlock(nn.Module):
    """A simple gate and simplified channel attention (Chen et al. 2022)."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.conv1, self.conv3 = nn.Conv2d(c, 2 * c, 1), nn.Conv2d(c, c, 1)
        self.conv2 = nn.Conv2d(2 * c, 2 * c, 3, padding=1, groups=2 * c)
        self.sca = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(c, c, 1))
        self.norm = LayerNorm2d(c)
        self.beta = nn.Parameter(torch.zeros((1, c, 1, 1)), requires_grad=True)

    def forward(self, inp: Tensor) -> Tensor:
        a, b = self.conv2(self.conv1(self.norm(inp))).chunk(2, dim=1)
        x = a * b
        return inp + self.conv3(x * self.sca(x)) * self.beta


class NAFNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.intro, self.ending = nn.Conv2d(3, WIDTH, 3, 1, 1), nn.Conv2d(WIDTH, 3, 3, 1, 1)
        self.down = nn.Conv2d(WIDTH, 2 * WIDTH, 2, 2)
        self.enc, self.mid = NAFBlock(WIDTH), NAFBlock(2 * WIDTH)
        self.up = nn.Sequential(nn.Conv2d(2 * WIDTH, 4 * WIDTH, 1, bias=False), nn.PixelShuffle(2))

    def forward(self, inp: Tensor, gt: Tensor) -> Tensor:
        x = skip = self.enc(self.intro(inp))
        x = self.up(self.mid(self.down(x))) + skip
        pred = self.ending(x) + inp
        mse = ((pred - gt) ** 2).mean(dim=(1, 2, 3))
        return 10 / math.log(10) * torch.log(mse + 1e-8).mean()


class Restormer(nn.Module):
    """Attention between channels with a temperature per head (Zamir et al. 2022)."""

    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(2, 1, 1))
        self.embed = nn.Conv2d(3, WIDTH, 3, padding=1, bias=False)
        self.qkv = nn.Conv2d(WIDTH, 3 * WIDTH, 1, bias=False)
        self.dw = nn.Conv2d(3 * WIDTH, 3 * WIDTH, 3, padding=1, groups=3 * WIDTH, bias=False)
        self.project = nn.Conv2d(WIDTH, 3, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        b, _, h, w = x.shape
        q, k, v = self.dw(self.qkv(self.embed(x))).chunk(3, dim=1)
        q, k, v = (t.reshape(b, 2, WIDTH // 2, h * w) for t in (q, k, v))
        q, k = (F.normalize(t, dim=-1) for t in (q, k))
        attn = ((q @ k.transpose(-2, -1)) * self.temperature).softmax(dim=-1)
        out = self.project((attn @ v).reshape(b, -1, h, w)) + x
        return torch.mean(torch.sqrt((out - y) ** 2 + 1e-6))


class Involution(nn.Module):
    """Kernels made from the pixel that they are for (Li et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 3, 2, 1)
        self.reduce, self.span = nn.Conv2d(WIDTH, 4, 1), nn.Conv2d(4, 9 * 2, 1)
        self.unfold, self.bn = nn.Unfold(3, padding=1), nn.BatchNorm2d(4)
        self.fc = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        weight = self.span(F.relu_(self.bn(self.reduce(x))))
        b, _, h, w = weight.shape
        weight = weight.view(b, 2, 9, h, w).unsqueeze(2)
        out = self.unfold(x).view(b, 2, WIDTH // 2, 9, h, w)
        out = (weight * out).sum(dim=3).view(b, WIDTH, h, w)
        return self.fc(out.mean([2, 3]))


class Outlooker(nn.Module):
    """VOLO's attention, folded back over overlapping windows (Yuan et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 4, 4)
        self.v, self.attn = nn.Linear(WIDTH, WIDTH, bias=False), nn.Linear(WIDTH, 81 * 2)
        self.proj, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).permute(0, 2, 3, 1)
        b, h, w, c = x.shape
        v = F.unfold(self.v(x).permute(0, 3, 1, 2), 3, padding=1)
        v = v.reshape(b, 2, c // 2, 9, h * w).permute(0, 1, 4, 3, 2)
        attn = self.attn(x).reshape(b, h * w, 2, 9, 9).permute(0, 2, 1, 3, 4) * (c // 2) ** -0.5
        x = (attn.softmax(dim=-1) @ v).permute(0, 1, 4, 3, 2).reshape(b, c * 9, h * w)
        x = F.fold(x, output_size=(h, w), kernel_size=3, padding=1)
        return self.head(self.proj(x.permute(0, 2, 3, 1)).flatten(1, 2).mean(1))


class ENet(nn.Module):
    """Pools whose places the decoder unpools to (Paszke et al. 2016)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.pool = nn.Conv2d(3, WIDTH - 3, 3, 2, 1), nn.MaxPool2d(2)
        self.down = nn.MaxPool2d(2, 2, return_indices=True)
        self.body = nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 1), nn.BatchNorm2d(WIDTH), nn.PReLU())
        self.up, self.head = nn.MaxUnpool2d(2), nn.ConvTranspose2d(WIDTH, CLASSES, 2, 2)

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        x = torch.cat([self.conv(x), self.pool(x)], 1)
        h, where = self.down(x)
        logits = self.head(self.up(self.body(h), where))
        return F.cross_entropy(logits, target, ignore_index=0)


class CornerPool(nn.Module):
    """Maxima from each side, and a heat map (Law and Deng 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.p1, self.p2 = nn.Conv2d(3, WIDTH, 3, 2, 1), nn.Conv2d(3, WIDTH, 3, 2, 1)
        self.heat = nn.Conv2d(WIDTH, 1, 1)

    def forward(self, x: Tensor, gt: Tensor) -> Tensor:
        top = self.p1(x).flip(2).cummax(2)[0].flip(2)
        left = torch.cummax(self.p2(x), dim=3).values
        pred = torch.clamp(self.heat(torch.relu(top + left)).sigmoid(), 1e-4, 1 - 1e-4)
        return F.binary_cross_entropy(pred[:, 0], (gt > 0.9).float())


class Hourglass(nn.Module):
    """Key points by the mean of a soft arg max (Newell et al. 2016; Sun et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.pre = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.low = nn.Sequential(nn.MaxPool2d(2), nn.Conv2d(WIDTH, WIDTH, 3, padding=1), nn.ReLU())
        self.up, self.out = nn.Upsample(scale_factor=2), nn.Conv2d(WIDTH, 3, 1)

    def forward(self, x: Tensor, keypoints: Tensor) -> Tensor:
        h = F.relu(self.pre(x), inplace=True)
        maps = self.out(h + self.up(self.low(h)))
        p = F.softmax(10.0 * maps.flatten(2), dim=2).view_as(maps)
        xs = torch.linspace(0, 1, SIDE, dtype=p.dtype, device=p.device)
        at = torch.stack(((p.sum(2) * xs).sum(-1), (p.sum(3) * xs).sum(-1)), -1)
        visible = keypoints.sum(-1).gt(0.3).unsqueeze(-1)
        return (F.smooth_l1_loss(at, keypoints, reduction="none") * visible).sum() / len(x)


class MaskFormer(nn.Module):
    """Queries dotted with pixels, sigmoid and dice losses (Cheng et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.pixel = nn.Sequential(nn.Conv2d(3, WIDTH, 3, 2, 1), nn.GroupNorm(2, WIDTH), nn.ReLU())
        layer = nn.TransformerDecoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True)
        self.decoder = nn.TransformerDecoder(layer, 1)
        self.query_embed, self.mask_embed = nn.Embedding(3, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        features = self.pixel(x)
        queries = self.query_embed.weight.unsqueeze(0).expand(len(x), -1, -1)
        hs = self.decoder(queries, features.flatten(2).transpose(1, 2))
        masks = torch.einsum("bqc,bchw->bqhw", self.mask_embed(hs), features)
        masks = F.interpolate(masks, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
        prob, flat = masks.sigmoid().flatten(2), targets.flatten(2)
        numerator = 2 * (prob * flat).sum(-1)
        dice = 1 - (numerator + 1) / (prob.sum(-1) + flat.sum(-1) + 1)
        ce = F.binary_cross_entropy_with_logits(masks, targets, reduction="none")
        return dice.mean() + ce.mean((2, 3)).mean()


class BiFPN(nn.Module):
    """Fast normalised fusion of levels, swish by a scripted function (Tan et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.w1, self.w2 = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(3))
        self.conv_up, self.conv_down = nn.Conv2d(WIDTH, WIDTH, 1), nn.Conv2d(WIDTH, WIDTH, 1)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        p3 = self.stem(x)
        p4 = F.max_pool2d(p3, 3, 2, 1)
        w1 = F.relu(self.w1)
        w1 = w1 / (torch.sum(w1, dim=0) + 1e-4)
        up = F.interpolate(p4, scale_factor=2, mode="nearest")
        p3_up = self.conv_up(swish(w1[0] * p3 + w1[1] * up))
        w2 = F.relu(self.w2)
        w2 = w2 / (torch.sum(w2, dim=0) + 1e-4)
        down = F.max_pool2d(p3_up, 3, 2, 1)
        p4_out = self.conv_down(swish(w2[0] * p4 + w2[1] * down + w2[2] * p4))
        return self.head(F.adaptive_avg_pool2d(p4_out, 1).flatten(1))


@torch.jit.script
def swish(x: Tensor) -> Tensor:
    return x * torch.sigmoid(x)


class YOLOX(nn.Module):
    """A decoupled head decoded on a grid, with CIoU and objectness (Ge et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(12, WIDTH, 3, 2, 1), nn.BatchNorm2d(WIDTH), nn.SiLU())
        self.reg, self.obj = nn.Conv2d(WIDTH, 4, 1), nn.Conv2d(WIDTH, 1, 1)
        yv, xv = torch.meshgrid([torch.arange(4), torch.arange(4)], indexing="ij")
        self.register_buffer("grid", torch.stack((xv, yv), 2).view(1, 16, 2))

    def forward(self, x: Tensor, boxes: Tensor) -> Tensor:
        tl, tr = x[..., ::2, ::2], x[..., ::2, 1::2]
        bl, br = x[..., 1::2, ::2], x[..., 1::2, 1::2]
        h = self.stem(torch.cat((tl, bl, tr, br), dim=1))
        reg = self.reg(h).flatten(start_dim=2).permute(0, 2, 1)
        reg[..., :2] = (reg[..., :2] + self.grid) * 4.0
        reg[..., 2:4] = torch.exp(reg[..., 2:4]) * 4.0
        obj = self.obj(h).flatten(1)
        target = boxes.unsqueeze(1) * 8.0 + 2.0
        tl = torch.max(reg[..., :2] - reg[..., 2:] / 2, target[..., :2] - target[..., 2:] / 2)
        br = torch.min(reg[..., :2] + reg[..., 2:] / 2, target[..., :2] + target[..., 2:] / 2)
        en = (tl < br).type(tl.type()).prod(dim=-1)
        inter = torch.prod(br - tl, -1) * en
        iou = inter / (torch.prod(reg[..., 2:], -1) + torch.prod(target[..., 2:], -1) - inter)
        angle = torch.atan(target[..., 2] / target[..., 3]) - torch.atan(reg[..., 2] / reg[..., 3])
        v = 4 / math.pi**2 * angle.pow(2)
        with torch.no_grad():
            alpha = v / (1 - iou + v + 1e-16)
        box_loss = (1 - iou + alpha * v).mean()
        return box_loss + F.binary_cross_entropy_with_logits(obj, iou.detach().clamp(0))


class DBNet(nn.Module):
    """Differentiable binarization with hard negatives by top k (Liao et al. 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Conv2d(3, WIDTH, 3, padding=1)
        self.prob, self.thresh = nn.Conv2d(WIDTH, 1, 1), nn.Conv2d(WIDTH, 1, 1)

    def forward(self, x: Tensor, gt: Tensor, mask: Tensor) -> Tensor:
        h = F.relu(self.body(x))
        p, t = torch.sigmoid(self.prob(h)).squeeze(1), torch.sigmoid(self.thresh(h)).squeeze(1)
        binary = torch.reciprocal(1 + torch.exp(-50 * (p - t)))
        positive, negative = gt.round(), (1 - gt.round())
        loss = F.binary_cross_entropy(p, positive, reduction="none")
        hard, _ = torch.topk((loss * negative).view(-1), k=40)
        balanced = ((loss * positive).sum() + hard.sum()) / (positive.sum() + 40 + 1e-6)
        inter = (binary * positive * mask).sum()
        union = (binary * mask).sum() + (positive * mask).sum() + 1e-6
        return balanced + 1 - 2.0 * inter / union


class DiT(nn.Module):
    """Rectified flow by a transformer with adaptive norms (Peebles and Xie 2023)."""

    def __init__(self) -> None:
        super().__init__()
        self.patch, self.y = nn.Conv2d(3, WIDTH, 4, 4), nn.Embedding(CLASSES + 1, WIDTH)
        self.t = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.norm = nn.LayerNorm(WIDTH, elementwise_affine=False, eps=1e-6)
        self.attn = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 16), nn.GELU(approximate="tanh"), nn.Linear(16, WIDTH)
        )
        self.ada = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 6 * WIDTH))
        self.final = nn.Linear(WIDTH, 48)
        self.pos_embed = nn.Parameter(torch.zeros(1, 16, WIDTH), requires_grad=False)

    def forward(self, x1: Tensor, x0: Tensor, t: Tensor, y: Tensor) -> Tensor:
        time = t.view(-1, *[1] * (x1.ndim - 1))
        xt = torch.lerp(x0, x1, time)
        half = WIDTH // 2
        freqs = torch.exp(-math.log(10000) * torch.arange(0, half, dtype=torch.float32) / half)
        args = 1000 * t[:, None].float() * freqs[None]
        c = self.t(torch.cat([torch.cos(args), torch.sin(args)], dim=-1)) + self.y(y)
        x = self.patch(xt).flatten(2).transpose(1, 2) + self.pos_embed
        shift, scale, gate, shift2, scale2, gate2 = self.ada(c).unsqueeze(1).chunk(6, dim=-1)
        h = torch.addcmul(shift, self.norm(x), 1 + scale)
        x = x + gate * self.attn(h, h, h, need_weights=False)[0]
        x = x + gate2 * self.mlp(self.norm(x) * (1 + scale2) + shift2)
        x = self.final(x).reshape(-1, 4, 4, 4, 4, 3)
        v = torch.einsum("nhwpqc->nchpwq", x).reshape(x1.shape)
        return F.mse_loss(v, x1 - x0)


class Glow(nn.Module):
    """Actnorm, an invertible 1 x 1 convolution and a coupling (Kingma and Dhariwal 2018)."""

    def __init__(self) -> None:
        super().__init__()
        q, _ = torch.linalg.qr(torch.randn(4, 4))
        self.weight, self.logs = nn.Parameter(q), nn.Parameter(torch.zeros(1, 4, 1, 1))
        self.bias = nn.Parameter(torch.zeros(1, 4, 1, 1))
        self.net = nn.Sequential(
            nn.Conv2d(2, 8, 3, padding=1), nn.ReLU(), nn.Conv2d(8, 4, 3, padding=1)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = F.pixel_unshuffle(x, 2)
        _, _, h, w = x.shape
        z = (x + self.bias) * torch.exp(self.logs)
        logdet = h * w * self.logs.sum() + torch.slogdet(self.weight)[1] * h * w
        z = F.conv2d(z, self.weight.view(4, 4, 1, 1))
        z1, z2 = z.split(2, dim=1)
        s, shift = self.net(z1)[:, ::2], self.net(z1)[:, 1::2]
        scale = torch.sigmoid(s + 2.0)
        z2 = (z2 + shift) * scale
        logdet = logdet + torch.log(scale).sum(dim=[1, 2, 3])
        z = torch.cat((z1, z2), dim=1)
        log_p = -0.5 * (math.log(2 * math.pi) + z**2).sum(dim=[1, 2, 3])
        return -(log_p + logdet).mean() / (math.log(2.0) * z[0].numel())


class HashGrid(nn.Module):
    """Instant NGP's hashed tables, trilinear weights by hand (Müller et al. 2022)."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(64, 2) for _ in range(3)])
        self.mlp = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 3))
        corners = [[i, j] for i in (0, 1) for j in (0, 1)]
        self.register_buffer("corners", torch.tensor(corners))
        for table in self.tables:
            nn.init.uniform_(table.weight, -0.5, 0.5)

    def forward(self, xy: Tensor, rgb: Tensor) -> Tensor:
        features = []
        for level, table in enumerate(self.tables):
            scaled = xy * (4 * 2**level)
            low = torch.floor(scaled).long()
            frac = scaled - low
            ids = low.unsqueeze(1) + self.corners
            hashed = (ids[..., 0] * 1) ^ (ids[..., 1] * 2654435761 % 4096)
            entries = table(hashed % 64)
            w = torch.where(self.corners.bool(), frac.unsqueeze(1), 1 - frac.unsqueeze(1))
            features.append((entries * w.prod(-1, keepdim=True)).sum(1))
        return F.mse_loss(torch.sigmoid(self.mlp(torch.cat(features, -1))), rgb)


class Splatting(nn.Module):
    """Gaussians in a plane, drawn front to back (Kerbl et al. 2023)."""

    def __init__(self, count: int = 6) -> None:
        super().__init__()
        self.xy, self.scale = (
            nn.Parameter(torch.rand(count, 2)),
            nn.Parameter(torch.zeros(count, 2)),
        )
        self.rotation = nn.Parameter(torch.rand(count))
        self.rgb, self.opacity = (
            nn.Parameter(torch.rand(count, 3)),
            nn.Parameter(torch.zeros(count)),
        )

    def forward(self, pixels: Tensor, colours: Tensor) -> Tensor:
        cos, sin = torch.cos(self.rotation), torch.sin(self.rotation)
        r = torch.stack([torch.stack([cos, -sin], -1), torch.stack([sin, cos], -1)], -2)
        s = torch.diag_embed(torch.exp(self.scale) * 0.3)
        sigma = r @ s @ s.transpose(-1, -2) @ r.transpose(-1, -2)
        det = sigma[:, 0, 0] * sigma[:, 1, 1] - sigma[:, 0, 1] * sigma[:, 1, 0]
        inverse = torch.empty_like(sigma)
        inverse[:, 0, 0], inverse[:, 1, 1] = sigma[:, 1, 1], sigma[:, 0, 0]
        inverse[:, 0, 1], inverse[:, 1, 0] = -sigma[:, 0, 1], -sigma[:, 1, 0]
        inverse = inverse / det[:, None, None]
        d = pixels.unsqueeze(1) - self.xy
        power = -0.5 * torch.einsum("bni,nij,bnj->bn", d, inverse, d)
        alpha = (torch.sigmoid(self.opacity) * torch.exp(power)).clamp_max(0.99)
        through = torch.cumprod(torch.cat([torch.ones_like(alpha[:, :1]), 1 - alpha], 1), 1)
        return F.l1_loss((through[:, :-1] * alpha) @ self.rgb, colours)


class PointTransformer(nn.Module):
    """Vector attention over neighbours by distance (Zhao et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.to_qkv = nn.Linear(3, WIDTH), nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.delta = nn.Sequential(nn.Linear(3, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.gamma = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, WIDTH))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, xyz: Tensor) -> Tensor:
        b = xyz.shape[0]
        with torch.no_grad():
            dists = torch.sum((xyz[:, :, None] - xyz[:, None]) ** 2, dim=-1)
            knn = dists.argsort()[:, :, :4]
        rows = torch.arange(b, dtype=torch.long).view(b, 1, 1).expand_as(knn)
        q, k, v = self.to_qkv(self.fc1(xyz)).chunk(3, dim=-1)
        k, v, near = k[rows, knn, :], v[rows, knn, :], xyz[rows, knn, :]
        pos = self.delta(xyz[:, :, None] - near)
        attn = self.gamma(q[:, :, None] - k + pos) / math.sqrt(WIDTH)
        res = torch.einsum("bmnf,bmnf->bmf", F.softmax(attn, dim=-2), v + pos)
        return self.head(res.max(dim=1)[0])


NETS: Mapping[str, Net] = MappingProxyType(
    {
        "nafnet": Net(NAFNet, normal((3, SIDE, SIDE), (3, SIDE, SIDE)), "own"),
        "restormer": Net(Restormer, normal((3, SIDE, SIDE), (3, SIDE, SIDE)), "own"),
        "involution": Net(Involution, image),
        "outlooker": Net(Outlooker, image),
        "enet": Net(ENet, both(image, whole((CLASSES, (SIDE, SIDE)))), "own"),
        "corner pooling": Net(CornerPool, both(image, uniform((8, 8))), "own"),
        "hourglass, soft argmax": Net(Hourglass, both(image, uniform((3, 2))), "own"),
        "maskformer": Net(MaskFormer, both(image, uniform((3, SIDE, SIDE))), "own"),
        "bifpn, scripted swish": Net(BiFPN, image),
        "yolox": Net(YOLOX, both(image, uniform((4,))), "own"),
        "dbnet": Net(DBNet, both(image, uniform((SIDE, SIDE), (SIDE, SIDE))), "own"),
        "dit, rectified flow": Net(
            DiT,
            both(normal((3, SIDE, SIDE), (3, SIDE, SIDE)), uniform(()), whole((CLASSES, ()))),
            "own",
        ),
        "glow": Net(Glow, normal((1, 8, 8)), "own"),
        "hash grid": Net(HashGrid, uniform((2,), (3,)), "own"),
        "gaussian splatting": Net(Splatting, uniform((2,), (3,)), "own"),
        "point transformer": Net(PointTransformer, normal((POINTS, 3))),
    }
)
