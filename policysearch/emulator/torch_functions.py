"""What torch has for numpy's functions: of tensors, with numpy's arguments and numpy's results."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch

Tensor = Any


def _torch_functions(*names: str) -> dict[str, Callable[..., Tensor]]:
    return {name: getattr(torch, name) for name in names}


UFUNCS: Mapping[str, Callable[..., Tensor]] = {
    **_torch_functions(
        "add", "subtract", "multiply", "floor_divide", "remainder", "fmod", "maximum"
    ),
    **_torch_functions(
        "minimum", "fmax", "fmin", "exp", "exp2", "expm1", "log", "log1p", "log2", "log10"
    ),
    **_torch_functions(
        "sqrt", "square", "tanh", "sinh", "cosh", "sin", "cos", "tan", "arctan", "arcsin"
    ),
    **_torch_functions(
        "arccos", "arcsinh", "arccosh", "arctanh", "absolute", "negative", "floor", "ceil"
    ),
    **_torch_functions(
        "trunc", "isfinite", "isnan", "isinf", "logical_and", "logical_or", "logical_not"
    ),
    **_torch_functions("logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"),
    **_torch_functions("not_equal", "less", "less_equal", "greater", "greater_equal", "copysign"),
    **_torch_functions("reciprocal", "logaddexp", "matmul", "positive", "hypot", "arctan2"),
    "divide": torch.div,
    "equal": torch.eq,
    "power": torch.pow,
    "rint": torch.round,
    "sign": lambda x: torch.where(torch.isnan(x), x, torch.sign(x)),
    "invert": torch.bitwise_not,
    "left_shift": torch.bitwise_left_shift,
    "right_shift": torch.bitwise_right_shift,
}
"""By numpy's name, elementwise functions and products of tensors of one type."""


def _axes(x: Tensor, axis: Any) -> tuple[int, ...]:
    if axis is None:
        return tuple(range(x.ndim))
    return (axis,) if isinstance(axis, int) else tuple(axis)


def _reduction(
    along: Callable[..., Tensor], neutral: float | None = None, join: Any = None
) -> Callable[..., Tensor]:
    """Return the reduction of `along`, a function of a tensor, axes and `keepdim`.

    `neutral` is what comes out of nothing; `join` joins a result with an initial value.
    """

    def reduced(
        x: Tensor, axis: Any = 0, dtype: Any = None, keepdims: bool = False, initial: Any = None
    ) -> Tensor:
        axes = _axes(x, axis)
        if not axes:
            return x.clone()
        if neutral is None and initial is not None and not x.numel():
            shape = [1 if i in axes else n for i, n in enumerate(x.shape)]
            found = x.new_full(shape, float(initial))
            return found if keepdims else found.squeeze(axes)
        found = along(x, axes, keepdims)
        if initial is not None and join is not None:
            found = join(found, _device_tensor(x.device, initial, found.dtype))
        return found

    return reduced


