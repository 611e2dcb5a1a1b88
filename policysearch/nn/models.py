"""Models as chains of layers, and the networks that tasks can name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from types import MappingProxyType

import numpy as np

from policysearch.graph import Builder, FloatArray, Shape, size
from policysearch.nn.attention import JoinTokens, LayerNorm, Position, Tokens, transformer_block
from policysearch.nn.layers import Activation, Conv2d, Flatten, Layer, Linear, Pool, names_of
from policysearch.nn.model import Input, Model, ParameterSpec, Traced, emit_arrays
from policysearch.ops.source import data
from policysearch.values import InputError


@dataclass(frozen=True)
class Chain(Model):
    """A chain of layers for images of `input_shape` (one example); [batch, classes] comes out."""

    name: str
    layers: tuple[Layer, ...]
    input_shape: Shape
    classes: int

    def __post_init__(self) -> None:
        names = self.layer_names
        for name in names:
            if names.count(name) > 1:
                raise InputError(f"model {self.name}: layer {name!r} twice; expected names once")

    @property
    def inputs(self) -> tuple[Input, ...]:  # type: ignore[override]
        return (Input("images", self.input_shape),)

    @property
    def layer_names(self) -> tuple[str, ...]:
        return tuple(name for layer in self.layers for name in names_of(layer))

    @cached_property
    def _specs(self) -> tuple[ParameterSpec, ...]:
        b = Builder()
        x = b.emit(data, attrs={"shape": (1, *self.input_shape)}, role="input")
        specs: list[ParameterSpec] = []
        for layer in self.layers:
            owned = layer.parameters(b.shape(x)[1:])
            x = layer.trace(b, x, emit_arrays(b, owned))
            specs += owned
        if b.shape(x) != (1, self.classes):
            given = list(b.shape(x)[1:])
            raise InputError(f"model {self.name}: output {given}; expected [{self.classes}]")
        return tuple(specs)

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """Return every trained array in layer order; InputError where the layers do not fit."""
        return self._specs

    def init(self, rng: np.random.Generator) -> dict[str, FloatArray]:
        """Return fresh float32 parameters, uniform within +-1/sqrt(fan_in) or as specified.

        That is what torch's `reset_parameters` of Linear and Conv2d amounts to, for weights
        (`kaiming_uniform_` with a = sqrt(5)) and biases alike.
        """
        return {spec.name: _initial(spec, rng) for spec in self._specs}

    def trace(self, b: Builder, fed: Mapping[str, int], training: bool) -> Traced:
        """Emit the forward pass; its output are the logits [batch, classes]."""
        x = fed["images"]
        for layer in self.layers:
            x = layer.trace(b, x, fed)
        return Traced(x)


def _initial(spec: ParameterSpec, rng: np.random.Generator) -> FloatArray:
    if spec.initial is not None:
        return np.full(spec.shape, spec.initial, np.float32)
    unit = rng.uniform(-1.0, 1.0, spec.shape).astype(np.float32)
    return unit * np.float32(spec.fan_in**-0.5)


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
) -> Chain:
    """Return an encoder with one pre-norm block per entry of `hidden`, its inner width.

    `input_shape` is [time, features] or [channels, rows, columns], then a row is a time step. The
    head reads the tokens of all steps side by side. Layers: tokens, embed, position, per block
    "block1.norm1", "block1.attention" with .q, .k, .v and .o, "block1.add1", "block1.norm2",
    "block1.fc1", "block1.gelu", "block1.fc2", "block1.add2", and last norm, flatten, head.
    """
    if len(input_shape) not in (2, 3):
        valid = "[time, features] or [channels, rows, columns]"
        raise InputError(f"model transformer: input {list(input_shape)}; expected {valid}")
    if min(width, heads, *hidden) < 1 or width % heads:
        given = f"width {width}, hidden {list(hidden)}, heads {heads}"
        raise InputError(
            f"model transformer: {given}; expected positive ones, the width divisible by heads"
        )
    time = input_shape[-2]
    layers: list[Layer] = [
        Tokens("tokens"),
        Linear("embed", size(input_shape) // time, width),
        Position("position", time),
    ]
    for number, inner in enumerate(hidden, 1):
        middle = Activation(f"block{number}.{activation}", activation)
        layers += transformer_block(f"block{number}", width, inner, heads, time, middle)
    layers += [LayerNorm("norm", width), JoinTokens("flatten", time)]
    layers.append(Linear("head", time * width, classes))
    return Chain("transformer", tuple(layers), input_shape, classes)


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
    width, *hidden = widths or (32, 128)
    return transformer(input_shape, classes, width, tuple(hidden), activation=activation)


MODELS: Mapping[str, ModelBuilder] = MappingProxyType(
    {"lenet5": _lenet5, "mlp": _mlp, "transformer": _transformer}
)
"""Builders by name: (shape of one image, classes, activation, hidden widths) to the model."""
