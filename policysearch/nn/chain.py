"""Models as chains of layers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from policysearch.graph import FloatArray, Shape
from policysearch.nn.layers import Layer, WithConstants, names_of, parts_of, traced_through
from policysearch.nn.model import Fed, Input, Model, ParameterSpec, Traced
from policysearch.ops.builder import Builder
from policysearch.values import InputError


@dataclass(frozen=True, repr=False)
class Chain(Model):
    """A chain of layers for inputs of `input_shape` (one example); [rows, classes] comes out.

    There is one row per example, or `rows_per_example`. The input is images or, where it is
    `whole` numbers, tokens. `loss` as in `Model`.
    """

    name: str
    layers: tuple[Layer, ...]
    input_shape: Shape
    classes: int
    whole: bool = False
    rows_per_example: int = 1
    loss: str = ""
    named: bool = False

    def __post_init__(self) -> None:
        for name, count in Counter(self.layer_names).items():
            if count > 1:
                raise InputError(f"model {self.name}: layer {name!r} twice; expected names once")

    @property
    def inputs(self) -> tuple[Input, ...]:  # type: ignore[override]
        return (Input("tokens" if self.whole else "images", self.input_shape, self.whole),)

    @cached_property
    def layer_names(self) -> tuple[str, ...]:
        return tuple(name for layer in self.layers for name in names_of(layer))

    @cached_property
    def fingerprint(self) -> str:
        return "" if self.named else super().fingerprint

    @cached_property
    def layer_types(self) -> Mapping[str, str]:
        parts = (part for layer in self.layers for part in parts_of(layer))
        return {part.name: type(part).__name__ for part in parts}

    @cached_property
    def constants(self) -> Mapping[str, FloatArray]:  # type: ignore[override]
        """The constants of every layer that has some."""
        parts = (part for layer in self.layers for part in parts_of(layer))
        arrays = (part.constants() for part in parts if isinstance(part, WithConstants))
        return MappingProxyType({name: array for own in arrays for name, array in own.items()})

    @cached_property
    def _specs(self) -> tuple[ParameterSpec, ...]:
        specs, shape = traced_through(self.layers, self.input_shape, self.rows_per_example)
        if shape != (self.classes,):
            given = list(shape)
            raise InputError(f"model {self.name}: output {given}; expected [{self.classes}]")
        return specs

    def parameters(self) -> tuple[ParameterSpec, ...]:
        """Return every trained array in layer order; InputError where the layers do not fit."""
        return tuple(spec for spec in self._specs if not spec.statistic)

    def statistics(self) -> tuple[ParameterSpec, ...]:
        return tuple(spec for spec in self._specs if spec.statistic)

    def init(self, rng: np.random.Generator) -> dict[str, FloatArray]:
        """Return fresh float32 parameters, uniform within +-1/sqrt(fan_in) or as specified.

        That is what torch's `reset_parameters` of Linear and Conv2d amounts to, for weights
        (`kaiming_uniform_` with a = sqrt(5)) and biases alike.
        """
        return {spec.name: _initial(spec, rng) for spec in self._specs}

    def trace(self, b: Builder, fed: Mapping[str, int], training: bool) -> Traced:
        """Emit the forward pass; its output are the logits [rows, classes]."""
        nodes, x = Fed(fed, training), fed[self.inputs[0].name]
        for layer in self.layers:
            x = layer.trace(b, x, nodes)
        return Traced(x, statistics=tuple(nodes.new_statistics))


def _initial(spec: ParameterSpec, rng: np.random.Generator) -> FloatArray:
    if spec.initial is not None:
        return np.full(spec.shape, spec.initial, np.float32)
    unit = rng.uniform(-1.0, 1.0, spec.shape).astype(np.float32)
    return unit * np.float32(spec.fan_in**-0.5)
