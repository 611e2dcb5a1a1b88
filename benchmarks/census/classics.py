"""The classifiers that everyone starts from."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from types import MappingProxyType

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from benchmarks.census.net import Net, both, normal, whole

WIDTH, CLASSES = 8, 5


class MNIST(nn.Module):
    """The net of torch's MNIST example."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, WIDTH, 3, 1), nn.Conv2d(WIDTH, WIDTH, 3, 1)
        self.dropout1, self.dropout2 = nn.Dropout(0.25), nn.Dropout(0.5)
        self.fc1, self.fc2 = nn.Linear(WIDTH * 16, 16), nn.Linear(16, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(self.conv1(x))
        x = F.relu(self.conv2(x))
        x = F.max_pool2d(x, 2)
        x = self.dropout1(x)
        x = torch.flatten(x, 1)
        x = self.dropout2(F.relu(self.fc1(x)))
        return F.log_softmax(self.fc2(x), dim=1)


class LeNet(nn.Module):
    """LeNet (LeCun et al. 1998), as in torch's tutorial."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1, self.conv2 = nn.Conv2d(1, 6, 5), nn.Conv2d(6, 16, 5)
        self.fc1, self.fc2, self.fc3 = nn.Linear(16, 12), nn.Linear(12, 8), nn.Linear(8, CLASSES)

    def num_flat_features(self, x: Tensor) -> int:
        num_features = 1
        for s in x.size()[1:]:
            num_features *= s
        return num_features

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv1(x)), (2, 2))
        x = F.max_pool2d(F.relu(self.conv2(x)), 2)
        x = x.view(-1, self.num_flat_features(x))
        return self.fc3(F.relu(self.fc2(F.relu(self.fc1(x)))))


class AlexNet(nn.Module):
    """AlexNet (Krizhevsky et al. 2012) with local response norm."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(3, WIDTH, kernel_size=5, stride=2, padding=2),
            nn.ReLU(inplace=True),
            nn.LocalResponseNorm(size=5, alpha=0.0001, beta=0.75, k=2),
            nn.MaxPool2d(kernel_size=3, stride=2),
            nn.Conv2d(WIDTH, WIDTH, kernel_size=3, padding=1, groups=2),
            nn.ReLU(inplace=True),
        )
        self.avgpool = nn.AdaptiveAvgPool2d((2, 2))
        self.classifier = nn.Sequential(nn.Dropout(), nn.Linear(WIDTH * 4, CLASSES))

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x))
        return self.classifier(x.view(x.size(0), WIDTH * 2 * 2))


