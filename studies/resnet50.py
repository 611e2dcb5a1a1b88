"""ResNet-50 (arXiv 1512.03385), called as the small residual nets that studies train."""

from itertools import count

from policysearch.nn.chain import Chain
from policysearch.nn.layers import Activation, Conv2d, Flatten, Layer, Linear, Pool, Skip
from policysearch.nn.norms import BatchNorm

BLOCKS = (3, 4, 6, 3)
EXPANSION = 4


def model() -> Chain:
    """Return it for images of 224 x 224 pixels; the pool of its stem has windows of 2 for 3."""
    layers: list[Layer] = [
        Conv2d("conv1", 3, 64, 7, 2, 3, bias=False),
        BatchNorm("bn1", 64),
        Activation("relu1", "relu"),
        Pool("stem_pool", 2),
    ]
    before = 64
    for stage, blocks in enumerate(BLOCKS):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            layers += bottleneck(f"layer{stage + 1}.{block}", before, 64 * 2**stage, stride)
            before = EXPANSION * 64 * 2**stage
    layers += [Pool("pool", 7, "average"), Flatten("flatten"), Linear("fc", before, 1000)]
    return Chain("resnet50", tuple(layers), (3, 224, 224), 1000)


def bottleneck(name: str, before: int, width: int, stride: int) -> tuple[Layer, ...]:
    """Return a block: 1 x 1, 3 x 3 with the stride, 1 x 1 to four times the width, and a sum."""
    wide = EXPANSION * width
    sides = ((before, width, 1, 1), (width, width, 3, stride), (width, wide, 1, 1))
    inner: list[Layer] = []
    for number, (c_in, c_out, side, step) in zip(count(1), sides):
        padding = side // 2
        inner.append(Conv2d(f"{name}.conv{number}", c_in, c_out, side, step, padding, bias=False))
        inner.append(BatchNorm(f"{name}.bn{number}", c_out))
        if number < len(sides):
            inner.append(Activation(f"{name}.relu{number}", "relu"))
    shortcut: tuple[Layer, ...] = ()
    if before != wide:
        shortcut = (
            Conv2d(f"{name}.downsample.0", before, wide, 1, stride, bias=False),
            BatchNorm(f"{name}.downsample.1", wide),
        )
    return Skip(f"{name}.add", tuple(inner), shortcut), Activation(f"{name}.relu3", "relu")
