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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np

from policysearch.formats import Rounding, format_named
from policysearch.graph import Node
from policysearch.ops.builder import Builder
from policysearch.ops.elementwise import scale
from policysearch.ops.update import clip, global_norm
from policysearch.optimizers.optimizer import RATE, Eager, Rule, rules
from policysearch.policy.policy import Policy
from policysearch.rounding.inclusion import join
from policysearch.rounding.rounder import quantise

GRADIENT_OPS = ("unscale", "weight_decay", "clip", "clip_value")
"""Ops before any update whose result is a gradient, kept in the format of its parameter."""

BEFORE_OPTIMIZERS = (*(name for name in GRADIENT_OPS if name != "weight_decay"), "global_norm")
"""What a scaler and clipping do to gradients before an optimizer reads them."""


def parts() -> Iterator[Rule]:
    """Yield every rule, those of parameters that a row does not take too."""
    return (part for row in rules().values() for part in row.parts)


@cache
def addends() -> Mapping[str, str]:
    """Return the attribute that is the number of an addition, by op."""
    rows = [row.addends for row in parts()]
    return {"weight_decay": "weight_decay"} | {op: name for row in rows for op, name in row.items()}


@cache
def eager_orders() -> Mapping[str, Eager]:
    """Return how the single operations are emitted, by the op that does them in one pass."""
    return {op: order for row in parts() for op, order in row.eager.items()}


@cache
def gradient_ops() -> frozenset[str]:
    """Return the ops whose result is a gradient: those before any update, and of the rows."""
    return frozenset(GRADIENT_OPS).union(*(row.gradients for row in parts()))


@cache
def numbers() -> frozenset[str]:
    """Return the ops whose result is the number of an addition."""
    return frozenset().union(*(row.numbers for row in parts()))


@cache
def with_own_epsilon() -> frozenset[str]:
    """Return the ops whose `epsilon` is that of the format of the parameter."""
    return frozenset().union(*(row.epsilon_of for row in parts()))


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
        if self.eager and node.op.name in with_own_epsilon():
            own = format_named(self.policy.stored(node.layer)).epsilon
            node = replace(node, attrs=tuple({**node.attributes, "epsilon": own}.items()))
        before = node.op.name in BEFORE_OPTIMIZERS and self.policy.gradient_storage == "param"
        if not self.eager and not before:
            return self._copy(node, inputs, stored or "float32", self.rounding)
        rounding = Rounding() if before else self.rounding
        # clip_grad.py: the norm of each gradient has that one's dtype, the norm of these norms the
        # widest, and the factor has the dtype of that
        if node.op is global_norm and set(formats) != {"float32"}:
            rounded = replace(node, attrs=(*node.attrs, ("inner", tuple(formats))))
            widest = join(set(map(format_named, formats))).name
            return self._copy(rounded, inputs, widest, rounding)
        if node.op is clip and formats[1] != "float32":
            node = replace(node, attrs=(*node.attrs, ("inner", formats[1])))
        written = stored or self._between(node)
        number = addends().get(node.op.name, RATE)
        if number in node.attributes and self.policy.optimizer_scalars == "storage":
            node = _with_rounded(node, number, written)
        order = eager_orders().get(node.op.name)
        if order is None:
            return self._copy(node, inputs, written, rounding)
        emit = partial(
            self.b.emit,
            role="update",
            layer=node.layer,
            source=node.source,
            format=written,
            rounding=self.rounding,
        )
        return order(emit, node.attributes, inputs)

    def rate_format(self, node: Node, stored: str | None) -> str:
        """Return the format of the learning rate, or of the momentum, that `node` reads."""
        rounded = self.eager and self.policy.optimizer_scalars == "storage"
        number = addends().get(node.op.name)
        if not rounded or number is None or number in node.attributes:
            return "float32"
        return stored or self._between(node)

    def gradient_format(self, layer: str) -> str:
        """Return the format in which an update keeps the gradients of a layer's parameters."""
        kept = self.eager or self.policy.gradient_storage == "param"
        return self.policy.stored(layer) if kept else "float32"

    def _between(self, node: Node) -> str:
        if node.op is scale:  # momentum times the velocity, in its place
            return self.policy.state_of(node.layer)
        if node.op.name in numbers() and self.policy.optimizer_scalars == "storage":
            return self.policy.stored(node.layer)
        gradient = node.op.name in gradient_ops()
        return self.gradient_format(node.layer) if gradient else "float32"

    def _copy(self, node: Node, inputs: Sequence[int], stored: str, rounding: Rounding) -> int:
        return self.b.copy(node, inputs, format=stored, rounding=rounding)


def _with_rounded(node: Node, name: str, format: str) -> Node:
    exact = np.array(node.attributes[name], np.float32)
    rounded = float(quantise(exact, format_named(format)))
    return replace(node, attrs=tuple({**node.attributes, name: rounded}.items()))
