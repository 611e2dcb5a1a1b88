"""Layers of nets for images: batch normalisation, and sums around a chain of layers."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from policysearch.graph import Shape, size
from policysearch.nn.layers import Activation, Conv2d, Layer, traced_through
from policysearch.nn.model import Fed, ParameterSpec
from policysearch.ops.batch_norm import batch_mean, batch_norm, batch_variance, moving_average
from policysearch.ops.builder import Builder
from policysearch.ops.elementwise import add
from policysearch.values import InputError

MOMENTUM = 0.1
"""The share of a batch in the running statistics, torch's."""


@dataclass(frozen=True)
class BatchNorm:
    """Each channel to mean 0 and variance 1, times a weight, plus a bias; torch's `BatchNorm2d`.

    By the batch in training, which moves the running statistics; by those in evaluation.
    """

    name: str
    channels: int

    def parameters(self, input_shape: Shape) -> tuple[ParameterSpec, ...]:
        if input_shape[:1] != (self.channels,):
            valid = f"[{self.channels}, ...]"
            raise InputError(f"layer {self.name}: input {list(input_shape)}; expected {valid}")
        kinds = (
            ("weight", 1.0, False),
            ("bias", 0.0, False),
            ("running_mean", 0.0, True),
            ("running_var", 1.0, True),
        )
        return tuple(
            ParameterSpec(
                f"{self.name}.{kind}",
                (self.channels,),
                self.name,
                initial=value,
                statistic=statistic,
            )
            for kind, value, statistic in kinds
        )

    def trace(self, b: Builder, x: int, fed: Fed) -> int:
        weight, bias, mean, variance = (
            fed[f"{self.name}.{kind}"] for kind in ("weight", "bias", "running_mean", "running_var")
        )
        with b.scope(layer=self.name, role="fprop"):
            if fed.training:
                count = size(b.shape(x)) // self.channels
                found = b.emit(batch_mean, x), b.emit(batch_variance, x)
                # torch keeps the unbiased variance
                factors = 1.0, count / max(1, count - 1)
                for old, new, factor in zip((mean, variance), found, factors, strict=True):
                    attrs = {"momentum": MOMENTUM, "factor": factor}
                    moved = b.emit(moving_average, old, new, attrs=attrs)
                    fed.moved.append((b.nodes[old].name, moved))
                mean, variance = found
            attrs = {"training": fed.training}
            return b.emit(batch_norm, x, mean, variance, weight, bias, attrs=attrs)


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
        specs, made = traced_through(self.inner, input_shape)
        more, kept = traced_through(self.shortcut, input_shape)
        if made != kept:
            given = f"{list(made)} from the inner layers, {list(kept)} beside them"
            raise InputError(f"layer {self.name}: {given}; expected the same shape")
        return (*specs, *more)

    def trace(self, b: Builder, x: int, fed: Fed) -> int:
        made, kept = x, x
        for layer in self.inner:
            made = layer.trace(b, made, fed)
        for layer in self.shortcut:
            kept = layer.trace(b, kept, fed)
        with b.scope(layer=self.name, role="fprop"):
            return b.emit(add, made, kept)


EXAMPLES: tuple[tuple[Layer, Shape], ...] = (
    (BatchNorm("norm", 3), (3, 4, 4)),
    (
        Skip(
            "add",
            (Conv2d("conv", 2, 3, 3, padding=1), Activation("tanh", "tanh")),
            (Conv2d("side", 2, 3, 1),),
        ),
        (2, 4, 4),
    ),
)
"""Layers of this file, with the shape of an input."""
