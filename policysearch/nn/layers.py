"""Layers as frozen descriptions: what parameters they own and which nodes they trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType
from typing import Protocol, runtime_checkable

from policysearch.graph import Attrs, FloatArray, Op, Shape, size
from policysearch.nn.model import Fed, ParameterSpec, emit_arrays
from policysearch.ops.activations import sigmoid, tanh
from policysearch.ops.builder import Builder
from policysearch.ops.conv import conv2d
from policysearch.ops.dense import bias, matmul
from policysearch.ops.elementwise import add, multiply, relu
from policysearch.ops.gelu import gelu
from policysearch.ops.pool import average_pool, max_pool
from policysearch.ops.shape import reshape
from policysearch.ops.source import data
from policysearch.values import InputError, one_of

ACTIVATIONS: Mapping[str, tuple[Op, Attrs]] = MappingProxyType(
    {
        **{op.name: (op, {}) for op in (relu, tanh, sigmoid)},
        "gelu": (gelu, {"form": "erf"}),
        "gelu_tanh": (gelu, {"form": "tanh"}),
    }
)
"""By name: the op and its attributes. "gelu" is torch's default form."""

POOLS: Mapping[str, Op] = MappingProxyType({"max": max_pool, "average": average_pool})


class Layer(Protocol):
    """What a model is made of. Shapes are those of one example, without the batch."""

    @property
    def name(self) -> str: ...

    def parameters(self, input_shape: Shape) -> tuple[ParameterSpec, ...]:
        """Return the arrays the layer owns for inputs of this shape."""
        ...

    def trace(self, b: Builder, x: int, fed: Fed) -> int:
        """Emit the layer's nodes for input node `x`; `fed` has the arrays it owns."""
        ...


@runtime_checkable
class Composite(Protocol):
    """A layer with layers inside, which have names and parameters of their own."""

    @property
    def layers(self) -> tuple[Layer, ...]: ...


@runtime_checkable
class WithConstants(Protocol):
    """A layer that reads arrays nothing moves, each from a data node of that name."""

    def constants(self) -> Mapping[str, FloatArray]: ...


def parts_of(layer: Layer) -> tuple[Layer, ...]:
    """Return the layers inside the layer, and itself behind them."""
    inner = layer.layers if isinstance(layer, Composite) else ()
    return (*(part for child in inner for part in parts_of(child)), layer)


def names_of(layer: Layer) -> tuple[str, ...]:
    """Return the layer's name, behind those of the layers inside it."""
    return tuple(part.name for part in parts_of(layer))


def traced_through(
    layers: Sequence[Layer], input_shape: Shape, rows_per_example: int = 1
) -> tuple[tuple[ParameterSpec, ...], Shape]:
    """Return what a chain of layers owns for inputs of this shape, and the shape of its outputs.

    Both without the batch, which is that of one example at first and may become that of its
    rows. InputError where the layers do not fit.
    """
    b = Builder()
    x = b.emit(data, attrs={"shape": (1, *input_shape)}, role="input")
    specs: list[ParameterSpec] = []
    for layer in layers:
        owned = layer.parameters(b.shape(x)[1:])
        x = layer.trace(b, x, Fed(emit_arrays(b, owned)))
        specs += owned
    if b.shape(x)[:1] != (rows_per_example,):
        given = f"{b.shape(x)[0]} rows per example"
        raise InputError(f"layer {layers[-1].name}: {given}; expected {rows_per_example}")
    return tuple(specs), b.shape(x)[1:]


def _weight_and_bias(
    layer: str, weight: Shape, outputs: int, with_bias: bool
) -> tuple[ParameterSpec, ...]:
    fan_in = size(weight[1:])
    specs = (ParameterSpec(f"{layer}.weight", weight, layer, fan_in),)
    if not with_bias:
        return specs
    return (*specs, ParameterSpec(f"{layer}.bias", (outputs,), layer, fan_in))


