"""Import rules: products of matrices, softmax and attention."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

import numpy as np

from policysearch.graph import Op, Shape, size
from policysearch.importers.elementwise import add, multiply
from policysearch.importers.shapes import cast, exchanged, expand, squeeze
from policysearch.importers.tracer import Rule, Tensor, Tracer, refuse
from policysearch.nn.model import WRITTEN
from policysearch.ops import dense, elementwise, masks
from policysearch.ops.composite import MATH_ATTENTION
from policysearch.ops.flash_attention import attributes, flash_attention
from policysearch.ops.shape import reshape
from policysearch.ops.softmax import log_softmax as log_softmax_op
from policysearch.ops.softmax import softmax as softmax_op


@dataclass(frozen=True)
class Mask:
    """What is added to scores, or `hides` them where it is false; see `empty_rows` of softmax."""

    values: Tensor
    hides: bool
    empty_rows: bool

    def entered(self, t: Tracer) -> Mask:
        """Return the mask in the format in which its layer has products; truth values have none."""
        return self if self.hides else replace(self, values=_product_view(t, self.values))


def matmul(t: Tracer, a: Tensor, b: Tensor) -> Tensor:
    """Multiply as torch.matmul: matrices over leading axes, or one matrix for all of them."""
    if len(a.shape) == 1:
        product = matmul(t, t.view(a, (1, *a.shape)), b)
        rest = () if len(b.shape) == 1 else (*product.shape[:-2], product.shape[-1])
        return t.view(product, rest)
    if len(b.shape) == 1:
        product = matmul(t, a, t.view(b, (*b.shape, 1)))
        return t.view(product, product.shape[:-1])
    if len(a.shape) == len(b.shape) == 3 and (a.shape[0] == 1) != (b.shape[0] == 1):
        # torch takes the one of a stack of one for all of the other
        a, b = (squeeze(t, x, 0) if x.shape[0] == 1 else x for x in (a, b))
        return matmul(t, a, b)
    if len(b.shape) == 2 and len(a.shape) > 1:
        # torch, too, folds the leading axes of a into the rows of one product
        shape = (*a.shape[:-1], b.shape[1])
        stored = b.shape[::-1] if b.swapped else b.shape
        right = t.shaped(Tensor(b.id, stored), stored)
        product = t.emit_nodes(dense.matmul, t.rows(a), right, transpose_b=b.swapped)
        return t.view(product, shape)
    if len(a.shape) == 2 < len(b.shape) and t.is_trained(a, by_gradients=True):
        # it folds those of b where a has a gradient, which is then one product, rounded once
        turned = matmul(t, exchanged(t, b, -1, -2), exchanged(t, a, 0, 1))
        return exchanged(t, turned, -1, -2)
    lead, start = tuple(np.broadcast_shapes(a.shape[:-2], b.shape[:-2])), len(t.b.nodes)
    a, b = (x if x.shape[:-2] == lead else _spread(t, x, lead) for x in (a, b))
    t.list_under(
        dense.matmul.name, start
    )  # autocast casts what it spreads, whose gradients are low
    product = t.emit_nodes(
        dense.matmul, t.matrices(t.straight(a)), t.matrices(b), transpose_b=b.swapped
    )
    return t.view(product, (*lead, a.shape[-2], b.shape[-1]))


def _spread(t: Tracer, x: Tensor, lead: tuple[int, ...]) -> Tensor:
    return expand(t, t.straight(x), (*lead, *x.shape[-2:]))


def softmax(
    t: Tracer, x: Tensor, dim: int, dtype: Any = None, empty_rows: bool = False, **_: Any
) -> Tensor:
    attrs: dict[str, Any] = {"empty_rows": True} if empty_rows else {}
    return _shares_of(t, softmax_op, cast(t, x, dtype), dim, attrs)


def log_softmax(t: Tracer, x: Tensor, dim: int, dtype: Any = None, *_: Any) -> Tensor:
    return _shares_of(t, log_softmax_op, cast(t, x, dtype), dim, {})


def _shares_of(t: Tracer, op: Op, x: Tensor, dim: int, attrs: dict[str, Any]) -> Tensor:
    axis = dim % max(len(x.shape), 1)
    if axis < len(x.shape) - 1:
        return t.emit(op, x, axis=axis, **attrs)
    x = t.straight(x)
    # rows as they lie, where the node has them last already: a view would cost a node
    node_shape = t.b.shape(x.id)
    whole = node_shape[-1:] == x.shape[-1:] and len(node_shape) < 4
    shares = t.emit_nodes(op, x.id if whole else t.rows(x), **attrs)
    return Tensor(shares.id, x.shape)


def dropout(t: Tracer, x: Tensor, p: float, train: bool = True) -> Tensor:
    """Drop values in training, by a mask that is fed; nothing in evaluation."""
    if not (train and t.training) or not p:
        return x
    mask = _left(t, t.b.shape(x.id), p)
    node = t.b.emit(masks.dropout, x.id, mask, attrs={"p": p}, source="dropout")
    return Tensor(node, x.shape, x.swapped)


def _left(t: Tracer, shape: Shape, p: float, *, inside: bool = False) -> int:
    """Return the mask of what a dropout leaves."""
    if p >= 1.0:
        raise refuse("dropout of everything", "use a share below 1")
    return t.mask(shape, p, inside=inside)


def scaled_dot_product_attention(
    t: Tracer,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    hides: bool = False,
    empty_rows: bool = False,
    strided: bool = False,
    copied: bool = False,
) -> Tensor:
    """softmax(q k^T * scale + mask) v, as torch documents the function, or as a kernel of it.

    `hides`: the mask holds truth values, of what is left. `empty_rows`: it may leave nothing of
    some rows, which are 0 then, as in torch. `strided`: some rows of q, k or v are in no one piece.
    `copied`: keys that queries share are copied for each, and what that gives rounds.
    """
    if is_causal:
        raise refuse("is_causal", "the importer gives the mask instead")
    factor = scale if scale is not None else 1.0 / math.sqrt(query.shape[-1])
    mask = None if attn_mask is None else Mask(attn_mask, hides, empty_rows)
    shared = query.shape[-3] // key.shape[-3] if enable_gqa else 1
    if copied:
        key, value, shared = _repeated_heads(t, key, shared), _repeated_heads(t, value, shared), 1
    qkv = (query, key, value)
    if t.attention == WRITTEN:
        scores = _scores(t, query, _repeated_heads(t, key, shared))
        weights = _weights(t, multiply(t, scores, factor), mask)
        return matmul(t, dropout(t, weights, dropout_p), _repeated_heads(t, value, shared))
    if t.attention == "flash" and not strided and _takes_flash(t, qkv, shared, mask):
        return _flash(t, qkv, mask, factor, dropout_p if t.training else 0.0)
    return _math(t, qkv, shared, mask, factor, dropout_p)


def _scores(t: Tracer, query: Tensor, key: Tensor) -> Tensor:
    """Emit q k^T; the transposed key is a view, which costs nothing."""
    *lead, rows, columns = key.shape
    return matmul(t, query, Tensor(t.straight(key).id, (*lead, columns, rows), True))


def _weights(t: Tracer, scores: Tensor, mask: Mask | None) -> Tensor:
    if mask is None:
        return softmax(t, scores, -1)
    masked = _masked_scores(t, scores, mask.values, mask.hides)
    return softmax(t, masked, -1, empty_rows=mask.empty_rows)


def _math(
    t: Tracer,
    qkv: Sequence[Tensor],
    shared: int,
    mask: Mask | None,
    factor: float,
    dropout_p: float,
) -> Tensor:
    """Emit what torch composes where no kernel runs: float32 between two roundings.

    It is `_scaled_dot_product_attention_math` of torch 2.13, which scales q and k apart.
    """
    query, key, value = (_product_view(t, x) for x in qkv)
    mask = None if mask is None else mask.entered(t)
    start, root = len(t.b.nodes), math.sqrt(abs(factor))
    query = multiply(t, query, math.copysign(root, factor))
    scores = _scores(t, query, multiply(t, _repeated_heads(t, key, shared), root))
    weights = dropout(t, _weights(t, scores, mask), dropout_p)
    result = matmul(t, weights, _repeated_heads(t, value, shared))
    t.list_under(MATH_ATTENTION, start)
    return _product_view(t, result)


def _product_view(t: Tracer, x: Tensor) -> Tensor:
    """Emit x in the format in which its layer has products: a view, which costs nothing."""
    node = t.matrices(t.straight(x)) if len(x.shape) > 1 else t.full(x)
    view = t.emit_nodes(reshape, node, source=dense.matmul.name, shape=t.b.shape(node))
    return Tensor(view.id, x.shape)


def _takes_flash(t: Tracer, qkv: Sequence[Tensor], shared: int, mask: Mask | None) -> bool:
    """Return whether torch's kernel for CPUs takes these (`sdp_utils_cpp.cpp` of torch 2.13)."""
    query, key, value = (x.shape for x in qkv)
    if len(query) != 4 or key != value or query[-1] != key[-1] or not size(query[2:] + key[2:]):
        return False
    if query[:2] != (key[0], key[1] * shared):
        return False
    return mask is None or (len(mask.values.shape) in (2, 4) and not _has_gradient(t, mask.values))


