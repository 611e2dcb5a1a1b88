"""A built-in model as a torch module: a submodule of its name for every layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from policysearch.nn import attention, layers, norms
from policysearch.nn.chain import Chain
from policysearch.nn.layers import Layer, parts_of
from policysearch.values import InputError

FUNCTIONS: Mapping[str, Callable[[], nn.Module]] = MappingProxyType(
    {
        "relu": nn.ReLU,
        "tanh": nn.Tanh,
        "sigmoid": nn.Sigmoid,
        "gelu": nn.GELU,
        "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
        "max": nn.MaxPool2d,
        "average": nn.AvgPool2d,
    }
)


class Twin(nn.Module):
    """The layers of a chain, one after the other; parameters are called as in the chain."""

    def __init__(self, model: Chain) -> None:
        super().__init__()
        modules: dict[str, Any] = {}
        for layer in (part for whole in model.layers for part in parts_of(whole)):
            modules[layer.name] = _module(layer, modules)
        for name in sorted(modules, key=lambda name: name.count(".")):
            self._place(name, modules[name])
        self.chain = tuple(modules[layer.name] for layer in model.layers)

    def _place(self, name: str, module: nn.Module) -> None:
        *path, last = name.split(".")
        parent: nn.Module = self
        for part in path:
            if not hasattr(parent, part):
                parent.add_module(part, nn.Module())
            parent = getattr(parent, part)
        parent.add_module(last, module)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.chain:
            x = layer(x)
        return x


def _module(layer: Layer, modules: Mapping[str, Any]) -> nn.Module:
    """Return the module of one layer; those inside it are `modules` already."""
    match layer:
        case layers.Linear():
            return nn.Linear(layer.n_in, layer.n_out, layer.bias)
        case layers.Conv2d():
            shape = (layer.c_in, layer.c_out, layer.window, layer.stride, layer.padding)
            return nn.Conv2d(*shape, bias=layer.bias)
        case layers.Activation():
            return FUNCTIONS[layer.function]()
        case layers.Pool():
            return {"max": nn.MaxPool2d, "average": nn.AvgPool2d}[layer.function](layer.window)
        case layers.Flatten():
            return nn.Flatten()
        case norms.BatchNorm():
            return nn.BatchNorm2d(layer.channels)
        case norms.LayerNorm():
            return nn.LayerNorm(layer.width)
        case layers.Residual():
            return _Sum(_those(layer.layers, modules), ())
        case layers.Skip():
            return _Sum(_those(layer.inner, modules), _those(layer.shortcut, modules))
    return _of_tokens(layer, modules)


def _of_tokens(layer: Layer, modules: Mapping[str, Any]) -> nn.Module:
    match layer:
        case attention.Embedding():
            return _Embedding(layer.tokens, layer.width)
        case attention.Tokens():
            return _Tokens()
        case attention.JoinTokens():
            return _JoinTokens(layer.time)
        case attention.Position():
            return _Position(layer.time)
        case attention.SelfAttention():
            return _SelfAttention(layer, _those(layer.layers, modules))
    raise InputError(f"layer {layer.name}: {type(layer).__name__}; expected one torch has")


def _those(parts: tuple[Layer, ...], modules: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(modules[layer.name] for layer in parts)


class _Sum(nn.Module):
    """The layers inside have places of their own, by their names."""

    def __init__(self, inner: tuple[Any, ...], shortcut: tuple[Any, ...]) -> None:
        super().__init__()
        self.inner, self.shortcut = inner, shortcut

    def forward(self, x: Tensor) -> Tensor:
        inner, shortcut = x, x
        for layer in self.inner:
            inner = layer(inner)
        for layer in self.shortcut:
            shortcut = layer(shortcut)
        return inner + shortcut


class _Embedding(nn.Embedding):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.reshape(-1))


class _Tokens(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.ndim == 3:
            return x.flatten(0, 1)
        return x.transpose(1, 2).flatten(2).flatten(0, 1)


class _JoinTokens(nn.Module):
    def __init__(self, time: int) -> None:
        super().__init__()
        self.time = time

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(len(x) // self.time, -1)


class _Position(nn.Module):
    """Its bias takes the shape of the initial values it is given."""

    def __init__(self, time: int) -> None:
        super().__init__()
        self.time = time
        self.bias = nn.UninitializedParameter()

    def forward(self, x: Tensor) -> Tensor:
        return (x.reshape(len(x) // self.time, -1) + self.bias).reshape(x.shape)


class _SelfAttention(nn.Module):
    def __init__(self, layer: attention.SelfAttention, projections: tuple[Any, ...]) -> None:
        super().__init__()
        self.layer, self.projections = layer, projections
        mask = torch.triu(torch.ones(layer.time, layer.time, dtype=torch.bool), 1)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        layer, part = self.layer, self.layer.width // self.layer.heads
        shape = (len(x) // layer.time, layer.time, layer.heads, part)
        q, k, v = (project(x).reshape(shape).transpose(1, 2) for project in self.projections)
        alike = (q @ k.transpose(-1, -2)) * (1.0 / math.sqrt(part))
        if layer.causal:
            alike = alike.masked_fill(self.mask, -math.inf)
        return (functional.softmax(alike, -1) @ v).transpose(1, 2).reshape(x.shape)