def _product(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    for axis in sorted((a % x.ndim for a in axes), reverse=True):
        x = torch.prod(x, axis, keepdim=keep)
    return x


def _fmax(x: Tensor, axes: Sequence[int], keep: bool) -> Tensor:
    known = torch.where(torch.isnan(x), torch.full_like(x, -torch.inf), x)
    nothing = torch.isnan(x).all(dim=tuple(axes), keepdim=keep)
    found = torch.amax(known, axes, keep)
    return torch.where(nothing, torch.full_like(found, torch.nan), found)


REDUCTIONS: Mapping[str, Callable[..., Tensor]] = {
    "add": _reduction(lambda x, axes, keep: torch.sum(x, axes, keep), 0.0, operator.add),
    "multiply": _reduction(_product, 1.0, operator.mul),
    "maximum": _reduction(torch.amax, None, torch.maximum),
    "minimum": _reduction(torch.amin, None, torch.minimum),
    "fmax": _reduction(_fmax, None, torch.fmax),
    "logical_and": _reduction(lambda x, axes, keep: torch.all(x, dim=axes, keepdim=keep)),
    "logical_or": _reduction(lambda x, axes, keep: torch.any(x, dim=axes, keepdim=keep)),
}
"""By numpy's name, functions with two arguments as they take a tensor along axes."""


def _accumulation(along: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def accumulated(x: Tensor, axis: int = 0, dtype: Any = None) -> Tensor:
        return along(
            x, axis, **({} if dtype is None else {"dtype": getattr(torch, np.dtype(dtype).name)})
        )

    return accumulated


ACCUMULATIONS: Mapping[str, Callable[..., Tensor]] = {
    "add": _accumulation(torch.cumsum),
    "multiply": _accumulation(torch.cumprod),
    "logical_and": _accumulation(lambda x, axis: torch.cumprod(x.to(torch.uint8), axis).bool()),
    "maximum": _accumulation(lambda x, axis: torch.cummax(x, axis).values),
    "minimum": _accumulation(lambda x, axis: torch.cummin(x, axis).values),
    "logaddexp": _accumulation(
        lambda x, axis, dtype=None: torch.logcumsumexp(x if dtype is None else x.to(dtype), axis)
    ),
}
"""By numpy's name, the running results along an axis."""


def put_at(name: str, x: Tensor, places: tuple[Tensor | slice, ...], values: Tensor) -> None:
    """Add values to those of x at places, or keep the maximum or minimum there, as ufunc.at."""
    if name == "add":
        x.index_put_(places, values, accumulate=True)
        return
    flat = torch.arange(x.numel(), device=x.device).reshape(x.shape)[places]
    reduce = {"maximum": "amax", "minimum": "amin"}[name]
    values = values.expand(flat.shape).reshape(-1)
    x.reshape(-1).scatter_reduce_(0, flat.reshape(-1), values, reduce)


def _eye(
    device: Any, rows: int, M: Any = None, k: int = 0, dtype: Any = None, order: str = "C"
) -> Tensor:
    columns = torch.arange(rows if M is None else M, device=device)
    return (columns == torch.arange(rows, device=device)[:, None] + k).to(dtype)


def _filler(value: float) -> Callable[..., Tensor]:
    def filled(device: Any, shape: Any, dtype: Any = torch.float64, order: str = "C") -> Tensor:
        extents = (shape,) if isinstance(shape, int) else tuple(shape)
        return torch.full(extents, value, dtype=dtype, device=device)

    return filled


def _full(device: Any, shape: Any, value: Any, dtype: Any = None, order: str = "C") -> Tensor:
    return torch.full(tuple(shape), float(value), dtype=dtype or torch.float64, device=device)


def _full_like(device: Any, x: Tensor, value: Any, dtype: Any = None) -> Tensor:
    found = torch.empty_like(x, dtype=dtype, device=device)
    return found.copy_(value) if isinstance(value, torch.Tensor) else found.fill_(value)


def _like(value: float) -> Callable[..., Tensor]:
    return lambda device, x, dtype=None: _full_like(device, x, value, dtype)


def _arange(device: Any, *bounds: Any, dtype: Any = None) -> Tensor:
    return torch.arange(*bounds, dtype=dtype, device=device)


def _array(
    device: Any, value: Any, dtype: Any = None, order: str = "K", copy: Any = True
) -> Tensor:
    kept = torch.contiguous_format if order == "C" else torch.preserve_format
    found = torch.as_tensor(value, device=device)
    return found.to(dtype or found.dtype, copy=True, memory_format=kept)


def _as_array(device: Any, value: Any, dtype: Any = None) -> Tensor:
    return torch.as_tensor(value, dtype=dtype, device=device)


def _of_method(name: str, *default: Any) -> Callable[..., Tensor]:
    def method(device: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return getattr(x, name)(*(args or default), **kwargs)

    return method


def _reduction_call(name: str) -> Callable[..., Tensor]:
    def call(device: Any, x: Tensor, axis: Any = None, dtype: Any = None, **others: Any) -> Tensor:
        return REDUCTIONS[name](x if dtype is None else x.to(dtype), axis, **others)

    return call


def _mean(
    device: Any, x: Tensor, axis: Any = None, dtype: Any = None, keepdims: bool = False
) -> Tensor:
    return torch.mean(x, _axes(x, axis), keepdims, dtype=dtype)


def _var(device: Any, x: Tensor, axis: Any = None, ddof: int = 0, keepdims: bool = False) -> Tensor:
    return torch.var(x, _axes(x, axis), correction=ddof, keepdim=keepdims)


def _tensordot(device: Any, a: Tensor, b: Tensor, axes: Any = 2) -> Tensor:
    return torch.tensordot(
        a, b, axes if isinstance(axes, int) else [_axes(a, each) for each in axes]
    )


def _truth(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(device: Any, x: Tensor, axis: Any = None, keepdims: bool = False) -> Tensor:
        axes = _axes(x, axis)
        return function(x.bool(), dim=axes, keepdim=keepdims) if axes else x.bool()

    return call


def _where(device: Any, condition: Tensor, *sides: Any) -> Any:
    if not sides:
        return torch.nonzero(condition, as_tuple=True)
    tensors = [side for side in sides if isinstance(side, torch.Tensor)]
    wanted = reduce(torch.promote_types, (side.dtype for side in tensors)) if tensors else None
    a, b = (_device_tensor(device, side, wanted) for side in sides)
    return torch.where(condition.bool(), a, b)


def _device_tensor(device: Any, value: Any, dtype: Any) -> Tensor:
    """Return a tensor or a number on the device, without a copy from the host."""
    if isinstance(value, torch.Tensor):
        return value.to(device=device, dtype=dtype or value.dtype)
    return torch.full((), value, dtype=dtype or torch.as_tensor(value).dtype, device=device)


def _joiner(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(device: Any, tensors: Sequence[Tensor], axis: int = 0) -> Tensor:
        return function([torch.as_tensor(each, device=device) for each in tensors], dim=axis)

    return call


def _split(device: Any, x: Tensor, cuts: Any, axis: int = 0) -> list[Tensor]:
    return list(torch.tensor_split(x, cuts if isinstance(cuts, int) else list(cuts), dim=axis))


def _repeat(device: Any, x: Tensor, counts: Any, axis: int | None = None) -> Tensor:
    return torch.repeat_interleave(x, counts, dim=axis)


def _take(device: Any, x: Tensor, places: Any, axis: int | None = None) -> Tensor:
    numbers = torch.as_tensor(places, device=device).long()
    if axis is None:
        return x.reshape(-1)[numbers]
    found = torch.index_select(x, axis, numbers.reshape(-1))
    at = axis % x.ndim
    return found.reshape(*x.shape[:at], *numbers.shape, *x.shape[at + 1 :])


def _argsort(device: Any, x: Tensor, axis: int = -1, kind: str = "") -> Tensor:
    return torch.argsort(x, dim=axis, stable=True)


def _argmost(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(device: Any, x: Tensor, axis: int | None = None) -> Tensor:
        return function(x) if axis is None else function(x, dim=axis)

    return call


def _windows(
    device: Any, x: Tensor, shape: Sequence[int], axis: Sequence[int], writeable: bool = False
) -> Tensor:
    for extent, along in zip(shape, axis, strict=True):
        x = x.unfold(along, extent, 1)
    return x


def _indices(device: Any, shape: Sequence[int], dtype: Any = None, sparse: bool = False) -> Any:
    every = [torch.arange(n, dtype=torch.int64, device=device) for n in shape]
    return torch.meshgrid(*every, indexing="ij")


def _clip(device: Any, x: Tensor, low: Any, high: Any) -> Tensor:
    return torch.clamp(x, low, high)


def _dot(device: Any, left: Tensor, right: Tensor, out: Any = None) -> Tensor:
    return torch.dot(left, right) if left.ndim == right.ndim == 1 else torch.matmul(left, right)


def _infinite(sign: float) -> Callable[..., Tensor]:
    return lambda device, x: x == sign * torch.inf


def _with_axis(device: Any, x: Tensor, axis: Any) -> Tensor:
    places = (axis,) if isinstance(axis, int) else axis
    for place in sorted(a % (x.ndim + len(places)) for a in places):
        x = x.unsqueeze(place)
    return x


def _flip(device: Any, x: Tensor, axis: Any = None) -> Tensor:
    return torch.flip(x, _axes(x, axis))


def _diff(
    device: Any, x: Tensor, n: int = 1, axis: int = -1, prepend: Any = None, append: Any = None
) -> Tensor:
    ends = [
        None if e is None else torch.as_tensor([e], dtype=x.dtype, device=device)
        for e in (prepend, append)
    ]
    return torch.diff(x, n, axis, *ends)


def _unique(device: Any, x: Tensor, return_index: bool = False) -> Any:
    flat = x.reshape(-1)
    values = torch.unique(flat)
    if not return_index:
        return values
    order = torch.argsort(flat, stable=True)
    return values, order[torch.searchsorted(flat[order], values)]


def _lexsort(device: Any, keys: Sequence[Tensor], axis: int = -1) -> Tensor:
    order: Tensor = None
    for key in keys:  # the last one decides first
        by = (
            key.to(torch.float32)
            if order is None
            else torch.gather(key.to(torch.float32), axis, order)
        )
        place = torch.argsort(by, dim=axis, stable=True)
        order = place if order is None else torch.gather(order, axis, place)
    return order


def _pad(
    device: Any, x: Tensor, widths: Any, mode: str = "constant", constant_values: Any = 0.0
) -> Tensor:
    assert mode == "constant"
    ends = [end for width in reversed(widths) for end in width]
    return torch.nn.functional.pad(x, ends, value=float(constant_values))


def _numbers(
    device: Any,
    x: Tensor,
    copy: bool = True,
    nan: Any = 0.0,
    posinf: Any = None,
    neginf: Any = None,
) -> Tensor:
    given = (None if value is None else float(value) for value in (nan, posinf, neginf))
    return torch.nan_to_num(x, *given)


def sums_from(x: Tensor, starts: Tensor) -> Tensor:
    """Return the sums of rows from each start up to the next: numpy's `add.reduceat`."""
    parts = torch.bucketize(torch.arange(len(x), device=x.device), starts, right=True) - 1
    total = x.new_zeros((len(starts), *x.shape[1:]))
    return total.index_put_((parts,), x, accumulate=True)  # of one order, as `index_add_` is not


def _broadcast(device: Any, x: Tensor, shape: Any) -> Tensor:
    return torch.broadcast_to(torch.as_tensor(x, device=device), tuple(shape))


def _fourier(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    def call(device: Any, x: Tensor, n: int, axis: int, norm: str | None = None) -> Tensor:
        return function(x, n, axis, norm)

    return call


def _or_nan(function: Callable[..., Any]) -> Callable[..., Tensor]:
    """Return the function without its error: where a matrix of many has none, all are NaN."""

    def call(device: Any, *matrices: Tensor) -> Tensor:
        result, faults = function(*matrices)
        return torch.where((faults == 0).all(), result, torch.nan)

    return call


FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    **{name: _fourier(getattr(torch.fft, name)) for name in ("fft", "ifft", "rfft")},
    **{name: _or_nan(getattr(torch.linalg, f"{name}_ex")) for name in ("solve", "inv", "cholesky")},
    "slogdet": lambda device, a: tuple(torch.linalg.slogdet(a)),
    "where": _where,
    "zeros": _filler(0.0),
    "empty": lambda device, shape, dtype=torch.float64, order="C": torch.empty(
        shape, dtype=dtype, device=device
    ),
    "ones": _filler(1.0),
    "full": _full,
    "zeros_like": _like(0.0),
    "ones_like": _like(1.0),
    "empty_like": lambda device, x, dtype=None: torch.empty_like(x, dtype=dtype, device=device),
    "full_like": _full_like,
    "arange": _arange,
    "eye": _eye,
    "array": _array,
    "asarray": _as_array,
    "ascontiguousarray": lambda device, x, dtype=None: _as_array(device, x, dtype).contiguous(),
    "concatenate": _joiner(torch.cat),
    "stack": _joiner(torch.stack),
    "split": _split,
    "moveaxis": _of_method("moveaxis"),
    "swapaxes": _of_method("swapaxes"),
    "transpose": lambda device, x, axes=None: x.permute(axes or tuple(range(x.ndim))[::-1]),
    "reshape": lambda device, x, shape: x.reshape(shape),
    "ravel": lambda device, x: x.reshape(-1),
    "squeeze": _of_method("squeeze"),
    "expand_dims": _with_axis,
    "broadcast_to": _broadcast,
    "flip": _flip,
    "repeat": _repeat,
    "tile": _of_method("tile"),
    "take": _take,
    "argsort": _argsort,
    "argmax": _argmost(torch.argmax),
    "argmin": _argmost(torch.argmin),
    "nonzero": lambda device, x: torch.nonzero(x, as_tuple=True),
    "flatnonzero": lambda device, x: torch.nonzero(x.reshape(-1)).reshape(-1),
    "searchsorted": lambda device, x, values, side="left": torch.searchsorted(
        x, values.contiguous(), side=side
    ),
    "count_nonzero": lambda device, x: torch.count_nonzero(x),
    "lexsort": _lexsort,
    "pad": _pad,
    "nan_to_num": _numbers,
    "unique": _unique,
    "diff": _diff,
    "cumsum": lambda device, x, axis=0: torch.cumsum(x, axis),
    "sum": _reduction_call("add"),
    "prod": _reduction_call("multiply"),
    "max": _reduction_call("maximum"),
    "min": _reduction_call("minimum"),
    "amax": _reduction_call("maximum"),
    "amin": _reduction_call("minimum"),
    "mean": _mean,
    "var": _var,
    "any": _truth(torch.any),
    "all": _truth(torch.all),
    "clip": _clip,
    "dot": _dot,
    "isposinf": _infinite(1.0),
    "isneginf": _infinite(-1.0),
    "triu": lambda device, x, k=0: torch.triu(x, k),
    "tril": lambda device, x, k=0: torch.tril(x, k),
    "tensordot": _tensordot,
    "sliding_window_view": _windows,
    "indices": _indices,
    "shape": lambda device, x: tuple(x.shape),
    "ndim": lambda device, x: x.ndim,
    "size": lambda device, x: x.numel(),
}
"""By numpy's name, functions of the device and of tensors where numpy has arrays."""