class BasicBlock(nn.Module):
    """ResNet's block (He et al. 2016), with its shortcut padded by zeros or by a convolution."""

    def __init__(self, cin: int, planes: int, stride: int, padded: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(cin, planes, 3, stride=stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(planes)
        self.conv2 = nn.Conv2d(planes, planes, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(planes)
        self.padded, self.extra = padded, (planes - cin) // 2
        self.shortcut = nn.Sequential()
        if not padded and (stride != 1 or cin != planes):
            self.shortcut = nn.Sequential(
                nn.Conv2d(cin, planes, 1, stride=stride, bias=False), nn.BatchNorm2d(planes)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        if self.padded and self.extra:
            out += F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.extra, self.extra), "constant", 0)
        else:
            out += self.shortcut(x)
        return F.relu(out)


class ResNet(nn.Module):
    """A ResNet for small images."""

    def __init__(self, padded: bool) -> None:
        super().__init__()
        self.in_planes, self.padded = WIDTH, padded
        self.conv1 = nn.Conv2d(3, WIDTH, kernel_size=3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(WIDTH)
        self.layer1 = self._make_layer(WIDTH, 1, stride=1)
        self.layer2 = self._make_layer(2 * WIDTH, 2, stride=2)
        self.linear = nn.Linear(2 * WIDTH, CLASSES)

    def _make_layer(self, planes: int, num_blocks: int, stride: int) -> nn.Sequential:
        layers = []
        for s in [stride] + [1] * (num_blocks - 1):
            layers.append(BasicBlock(self.in_planes, planes, s, self.padded))
            self.in_planes = planes
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        out = F.relu(self.bn1(self.conv1(x)))
        out = self.layer2(self.layer1(out))
        out = F.avg_pool2d(out, out.size()[3])
        return self.linear(out.view(out.size(0), -1))


class DenseLayer(nn.Module):
    """DenseNet's layer (Huang et al. 2017)."""

    def __init__(self, cin: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.relu1 = nn.BatchNorm2d(cin), nn.ReLU(inplace=True)
        self.conv1 = nn.Conv2d(cin, growth, 3, padding=1, bias=False)

    def forward(self, features: list[Tensor]) -> Tensor:
        return self.conv1(self.relu1(self.norm1(torch.cat(features, 1))))


class DenseNet(nn.Module):
    """DenseNet, whose layers may be run anew on the way back."""

    def __init__(self, recomputed: bool, growth: int = 4) -> None:
        super().__init__()
        self.recomputed = recomputed
        self.conv0 = nn.Conv2d(3, WIDTH, 3, padding=1, bias=False)
        layers = ((f"denselayer{i}", DenseLayer(WIDTH + i * growth, growth)) for i in range(3))
        self.block = nn.ModuleDict(OrderedDict(layers))
        wide = WIDTH + 3 * growth
        transition = OrderedDict()
        transition["norm"] = nn.BatchNorm2d(wide)
        transition["conv"] = nn.Conv2d(wide, wide // 2, 1, bias=False)
        transition["pool"] = nn.AvgPool2d(kernel_size=2, stride=2)
        self.transition = nn.Sequential(transition)
        self.classifier = nn.Linear(wide // 2, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        features = [self.conv0(x)]
        for _, layer in self.block.items():
            if self.recomputed:
                features.append(checkpoint(layer, list(features), use_reentrant=False))
            else:
                features.append(layer(features))
        out = F.relu(self.transition(torch.cat(features, 1)), inplace=True)
        out = F.adaptive_avg_pool2d(out, (1, 1))
        return self.classifier(torch.flatten(out, 1))


class RepVGG(nn.Module):
    """RepVGG's block of three branches (Ding et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, WIDTH, 3, 2, 1)
        self.dense = nn.Sequential(
            nn.Conv2d(WIDTH, WIDTH, 3, 1, 1, bias=False), nn.BatchNorm2d(WIDTH)
        )
        self.one = nn.Sequential(nn.Conv2d(WIDTH, WIDTH, 1, bias=False), nn.BatchNorm2d(WIDTH))
        self.identity = nn.BatchNorm2d(WIDTH)
        self.prelu, self.fc = nn.PReLU(WIDTH), nn.LazyLinear(CLASSES)
        self(torch.zeros(2, 3, 16, 16))

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        x = self.prelu(self.dense(x) + self.one(x) + self.identity(x))
        return self.fc(x.mean([2, 3]))


class Xception(nn.Module):
    """Separable convolutions (Chollet 2017) padded as needed, and a mean of powers (GeM)."""

    def __init__(self) -> None:
        super().__init__()
        self.depthwise = nn.Conv2d(3, 6, 3, padding="same", groups=3, bias=False)
        self.pointwise = nn.Conv2d(6, WIDTH, 1, bias=False)
        self.bn, self.act = nn.BatchNorm2d(WIDTH, eps=1e-3), nn.Mish()
        self.p = nn.Parameter(torch.ones(1) * 3)
        self.fc = nn.Linear(WIDTH, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.bn(self.pointwise(self.depthwise(x))))
        x = F.avg_pool2d(x.clamp(min=1e-6).pow(self.p), (x.size(-2), x.size(-1)))
        return self.fc(x.pow(1.0 / self.p).flatten(1))


class ArcFace(nn.Module):
    """Angular margins (Deng et al. 2019)."""

    def __init__(self, s: float = 30.0, m: float = 0.5) -> None:
        super().__init__()
        self.s, self.m = s, m
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64, WIDTH), nn.PReLU())
        self.weight = nn.Parameter(torch.empty(CLASSES, WIDTH))
        nn.init.xavier_uniform_(self.weight)

    def forward(self, x: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
        cosine = F.linear(F.normalize(self.body(x)), F.normalize(self.weight))
        theta = torch.acos(torch.clamp(cosine, -1.0 + 1e-7, 1.0 - 1e-7))
        one_hot = torch.zeros(cosine.size())
        one_hot.scatter_(1, label.view(-1, 1).long(), 1)
        output = (one_hot * torch.cos(theta + self.m)) + ((1.0 - one_hot) * cosine)
        output *= self.s
        return F.cross_entropy(output, label), output


class MixUp(nn.Module):
    """Mixed pairs (Zhang et al. 2018) under a loss of soft labels."""

    def __init__(self, lam: float = 0.7) -> None:
        super().__init__()
        self.lam = lam
        self.model = nn.Sequential(
            nn.Flatten(), nn.Linear(3 * 64, 16), nn.ReLU6(), nn.Linear(16, CLASSES)
        )

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        soft = F.one_hot(y, CLASSES).float()
        mixed = self.lam * x + (1 - self.lam) * x.flip(0)
        logits = self.model(mixed)
        target = self.lam * soft + (1 - self.lam) * soft.flip(0)
        return torch.sum(-target * F.log_softmax(logits, dim=-1), dim=-1).mean(), logits


images = normal((3, 16, 16))
labelled = both(normal((3, 8, 8)), whole((CLASSES, ())))

NETS: Mapping[str, Net] = MappingProxyType(
    {
        "mnist example": Net(MNIST, normal((1, 12, 12))),
        "lenet": Net(LeNet, normal((1, 16, 16))),
        "alexnet": Net(AlexNet, normal((3, 32, 32))),
        "resnet": Net(lambda: ResNet(padded=False), images),
        "resnet, shortcut padded": Net(lambda: ResNet(padded=True), images),
        "densenet": Net(lambda: DenseNet(recomputed=False), images),
        "densenet, recomputed": Net(lambda: DenseNet(recomputed=True), images),
        "repvgg": Net(RepVGG, images),
        "xception": Net(Xception, images),
        "arcface": Net(ArcFace, labelled, loss="own", labels="label"),
        "mixup": Net(MixUp, labelled, loss="own", labels="y"),
    }
)
