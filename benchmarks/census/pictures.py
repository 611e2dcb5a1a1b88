"""Nets of pictures, of what is in them and of codes for them, as their users write them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.net import Net, both, normal, uniform, whole

SIDE, WIDTH, CLASSES = 16, 8, 5
image = normal((3, SIDE, SIDE))


def conv(inside: int, outside: int, stride: int = 1) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inside, outside, 3, stride, 1, bias=False),
        nn.BatchNorm2d(outside),
        nn.ReLU(inplace=True),
    )


class PSPNet(nn.Module):
    """Pools of four sizes upsampled beside the map (Zhao et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(3, WIDTH, 2), conv(WIDTH, WIDTH))
        self.stages = nn.ModuleList(
            nn.Sequential(
                nn.AdaptiveAvgPool2d((s, s)), nn.Conv2d(WIDTH, 4, 1, bias=False), nn.ReLU()
            )
            for s in (1, 2, 3, 6)
        )
        self.final, self.aux = nn.Conv2d(WIDTH + 16, CLASSES, 1), nn.Conv2d(WIDTH, CLASSES, 1)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        f = self.body(x)
        h, w = f.size(2), f.size(3)
        priors = [
            F.interpolate(s(f), size=(h, w), mode="bilinear", align_corners=True)
            for s in self.stages
        ]
        out = self.final(torch.cat([f, *priors], 1))
        out = F.interpolate(out, size=x.shape[2:], mode="bilinear", align_corners=True)
        aux = F.interpolate(self.aux(f), size=x.shape[2:], mode="bilinear", align_corners=True)
        loss = nn.CrossEntropyLoss(ignore_index=0)
        return loss(out, y) + 0.4 * loss(aux, y)