def _has_gradient(t: Tracer, x: Tensor) -> bool:
    """Return whether the gradient of x leads to a parameter."""
    waiting, visited = [x.id], {x.id}
    for i in waiting:
        node = t.b.nodes[i]
        if node.op.name == "parameter":
            return True
        rules = node.op.gradients or (None,) * len(node.inputs)
        led = {j for j, rule in zip(node.inputs, rules, strict=False) if rule} - visited
        visited |= led
        waiting += led
    return False


def _flash(
    t: Tracer, qkv: Sequence[Tensor], mask: Mask | None, factor: float, dropped: float
) -> Tensor:
    """Emit one kernel; where it drops shares CUDA's, for that of a CPU drops none."""
    attrs = attributes(factor, hides=mask is not None and mask.hides, dropped=dropped)
    nodes = [t.matrices(t.straight(x)) for x in qkv]
    if mask is not None:
        values = mask.entered(t).values
        if size(values.shape[:-2]) == 1:
            nodes.append(t.shaped(values, values.shape[-2:]))
        else:
            wide = expand(t, values, (*qkv[0].shape[:2], *values.shape[-2:]))
            nodes.append(t.matrices(wide))
    if dropped:
        shape = (*t.b.shape(nodes[0])[:2], t.b.shape(nodes[1])[1])
        nodes.append(_left(t, shape, dropped, inside=True))
    result = t.emit_nodes(flash_attention, *nodes, source=dense.matmul.name, **attrs)
    return Tensor(result.id, qkv[0].shape)


