"""Layers of a transformer: they work on tokens, the rows of a matrix [batch * time, width]."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from policysearch.graph import FloatArray, Shape, size
from policysearch.nn.layers import Layer, Linear, Residual, expect
from policysearch.nn.model import Fed, ParameterSpec, emit_data
from policysearch.nn.norms import LayerNorm
from policysearch.ops.builder import Builder
from policysearch.ops.dense import bias, matmul
from policysearch.ops.elementwise import scale
from policysearch.ops.embedding import embedding
from policysearch.ops.masks import masked_fill
from policysearch.ops.shape import reshape, transpose
from policysearch.ops.softmax import softmax
from policysearch.values import InputError


@dataclass(frozen=True)
class Tokens:
    """[batch, time, width] to tokens; of images, rows from top to bottom, channels side by side."""

    name: str

    def parameters(self, input_shape: Shape) -> tuple[ParameterSpec, ...]:
        valid = "[time, width] or [channels, rows, columns]"
        expect(self.name, input_shape, len(input_shape) in (2, 3), valid)
        return ()

    def trace(self, b: Builder, x: int, fed: Fed) -> int:
        shape = b.shape(x)
        with b.scope(layer=self.name, role="fprop"):
            if len(shape) == 3:
                return b.emit(reshape, x, attrs={"shape": (shape[0] * shape[1], shape[2])})
            batch, channels, rows, columns = shape
            tokens = (batch * rows, channels * columns)
            return b.emit(transpose, x, attrs={"axes": (0, 2, 1, 3), "shape": tokens})


@dataclass(frozen=True)
class JoinTokens:
    """Tokens to [batch, time * width], one example per row."""

    name: str
    time: int

    def parameters(self, input_shape: Shape) -> tuple[ParameterSpec, ...]:
        return ()

    def trace(self, b: Builder, x: int, fed: Fed) -> int:
        rows, width = b.shape(x)
        with b.scope(layer=self.name, role="fprop"):
            return b.emit(reshape, x, attrs={"shape": (rows // self.time, self.time * width)})


@dataclass(frozen=True)
class Position:
    """Adds a trained offset [time * width] to the tokens of every example."""

    name: str
    time: int

    def parameters(self, input_shape: Shape) -> tuple[ParameterSpec, ...]:
        (width,) = input_shape
        shape = (self.time * width,)
        return (ParameterSpec(f"{self.name}.bias", shape, self.name, width),)

    def trace(self, b: Builder, x: int, fed: Fed) -> int:
        shape = b.shape(x)
        examples = (shape[0] // self.time, size(shape) * self.time // shape[0])
        with b.scope(layer=self.name, role="fprop"):
            joined = b.emit(reshape, x, attrs={"shape": examples})
            moved = b.emit(bias, joined, fed[f"{self.name}.bias"])
            return b.emit(reshape, moved, attrs={"shape": shape})


@dataclass(frozen=True)
class SelfAttention:
    """Every token looks at all tokens of its example, in `heads` parts of its width.

    softmax(q k^T / sqrt(width / heads)) v (arXiv 1706.03762), without the projection that
    follows. q, k and v are the layers "<name>.q", "<name>.k" and "<name>.v". A `causal` one looks
    at no token behind its own.
    """

    name: str
    width: int
    heads: int
    time: int
    causal: bool = False

    def __post_init__(self) -> None:
        if self.heads < 1 or self.width % self.heads:
            raise InputError(
                f"layer {self.name}, heads: {self.heads}; expected a divisor of {self.width}"
            )

    @cached_property
    def layers(self) -> tuple[Layer, ...]:
        return tuple(Linear(f"{self.name}.{part}", self.width, self.width) for part in "qkv")

    def parameters(self, input_shape: Shape) -> tuple[ParameterSpec, ...]:
        return tuple(spec for layer in self.layers for spec in layer.parameters(input_shape))

    def trace(self, b: Builder, x: int, fed: Fed) -> int:
        q, k, v = (self._in_heads(b, layer, layer.trace(b, x, fed)) for layer in self.layers)
        with b.scope(layer=self.name, role="fprop"):
            alike = b.emit(matmul, q, k, attrs={"transpose_b": True})
            alike = b.emit(scale, alike, attrs={"factor": (self.width // self.heads) ** -0.5})
            if self.causal:
                mask = emit_data(b, f"{self.name}.mask", (self.time, self.time))
                alike = b.emit(masked_fill, alike, mask, attrs={"value": -math.inf})
            mixed = b.emit(matmul, b.emit(softmax, alike), v)
            split = (b.shape(x)[0] // self.time, self.heads, self.time, self.width // self.heads)
            back = {"split": split, "axes": (0, 2, 1, 3), "shape": b.shape(x)}
            return b.emit(transpose, mixed, attrs=back)

    def constants(self) -> Mapping[str, FloatArray]:
        """Return the mask: 1 where a token (row) must not look at another (column)."""
        if not self.causal:
            return {}
        return {f"{self.name}.mask": np.triu(np.ones((self.time, self.time), np.float32), 1)}

    def _in_heads(self, b: Builder, layer: Layer, tokens: int) -> int:
        """[batch * time, width] to [batch * heads, time, width / heads]."""
        batch, part = b.shape(tokens)[0] // self.time, self.width // self.heads
        attrs = {
            "split": (batch, self.time, self.heads, part),
            "axes": (0, 2, 1, 3),
            "shape": (batch * self.heads, self.time, part),
        }
        with b.scope(layer=layer.name, role="fprop"):
            return b.emit(transpose, tokens, attrs=attrs)


Norm = Callable[[str, int], Layer]
"""Makes a norm of tokens from its name and their width."""


def transformer_block(
    name: str,
    width: int,
    hidden: int,
    heads: int,
    time: int,
    activation: Layer,
    causal: bool = False,
    norm: Norm = LayerNorm,
) -> tuple[Layer, ...]:
    """Return attention and a two-layer net, each normalised first and added to its input.

    The arrangement "pre-LN" of arXiv 2002.04745; `hidden` is the width between the two layers.
    """
    attention = f"{name}.attention"
    return (
        Residual(
            f"{name}.add1",
            (
                norm(f"{name}.norm1", width),
                SelfAttention(attention, width, heads, time, causal),
                Linear(f"{attention}.o", width, width),
            ),
        ),
        Residual(
            f"{name}.add2",
            (
                norm(f"{name}.norm2", width),
                Linear(f"{name}.fc1", width, hidden),
                activation,
                Linear(f"{name}.fc2", hidden, width),
            ),
        ),
    )


@dataclass(frozen=True)
class Embedding:
    """Token numbers [batch, time] to rows of a table: tokens [batch * time, width]."""

    name: str
    tokens: int
    width: int

    def parameters(self, input_shape: Shape) -> tuple[ParameterSpec, ...]:
        if len(input_shape) != 1:
            raise InputError(f"layer {self.name}: input {list(input_shape)}; expected [time]")
        shape = (self.tokens, self.width)
        return (ParameterSpec(f"{self.name}.weight", shape, self.name, self.width),)

    def trace(self, b: Builder, x: int, fed: Fed) -> int:
        with b.scope(layer=self.name, role="fprop"):
            flat = b.emit(reshape, x, attrs={"shape": (size(b.shape(x)),)}, role="input")
            return b.emit(embedding, fed[f"{self.name}.weight"], flat)


EXAMPLES: tuple[tuple[Layer, Shape], ...] = (
    (Embedding("embedding", 50, 6), (4,)),
    (Tokens("tokens"), (4, 6)),
    (JoinTokens("join", 4), (6,)),
    (Position("position", 4), (6,)),
    (SelfAttention("attention", 6, 2, 4), (6,)),
    (SelfAttention("causal", 6, 2, 4, causal=True), (6,)),
)
"""Layers of this file, with the shape of an input (of a token where they work on tokens)."""