class DANet(nn.Module):
    """Attention over places and over channels (Fu et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = conv(3, WIDTH, 2)
        self.query, self.key = nn.Conv2d(WIDTH, 2, 1), nn.Conv2d(WIDTH, 2, 1)
        self.value = nn.Conv2d(WIDTH, WIDTH, 1)
        self.gamma, self.beta = nn.Parameter(torch.zeros(1)), nn.Parameter(torch.zeros(1))
        self.out = nn.Sequential(nn.Dropout2d(0.0), nn.Conv2d(WIDTH, CLASSES, 1))

    def forward(self, x: Tensor) -> Tensor:
        x = self.body(x)
        b, c, h, w = x.size()
        q = self.query(x).view(b, -1, w * h).permute(0, 2, 1)
        energy = torch.bmm(q, self.key(x).view(b, -1, w * h))
        v = self.value(x).view(b, -1, w * h)
        places = torch.bmm(v, F.softmax(energy, -1).permute(0, 2, 1)).view(b, c, h, w)
        flat = x.view(b, c, -1)
        energy = torch.bmm(flat, flat.permute(0, 2, 1))
        energy = torch.max(energy, -1, keepdim=True)[0].expand_as(energy) - energy
        channels = torch.bmm(F.softmax(energy, -1), flat).view(b, c, h, w)
        return self.out(self.gamma * places + self.beta * channels + 2 * x).mean((2, 3))


class CoordAttention(nn.Module):
    """Gates along rows and columns, a parameter-free one, pyramidal blur (Hou et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(3, WIDTH)
        self.conv1, self.bn1 = nn.Conv2d(WIDTH, WIDTH, 1), nn.BatchNorm2d(WIDTH)
        self.conv_h, self.conv_w = nn.Conv2d(WIDTH, WIDTH, 1), nn.Conv2d(WIDTH, WIDTH, 1)
        kernel = torch.tensor([1.0, 2.0, 1.0])
        self.register_buffer("blur", (kernel[:, None] * kernel / 16).repeat(WIDTH, 1, 1, 1))
        self.fc = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        _, c, h, w = x.size()
        x_h = F.adaptive_avg_pool2d(x, (None, 1))
        x_w = F.adaptive_avg_pool2d(x, (1, None)).permute(0, 1, 3, 2)
        y = F.hardswish(self.bn1(self.conv1(torch.cat([x_h, x_w], dim=2))))
        a_h, a_w = torch.split(y, [h, w], dim=2)
        x = x * self.conv_h(a_h).sigmoid() * self.conv_w(a_w.permute(0, 1, 3, 2)).sigmoid()
        d = (x - x.mean(dim=[2, 3], keepdim=True)).pow(2)
        x = x * torch.sigmoid(
            d / (4 * (d.sum(dim=[2, 3], keepdim=True) / (h * w - 1) + 1e-4)) + 0.5
        )
        x = F.conv2d(F.pad(x, (1, 1, 1, 1), "reflect"), self.blur, stride=2, groups=c)
        return self.fc(x.flatten(2).mean(-1))


class AttentionUNet(nn.Module):
    """Gated skips, Tversky and boundary losses (Oktay et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.down1, self.down2 = conv(3, WIDTH), conv(WIDTH, 16)
        self.up = nn.Sequential(nn.Upsample(scale_factor=2), conv(16, WIDTH))
        self.W_g = nn.Sequential(nn.Conv2d(WIDTH, 4, 1), nn.InstanceNorm2d(4, affine=True))
        self.W_x = nn.Sequential(nn.Conv2d(WIDTH, 4, 1), nn.InstanceNorm2d(4))
        self.psi = nn.Sequential(nn.Conv2d(4, 1, 1), nn.BatchNorm2d(1), nn.Sigmoid())
        self.out = nn.Conv2d(16, 1, 1)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        mask = (mask > 0.5).float()
        x1 = self.down1(x)
        d = self.up(self.down2(F.max_pool2d(x1, 2)))
        x1 = x1 * self.psi(F.relu(self.W_g(d) + self.W_x(x1)))
        pred = torch.sigmoid(self.out(torch.cat((x1, d), dim=1)))
        p, t = pred.view(-1), mask.view(-1)
        tp, fp, fn = (p * t).sum(), ((1 - t) * p).sum(), (t * (1 - p)).sum()
        tversky = (tp + 1) / (tp + 0.3 * fp + 0.7 * fn + 1)
        edge = F.max_pool2d(1 - mask, 3, 1, 1) - (1 - mask)
        soft = F.max_pool2d(1 - pred, 3, 1, 1) - (1 - pred)
        return (
            (1 - tversky) ** 0.75 + F.binary_cross_entropy(pred, mask) + (soft - edge).abs().mean()
        )


class RetinaNet(nn.Module):
    """Anchors matched by their overlap with one box (Lin et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(conv(3, WIDTH, 2), conv(WIDTH, WIDTH, 2))
        self.cls, self.reg = nn.Conv2d(WIDTH, 2 * CLASSES, 3, 1, 1), nn.Conv2d(WIDTH, 8, 3, 1, 1)
        ys, xs = torch.meshgrid(torch.arange(4) + 0.5, torch.arange(4) + 0.5, indexing="ij")
        centre = torch.stack([xs, ys], -1).view(-1, 1, 2) / 4
        half = torch.tensor([0.15, 0.3]).view(1, 2, 1)
        anchors = torch.cat([centre - half, centre + half], -1).view(-1, 4)
        self.register_buffer("anchors", anchors, persistent=False)

    def forward(self, x: Tensor, box: Tensor, label: Tensor) -> Tensor:
        b = x.shape[0]
        f = self.body(x)
        logits = self.cls(f).permute(0, 2, 3, 1).contiguous().view(b, -1, CLASSES)
        deltas = self.reg(f).permute(0, 2, 3, 1).contiguous().view(b, -1, 4)
        box = torch.cat([box[:, :2] * 0.5, box[:, :2] * 0.5 + 0.2 + box[:, 2:] * 0.3], 1)
        lt = torch.max(self.anchors[None, :, :2], box[:, None, :2])
        rb = torch.min(self.anchors[None, :, 2:], box[:, None, 2:])
        wh = (rb - lt).clamp(min=0)
        inter = wh[:, :, 0] * wh[:, :, 1]
        area_a = (self.anchors[:, 2:] - self.anchors[:, :2]).prod(1)
        area_b = (box[:, 2:] - box[:, :2]).prod(1)
        iou = inter / (area_a[None] + area_b[:, None] - inter)
        positive = torch.ge(iou, 0.4) | (iou == iou.max(1, keepdim=True)[0])
        targets = F.one_hot(label, CLASSES)[:, None].float() * positive.unsqueeze(-1)
        p = torch.sigmoid(logits)
        ce = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        p_t = p * targets + (1 - p) * (1 - targets)
        alpha_t = 0.25 * targets + 0.75 * (1 - targets)
        count = positive.sum().clamp(min=1)
        focal = (alpha_t * ce * ((1 - p_t) ** 2)).sum() / count
        size = self.anchors[:, 2:] - self.anchors[:, :2]
        middle = self.anchors[:, :2] + 0.5 * size
        gt_size = (box[:, 2:] - box[:, :2])[:, None]
        gt = torch.cat(
            [((box[:, :2][:, None] + 0.5 * gt_size) - middle) / size, torch.log(gt_size / size)], -1
        )
        l1 = F.smooth_l1_loss(deltas, gt, beta=1 / 9, reduction="none").sum(-1)
        return focal + torch.where(positive, l1, torch.zeros_like(l1)).sum() / count


class YOLOv8(nn.Module):
    """Cross-stage blocks, fast pyramid pooling, boxes as distributions (Ultralytics 2023)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.cv1, self.cv2 = (
            self.conv(3, 8, 3, 2),
            self.conv(8, 16, 1),
            self.conv(24, 16, 1),
        )
        self.m = nn.ModuleList([self.conv(8, 8, 3)])
        self.sppf1, self.sppf2 = self.conv(16, 8, 1), self.conv(32, 16, 1)
        self.box, self.cls = nn.Conv2d(16, 4 * 8, 1), nn.Conv2d(16, CLASSES, 1)
        self.dfl = nn.Conv2d(8, 1, 1, bias=False).requires_grad_(False)
        self.dfl.weight.data[:] = nn.Parameter(torch.arange(8, dtype=torch.float).view(1, 8, 1, 1))

    @staticmethod
    def conv(c1: int, c2: int, k: int, s: int = 1) -> nn.Sequential:
        norm = nn.BatchNorm2d(c2, eps=1e-3, momentum=0.03)
        return nn.Sequential(nn.Conv2d(c1, c2, k, s, k // 2, bias=False), norm, nn.SiLU(True))

    def features(self, x: Tensor) -> Tensor:
        y = list(self.cv1(self.stem(x)).chunk(2, 1))
        y.extend(m(y[-1]) for m in self.m)
        x = self.sppf1(self.cv2(torch.cat(y, 1)))
        pool = nn.MaxPool2d(5, 1, 2)
        p1 = pool(x)
        p2 = pool(p1)
        return self.sppf2(torch.cat((x, p1, p2, pool(p2)), 1))

    def forward(self, x: Tensor, boxes: Tensor, labels: Tensor) -> Tensor:
        x = self.features(x)
        b, _, h, w = x.shape
        dist = self.box(x).view(b, 32, h * w)
        scores = self.cls(x).view(b, CLASSES, h * w)
        out = self.dfl(dist.view(b, 4, 8, h * w).transpose(2, 1).softmax(1)).view(b, 4, h * w)
        sy, sx = torch.meshgrid(torch.arange(h) + 0.5, torch.arange(w) + 0.5, indexing="ij")
        anchors = torch.stack((sx, sy), -1).view(-1, 2).transpose(0, 1)
        lt, rb = out.split(2, 1)
        x1y1, x2y2 = anchors.unsqueeze(0) - lt, anchors.unsqueeze(0) + rb
        t1, t2 = boxes[:, :2, None] * 4, boxes[:, :2, None] * 4 + boxes[:, 2:, None] * 4
        inter = (torch.minimum(x2y2, t2) - torch.maximum(x1y1, t1)).clamp_(0).prod(1)
        w1h1, w2h2 = x2y2 - x1y1, t2 - t1
        union = w1h1.prod(1) + w2h2.prod(1) - inter + 1e-7
        c2 = (torch.maximum(x2y2, t2) - torch.minimum(x1y1, t1)).pow(2).sum(1) + 1e-7
        rho2 = ((x1y1 + x2y2 - t1 - t2).pow(2) / 4).sum(1)
        ratio = (w2h2[:, 0] / (w2h2[:, 1] + 1e-7)).atan() - (
            w1h1[:, 0] / (w1h1[:, 1] + 1e-7)
        ).atan()
        v = 4 / math.pi**2 * ratio.pow(2)
        with torch.no_grad():
            alpha = v / (v - inter / union + (1 + 1e-7))
        ciou = inter / union - (rho2 / c2 + v * alpha)
        target = torch.clamp(
            torch.cat((anchors.unsqueeze(0) - t1, t2 - anchors.unsqueeze(0)), 1), 0, 6.99
        )
        tl = target.long()
        wl = tl + 1 - target
        logits = dist.view(b, 4, 8, h * w).permute(0, 1, 3, 2).reshape(-1, 8)
        left = F.cross_entropy(logits, tl.view(-1), reduction="none").view(tl.shape) * wl
        right = F.cross_entropy(logits, (tl + 1).view(-1), reduction="none").view(tl.shape) * (
            1 - wl
        )
        one_hot = F.one_hot(labels, CLASSES).float().unsqueeze(-1) * ciou.detach().clamp(
            0
        ).unsqueeze(1)
        bce = F.binary_cross_entropy_with_logits(scores, one_hot, reduction="none").sum()
        return 7.5 * (1.0 - ciou).mean() + 0.5 * bce / b + 1.5 * (left + right).mean()


class SlowFast(nn.Module):
    """Two rates of frames with lateral links, channels shifted in time (Feichtenhofer 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.slow = nn.Conv3d(3, 8, (1, 3, 3), (1, 2, 2), (0, 1, 1))
        self.fast = nn.Conv3d(3, 4, (3, 3, 3), (1, 2, 2), (1, 1, 1))
        self.lateral = nn.Conv3d(4, 8, (5, 1, 1), (4, 1, 1), (2, 0, 0), bias=False)
        self.bn, self.head = nn.BatchNorm3d(16), nn.Linear(20, CLASSES)

    def shift(self, x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        out[:, :1, :-1] = x[:, :1, 1:]
        out[:, 1:2, 1:] = x[:, 1:2, :-1]
        out[:, 2:] = x[:, 2:]
        return out

    def forward(self, video: Tensor) -> Tensor:
        slow = self.slow(video[:, :, ::4])
        fast = self.shift(F.relu(self.fast(video)))
        slow = F.relu(self.bn(torch.cat([slow, self.lateral(fast)], dim=1)))
        slow = F.max_pool3d(slow, (1, 3, 3), (1, 2, 2), (0, 1, 1))
        pooled = [F.adaptive_avg_pool3d(x, 1).view(x.size(0), -1) for x in (slow, fast)]
        return self.head(torch.cat(pooled, dim=1))


class StereoDepth(nn.Module):
    """A volume of costs, disparities as expectations, smooth with edges (Chang and Chen 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.cost = conv(3, 4), nn.Conv3d(8, 1, 3, padding=1)

    def forward(self, left: Tensor, right: Tensor, truth: Tensor) -> Tensor:
        a, b = self.features(left), self.features(right)
        cost = torch.zeros(a.size(0), a.size(1) * 2, 4, a.size(2), a.size(3))
        for i in range(4):
            if i > 0:
                cost[:, : a.size(1), i, :, i:] = a[:, :, :, i:]
                cost[:, a.size(1) :, i, :, i:] = b[:, :, :, :-i]
            else:
                cost[:, : a.size(1), i] = a
                cost[:, a.size(1) :, i] = b
        prob = F.softmax(self.cost(cost.contiguous()).squeeze(1), dim=1)
        disp = torch.sum(prob * torch.arange(4, dtype=prob.dtype).view(1, 4, 1, 1), 1)
        mask = (truth < 0.9).detach()
        loss = (F.smooth_l1_loss(disp, 3 * truth, reduction="none") * mask).sum() / mask.sum()
        grad_d = torch.abs(disp[:, :, :-1] - disp[:, :, 1:])
        grad_i = torch.mean(torch.abs(left[:, :, :, :-1] - left[:, :, :, 1:]), 1)
        return loss + 0.1 * (grad_d * torch.exp(-grad_i)).mean()


class T2T(nn.Module):
    """Tokens to tokens by unfolding, registers, layer scale, distilled (Yuan et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(48, 4, batch_first=True)
        self.norm, self.project = nn.LayerNorm(48), nn.Linear(48 * 9, WIDTH)
        self.cls, self.dist = (
            nn.Parameter(torch.zeros(1, 1, WIDTH)),
            nn.Parameter(torch.zeros(1, 1, WIDTH)),
        )
        self.registers, self.pos = (
            nn.Parameter(torch.randn(1, 2, WIDTH)),
            nn.Parameter(torch.zeros(1, 4, WIDTH)),
        )
        self.block = nn.TransformerEncoderLayer(
            WIDTH, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.head, self.head_dist = nn.Linear(WIDTH, CLASSES), nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        x = F.unfold(x, 4, stride=4).transpose(1, 2)
        y = self.norm(x)
        x = x + self.attention(y, y, y, need_weights=False)[0]
        b, _, c = x.shape
        x = F.unfold(x.transpose(1, 2).reshape(b, c, 4, 4), (3, 3), stride=2, padding=1)
        x = self.project(x.transpose(1, 2)) + self.pos
        x = torch.cat(
            [
                self.cls.expand(b, -1, -1),
                self.dist.expand(b, -1, -1),
                self.registers.expand(b, -1, -1),
                x,
            ],
            1,
        )
        x = self.block(x)
        a, d = self.head(x[:, 0]), self.head_dist(x[:, 1])
        return (a + d) / 2, x


class CoAtNet(nn.Module):
    """Relative attention in two dimensions by a table of biases (Dai et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv(3, WIDTH, 2), nn.MaxPool2d(2))
        self.qkv, self.out = nn.Linear(WIDTH, 24, bias=False), nn.Linear(8, WIDTH)
        self.table = nn.Parameter(torch.randn(7 * 7, 2) * 0.1)
        coords = torch.stack(
            torch.meshgrid(torch.arange(4), torch.arange(4), indexing="ij")
        ).flatten(1)
        relative = coords[:, :, None] - coords[:, None, :]
        relative[0] += 3
        relative[1] += 3
        relative[0] *= 7
        self.register_buffer("index", relative.permute(1, 2, 0).sum(-1).flatten().unsqueeze(1))
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x).flatten(2).transpose(1, 2)
        b, n, _ = x.shape
        q, k, v = (t.view(b, n, 2, 4).transpose(1, 2) for t in self.qkv(x).chunk(3, dim=-1))
        bias = self.table.gather(0, self.index.repeat(1, 2)).view(n, n, 2).permute(2, 0, 1)
        attn = F.softmax(torch.matmul(q, k.transpose(-1, -2)) * 0.5 + bias.unsqueeze(0), -1)
        x = x + self.out(torch.matmul(attn, v).transpose(1, 2).flatten(2))
        return self.head(x.mean(1))


NETS: Mapping[str, Net] = MappingProxyType(
    {
        "pspnet": Net(PSPNet, both(image, whole((CLASSES, (SIDE, SIDE)))), "own"),
        "danet": Net(DANet, image),
        "coordinate attention": Net(CoordAttention, image),
        "attention unet, tversky": Net(AttentionUNet, both(image, uniform((1, SIDE, SIDE))), "own"),
        "retinanet": Net(RetinaNet, both(image, uniform((4,)), whole((CLASSES, ()))), "own"),
        "yolov8": Net(YOLOv8, both(image, uniform((4,)), whole((CLASSES, ()))), "own"),
        "slowfast, shifts": Net(SlowFast, normal((3, 8, 8, 8))),
        "stereo": Net(StereoDepth, both(image, image, uniform((SIDE, SIDE))), "own"),
        "t2t-vit": Net(T2T, image),
        "coatnet": Net(CoAtNet, image),
    }
)