def _repeated_heads(t: Tracer, x: Tensor, count: int) -> Tensor:
    if count == 1:
        return x
    *lead, heads, rows, columns = x.shape
    apart = t.view(x, (*lead, heads, 1, rows, columns))
    wide = expand(t, apart, (*lead, heads, count, rows, columns))
    return t.view(wide, (*lead, heads * count, rows, columns))


def masked_fill(
    t: Tracer, x: Tensor, mask: Tensor, value: float | Tensor, outside: bool = False
) -> Tensor:
    """Fill x where the mask is not 0, or, with `outside`, where it is 0."""
    if isinstance(value, Tensor):
        whole = expand(t, x, np.broadcast_shapes(x.shape, mask.shape))
        return t.emit(masks.where, mask, *((whole, value) if outside else (value, whole)))
    attrs: dict[str, Any] = {"value": float(value), "outside": outside}
    # A mask that is one matrix for all heads and examples is read as such; any other is broadcast.
    x = expand(t, x, np.broadcast_shapes(x.shape, mask.shape))
    if size(mask.shape[:-2]) > 1 or len(x.shape) < 3:
        return t.emit(masks.masked_fill, x, mask, **attrs)
    return _over_matrices(t, masks.masked_fill, x, mask, attrs)


def _over_matrices(t: Tracer, op: Op, x: Tensor, other: Tensor, attrs: dict[str, Any]) -> Tensor:
    """Emit an op on x's matrices and one that is the same for all of them."""
    matrix = t.shaped(other, ((1,) * (2 - len(other.shape)) + other.shape)[-2:])
    node = t.b.emit(op, t.matrices(t.straight(x)), matrix, attrs=attrs, source=op.name)
    return Tensor(node, x.shape)


def _masked_scores(t: Tracer, alike: Tensor, mask: Tensor, hides: bool) -> Tensor:
    if hides:
        return masked_fill(t, alike, mask, -math.inf, outside=True)
    if size(mask.shape[:-2]) == 1:
        return _over_matrices(t, elementwise.add, alike, mask, {})
    return add(t, alike, mask)


def where(t: Tracer, mask: Tensor, a: Any, b: Any) -> Tensor:
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        return t.emit(masks.where, mask, a, b)
    if isinstance(a, Tensor):
        return masked_fill(t, a, mask, b, outside=True)
    if not isinstance(b, Tensor):
        # two numbers: one fills a tensor of the mask's shape first
        b = add(t, multiply(t, mask, 0.0), b)
    return masked_fill(t, b, mask, a)


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **dict.fromkeys(("matmul", "bmm", "mm"), matmul),
        **dict.fromkeys(("softmax", "_softmax"), softmax),
        **dict.fromkeys(("log_softmax", "_log_softmax"), log_softmax),
        "masked_fill": masked_fill,
        "where": where,
        "dropout": dropout,
        "dropout_": dropout,
        "scaled_dot_product_attention": scaled_dot_product_attention,
    }
)
