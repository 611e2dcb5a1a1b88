"""The networks that tasks can name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from types import MappingProxyType

from policysearch.graph import Shape, size
from policysearch.nn.attention import (
    Embedding,
    JoinTokens,
    Norm,
    Position,
    Tokens,
    transformer_block,
)
from policysearch.nn.chain import Chain
from policysearch.nn.layers import Activation, Conv2d, Flatten, Layer, Linear, Pool, Skip, Squared
from policysearch.nn.norms import BatchNorm, LayerNorm, RMSNorm
from policysearch.values import InputError


def lenet5(
    activation: str = "relu", classes: int = 10, in_channels: int = 1, size: int = 32
) -> Chain:
    """Return LeNet-5 with max pooling: 5x5 convolutions to 6 and 16, then 120, 84, `classes`.

    `size` is the side of the square images in pixels. LeCun et al., Proc. IEEE 86(11), 1998, as
    the frameworks' tutorials simplify it.
    """
    if size < 16:
        raise InputError(f"model lenet5, size: {size} pixels; expected at least 16")
    side = ((size - 4) // 2 - 4) // 2
    layers = (
        Conv2d("conv1", in_channels, 6, 5),
        Activation(f"{activation}1", activation),
        Pool("pool1", 2),
        Conv2d("conv2", 6, 16, 5),
        Activation(f"{activation}2", activation),
        Pool("pool2", 2),
        Flatten("flatten"),
        Linear("fc1", 16 * side * side, 120),
        Activation(f"{activation}3", activation),
        Linear("fc2", 120, 84),
        Activation(f"{activation}4", activation),
        Linear("fc3", 84, classes),
    )
    return Chain("lenet5", layers, (in_channels, size, size), classes)


def mlp(
    widths: tuple[int, ...], activation: str = "relu", input_shape: Shape | None = None
) -> Chain:
    """Return a dense net: widths[0] inputs, hidden layers, widths[-1] classes without activation.

    An `input_shape` of more than one axis is flattened first.
    """
    if len(widths) < 2 or min(widths) < 1:
        raise InputError(f"model mlp, widths: {list(widths)}; expected two or more positive ones")
    shape = input_shape or (widths[0],)
    layers: list[Layer] = [Flatten("flatten")] if len(shape) > 1 else []
    for number, (n_in, n_out) in enumerate(pairwise(widths), 1):
        layers.append(Linear(f"fc{number}", n_in, n_out))
        if number < len(widths) - 1:
            layers.append(Activation(f"{activation}{number}", activation))
    return Chain("mlp", tuple(layers), shape, widths[-1])


def transformer(
    input_shape: Shape,
    classes: int,
    width: int = 32,
    hidden: tuple[int, ...] = (128,),
    heads: int = 4,
    activation: str = "gelu",
    norm: Norm = LayerNorm,
    between: Callable[[str, str], Layer] = Activation,
) -> Chain:
    """Return an encoder with one pre-norm block per entry of `hidden`, its inner width.

    `input_shape` is [time, features] or [channels, rows, columns], then a row is a time step. The
    head reads the tokens of all steps side by side. Layers: tokens, embed, position, per block
    "block1.norm1", "block1.attention" with .q, .k, .v and .o, "block1.add1", "block1.norm2",
    "block1.fc1", "block1.gelu", "block1.fc2", "block1.add2", and last norm, flatten, head. `norm`
    makes the norms, and `between` the layer behind fc1 from its name and the `activation`.
    """
    if len(input_shape) not in (2, 3):
        valid = "[time, features] or [channels, rows, columns]"
        raise InputError(f"model transformer: input {list(input_shape)}; expected {valid}")
    _check_widths("transformer", width, hidden, heads)
    time = input_shape[-2]
    layers: list[Layer] = [
        Tokens("tokens"),
        Linear("embed", size(input_shape) // time, width),
        Position("position", time),
    ]
    for number, inner in enumerate(hidden, 1):
        middle = between(f"block{number}.{activation}", activation)
        layers += transformer_block(f"block{number}", width, inner, heads, time, middle, norm=norm)
    layers += [norm("norm", width), JoinTokens("flatten", time)]
    layers.append(Linear("head", time * width, classes))
    return Chain("transformer", tuple(layers), input_shape, classes)


def _check_widths(model: str, width: int, hidden: tuple[int, ...], heads: int) -> None:
    if min(width, heads, *hidden) < 1 or width % heads:
        given = f"width {width}, hidden {list(hidden)}, heads {heads}"
        raise InputError(
            f"model {model}: {given}; expected positive ones, the width divisible by heads"
        )


def gpt(
    input_shape: Shape,
    classes: int,
    width: int = 64,
    hidden: tuple[int, ...] = (256, 256),
    heads: int = 4,
    activation: str = "gelu",
) -> Chain:
    """Return a decoder that predicts the next of `classes` tokens at each of [time] places.

    One pre-norm block per entry of `hidden`, its inner width; attention looks back alone. Layers
    are called as those of `transformer`.
    """
    if len(input_shape) != 1:
        raise InputError(f"model gpt: inputs {list(input_shape)}; expected [time] tokens")
    _check_widths("gpt", width, hidden, heads)
    (time,) = input_shape
    layers: list[Layer] = [Embedding("embed", classes, width), Position("position", time)]
    for number, inner in enumerate(hidden, 1):
        middle = Activation(f"block{number}.{activation}", activation)
        block = transformer_block(f"block{number}", width, inner, heads, time, middle, causal=True)
        layers += block
    layers += [LayerNorm("norm", width), Linear("head", width, classes, bias=False)]
    return Chain("gpt", tuple(layers), input_shape, classes, True, time, loss="token_cross_entropy")


def resnet(
    input_shape: Shape,
    classes: int,
    widths: tuple[int, ...] = (8, 16, 32, 64),
    activation: str = "relu",
) -> Chain:
    """Return a ResNet for small images: a 3 x 3 stem, two basic blocks per entry of `widths`.

    Every stage but the first halves the image. With four widths that is ResNet-18 without the
    pooled stem (arXiv 1512.03385). Layers: conv1, bn1, relu1, per block "layer1.0.conv1" and so
    on, "layer1.0.add" with "layer1.0.downsample.0" and ".1" where the shape changes, pool, fc.
    """
    channels, side, wide = input_shape if len(input_shape) == 3 else (0, 0, 1)
    halvings = 2 ** (len(widths) - 1)
    if side != wide or side % halvings or not widths or min(widths) < 1:
        given = f"images {list(input_shape)}, widths {list(widths)}"
        raise InputError(f"model resnet: {given}; expected square ones, divisible by {halvings}")
    first = widths[0]
    layers: list[Layer] = [
        Conv2d("conv1", channels, first, 3, padding=1, bias=False),
        BatchNorm("bn1", first),
        Activation(f"{activation}1", activation),
    ]
    before = first
    for stage, width in enumerate(widths, 1):
        for block in range(2):
            stride = 2 if stage > 1 and block == 0 else 1
            name = f"layer{stage}.{block}"
            layers += _basic_block(name, before, width, stride, activation)
            before = width
    layers += [Pool("pool", side // halvings, "average"), Flatten("flatten")]
    layers.append(Linear("fc", before, classes))
    return Chain("resnet", tuple(layers), input_shape, classes)


def _basic_block(
    name: str, c_in: int, c_out: int, stride: int, activation: str
) -> tuple[Layer, ...]:
    inner = (
        Conv2d(f"{name}.conv1", c_in, c_out, 3, stride, 1, bias=False),
        BatchNorm(f"{name}.bn1", c_out),
        Activation(f"{name}.{activation}1", activation),
        Conv2d(f"{name}.conv2", c_out, c_out, 3, padding=1, bias=False),
        BatchNorm(f"{name}.bn2", c_out),
    )
    shortcut: tuple[Layer, ...] = ()
    if stride != 1 or c_in != c_out:
        shortcut = (
            Conv2d(f"{name}.downsample.0", c_in, c_out, 1, stride, bias=False),
            BatchNorm(f"{name}.downsample.1", c_out),
        )
    last = Activation(f"{name}.{activation}2", activation)
    return Skip(f"{name}.add", inner, shortcut), last


WIDTHS: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "mlp": (),
        "transformer": (32, 128),
        "rms_transformer": (32, 128),
        "gpt": (64, 256, 256),
        "resnet": (8, 16, 32, 64),
    }
)
"""The widths of each model that takes some, where a task gives none."""

WIDTHS_IN = 4
"""Narrower nets have widths that are multiples of this, for heads divide them."""


def narrower(model: str, widths: tuple[int, ...], share: float) -> tuple[int, ...]:
    """Return about `share` of the widths of the model called `model`: its layers stay.

    `widths` are what a task gives, () for those of WIDTHS. Raises InputError where the model takes
    none or none becomes smaller.
    """
    given = (widths or WIDTHS[model]) if model in WIDTHS else ()
    narrow = tuple(min(w, max(1, round(w * share / WIDTHS_IN)) * WIDTHS_IN) for w in given)
    if narrow == given:
        request = f"{share:g} of the widths {list(given)} of model {model!r}"
        raise InputError(
            f"{request}; expected a model of {', '.join(WIDTHS)} that becomes narrower"
        )
    return narrow


ModelBuilder = Callable[[Shape, int, str, tuple[int, ...]], Chain]


def _lenet5(input_shape: Shape, classes: int, activation: str, widths: tuple[int, ...]) -> Chain:
    if widths:
        raise InputError(f"model lenet5, widths: {list(widths)}; expected none, they are fixed")
    if len(input_shape) != 3 or input_shape[1] != input_shape[2]:
        raise InputError(f"model lenet5: images {list(input_shape)}; expected square ones")
    return lenet5(activation, classes, input_shape[0], input_shape[1])


def _mlp(input_shape: Shape, classes: int, activation: str, widths: tuple[int, ...]) -> Chain:
    return mlp((size(input_shape), *widths, classes), activation, input_shape)


def _transformer(
    input_shape: Shape, classes: int, activation: str, widths: tuple[int, ...]
) -> Chain:
    width, *hidden = widths or WIDTHS["transformer"]
    return transformer(input_shape, classes, width, tuple(hidden), activation=activation)


def _rms_transformer(
    input_shape: Shape, classes: int, activation: str, widths: tuple[int, ...]
) -> Chain:
    """The blocks of small language models that are trained for speed: squared ReLU, bare norms."""
    width, *hidden = widths or WIDTHS["rms_transformer"]
    model = transformer(
        *(input_shape, classes, width, tuple(hidden)),
        activation=activation,
        norm=RMSNorm,
        between=Squared,
    )
    return replace(model, name="rms_transformer")


def _gpt(input_shape: Shape, classes: int, activation: str, widths: tuple[int, ...]) -> Chain:
    width, *hidden = widths or WIDTHS["gpt"]
    return gpt(input_shape, classes, width, tuple(hidden), activation=activation)


def _resnet(input_shape: Shape, classes: int, activation: str, widths: tuple[int, ...]) -> Chain:
    return resnet(input_shape, classes, widths or WIDTHS["resnet"], activation)


MODELS: Mapping[str, ModelBuilder] = MappingProxyType(
    {
        "lenet5": _lenet5,
        "mlp": _mlp,
        "transformer": _transformer,
        "rms_transformer": _rms_transformer,
        "resnet": _resnet,
        "gpt": _gpt,
    }
)
"""Builders by name: (shape of one example, classes, activation, hidden widths) to the model."""
