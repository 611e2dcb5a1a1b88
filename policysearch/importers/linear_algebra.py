"""Import rules: linear algebra of matrices."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from policysearch.importers.attention import matmul
from policysearch.importers.elementwise import add, multiply, plain, power, subtract
from policysearch.importers.routing import eye
from policysearch.importers.shapes import exchanged, expand, part, unsqueeze
from policysearch.importers.tracer import Rule, Tensor, Tracer, refuse
from policysearch.ops import exponentials, linear_algebra
from policysearch.ops.cholesky import cholesky
from policysearch.ops.composite import FLOAT32_ALONE
from policysearch.ops.shape import triangle

REMEDY = "turn the equation round: A^T X^T = B^T"


def solve(t: Tracer, a: Tensor, b: Tensor, left: bool = True, **_: Any) -> Tensor:
    """X of A X = B; a B of one axis less is a vector, or a stack of them."""
    if not left:
        raise refuse("a solution from the right", REMEDY)
    vector = len(b.shape) == 1 or (len(b.shape) == len(a.shape) - 1 and b.shape == a.shape[:-1])
    b = unsqueeze(t, b, -1) if vector else b
    lead = max(a.shape[:-2], b.shape[:-2], key=len)
    a, b = (expand(t, x, (*lead, *x.shape[-2:])) for x in (a, b))
    result = t.emit(linear_algebra.solve, a, b)
    return t.view(result, result.shape[:-1]) if vector else result


def _solved_with_others(t: Tracer, a: Tensor, b: Tensor, **options: Any) -> tuple[Tensor, ...]:
    return (solve(t, a, b, **options), a, a, a)


def inverse(t: Tracer, a: Tensor, *_: Any, **__: Any) -> Tensor:
    return solve(t, a, expand(t, eye(t, a.shape[-1]), a.shape))


def log_determinant(t: Tracer, a: Tensor, *_: Any, **__: Any) -> tuple[Tensor, ...]:
    """Return the sign of the determinant and the logarithm of its size."""
    sign = t.emit(linear_algebra.determinant_sign, a)
    return sign, t.emit(linear_algebra.log_determinant, a), a, a


def determinant(t: Tracer, a: Tensor) -> tuple[Tensor, ...]:
    sign, logarithm, *_ = log_determinant(t, a)
    return multiply(t, sign, plain(exponentials.exp)(t, logarithm)), a, a


def householder(t: Tracer, vectors: Tensor, tau: Tensor) -> Tensor:
    """The first columns of the product of reflectors 1 - tau v v', v in the columns below ones.

    It is 1 - V T V' with T = (1 / tau on the diagonal, V' V above it)^-1 (Puglisi 1992).
    """
    start, (rows, columns) = len(t.b.nodes), vectors.shape[-2:]
    lead = vectors.shape[:-2]

    def ones(height: int) -> Tensor:
        return expand(t, eye(t, height, columns), (*lead, height, columns))

    v = add(t, t.emit(triangle, vectors, diagonal=-1, upper=False), ones(rows))
    turned = exchanged(t, v, -1, -2)
    above = t.emit(triangle, matmul(t, turned, v), diagonal=1, upper=True)
    inner = add(t, above, multiply(t, unsqueeze(t, power(t, tau, -1), -1), ones(columns)))
    solved = t.emit(linear_algebra.solve, inner, part(t, turned, -1, 0, columns))
    result = subtract(t, ones(rows), matmul(t, v, solved))
    t.list_under(FLOAT32_ALONE, start)
    return result


def root(t: Tracer, a: Tensor, upper: bool = False, **_: Any) -> Tensor:
    """The triangle that times itself turned is A, of that of A, the lower by default (Cholesky)."""
    if upper:
        return exchanged(t, root(t, exchanged(t, a, -1, -2)), -1, -2)
    return t.emit(cholesky, a)


def solve_triangular(
    t: Tracer,
    a: Tensor,
    b: Tensor,
    upper: bool,
    left: bool = True,
    unitriangular: bool = False,
) -> Tensor:
    """X of A X = B, or of X A = B, of one triangle of A."""
    if not left:
        a, b = (exchanged(t, x, -1, -2) for x in (a, b))
        solved = solve_triangular(t, a, b, not upper, unitriangular=unitriangular)
        return exchanged(t, solved, -1, -2)
    first = (1 if upper else -1) if unitriangular else 0
    a = t.emit(triangle, a, diagonal=first, upper=upper)
    if unitriangular:
        a = add(t, a, expand(t, eye(t, a.shape[-1]), a.shape))
    if len(b.shape) < len(a.shape):  # not a stack of vectors, as it is to `solve`
        b = expand(t, b, (*a.shape[:-2], *b.shape[-2:]))
    return solve(t, a, b)


def solve_by_root(t: Tracer, b: Tensor, factor: Tensor, upper: bool = False) -> Tensor:
    """X of A X = B, A of the triangle that is its root."""
    if t.is_trained(factor) and not _is_triangle(t, factor):
        remedy = "give torch.linalg.cholesky(A), or torch.tril of it: beside it torch has gradients"
        raise refuse("a factor that is no triangle by itself", remedy)
    turned = exchanged(t, factor, -1, -2)
    first, second = (turned, factor) if upper else (factor, turned)
    return solve_triangular(t, second, solve_triangular(t, first, b, False), True)


def _is_triangle(t: Tracer, x: Tensor) -> bool:
    node = t.b.nodes[x.id]
    while node.op.kind == "move" and node.op is not triangle:
        node = t.b.nodes[node.inputs[0]]
    return node.op in (triangle, cholesky)


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "_linalg_solve_ex": _solved_with_others,
        "linalg_inv_ex": lambda t, a, **_: (inverse(t, a), a),
        "_linalg_slogdet": log_determinant,
        "_linalg_det": determinant,
        "linalg_matrix_exp": lambda t, a: t.emit(linear_algebra.matrix_exp, a),
        "linalg_cholesky_ex": lambda t, a, **options: (root(t, a, **options), a),
        "cholesky": root,
        "linalg_solve_triangular": solve_triangular,
        "cholesky_solve": solve_by_root,
        "linalg_householder_product": householder,
    }
)
