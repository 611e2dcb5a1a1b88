"""How optimizer updates are rounded: one pass in float32, or operation after operation.

Sources, torch 2.13. Fused: `aten/src/ATen/native/cuda/FusedSgdKernel.cu` and
`fused_adam_utils.cuh` load into float32 (`opmath_t`), compute there and round what they store.
Eager: `torch/optim/sgd.py` and `adam.py`, whose every operation rounds to the dtype of the tensor
it writes. The number of an addition (learning rate, weight decay, Nesterov's momentum, the share of
a damped gradient, Adam's epsilon) is float32 on CUDA (`cuda/ForeachBinaryOpList.cu`:
`alpha.to<opmath_t>()`) and has the tensor's dtype on a CPU, as its results show; factors of
products are float32 on both. Without master weights `amp/grad_scaler.py` and
`nn/utils/clip_grad.py`, too, write gradients, norms and the factor in the parameters' dtype.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np

from policysearch.formats import format_named
from policysearch.graph import Node
from policysearch.ops.builder import Builder
from policysearch.ops.eager_update import (
    adam_corrected,
    adam_epsilon,
    adam_moved,
    adam_root,
    adam_shrunk,
    add_square,
)
from policysearch.ops.elementwise import add, scale
from policysearch.ops.update import clip, global_norm
from policysearch.policy.policy import Policy
from policysearch.rounding.inclusion import join
from policysearch.rounding.rounder import quantise

ALPHAS: Mapping[str, str] = MappingProxyType(
    {
        "weight_decay": "weight_decay",
        "sgd_nesterov": "momentum",
        "add_damped": "share",
        "adam_step": "epsilon",
    }
)
"""The attribute that is the number of an addition, by op."""

GRADIENT_OPS = ("unscale", "weight_decay", "sgd_nesterov", "clip", "clip_value")
"""Ops whose result is a gradient, kept in the format of its parameter."""


class UpdatePass:
    """The update nodes of one graph, in the order and formats of the policy's optimizer."""

    def __init__(self, b: Builder, policy: Policy) -> None:
        self.b = b
        self.policy = policy
        self.eager = policy.optimizer_order == "eager"
        self.rounding = policy.rounding.update

    def emit(
        self, node: Node, inputs: Sequence[int], stored: str | None, formats: Sequence[str]
    ) -> int:
        """Emit what `node` becomes on these float32 inputs, kept in `formats`; return its id.

        `stored` is the format of the state or parameter whose new value it is, None for what is
        between. In the fused order a new state that is read further is float32: who stores it
        rounds it.
        """
        if not self.eager:
            return self._copy(node, inputs, stored or "float32")
        if node.op is global_norm and set(formats) != {"float32"}:
            rounded = replace(node, attrs=(*node.attrs, ("inner", tuple(formats))))
            return self._copy(rounded, inputs, join(set(map(format_named, formats))).name)
        if node.op is clip and formats[1] != "float32":
            node = replace(node, attrs=(*node.attrs, ("inner", formats[1])))
        written = stored or self._between(node)
        if node.op.name in ALPHAS and self.policy.optimizer_scalars == "storage":
            node = _with_rounded(node, ALPHAS[node.op.name], written)
        if node.op.name in EAGER:
            return EAGER[node.op.name](self, node, inputs, written)
        return self._copy(node, inputs, written)

    def rate_format(self, node: Node, stored: str | None) -> str:
        """Return the format of the learning rate that `node` reads."""
        alpha = self.eager and self.policy.optimizer_scalars == "storage"
        return stored if alpha and stored and node.op.name == "sgd_step" else "float32"

    def gradient_format(self, layer: str) -> str:
        """Return the format in which an update keeps the gradients of a layer's parameters."""
        return self.policy.stored(layer) if self.eager else "float32"

    def _between(self, node: Node) -> str:
        if node.op is scale:  # momentum times the velocity, in its place
            return self.policy.state_of(node.layer)
        gradient = node.op.name in GRADIENT_OPS
        return self.gradient_format(node.layer) if gradient else "float32"

    def _copy(self, node: Node, inputs: Sequence[int], stored: str) -> int:
        return self.b.copy(node, inputs, format=stored, rounding=self.rounding)

    def velocity(self, node: Node, inputs: Sequence[int], stored: str) -> int:
        factor, fields = {"factor": node.attributes["momentum"]}, self._fields(node, stored)
        kept = self.b.emit(scale, inputs[0], attrs=factor, fused=True, **fields)
        return self.b.emit(add, kept, inputs[1], **fields)

    def second_moment(self, node: Node, inputs: Sequence[int], stored: str) -> int:
        beta2, fields = node.attributes["beta2"], self._fields(node, stored)
        kept = self.b.emit(scale, inputs[0], attrs={"factor": beta2}, fused=True, **fields)
        return self.b.emit(add_square, kept, inputs[1], attrs={"share": 1.0 - beta2}, **fields)

    def adam(self, node: Node, inputs: Sequence[int], stored: str) -> int:
        parameter, m, v, rate, step = inputs
        attrs, fields = node.attributes, self._fields(node, stored)
        if attrs.get("weight_decay"):
            parameter = self.b.emit(adam_shrunk, parameter, rate, attrs=attrs, **fields)
        root = self.b.emit(adam_root, v, **fields)
        root = self.b.emit(adam_corrected, root, step, attrs=attrs, **fields)
        root = self.b.emit(adam_epsilon, root, attrs=attrs, **fields)
        return self.b.emit(adam_moved, parameter, m, root, rate, step, attrs=attrs, **fields)

    def _fields(self, node: Node, stored: str) -> dict[str, Any]:
        return {
            "role": "update",
            "layer": node.layer,
            "source": node.source,
            "format": stored,
            "rounding": self.rounding,
        }


def _with_rounded(node: Node, name: str, format: str) -> Node:
    exact = np.array(node.attributes[name], np.float32)
    rounded = float(quantise(exact, format_named(format)))
    return replace(node, attrs=tuple({**node.attributes, name: rounded}.items()))


EAGER: Mapping[str, Callable[[UpdatePass, Node, Sequence[int], str], int]] = MappingProxyType(
    {
        "sgd_velocity": UpdatePass.velocity,
        "adam_v": UpdatePass.second_moment,
        "adam_step": UpdatePass.adam,
    }
)
"""By the op that does it in one pass: how the single operations are emitted."""
