"""Classifiers of images by convolutions, as their authors write them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.census.net import Net, normal

WIDTH, CLASSES = 8, 5


class Classifier(nn.Module):
    """A stem, blocks, a mean over places and a head."""

    def __init__(self, *blocks: nn.Module, out: int = WIDTH) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, WIDTH, 3, stride=2, padding=1, bias=False),
            nn.BatchNorm2d(WIDTH),
            nn.ReLU(inplace=True),
        )
        self.blocks = nn.Sequential(*blocks)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(out, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.blocks(self.stem(x)))
        return self.fc(torch.flatten(x, 1))


def _make_divisible(v: float, divisor: int = 8) -> int:
    new_v = max(divisor, int(v + divisor / 2) // divisor * divisor)
    return new_v + divisor if new_v < 0.9 * v else new_v


class SqueezeExcitation(nn.Module):
    """Squeeze and excitation (Hu et al. 2018) as in MobileNetV3."""

    def __init__(self, channels: int, scale: Callable[[], nn.Module] = nn.Hardsigmoid) -> None:
        super().__init__()
        squeeze = _make_divisible(channels // 4)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeeze, 1)
        self.fc2 = nn.Conv2d(squeeze, channels, 1)
        self.scale_activation = scale()

    def forward(self, input: Tensor) -> Tensor:
        scale = self.fc2(F.relu(self.fc1(self.avgpool(input))))
        return self.scale_activation(scale) * input


class InvertedResidual(nn.Module):
    """MobileNetV3's block (Howard et al. 2019)."""

    def __init__(self, cin: int, expanded: int, out: int, stride: int, hs: bool) -> None:
        super().__init__()
        activation: type[nn.Module] = nn.Hardswish if hs else nn.ReLU
        norm = partial(nn.BatchNorm2d, eps=0.001, momentum=0.01)
        self.use_res_connect = stride == 1 and cin == out
        self.block = nn.Sequential(
            nn.Conv2d(cin, expanded, 1, bias=False),
            norm(expanded),
            activation(inplace=True),
            nn.Conv2d(expanded, expanded, 5, stride, 2, groups=expanded, bias=False),
            norm(expanded),
            activation(inplace=True),
            SqueezeExcitation(expanded),
            nn.Conv2d(expanded, out, 1, bias=False),
            norm(out),
        )

    def forward(self, input: Tensor) -> Tensor:
        result = self.block(input)
        if self.use_res_connect:
            result += input
        return result


class GRN(nn.Module):
    """Global response norm of ConvNeXt V2 (Woo et al. 2023)."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.zeros(1, 1, 1, dim))
        self.beta = nn.Parameter(torch.zeros(1, 1, 1, dim))

    def forward(self, x: Tensor) -> Tensor:
        Gx = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
        Nx = Gx / (Gx.mean(dim=-1, keepdim=True) + 1e-6)
        return self.gamma * (x * Nx) + self.beta + x


def drop_path(x: Tensor, drop_prob: float, training: bool) -> Tensor:
    """Drops the whole branch of a sample (Huang et al. 2016)."""
    if drop_prob == 0.0 or not training:
        return x
    keep_prob = 1 - drop_prob
    random_tensor = x.new_empty((x.shape[0],) + (1,) * (x.ndim - 1)).bernoulli_(keep_prob)
    return x * random_tensor.div_(keep_prob)


class ConvNeXtV2Block(nn.Module):
    """ConvNeXt V2's block."""

    def __init__(self, dim: int, drop: float = 0.1) -> None:
        super().__init__()
        self.dwconv = nn.Conv2d(dim, dim, kernel_size=7, padding=3, groups=dim)
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.pwconv1 = nn.Linear(dim, 4 * dim)
        self.act = nn.GELU()
        self.grn = GRN(4 * dim)
        self.pwconv2 = nn.Linear(4 * dim, dim)
        self.drop = drop

    def forward(self, x: Tensor) -> Tensor:
        input = x
        x = self.dwconv(x).permute(0, 2, 3, 1)
        x = self.pwconv2(self.grn(self.act(self.pwconv1(self.norm(x)))))
        return input + drop_path(x.permute(0, 3, 1, 2), self.drop, self.training)