def expect(layer: str, input_shape: Shape, fits: bool, valid: str) -> None:
    """Raise InputError where the input of a layer does not fit."""
    if not fits:
        raise InputError(f"layer {layer}: input of shape {list(input_shape)}; expected {valid}")


def expect_width(layer: str, input_shape: Shape, width: int) -> None:
    """Raise InputError where the input of a layer is not [width]."""
    expect(layer, input_shape, input_shape == (width,), f"[{width}]")


@dataclass(frozen=True)
class Linear:
    """[batch, n_in] to [batch, n_out] with weights [n_out, n_in], as in torch."""

    name: str
    n_in: int
    n_out: int
    bias: bool = True

    def parameters(self, input_shape: Shape) -> tuple[ParameterSpec, ...]:
        expect_width(self.name, input_shape, self.n_in)
        return _weight_and_bias(self.name, (self.n_out, self.n_in), self.n_out, self.bias)

    def trace(self, b: Builder, x: int, fed: Fed) -> int:
        with b.scope(layer=self.name, role="fprop"):
            y = b.emit(matmul, x, fed[f"{self.name}.weight"], attrs={"transpose_b": True})
            return b.emit(bias, y, fed[f"{self.name}.bias"]) if self.bias else y


@dataclass(frozen=True)
class Conv2d:
    """[batch, c_in, h, w] to [batch, c_out, h', w'] with weights [c_out, c_in, window, window]."""

    name: str
    c_in: int
    c_out: int
    window: int
    stride: int = 1
    padding: int = 0
    bias: bool = True

    def parameters(self, input_shape: Shape) -> tuple[ParameterSpec, ...]:
        least = self.window - 2 * self.padding
        fits = len(input_shape) == 3 and input_shape[0] == self.c_in
        fits = fits and min(input_shape[1:]) >= least
        expect(self.name, input_shape, fits, f"[{self.c_in}, height, width] of at least {least}")
        weight = (self.c_out, self.c_in, self.window, self.window)
        return _weight_and_bias(self.name, weight, self.c_out, self.bias)

    def trace(self, b: Builder, x: int, fed: Fed) -> int:
        attrs = {"stride": self.stride, "padding": self.padding}
        with b.scope(layer=self.name, role="fprop"):
            y = b.emit(conv2d, x, fed[f"{self.name}.weight"], attrs=attrs)
            return b.emit(bias, y, fed[f"{self.name}.bias"]) if self.bias else y


@dataclass(frozen=True)
class Activation:
    """An elementwise function: `function` is a key of ACTIVATIONS."""

    name: str
    function: str

    def __post_init__(self) -> None:
        one_of(f"layer {self.name}, activation", self.function, ACTIVATIONS)

    def parameters(self, input_shape: Shape) -> tuple[ParameterSpec, ...]:
        return ()

    def trace(self, b: Builder, x: int, fed: Fed) -> int:
        with b.scope(layer=self.name, role="fprop"):
            op, attrs = ACTIVATIONS[self.function]
            return b.emit(op, x, attrs=attrs)


@dataclass(frozen=True)
class Squared:
    """An elementwise function, squared: of relu the squared ReLU of arXiv 2109.08668."""

    name: str
    function: str

    def parameters(self, input_shape: Shape) -> tuple[ParameterSpec, ...]:
        return ()

    def trace(self, b: Builder, x: int, fed: Fed) -> int:
        y = Activation(self.name, self.function).trace(b, x, fed)
        with b.scope(layer=self.name, role="fprop"):
            return b.emit(multiply, y, y)


