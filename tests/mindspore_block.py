"""The cells of `tests/record_mindspore.py` that compute with what a cell inside them gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from policysearch.graph import FloatArray
from policysearch.nn.model import OWN_LOSS, Input, Model, ParameterSpec, Traced
from policysearch.ops.builder import Builder
from policysearch.ops.dense import matmul
from policysearch.ops.elementwise import add, multiply, relu
from policysearch.ops.reduce import sum_over

WIDTH = 8
STEM, GATE, WEIGHING = "stem", "gate", "weighing"
BLOCK, CHILD, ACT = "block", "block.child", "block.act"


@dataclass(frozen=True)
class BlockModel(Model):
    """A block behind `stem` and `gate`; the loss weighs every output with a number.

    It gives act(y) y + x of y = child(x) or, `gated`, y times what `gate` gives.
    """

    gated: bool = False
    name: str = "block"
    loss: str = OWN_LOSS
    inputs: tuple[Input, ...] = (Input("x", (WIDTH,)), Input("factors", (WIDTH,)))

    @property
    def layer_names(self) -> tuple[str, ...]:
        return STEM, CHILD, GATE if self.gated else ACT, BLOCK, WEIGHING

    def parameters(self) -> tuple[ParameterSpec, ...]:
        shape = (WIDTH, WIDTH)
        owners = (STEM, CHILD, GATE) if self.gated else (STEM, CHILD)
        return tuple(ParameterSpec(f"{layer}.weight", shape, layer, 1) for layer in owners)

    def init(self, rng: np.random.Generator) -> dict[str, FloatArray]:
        weights = rng.standard_normal((3, WIDTH, WIDTH)).astype(np.float32)
        return {spec.name: weights[i] for i, spec in enumerate(self.parameters())}

    def trace(self, b: Builder, fed: Mapping[str, int], training: bool) -> Traced:
        def product(layer: str, x: int) -> int:
            weight = fed[f"{layer}.weight"]
            return b.emit(matmul, x, weight, attrs={"transpose_b": True}, layer=layer)

        x = product(STEM, fed["x"])
        y = product(CHILD, x)
        if self.gated:
            given = b.emit(multiply, y, product(GATE, fed["x"]), layer=BLOCK)
        else:
            act = b.emit(relu, y, layer=ACT)
            given = b.emit(add, b.emit(multiply, act, y, layer=BLOCK), x, layer=BLOCK)
        weighed = b.emit(multiply, given, fed["factors"], layer=WEIGHING)
        return Traced(given, b.emit(sum_over, weighed, layer=WEIGHING))
