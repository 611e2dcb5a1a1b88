"""Layers of nets for text."""

from __future__ import annotations

from dataclasses import dataclass

from policysearch.graph import Shape, size
from policysearch.nn.layers import Layer
from policysearch.nn.model import Fed, ParameterSpec
from policysearch.ops.builder import Builder
from policysearch.ops.embedding import embedding
from policysearch.ops.shape import reshape
from policysearch.values import InputError


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


EXAMPLES: tuple[tuple[Layer, Shape], ...] = ((Embedding("embedding", 50, 6), (4,)),)
"""Layers of this file, with the shape of an input."""
