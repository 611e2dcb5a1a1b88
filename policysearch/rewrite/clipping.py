"""Gradient clipping as rules: by norm or by value, per parameter, layer or group."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Literal

from policysearch.graph import Node
from policysearch.ops.update import clip, clip_value, global_norm
from policysearch.rewrite.editor import Editor
from policysearch.rewrite.matching import Match
from policysearch.rewrite.patterns import Pattern, node
from policysearch.rewrite.rules import Rule
from policysearch.values import number

Per = Literal["parameter", "layer", "group"]


def clip_by_norm(limit: float, *, layer: str = "", per: Per = "group", name: str = "") -> Rule:
    """Return the rule that scales unscaled gradients down to the Euclidean norm `limit`.

    Of the layers that the expression `layer` fits, all if it is empty; the norm is taken `per`
    parameter, layer or over all of them together, as torch.nn.utils.clip_grad_norm_ does. The
    finite check still reads what was not clipped. Raises InputError for a limit below 1e-30.
    """
    number("clip_by_norm, limit", limit, 1e-30, 1e30)

    def change(edit: Editor, found: Sequence[Match]) -> None:
        grads = [_clipped_so_far(edit, match["grad"]) for match in found]
        for group in _groups(grads, per):
            edit.begin()
            norm = edit.emit(global_norm, *(grad.id for grad in group), at=group[-1])
            for grad in group:
                made = edit.emit(clip, grad.id, norm, at=grad, attrs={"limit": limit})
                edit.redirect(grad, made, readers=_uses, outputs=False)

    return Rule(name or f"clip_by_norm_{per}", _gradients(layer), change, "step")


def clip_by_value(limit: float, *, layer: str = "", name: str = "clip_by_value") -> Rule:
    """Return the rule that keeps every element of unscaled gradients within `limit` of 0.

    Layers and the finite check as in `clip_by_norm`, torch.nn.utils.clip_grad_value_ otherwise.
    """
    number("clip_by_value, limit", limit, 1e-30, 1e30)

    def change(edit: Editor, found: Sequence[Match]) -> None:
        for match in found:
            edit.begin()
            grad = _clipped_so_far(edit, match["grad"])
            made = edit.emit(clip_value, grad.id, at=grad, attrs={"limit": limit})
            edit.redirect(grad, made, readers=_uses, outputs=False)

    return Rule(name, _gradients(layer), change, "step")


def _gradients(layer: str) -> Pattern:
    return Pattern((node("grad", op="unscale", role="update", layer=layer),))


def _uses(reader: Node) -> bool:
    return reader.op.name != "all_finite"


def _clipped_so_far(edit: Editor, grad: Node) -> Node:
    """Return what earlier rules have made of a gradient, so that rules clip in their order."""
    for reader in edit.nodes[grad.id + 1 :]:
        if reader.op in (clip, clip_value) and reader.inputs[0] == grad.id:
            return _clipped_so_far(edit, reader)
    return grad


def _groups(grads: Iterable[Node], per: Per) -> list[list[Node]]:
    if per == "group":
        return [list(grads)]
    if per == "parameter":
        return [[grad] for grad in grads]
    ordered = sorted(grads, key=lambda grad: grad.layer)
    return [list(group) for _, group in groupby(ordered, key=lambda grad: grad.layer)]
