"""Normalisation layers: of the channels of images, and of tokens."""

from __future__ import annotations

from dataclasses import dataclass

from policysearch.graph import Shape, size
from policysearch.nn.layers import Layer, expect_width
from policysearch.nn.model import Fed, ParameterSpec
from policysearch.ops.batch_norm import batch_mean, batch_norm, batch_variance, moving_average
from policysearch.ops.builder import Builder
from policysearch.ops.elementwise import multiply, shift
from policysearch.ops.exponentials import pow_constant, rsqrt
from policysearch.ops.layer_norm import layer_norm, layer_statistics
from policysearch.ops.reduce import mean
from policysearch.values import InputError


@dataclass(frozen=True)
class LayerNorm:
    """Each token to mean 0 and variance 1, times a weight, plus a bias; torch's `LayerNorm`."""

    name: str
    width: int

    def parameters(self, input_shape: Shape) -> tuple[ParameterSpec, ...]:
        expect_width(self.name, input_shape, self.width)
        shape = (self.width,)
        return (
            ParameterSpec(f"{self.name}.weight", shape, self.name, self.width, 1.0),
            ParameterSpec(f"{self.name}.bias", shape, self.name, self.width, 0.0),
        )

    def trace(self, b: Builder, x: int, fed: Fed) -> int:
        owned = fed[f"{self.name}.weight"], fed[f"{self.name}.bias"]
        with b.scope(layer=self.name, role="fprop"):
            return b.emit(layer_norm, x, b.emit(layer_statistics, x), *owned)


@dataclass(frozen=True)
class RMSNorm:
    """Each token x to x / sqrt(mean(x^2) + 1e-6), without a weight (arXiv 1910.07467).

    Written out as models have it in their own code: every op of it is on a list of its own, where
    a `LayerNorm` is one op that sums in float32.
    """

    name: str
    width: int

    def parameters(self, input_shape: Shape) -> tuple[ParameterSpec, ...]:
        expect_width(self.name, input_shape, self.width)
        return ()

    def trace(self, b: Builder, x: int, fed: Fed) -> int:
        with b.scope(layer=self.name, role="fprop"):
            square = b.emit(pow_constant, x, attrs={"exponent": 2.0})
            average = b.emit(mean, square, attrs={"axes": (-1,), "keepdim": True})
            shifted = b.emit(shift, average, attrs={"amount": 1e-6})
            return b.emit(multiply, x, b.emit(rsqrt, shifted))


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
                measured = b.emit(batch_mean, x), b.emit(batch_variance, x)
                # torch keeps the unbiased variance
                factors = 1.0, count / max(1, count - 1)
                for old, new, factor in zip((mean, variance), measured, factors, strict=True):
                    attrs = {"momentum": MOMENTUM, "factor": factor}
                    average = b.emit(moving_average, old, new, attrs=attrs)
                    fed.new_statistics.append((b.nodes[old].name, average))
                mean, variance = measured
            attrs = {"training": fed.training}
            return b.emit(batch_norm, x, mean, variance, weight, bias, attrs=attrs)


EXAMPLES: tuple[tuple[Layer, Shape], ...] = (
    (BatchNorm("norm", 3), (3, 4, 4)),
    (LayerNorm("norm", 6), (6,)),
    (RMSNorm("rms_norm", 6), (6,)),
)
"""Layers of this file, with the shape of an input (of a token where they work on tokens)."""
