"""Images to images, boxes, points and films: segmentation, detection, upsampling and video."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.net import Net, both, normal, uniform, whole

WIDTH, CLASSES, SIZE = 8, 4, 16


class DoubleConv(nn.Sequential):
    """(convolution => BN => ReLU) * 2."""

    def __init__(self, cin: int, cout: int) -> None:
        super().__init__(
            nn.Conv2d(cin, cout, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(cout),
            nn.ReLU(inplace=True),
            nn.Conv2d(cout, cout, kernel_size=3, padding=1, bias=False),
            nn.BatchNorm2d(cout),
            nn.ReLU(inplace=True),
        )


class UNet(nn.Module):
    """U-Net (Ronneberger et al. 2015) with padding at the joins and cross entropy plus dice."""

    def __init__(self, bilinear: bool) -> None:
        super().__init__()
        self.inc = DoubleConv(3, WIDTH)
        self.down1 = nn.Sequential(nn.MaxPool2d(2), DoubleConv(WIDTH, 2 * WIDTH))
        self.up: nn.Module = nn.ConvTranspose2d(2 * WIDTH, WIDTH, kernel_size=2, stride=2)
        if bilinear:
            up = nn.Upsample(scale_factor=2, mode="bilinear", align_corners=True)
            self.up = nn.Sequential(up, nn.Conv2d(2 * WIDTH, WIDTH, 1))
        self.conv = DoubleConv(2 * WIDTH, WIDTH)
        self.outc = nn.Conv2d(WIDTH, CLASSES, kernel_size=1)

    def dice(self, input: Tensor, target: Tensor, epsilon: float = 1e-6) -> Tensor:
        inter = 2 * (input * target).sum(dim=(-1, -2, -3))
        sets_sum = input.sum(dim=(-1, -2, -3)) + target.sum(dim=(-1, -2, -3))
        sets_sum = torch.where(sets_sum == 0, inter, sets_sum)
        return 1 - ((inter + epsilon) / (sets_sum + epsilon)).mean()

    def forward(self, x: Tensor, masks: Tensor) -> tuple[Tensor, Tensor]:
        x1 = self.inc(x)
        up = self.up(self.down1(x1))
        dy, dx = x1.size()[2] - up.size()[2], x1.size()[3] - up.size()[3]
        up = F.pad(up, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])
        logits = self.outc(self.conv(torch.cat([x1, up], dim=1)))
        one_hot = F.one_hot(masks, CLASSES).permute(0, 3, 1, 2).float()
        loss = nn.CrossEntropyLoss()(logits, masks)
        return loss + self.dice(F.softmax(logits, dim=1).float(), one_hot), logits


class DeepLab(nn.Module):
    """Atrous pyramid pooling (DeepLabv3, Chen et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, WIDTH, 3, stride=2, padding=1), nn.ReLU())
        self.convs = nn.ModuleList([self.conv(1, 1), self.conv(3, 2), self.conv(3, 4)])
        self.pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(WIDTH, WIDTH, 1), nn.ReLU())
        self.project = nn.Sequential(
            nn.Conv2d(4 * WIDTH, WIDTH, 1, bias=False),
            nn.BatchNorm2d(WIDTH),
            nn.ReLU(),
            nn.Dropout(0.5),
            nn.Conv2d(WIDTH, CLASSES, 1),
        )

    def conv(self, kernel: int, dilation: int) -> nn.Module:
        padding = 0 if kernel == 1 else dilation
        conv = nn.Conv2d(WIDTH, WIDTH, kernel, padding=padding, dilation=dilation, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(WIDTH), nn.ReLU())

    def forward(self, x: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        input_shape = x.shape[-2:]
        features = self.backbone(x)
        res = [conv(features) for conv in self.convs]
        size = features.shape[-2:]
        pooled = self.pool(features)
        res.append(F.interpolate(pooled, size=size, mode="bilinear", align_corners=False))
        out = self.project(torch.cat(res, dim=1))
        out = F.interpolate(out, size=input_shape, mode="bilinear", align_corners=False)
        return F.cross_entropy(out, target, ignore_index=255), out


class FPN(nn.Module):
    """Feature pyramid (Lin et al. 2017) with the focal loss of RetinaNet."""

    def __init__(self) -> None:
        super().__init__()
        self.c2 = nn.Sequential(nn.Conv2d(3, WIDTH, 3, 2, 1), nn.ReLU())
        self.c3 = nn.Sequential(nn.Conv2d(WIDTH, 2 * WIDTH, 3, 2, 1), nn.ReLU())
        self.inner = nn.ModuleList([nn.Conv2d(WIDTH, WIDTH, 1), nn.Conv2d(2 * WIDTH, WIDTH, 1)])
        self.layer = nn.ModuleList([nn.Conv2d(WIDTH, WIDTH, 3, padding=1) for _ in range(2)])
        self.head = nn.Conv2d(WIDTH, 1, 3, padding=1)

    def focal(self, inputs: Tensor, targets: Tensor, alpha: float = 0.25) -> Tensor:
        p = torch.sigmoid(inputs)
        ce_loss = F.binary_cross_entropy_with_logits(inputs, targets, reduction="none")
        p_t = p * targets + (1 - p) * (1 - targets)
        loss = ce_loss * ((1 - p_t) ** 2.0)
        alpha_t = alpha * targets + (1 - alpha) * (1 - targets)
        return (alpha_t * loss).mean()

    def forward(self, x: Tensor, objects: Tensor) -> Tensor:
        c2 = self.c2(x)
        c3 = self.c3(c2)
        last = self.inner[1](c3)
        p3 = self.layer[1](last)
        top_down = F.interpolate(last, size=c2.shape[-2:], mode="nearest")
        p2 = self.layer[0](self.inner[0](c2) + top_down)
        scores = [self.head(p).flatten(1) for p in (p2, p3)]
        return self.focal(torch.cat(scores, dim=1), objects.float())


class YOLO(nn.Module):
    """A head of boxes, objectness and classes (YOLOv3, Redmon and Farhadi 2018)."""

    anchors: Tensor

    def __init__(self, cells: int = 4) -> None:
        super().__init__()
        self.na, self.no = 2, CLASSES + 5
        self.cells = cells
        self.backbone = nn.Sequential(
            nn.Conv2d(3, WIDTH, 3, 2, 1, bias=False),
            nn.BatchNorm2d(WIDTH),
            nn.SiLU(),
            nn.Conv2d(WIDTH, WIDTH, 3, 2, 1, bias=False),
            nn.BatchNorm2d(WIDTH),
            nn.SiLU(),
        )
        self.m = nn.Conv2d(WIDTH, self.no * self.na, 1)
        self.register_buffer("anchors", torch.tensor([[1.0, 1.5], [2.0, 1.0]]))
        self.bce = nn.BCEWithLogitsLoss(pos_weight=torch.tensor([2.0]))

    def forward(self, x: Tensor, objects: Tensor, boxes: Tensor) -> Tensor:
        y = self.m(self.backbone(x))
        bs, _, ny, nx = y.shape
        y = y.view(bs, self.na, self.no, ny, nx).permute(0, 1, 3, 4, 2).contiguous()
        yv, xv = torch.meshgrid(torch.arange(ny), torch.arange(nx), indexing="ij")
        grid = torch.stack((xv, yv), 2).expand((1, 1, ny, nx, 2)).float()
        xy = (y[..., 0:2].sigmoid() * 2 - 0.5 + grid) / self.cells
        wh = (y[..., 2:4].sigmoid() * 2) ** 2 * self.anchors.view(1, self.na, 1, 1, 2)
        found = objects[:, None].expand(-1, self.na, -1, -1).float()
        lbox = (torch.cat((xy, wh), -1) - boxes[:, None]).abs().mean(-1)
        lbox = (lbox * found).sum() / found.sum().clamp(min=1)
        lobj = self.bce(y[..., 4], found)
        return 0.05 * lbox + lobj + 0.1 * self.bce(y[..., 5:], torch.zeros_like(y[..., 5:]))


def box_cxcywh_to_xyxy(x: Tensor) -> Tensor:
    x_c, y_c, w, h = x.unbind(-1)
    b = [(x_c - 0.5 * w), (y_c - 0.5 * h), (x_c + 0.5 * w), (y_c + 0.5 * h)]
    return torch.stack(b, dim=-1)


class DETR(nn.Module):
    """DETR (Carion et al. 2020) with its loss on queries matched in order."""

    empty_weight: Tensor

    def __init__(self, queries: int = 3, hidden: int = 16) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(3, WIDTH, 4, 4), nn.ReLU())
        self.conv = nn.Conv2d(WIDTH, hidden, 1)
        self.transformer = nn.Transformer(hidden, 2, 1, 1, 32, dropout=0.0)
        self.linear_class = nn.Linear(hidden, CLASSES + 1)
        self.linear_bbox = nn.Linear(hidden, 4)
        self.query_pos = nn.Parameter(torch.rand(queries, hidden))
        self.row_embed = nn.Parameter(torch.rand(50, hidden // 2))
        self.col_embed = nn.Parameter(torch.rand(50, hidden // 2))
        empty_weight = torch.ones(CLASSES + 1)
        empty_weight[-1] = 0.1
        self.register_buffer("empty_weight", empty_weight)

    def giou(self, a: Tensor, b: Tensor) -> Tensor:
        a, b = box_cxcywh_to_xyxy(a), box_cxcywh_to_xyxy(b)
        area = [(x[..., 2] - x[..., 0]) * (x[..., 3] - x[..., 1]) for x in (a, b)]
        wh = (torch.min(a[..., 2:], b[..., 2:]) - torch.max(a[..., :2], b[..., :2])).clamp(min=0)
        inter = wh[..., 0] * wh[..., 1]
        union = area[0] + area[1] - inter
        wh = (torch.max(a[..., 2:], b[..., 2:]) - torch.min(a[..., :2], b[..., :2])).clamp(min=0)
        hull = wh[..., 0] * wh[..., 1]
        return inter / union - (hull - union) / hull

    def forward(self, inputs: Tensor, classes: Tensor, boxes: Tensor) -> tuple[Tensor, Tensor]:
        h = self.conv(self.backbone(inputs))
        H, W = h.shape[-2:]
        cols = self.col_embed[:W].unsqueeze(0).repeat(H, 1, 1)
        rows = self.row_embed[:H].unsqueeze(1).repeat(1, W, 1)
        pos = torch.cat([cols, rows], dim=-1).flatten(0, 1).unsqueeze(1)
        query = self.query_pos.unsqueeze(1).repeat(1, inputs.shape[0], 1)
        h = self.transformer(pos + 0.1 * h.flatten(2).permute(2, 0, 1), query).transpose(0, 1)
        logits, found = self.linear_class(h), self.linear_bbox(h).sigmoid()
        loss = F.cross_entropy(logits.transpose(1, 2), classes, self.empty_weight)
        real = (classes != CLASSES).unsqueeze(-1)
        loss_bbox = F.l1_loss(found, boxes, reduction="none")
        num_boxes = torch.clamp(real.sum(), min=1)
        loss = loss + 5 * (loss_bbox * real).sum() / num_boxes
        return loss + 2 * ((1 - self.giou(found, boxes)) * real[..., 0]).sum() / num_boxes, logits


class ESPCN(nn.Module):
    """Sub-pixel convolution (Shi et al. 2016)."""

    def __init__(self, factor: int = 2) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, WIDTH, 5, padding=2)
        self.conv2 = nn.Conv2d(WIDTH, factor**2, 3, padding=1)
        self.pixel_shuffle = nn.PixelShuffle(factor)

    def forward(self, x: Tensor, high: Tensor) -> Tensor:
        x = torch.tanh(self.conv1(x))
        out = torch.clamp(torch.sigmoid(self.pixel_shuffle(self.conv2(x))), 0.0, 1.0)
        return torch.sqrt((out - high) ** 2 + 1e-6).mean()


class C3D(nn.Module):
    """Convolutions over films (Tran et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv3d(3, WIDTH, kernel_size=(3, 3, 3), padding=(1, 1, 1))
        self.pool1 = nn.MaxPool3d(kernel_size=(1, 2, 2), stride=(1, 2, 2))
        self.conv2 = nn.Conv3d(WIDTH, WIDTH, kernel_size=(3, 3, 3), padding=(1, 1, 1))
        self.pool2 = nn.MaxPool3d(kernel_size=(2, 2, 2), stride=(2, 2, 2))
        self.fc6 = nn.Linear(WIDTH * 2 * 2 * 2, 16)
        self.fc7 = nn.Linear(16, CLASSES)
        self.dropout = nn.Dropout(p=0.5)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = self.pool1(self.relu(self.conv1(x)))
        x = self.pool2(self.relu(self.conv2(x)))
        x = x.view(-1, WIDTH * 2 * 2 * 2)
        return self.fc7(self.dropout(self.relu(self.fc6(x))))


class ConvLSTM(nn.Module):
    """Convolutional LSTM (Shi et al. 2015)."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1 + WIDTH, 4 * WIDTH, 3, padding=1)
        self.out = nn.Conv2d(WIDTH, 1, 1)

    def forward(self, film: Tensor, after: Tensor) -> Tensor:
        b, steps, _, height, width = film.size()
        h = torch.zeros(b, WIDTH, height, width, device=self.conv.weight.device)
        c = torch.zeros(b, WIDTH, height, width, device=self.conv.weight.device)
        for t in range(steps):
            combined = torch.cat([film[:, t, :, :, :], h], dim=1)
            cc_i, cc_f, cc_o, cc_g = torch.split(self.conv(combined), WIDTH, dim=1)
            i, f, o = torch.sigmoid(cc_i), torch.sigmoid(cc_f), torch.sigmoid(cc_o)
            c = f * c + i * torch.tanh(cc_g)
            h = o * torch.tanh(c)
        return F.binary_cross_entropy_with_logits(self.out(h), after)


class SpatialTransformer(nn.Module):
    """Spatial transformer (Jaderberg et al. 2015), as in torch's tutorial."""

    def __init__(self) -> None:
        super().__init__()
        self.localization = nn.Sequential(
            nn.Conv2d(3, 4, 7, stride=3), nn.MaxPool2d(2), nn.ReLU(True)
        )
        self.fc_loc = nn.Linear(16, 3 * 2)
        self.fc_loc.weight.data.zero_()
        self.fc_loc.bias.data.copy_(torch.tensor([1, 0, 0, 0, 1, 0], dtype=torch.float))
        self.fc = nn.Linear(3 * SIZE * SIZE, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        theta = self.fc_loc(self.localization(x).view(-1, 16)).view(-1, 2, 3)
        grid = F.affine_grid(theta, list(x.size()), align_corners=False)
        x = F.grid_sample(x, grid, align_corners=False)
        return F.log_softmax(self.fc(x.flatten(1)), dim=1)


image = normal((3, SIZE, SIZE))
masked = both(image, whole((CLASSES, (SIZE, SIZE))))
detected = both(image, whole((2, (4, 4))), uniform((4, 4, 4)))
queried = both(image, whole((CLASSES + 1, (3,))), uniform((3, 4)))

NETS: Mapping[str, Net] = MappingProxyType(
    {
        "unet": Net(lambda: UNet(False), masked, loss="own", labels="masks"),
        "unet, bilinear": Net(lambda: UNet(True), masked, loss="own", labels="masks"),
        "deeplab": Net(DeepLab, masked, loss="own", labels="target"),
        "fpn, focal loss": Net(FPN, both(image, whole((2, (80,)))), loss="own", labels="objects"),
        "yolo": Net(YOLO, detected, loss="own"),
        "detr": Net(DETR, queried, loss="own", labels="classes"),
        "espcn": Net(ESPCN, uniform((1, 8, 8), (1, 16, 16)), loss="own", labels="high"),
        "c3d": Net(C3D, normal((3, 4, 8, 8))),
        "convlstm": Net(ConvLSTM, uniform((3, 1, 8, 8), (1, 8, 8)), loss="own", labels="after"),
        "spatial transformer": Net(SpatialTransformer, image),
    }
)