def channel_shuffle(x: Tensor, groups: int) -> Tensor:
    batchsize, num_channels, height, width = x.size()
    x = x.view(batchsize, groups, num_channels // groups, height, width)
    x = torch.transpose(x, 1, 2).contiguous()
    return x.view(batchsize, num_channels, height, width)


class ShuffleUnit(nn.Module):
    """ShuffleNet V2's unit (Ma et al. 2018)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        self.branch2 = nn.Sequential(
            nn.Conv2d(half, half, 1, bias=False),
            nn.BatchNorm2d(half),
            nn.ReLU(inplace=True),
            nn.Conv2d(half, half, 3, 1, 1, bias=False, groups=half),
            nn.BatchNorm2d(half),
            nn.Conv2d(half, half, 1, bias=False),
            nn.BatchNorm2d(half),
            nn.ReLU(inplace=True),
        )

    def forward(self, x: Tensor) -> Tensor:
        x1, x2 = x.chunk(2, dim=1)
        return channel_shuffle(torch.cat((x1, self.branch2(x2)), dim=1), 2)


class Fire(nn.Module):
    """SqueezeNet's module (Iandola et al. 2016)."""

    def __init__(self, cin: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze = nn.Conv2d(cin, squeeze, kernel_size=1)
        self.squeeze_activation = nn.ReLU(inplace=True)
        self.expand1x1 = nn.Conv2d(squeeze, expand, kernel_size=1)
        self.expand3x3 = nn.Conv2d(squeeze, expand, kernel_size=3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        x = self.squeeze_activation(self.squeeze(x))
        return torch.cat([F.relu(self.expand1x1(x)), F.relu(self.expand3x3(x))], 1)


class SqueezeNet(nn.Module):
    """SqueezeNet with its convolutional head."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, WIDTH, 3, stride=2),
            nn.ReLU(inplace=True),
            nn.MaxPool2d(kernel_size=3, stride=2, ceil_mode=True),
            Fire(WIDTH, 4, WIDTH),
            Fire(2 * WIDTH, 4, WIDTH),
        )
        final_conv = nn.Conv2d(2 * WIDTH, CLASSES, kernel_size=1)
        pool = nn.AdaptiveAvgPool2d((1, 1))
        self.classifier = nn.Sequential(nn.Dropout(0.5), final_conv, nn.ReLU(inplace=True), pool)

    def forward(self, x: Tensor) -> Tensor:
        return torch.flatten(self.classifier(self.features(x)), 1)


class Inception(nn.Module):
    """GoogLeNet's block (Szegedy et al. 2015)."""

    def __init__(self, cin: int) -> None:
        super().__init__()
        self.branch1 = self.conv(cin, 4, 1)
        self.branch2 = nn.Sequential(self.conv(cin, 4, 1), self.conv(4, 4, 3))
        self.branch3 = nn.Sequential(self.conv(cin, 4, 1), self.conv(4, 4, 5))
        pool = nn.MaxPool2d(kernel_size=3, stride=1, padding=1, ceil_mode=True)
        self.branch4 = nn.Sequential(pool, self.conv(cin, 4, 1))

    @staticmethod
    def conv(cin: int, out: int, kernel: int) -> nn.Module:
        conv = nn.Conv2d(cin, out, kernel, padding=kernel // 2, bias=False)
        return nn.Sequential(conv, nn.BatchNorm2d(out, eps=0.001), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        branches = [self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)]
        return torch.cat(branches, 1)


class ECA(nn.Module):
    """Efficient channel attention (Wang et al. 2020)."""

    def __init__(self, k_size: int = 3) -> None:
        super().__init__()
        self.avg_pool = nn.AdaptiveAvgPool2d(1)
        self.conv = nn.Conv1d(1, 1, kernel_size=k_size, padding=(k_size - 1) // 2, bias=False)
        self.sigmoid = nn.Sigmoid()

    def forward(self, x: Tensor) -> Tensor:
        y = self.avg_pool(x)
        y = self.conv(y.squeeze(-1).transpose(-1, -2)).transpose(-1, -2).unsqueeze(-1)
        return x * self.sigmoid(y).expand_as(x)


class SE(nn.Module):
    """Squeeze and excitation as in SENet."""

    def __init__(self, channel: int, reduction: int = 4) -> None:
        super().__init__()
        self.avg_pool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Sequential(
            nn.Linear(channel, channel // reduction, bias=False),
            nn.ReLU(inplace=True),
            nn.Linear(channel // reduction, channel, bias=False),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        b, c, _, _ = x.size()
        y = self.avg_pool(x).view(b, c)
        y = self.fc(y).view(b, c, 1, 1)
        return x * y.expand_as(x)


class CBAM(nn.Module):
    """Attention over channels and places (Woo et al. 2018)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Flatten(), nn.Linear(channels, 4), nn.ReLU(), nn.Linear(4, channels)
        )
        self.spatial = nn.Conv2d(2, 1, 7, padding=3, bias=False)
        self.bn = nn.BatchNorm2d(1, momentum=0.01)

    def forward(self, x: Tensor) -> Tensor:
        size = (x.size(2), x.size(3))
        avg_pool = F.avg_pool2d(x, size, stride=size)
        max_pool = F.max_pool2d(x, size, stride=size)
        att = self.mlp(avg_pool) + self.mlp(max_pool)
        x = x * torch.sigmoid(att).unsqueeze(2).unsqueeze(3).expand_as(x)
        pooled = torch.cat((torch.max(x, 1)[0].unsqueeze(1), torch.mean(x, 1).unsqueeze(1)), dim=1)
        return x * torch.sigmoid(self.bn(self.spatial(pooled)))


class WSConv2d(nn.Conv2d):
    """Scaled weight standardisation of NFNet (Brock et al. 2021)."""

    def __init__(self, cin: int, cout: int, kernel: int, padding: int = 0) -> None:
        super().__init__(cin, cout, kernel, padding=padding)
        self.gain = nn.Parameter(torch.ones(cout, 1, 1, 1))

    def standardized_weight(self, eps: float = 1e-4) -> Tensor:
        fan_in = torch.prod(torch.tensor(self.weight.shape[1:]))
        mean = torch.mean(self.weight, dim=[1, 2, 3], keepdim=True)
        var = torch.var(self.weight, dim=[1, 2, 3], keepdim=True)
        scale = torch.rsqrt(torch.maximum(var * fan_in, torch.tensor(eps)))
        return (self.weight - mean) * scale * self.gain

    def forward(self, x: Tensor) -> Tensor:
        weight = self.standardized_weight()
        return F.conv2d(x, weight, self.bias, self.stride, self.padding, self.dilation, self.groups)


class NFBlock(nn.Module):
    """NFNet's block with a learnt gain and a scaled activation."""

    def __init__(self, channels: int, alpha: float = 0.2, beta: float = 1.0) -> None:
        super().__init__()
        self.alpha, self.beta = alpha, beta
        self.conv1 = WSConv2d(channels, channels, 3, padding=1)
        self.conv2 = WSConv2d(channels, channels, 1)
        self.skip_gain = nn.Parameter(torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        out = F.gelu(x) * 1.7015043497085571 * self.beta
        out = self.conv2(F.gelu(self.conv1(out)) * 1.7015043497085571)
        return out * self.alpha * self.skip_gain + x


images = normal((3, 16, 16))

NETS: Mapping[str, Net] = MappingProxyType(
    {
        "mobilenet v3": Net(
            lambda: Classifier(
                InvertedResidual(WIDTH, 16, WIDTH, 1, False),
                InvertedResidual(WIDTH, 24, 16, 2, True),
                out=16,
            ),
            images,
        ),
        "convnext v2": Net(lambda: Classifier(ConvNeXtV2Block(WIDTH)), images),
        "shufflenet v2": Net(lambda: Classifier(ShuffleUnit(WIDTH), ShuffleUnit(WIDTH)), images),
        "squeezenet": Net(SqueezeNet, images),
        "inception": Net(lambda: Classifier(Inception(WIDTH), out=16), images),
        "se": Net(lambda: Classifier(SE(WIDTH)), images),
        "eca": Net(lambda: Classifier(ECA()), images),
        "cbam": Net(lambda: Classifier(CBAM(WIDTH)), images),
        "nfnet": Net(lambda: Classifier(NFBlock(WIDTH), NFBlock(WIDTH)), images),
    }
)
