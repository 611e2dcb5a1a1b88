"""Import rules: products of tensors over any axes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from policysearch.graph import Shape, size
from policysearch.importers.attention import masked_fill, matmul
from policysearch.importers.elementwise import add, multiply
from policysearch.importers.reductions import over
from policysearch.importers.routing import arange, bucketize
from policysearch.importers.shapes import diagonal, moved, permute, select
from policysearch.importers.tracer import Rule, Tensor, Tracer, refuse
from policysearch.ops import dense, masks
from policysearch.ops.comparison import compare
from policysearch.ops.reduce import sum_over

Labels = Sequence[str]
"""A name for each axis, ELLIPSIS and a number for those of an ellipsis."""

ELLIPSIS = "."


@dataclass(frozen=True)
class Einsum:
    """What an equation says: the axes of each operand, those of the result, and all of them.

    `labels` are those of the result first, then those summed over.
    """

    operands: tuple[Labels, ...]
    result: Labels
    labels: Labels


def _einsum_of(equation: str, ranks: Sequence[int]) -> Einsum:
    terms, arrow, result = equation.replace(" ", "").partition("->")
    parts = terms.split(",")
    most = max(rank - len(part.replace("...", "")) for part, rank in zip(parts, ranks, strict=True))
    dots = [f"{ELLIPSIS}{i}" for i in range(most)]

    def labels(part: str, rank: int) -> Labels:
        before, _, after = part.partition("...")
        count = rank - len(before) - len(after)
        return [*before, *dots[most - count :], *after]

    operands = tuple(labels(part, rank) for part, rank in zip(parts, ranks, strict=True))
    seen = sorted({label for each in operands for label in each} - set(dots))
    once = [x for x in seen if sum(list(each).count(x) for each in operands) == 1]
    rank = len(result.replace("...", "")) + most * ("..." in result)
    out = labels(result, rank) if arrow else [*dots, *once]
    summed = [label for label in (*dots, *seen) if label not in out]
    return Einsum(operands, out, [*out, *summed])


def einsum(
    t: Tracer, equation: str, operands: Sequence[Tensor], path: Sequence[int] | None = None
) -> Tensor:
    """Contract pair by pair, from the left or along `path`, as torch does: each pair by bmm."""
    said = _einsum_of(equation, [len(x.shape) for x in operands])
    waiting = [
        _aligned_operand(t, x, own, said.labels)
        for x, own in zip(operands, said.operands, strict=True)
    ]
    kept, steps = len(said.result), list(path or ())
    if len(waiting) == 1:
        summed = tuple(range(kept, len(said.labels)))
        return over(t, sum_over, waiting[0], summed) if summed else waiting[0]
    while len(waiting) > 1:
        pair = sorted((steps.pop(0), steps.pop(0))) if path else (0, 1)
        second, first = waiting.pop(pair[1]), waiting.pop(pair[0])
        product = _pair(t, first, second, _finished_axes(first, second, waiting, kept))
        waiting.insert(len(waiting) if path else 0, product)
    return t.view(waiting[0], waiting[0].shape[:kept])


def _aligned_operand(t: Tracer, x: Tensor, own: Labels, labels: Labels) -> Tensor:
    """Return x with an axis for each label, of extent 1 where it has none of that name."""
    own = list(own)
    while twice := next((label for label in own if own.count(label) > 1), None):
        first, second = (i for i, label in enumerate(own) if label == twice)
        x = moved(t, diagonal(t, x, 0, first, second), -1, first)
        own.pop(second)
    there = [label for label in labels if label in own]
    x = permute(t, x, [own.index(label) for label in there])
    extents = dict(zip(there, x.shape, strict=True))
    return t.view(x, tuple(extents.get(label, 1) for label in labels)) if x.shape else x


def _finished_axes(a: Tensor, b: Tensor, others: Sequence[Tensor], kept: int) -> tuple[int, ...]:
    """Return the axes to sum over that no other operand has."""
    axes = range(kept, len(a.shape))
    return tuple(
        axis
        for axis in axes
        if max(a.shape[axis], b.shape[axis]) > 1 and all(x.shape[axis] == 1 for x in others)
    )


def _pair(t: Tracer, a: Tensor, b: Tensor, summed: Sequence[int]) -> Tensor:
    """Return the product of two, summed over these axes, which stay with extent 1.

    An axis that one of them alone has is summed before.
    """
    both = [axis for axis in summed if a.shape[axis] > 1 and b.shape[axis] > 1]
    for own, other in ((a, b), (b, a)):
        alone = tuple(x for x in summed if own.shape[x] > 1 and other.shape[x] == 1)
        if alone and own is a:
            a = over(t, sum_over, a, alone, True)
        elif alone:
            b = over(t, sum_over, b, alone, True)
    if not both:
        return multiply(t, a, b)
    axes = [axis for axis in range(len(a.shape)) if axis not in both]
    shared = [x for x in axes if a.shape[x] > 1 and b.shape[x] > 1]
    left = [x for x in axes if x not in shared and a.shape[x] > 1]
    right = [x for x in axes if x not in shared and x not in left]
    lead, rows, inner, columns = (
        tuple(max(a.shape[x], b.shape[x]) for x in group) for group in (shared, left, both, right)
    )
    first = t.view(
        permute(t, a, [*shared, *left, *both, *right]), (size(lead), size(rows), size(inner))
    )
    second = _right(t, b, (shared, both, right, left), (size(lead), size(inner), size(columns)))
    product = t.view(matmul(t, first, second), (*lead, *rows, *columns, *(1 for _ in both)))
    order = [*shared, *left, *right, *both]
    return permute(t, product, [order.index(axis) for axis in range(len(order))])


def _right(t: Tracer, b: Tensor, groups: Sequence[Sequence[int]], shape: Shape) -> Tensor:
    """Return the second operand [shared, inner, columns]; a product reads [columns, inner] too."""
    shared, both, right, left = groups
    lead, inner, columns = shape
    straight = [*shared, *both, *right, *left]
    turned = [*shared, *right, *both, *left]
    if [x for x in turned if b.shape[x] > 1] == [x for x in range(len(b.shape)) if b.shape[x] > 1]:
        rows = t.view(b, (lead, columns, inner))
        return Tensor(rows.id, shape, True)
    return t.view(permute(t, b, straight), shape)


def tensordot(
    t: Tracer, a: Tensor, b: Tensor, dims_a: Sequence[int], dims_b: Sequence[int]
) -> Tensor:
    first, second = (
        [axis % len(x.shape) for axis in dims] for x, dims in ((a, dims_a), (b, dims_b))
    )
    rows, columns = (
        [axis for axis in range(len(x.shape)) if axis not in dims]
        for x, dims in ((a, first), (b, second))
    )
    shape = (*(a.shape[x] for x in rows), *(b.shape[x] for x in columns))
    inner = size(tuple(a.shape[x] for x in first))
    left = t.view(permute(t, a, [*rows, *first]), (size(a.shape) // inner, inner))
    right = t.view(permute(t, b, [*second, *columns]), (inner, size(b.shape) // inner))
    return t.view(matmul(t, left, right), shape)


def inner(t: Tracer, a: Tensor, b: Tensor) -> Tensor:
    if not a.shape or not b.shape:
        return multiply(t, a, b)
    return tensordot(t, a, b, (-1,), (-1,))


def outer(t: Tracer, a: Tensor, b: Tensor) -> Tensor:
    return multiply(t, t.view(a, (*a.shape, 1)), b)


def addmm(
    t: Tracer, bias: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1
) -> Tensor:
    """beta bias + alpha a b, of matrices or stacks of them, rounded once."""
    product = matmul(t, a, b)
    shape = (1,) * (len(product.shape) - len(bias.shape)) + bias.shape
    vector = len(bias.shape) == 1 and bias.shape == product.shape[-1:] and len(product.shape) == 2
    attrs: dict[str, Any] = (
        {} if (alpha, beta) == (1, 1) else {"alpha": float(alpha), "beta": float(beta)}
    )
    added = t.full(bias) if vector else t.shaped(bias, shape)
    return t.view(t.emit_nodes(dense.bias, t.full(product), added, **attrs), product.shape)


def addmv(t: Tracer, bias: Tensor, a: Tensor, b: Tensor, **factors: float) -> Tensor:
    column = t.view(bias, (*bias.shape, 1))
    total = addmm(t, column, a, t.view(b, (*b.shape, 1)), **factors)
    return t.view(total, total.shape[:1])


def addbmm(
    t: Tracer, bias: Tensor, a: Tensor, b: Tensor, beta: float = 1, alpha: float = 1
) -> Tensor:
    """Add the products of a stack one after the other, each sum rounded, as torch does."""
    for i in range(a.shape[0]):
        bias = addmm(t, bias, select(t, a, 0, i), select(t, b, 0, i), beta if i == 0 else 1, alpha)
    return bias


def bilinear(t: Tracer, a: Tensor, b: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """sum of a_i w_oij b_j: the products with a are rounded, as in torch."""
    rows, outputs = size(a.shape[:-1]), weight.shape[0]
    left = t.view(a, (rows, a.shape[-1]))
    table = t.view(permute(t, weight, (1, 0, 2)), (a.shape[-1], outputs * b.shape[-1]))
    products = t.view(matmul(t, left, table), (rows, outputs, b.shape[-1]))
    result = matmul(t, products, t.view(b, (rows, b.shape[-1], 1)))
    result = t.view(result, (*a.shape[:-1], outputs))
    return result if bias is None else add(t, result, bias)


def grouped_product(
    t: Tracer, rows: Tensor, matrices: Tensor, ends: Tensor | None = None, *_: Any, **__: Any
) -> Tensor:
    """Multiply rows, sorted by their matrix, each by its own: all products, of which one counts.

    `ends` are the numbers of rows up to each matrix. Rows behind the last are 0.
    """
    if ends is None or (len(rows.shape), len(matrices.shape)) != (2, 3):
        raise refuse(
            "groups of columns, or matrices of each group", "sort rows, and say their ends"
        )
    count, own = matrices.shape[0], bucketize(t, arange(t, rows.shape[0]), ends, right=True)
    numbers = t.view(arange(t, count), (count, 1, 1))
    other = t.whole(compare, t.view(own, (1, rows.shape[0], 1)), numbers, relation="not_equal")
    start = len(t.b.nodes)
    products = matmul(t, t.view(rows, (1, *rows.shape)), matrices)
    result = over(t, sum_over, masked_fill(t, products, other, 0.0), 0)
    t.list_under(masks.where.name, start)  # autocast casts it to its widest, if to any
    return result


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "_grouped_mm": grouped_product,
        "einsum": einsum,
        "tensordot": tensordot,
        "inner": inner,
        **dict.fromkeys(("outer", "ger"), outer),
        **dict.fromkeys(("dot", "vdot", "mv"), matmul),
        **dict.fromkeys(("addmm", "baddbmm"), addmm),
        "addmv": addmv,
        "addbmm": addbmm,
        "bilinear": bilinear,
    }
)
