"""Import rules: sums, means, extremes, moments and norms over axes, and running sums along one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from policysearch.graph import Op, size
from policysearch.importers.elementwise import add, pair, subtract
from policysearch.importers.program import TRUTHS
from policysearch.importers.shapes import cast, diagonal, unsqueeze
from policysearch.importers.tracer import Rule, Tensor, Tracer, refuse
from policysearch.ops import cumulative, exponentials, extremes, moments
from policysearch.ops.extrema import maximum, minimum
from policysearch.ops.log_cumsum_exp import log_cumsum_exp
from policysearch.ops.reduce import mean, sum_over

Axes = int | Sequence[int] | None


def over(
    t: Tracer, op: Op, x: Tensor, dim: Axes = None, keepdim: bool = False, **attrs: Any
) -> Tensor:
    """Emit what makes one value of those along these axes, of all where none are named."""
    axes = tuple(range(len(x.shape))) if dim is None or dim == () else dim
    axes = (axes,) if isinstance(axes, int) else axes
    axes = tuple(axis % len(x.shape) for axis in axes)
    if axes == (len(x.shape) - 1,) and not x.swapped:
        # over the last axis: rows, whatever views there have been, without a reshape between
        shape = (*x.shape[:-1], 1) if keepdim else x.shape[:-1]
        return t.view(t.emit_nodes(op, t.rows(x), axes=(1,), keepdim=True, **attrs), shape)
    return t.emit(op, x, axes=axes, keepdim=bool(keepdim), **attrs)


def reduced(op: Op) -> Rule:
    """Return the rule of a sum or mean over axes."""

    def rule(
        t: Tracer, x: Tensor, dim: Axes = None, keepdim: bool = False, dtype: Any = None
    ) -> Tensor:
        return over(t, op, cast(t, x, dtype), dim, keepdim)

    return rule


def extreme(op: Op, of_two: Op, *, smallest: bool) -> Rule:
    """Return the rule of max or min: of two tensors, of all values, or of an axis, with places."""

    def rule(t: Tracer, x: Tensor, dim: Any = None, keepdim: bool = False) -> Any:
        if isinstance(dim, Tensor):
            return pair(of_two)(t, x, dim)
        if dim is None:
            return over(t, op, x)
        values = over(t, op, x, dim, keepdim, **{extremes.FIRST: True})
        axis = dim % len(x.shape)
        attrs = {"axis": axis, "smallest": smallest, "keepdim": keepdim}
        node = t.b.emit(extremes.argmax, t.full(x), attrs=attrs, source="argmax", role="input")
        return values, Tensor(node, t.b.shape(node))

    return rule


def shared(op: Op) -> Rule:
    """Return the rule of an extreme whose gradient equal values share."""
    return lambda t, x, dim=None, keepdim=False: over(t, op, x, dim, keepdim)


def _range(t: Tracer, x: Tensor, dim: int | None = None, keepdim: bool = False) -> Any:
    return tuple(over(t, op, x, dim, keepdim) for op in (extremes.min_over, extremes.max_over))


def truths(op: Op) -> Rule:
    """Return the rule of what is said of truth values: an extreme of them, or how many hold."""
    return lambda t, x, dim=None, keepdim=False: over(t, op, cast(t, x, TRUTHS), dim, keepdim)


def moment(op: Op) -> Rule:
    """Return the rule of var or std, with the arguments of all their overloads."""

    def rule(
        t: Tracer,
        x: Tensor,
        dim: Any = None,
        unbiased: bool = True,
        keepdim: bool = False,
        correction: float | None = None,
    ) -> Tensor:
        if isinstance(dim, bool):
            dim, unbiased = None, dim
        taken_off = correction if correction is not None else int(unbiased)
        return over(t, op, x, dim, keepdim, correction=taken_off)

    return rule


def with_mean(rule: Rule) -> Rule:
    def both(t: Tracer, x: Tensor, dim: Any = None, *rest: Any, **options: Any) -> Any:
        axes = None if isinstance(dim, bool) else dim
        keepdim = options.get("keepdim", rest[1] if len(rest) > 1 else False)
        return rule(t, x, dim, *rest, **options), over(t, mean, x, axes, keepdim)

    return both


def vector_norm(
    t: Tracer,
    x: Tensor,
    ord: float | None = 2,
    dim: Axes = None,
    keepdim: bool = False,
    dtype: Any = None,
) -> Tensor:
    order = 2.0 if ord is None else float(ord)
    return over(t, moments.vector_norm, cast(t, x, dtype), dim, keepdim, ord=order)


def norm(
    t: Tracer, x: Tensor, ord: Any = None, dim: Axes = None, *rest: Any, **options: Any
) -> Tensor:
    """Return torch.linalg.norm; of matrices the Frobenius norm alone, which is that of vectors."""
    axes = len(x.shape) if dim is None else len((dim,) if isinstance(dim, int) else dim)
    if isinstance(ord, str) and ord != "fro":
        raise refuse(f"the norm {ord!r}", "use a norm of vectors")
    if axes > 1 and not isinstance(ord, str | None):
        raise refuse(f"the norm {ord} of matrices", "use 'fro', or a norm of vectors")
    return vector_norm(t, x, None if isinstance(ord, str) else ord, dim, *rest, **options)


def distance(
    t: Tracer, a: Tensor, b: Tensor, p: float = 2.0, eps: float = 1e-6, keepdim: bool = False
) -> Tensor:
    return vector_norm(t, add(t, subtract(t, a, b), eps), p, -1, keepdim)


def distances(t: Tracer, a: Tensor, b: Tensor, p: float = 2.0, *_: Any, **__: Any) -> Tensor:
    """The norm of every row of a [..., n, width] less every row of b [..., m, width]: [..., n, m].

    torch multiplies where there are more than 25 rows, which is as near in float32.
    """
    start = len(t.b.nodes)
    result = vector_norm(t, subtract(t, unsqueeze(t, a, -2), unsqueeze(t, b, -3)), p, -1)
    t.list_under(moments.vector_norm.name, start)
    return result


def running(op: Op) -> Rule:
    """Return the rule of a running sum or product."""
    return lambda t, x, dim, dtype=None: t.emit(op, cast(t, x, dtype), axis=dim % len(x.shape))


def log_sum_exp(t: Tracer, x: Tensor, dim: Axes, keepdim: bool = False) -> Tensor:
    """log(sum(e^(x - max))) + max, all of which torch rounds; the gradient is of the whole."""
    start = len(t.b.nodes)
    x = t.straight(x)
    largest = over(t, extremes.max_over, x, dim, True)
    powers = t.pointwise(exponentials.exp, subtract(t, x, largest))
    logarithm = t.pointwise(exponentials.log, over(t, sum_over, powers, dim, True))
    total = add(t, logarithm, largest)
    axes = (dim,) if isinstance(dim, int) else tuple(dim or range(len(x.shape)))
    result = t.emit(cumulative.log_sum_exp, x, total, axes=axes, keepdim=keepdim)
    t.list_under(cumulative.log_sum_exp.name, start)
    return result


def product(
    t: Tracer, x: Tensor, dim: int | None = None, keepdim: bool = False, dtype: Any = None
) -> Tensor:
    x = cast(t, x, dtype)
    if dim is None:
        return t.view(over(t, cumulative.prod, t.view(x, (size(x.shape),)), 0), ())
    return over(t, cumulative.prod, x, dim, keepdim)


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "mean": reduced(mean),
        "sum": reduced(sum_over),
        "max": extreme(extremes.max_over, maximum, smallest=False),
        "min": extreme(extremes.min_over, minimum, smallest=True),
        "amax": shared(extremes.max_over),
        "amin": shared(extremes.min_over),
        "aminmax": _range,
        "any": truths(extremes.max_over),
        "all": truths(extremes.min_over),
        "count_nonzero": truths(sum_over),
        "var": moment(moments.variance),
        "std": moment(moments.deviation),
        "var_mean": with_mean(moment(moments.variance)),
        "std_mean": with_mean(moment(moments.deviation)),
        "linalg_vector_norm": vector_norm,
        "linalg_norm": norm,
        "norm": vector_norm,
        "frobenius_norm": lambda t, x, dim=None, keepdim=False: vector_norm(t, x, 2, dim, keepdim),
        "pairwise_distance": distance,
        "cdist": distances,
        "cumsum": running(cumulative.cumsum),
        "cumprod": running(cumulative.cumprod),
        "logcumsumexp": running(log_cumsum_exp),
        "prod": product,
        **dict.fromkeys(("logsumexp", "special_logsumexp"), log_sum_exp),
        "trace": lambda t, x: over(t, sum_over, diagonal(t, x)),
    }
)
