"""Batch normalisation folded into the convolution before it, for evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from policysearch.graph import Node
from policysearch.ops.batch_norm import EPSILON
from policysearch.ops.dense import bias
from policysearch.ops.elementwise import add, multiply, shift, subtract
from policysearch.ops.exponentials import rsqrt
from policysearch.ops.shape import reshape
from policysearch.rewrite.editor import Editor
from policysearch.rewrite.matching import Match
from policysearch.rewrite.patterns import Edge, Pattern, node
from policysearch.rewrite.rules import Rule

_CONV = node("conv", op="conv2d")
_BIAS = node("bias", op="bias")
_NORM = node("norm", op="batch_norm")


def _fold(edit: Editor, found: Sequence[Match]) -> None:
    for match in found:
        edit.begin()
        _fold_one(edit, match["conv"], match["norm"], "bias" in match.names)


def _fold_one(edit: Editor, conv: Node, norm: Node, with_bias: bool) -> None:
    """y = (conv(x, w) + b - mean) f + bias, f = weight / sqrt(variance + epsilon), is a convolution
    by w f plus (b - mean) f + bias (`torch/nn/utils/fusion.py`)."""
    if norm.attributes.get("training"):
        raise edit.refuse(norm, "it normalises by the batch in training; expected evaluation")
    x, mean, variance, weight, offset = edit.inputs(norm)
    inverse = edit.emit(
        shift, variance, at=norm, attrs={"amount": norm.attributes.get("epsilon", EPSILON)}
    )
    factor = edit.emit(multiply, edit.emit(rsqrt, inverse, at=norm), weight, at=norm)
    images, filters = edit.inputs(conv)
    per_filter = (edit.shape(factor)[0], *(1,) * (len(edit.shape(filters)) - 1))
    column = edit.emit(reshape, factor, at=norm, attrs={"shape": per_filter})
    folded = edit.copy(conv, (images, edit.emit(multiply, filters, column, at=norm)), at=norm)
    moved = edit.emit(multiply, mean, factor, at=norm)
    offset = edit.emit(subtract, offset, moved, at=norm)
    if with_bias:
        scaled_bias = edit.emit(multiply, edit.nodes[x].inputs[1], factor, at=norm)
        offset = edit.emit(add, scaled_bias, offset, at=norm)
    edit.redirect(norm, edit.emit(bias, folded, offset, at=norm, layer=conv.layer))


FOLDING: Mapping[str, Rule] = MappingProxyType(
    {
        rule.name: rule
        for rule in (
            Rule(
                "fold_batch_norm",
                Pattern((_CONV, _NORM), (Edge("conv", "norm", 0),)),
                _fold,
                "evaluation",
            ),
            Rule(
                "fold_batch_norm_and_bias",
                Pattern((_CONV, _BIAS, _NORM), (Edge("conv", "bias", 0), Edge("bias", "norm", 0))),
                _fold,
                "evaluation",
            ),
        )
    }
)
"""Folds of a convolution without and with a bias, by name. They refuse the graph of training."""
