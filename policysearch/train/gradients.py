"""The gradients of a step, and their sum over its micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from policysearch.graph import Graph
from policysearch.ops.builder import Builder, backward, renumbered
from policysearch.ops.elementwise import add
from policysearch.ops.scale import amax_history, delayed_scale
from policysearch.ops.source import INVERSE_SCALE, LOSS_SCALE, gradient_buffer, own
from policysearch.ops.update import (
    accumulate,
    clip,
    clip_value,
    divide_loss,
    global_norm,
    micro_batches,
    scale_loss,
    unscale,
)
from policysearch.values import InputError, number


@dataclass(frozen=True)
class Clipping:
    """What gradients are clipped to after they are unscaled: a global `norm` or a largest `value`.

    They are torch.nn.utils.clip_grad_norm_ and clip_grad_value_. Raises InputError for a limit
    below 1e-30, and for both.
    """

    norm: float | None = None
    value: float | None = None

    def __post_init__(self) -> None:
        for name, limit in (("clip_norm", self.norm), ("clip_value", self.value)):
            if limit is not None:
                number(name, limit, 1e-30, 1e30)
        if self.norm is not None and self.value is not None:
            raise InputError(f"clip_norm: {self.norm:g} with clip_value; expected one of them")

    @property
    def in_torch(self) -> str:
        """What a training loop in torch has to do, in words; "" where nothing is clipped."""
        limit = self.value if self.norm is None else self.norm
        kind = "value" if self.norm is None else "norm"
        call = f"torch.nn.utils.clip_grad_{kind}_(module.parameters(), {limit!r})"
        said = f"the recipe clips gradients: {call} after scaler.unscale_(optimizer)"
        return "" if limit is None else said


UNCLIPPED = Clipping()


def gradients(
    b: Builder, root: int, params: Mapping[str, int], scalars: Mapping[str, int], sums: bool
) -> dict[str, int]:
    """Emit backward and return the unscaled gradients of the parameters `root` depends on.

    `sums`: they are added to those of the micro-batches before. Raises InputError where the loss
    depends on none of the parameters.
    """
    # d(scaled loss)/d(loss) is the scale itself, so backward starts from that source.
    gradient_of = backward(b, root, scalars[LOSS_SCALE], list(params.values()), add)
    grads = {}
    for name, node in params.items():
        if node in gradient_of:
            grad = _sum(b, node, gradient_of[node]) if sums else gradient_of[node]
            with b.scope(role="update", layer=b.nodes[node].layer):
                grads[name] = b.emit(unscale, grad, scalars[INVERSE_SCALE])
    if params and not grads:
        raise InputError("model: its loss depends on no parameter; expected one that is trained")
    return grads


def share_of(b: Builder, loss: int, parts: int, scale: int) -> tuple[int, int]:
    """Emit what one of the micro-batches of a step gives to its loss, all of one; and it scaled."""
    share = b.emit(divide_loss, loss, attrs={"parts": parts}) if parts > 1 else loss
    return share, b.emit(scale_loss, share, scale)


def _sum(b: Builder, parameter: int, grad: int) -> int:
    node = b.nodes[parameter]
    with b.scope(role="wgrad", layer=node.layer):
        given: dict[str, Any] = {"attrs": {"shape": node.shape}, "name": own(f"{node.name}.grad")}
        return b.emit(accumulate, b.emit(gradient_buffer, role="input", **given), grad)


def summed_at_once(step: Graph) -> Graph:
    """Return the step with gradients summed as soon as they are there, as autograd does."""
    place = {n.id: n.inputs[1] if n.op is accumulate else n.id for n in step.nodes}
    place |= {n.inputs[0]: -1 for n in step.nodes if n.op is accumulate}
    ordered = sorted(step.nodes, key=lambda node: (place[node.id], node.id))
    return renumbered(step, ordered) if micro_batches(step) > 1 else step


def micro_step(step: Graph) -> Graph:
    """Return what `step` does with every micro-batch but the last: it sums the gradients.

    The states of scales move with each, as TransformerEngine's do on leaving its autocast.
    """
    nodes = step.nodes
    sums = tuple((n.inputs[0], n.id) for n in nodes if n.op is accumulate)
    scales = (amax_history, delayed_scale)
    return replace(step, updates=sums + tuple(p for p in step.updates if nodes[p[1]].op in scales))


def clipped(b: Builder, grads: Mapping[str, int], clipping: Clipping) -> dict[str, int]:
    clipped = dict(grads)
    with b.scope(role="update"):
        norm = () if clipping.norm is None else (b.emit(global_norm, *grads.values()),)
        for name, grad in grads.items():
            layer = b.nodes[grad].layer
            if clipping.norm is not None:
                limit = {"limit": clipping.norm}
                clipped[name] = b.emit(clip, grad, *norm, attrs=limit, layer=layer)
            elif clipping.value is not None:
                limit = {"limit": clipping.value}
                clipped[name] = b.emit(clip_value, grad, attrs=limit, layer=layer)
    return clipped