@dataclass(frozen=True)
class Pool:
    """Pooling over square windows: `function` is a key of POOLS; the stride is the window."""

    name: str
    window: int
    function: str = "max"

    def __post_init__(self) -> None:
        one_of(f"layer {self.name}, pool", self.function, POOLS)

    def parameters(self, input_shape: Shape) -> tuple[ParameterSpec, ...]:
        fits = len(input_shape) == 3 and min(input_shape[1:]) >= self.window
        valid = f"[channels, height, width] of at least {self.window}"
        expect(self.name, input_shape, fits, valid)
        return ()

    def trace(self, b: Builder, x: int, fed: Fed) -> int:
        attrs = {"window": self.window, "stride": self.window}
        with b.scope(layer=self.name, role="fprop"):
            return b.emit(POOLS[self.function], x, attrs=attrs)


@dataclass(frozen=True)
class Flatten:
    """[batch, ...] to [batch, values], in the order channels, rows, columns."""

    name: str

    def parameters(self, input_shape: Shape) -> tuple[ParameterSpec, ...]:
        return ()

    def trace(self, b: Builder, x: int, fed: Fed) -> int:
        shape = b.shape(x)
        with b.scope(layer=self.name, role="fprop"):
            return b.emit(reshape, x, attrs={"shape": (shape[0], size(shape[1:]))})


@dataclass(frozen=True)
class Residual:
    """x + inner(x) for tokens: the inner layers in a chain, then the sum as a layer of its own."""

    name: str
    layers: tuple[Layer, ...]

    def parameters(self, input_shape: Shape) -> tuple[ParameterSpec, ...]:
        specs: list[ParameterSpec] = []
        shape = input_shape
        for layer in self.layers:
            specs += layer.parameters(shape)
            shape = (layer.n_out,) if isinstance(layer, Linear) else shape
        if shape != input_shape:
            given, valid = list(shape), list(input_shape)
            raise InputError(f"layer {self.name}: {given} from the inner layers; expected {valid}")
        return tuple(specs)

    def trace(self, b: Builder, x: int, fed: Fed) -> int:
        inner = x
        for layer in self.layers:
            inner = layer.trace(b, inner, fed)
        with b.scope(layer=self.name, role="fprop"):
            return b.emit(add, x, inner)


@dataclass(frozen=True)
class Skip:
    """inner(x) + shortcut(x): chains of layers, the sum as a layer of its own.

    Without a `shortcut`, x itself is added.
    """

    name: str
    inner: tuple[Layer, ...]
    shortcut: tuple[Layer, ...] = ()

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        return (*self.inner, *self.shortcut)

    def parameters(self, input_shape: Shape) -> tuple[ParameterSpec, ...]:
        specs, inner_shape = traced_through(self.inner, input_shape)
        more, shortcut_shape = traced_through(self.shortcut, input_shape)
        if inner_shape != shortcut_shape:
            given = f"{list(inner_shape)} from the inner layers, {list(shortcut_shape)} beside them"
            raise InputError(f"layer {self.name}: {given}; expected the same shape")
        return (*specs, *more)

    def trace(self, b: Builder, x: int, fed: Fed) -> int:
        inner, shortcut = x, x
        for layer in self.inner:
            inner = layer.trace(b, inner, fed)
        for layer in self.shortcut:
            shortcut = layer.trace(b, shortcut, fed)
        with b.scope(layer=self.name, role="fprop"):
            return b.emit(add, inner, shortcut)


EXAMPLES: tuple[tuple[Layer, Shape], ...] = (
    (Linear("linear", 5, 3), (5,)),
    (Conv2d("conv", 2, 3, 3, padding=1), (2, 5, 4)),
    *((Activation(function, function), (7,)) for function in ACTIVATIONS),
    (Squared("squared", "relu"), (7,)),
    *((Pool(function, 2, function), (2, 4, 6)) for function in POOLS),
    (Flatten("flatten"), (2, 3, 4)),
    (Residual("add", (Linear("inner", 6, 6),)), (6,)),
    (
        Skip(
            "add",
            (Conv2d("conv", 2, 3, 3, padding=1), Activation("tanh", "tanh")),
            (Conv2d("side", 2, 3, 1),),
        ),
        (2, 4, 4),
    ),
)
"""Layers of this file, with the shape of an input: what their tests are made from."""
