"""Import rules: products of matrices, softmax and attention."""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from policysearch.graph import Op, size
from policysearch.importers.elementwise import add, multiply
from policysearch.importers.shapes import cast, expand
from policysearch.importers.tracer import Rule, Tensor, Tracer, refuse
from policysearch.ops import dense, elementwise, masks
from policysearch.ops.softmax import log_softmax as log_softmax_op
from policysearch.ops.softmax import softmax as softmax_op
from policysearch.values import InputError


def matmul(t: Tracer, a: Tensor, b: Tensor) -> Tensor:
    """Multiply as torch.matmul: matrices over leading axes, or one matrix for all of them."""
    if len(a.shape) == 1:
        product = matmul(t, t.view(a, (1, *a.shape)), b)
        rest = () if len(b.shape) == 1 else (*product.shape[:-2], product.shape[-1])
        return t.view(product, rest)
    if len(b.shape) == 1:
        product = matmul(t, a, t.view(b, (*b.shape, 1)))
        return t.view(product, product.shape[:-1])
    if len(b.shape) == 2 and len(a.shape) > 1:
        # torch, too, folds the leading axes of a into the rows of one product
        shape = (*a.shape[:-1], b.shape[1])
        stored = b.shape[::-1] if b.swapped else b.shape
        right = t.shaped(Tensor(b.id, stored), stored)
        product = t.emit_nodes(dense.matmul, t.rows(a), right, transpose_b=b.swapped)
        return t.view(product, shape)
    lead = tuple(np.broadcast_shapes(a.shape[:-2], b.shape[:-2]))
    a, b = (x if x.shape[:-2] == lead else _spread(t, x, lead) for x in (a, b))
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
    return _normalised(t, softmax_op, cast(t, x, dtype), dim, attrs)


def log_softmax(t: Tracer, x: Tensor, dim: int, dtype: Any = None, *_: Any) -> Tensor:
    return _normalised(t, log_softmax_op, cast(t, x, dtype), dim, {})


def _normalised(t: Tracer, op: Op, x: Tensor, dim: int, attrs: dict[str, Any]) -> Tensor:
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
    if p >= 1.0:
        raise refuse("dropout of everything", "use a share below 1")
    node = t.b.emit(
        masks.dropout, x.id, t.mask(t.b.shape(x.id), p), attrs={"p": p}, source="dropout"
    )
    return Tensor(node, x.shape, x.swapped)


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
) -> Tensor:
    """softmax(q k^T * scale + mask) v, as torch documents the function.

    `hides`: the mask holds truth values, of what is left. `empty_rows`: it may leave nothing of
    some rows, which are 0 then, as in torch.
    """
    if enable_gqa:
        key, value = (_repeated(t, x, query.shape[-3] // x.shape[-3]) for x in (key, value))
    *lead, rows, columns = key.shape
    swapped = Tensor(t.straight(key).id, (*lead, columns, rows), True)
    # the formula of torch's documentation; the transposed key is a view, which costs nothing
    factor = scale if scale is not None else 1.0 / math.sqrt(query.shape[-1])
    alike = multiply(t, matmul(t, query, swapped), factor)
    if is_causal:
        raise refuse("is_causal", "the importer gives the mask instead")
    if attn_mask is not None:
        alike = _masked(t, alike, attn_mask, hides)
    weights = softmax(t, alike, -1, empty_rows=empty_rows)
    return matmul(t, dropout(t, weights, dropout_p), value)


def _repeated(t: Tracer, x: Tensor, count: int) -> Tensor:
    *lead, heads, rows, columns = x.shape
    apart = t.view(x, (*lead, heads, 1, rows, columns))
    wide = expand(t, apart, (*lead, heads, count, rows, columns))
    return t.view(wide, (*lead, heads * count, rows, columns))


def masked_fill(t: Tracer, x: Tensor, mask: Tensor, value: float, outside: bool = False) -> Tensor:
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


def _masked(t: Tracer, alike: Tensor, mask: Tensor, hides: bool) -> Tensor:
    if hides:
        return masked_fill(t, alike, mask, -math.inf, outside=True)
    if size(mask.shape[:-2]) == 1:
        return _over_matrices(t, elementwise.add, alike, mask, {})
    return add(t, alike, mask)


def where(t: Tracer, mask: Tensor, a: Any = None, b: Any = None) -> Tensor:
    if a is None or b is None:
        raise InputError(
            "where of a mask alone: as many places as are true; expected "
            "torch.where(mask, a, b), which keeps all"
        )
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
