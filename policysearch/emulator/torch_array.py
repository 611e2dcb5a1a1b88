"""Arrays of numpy on torch's tensors: an op's numpy runs as it stands where its tensors lie.

An op is written once. numpy hands every function of a `TorchArray` to its class (the protocols
`__array_ufunc__` and `__array_function__`), which calls torch. What has no torch function here
runs in numpy on the host, right but slow.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
from numpy.lib.mixins import NDArrayOperatorsMixin

from policysearch.emulator.torch_functions import (
    ACCUMULATIONS,
    FUNCTIONS,
    REDUCTIONS,
    UFUNCS,
    put_at,
    sums_from,
)
from policysearch.rounding.grid import Grid
from policysearch.rounding.torch_bits import keys_of, rounded

DTYPES: Mapping[np.dtype[Any], Any] = {
    np.dtype(name): getattr(torch, name)
    for name in ("float32", "float64", "int32", "int64", "uint8", "int8", "int16", "bool")
}
NUMPY: Mapping[Any, np.dtype[Any]] = {own: given for given, own in DTYPES.items()}


@cache  # a captured step reads them where they lie
def _table(content: bytes, kind: str, shape: tuple[int, ...], dtype: Any, device: Any) -> Any:
    """Return a constant number or array of an op, kept on the device."""
    array = np.frombuffer(content, kind).reshape(shape).copy()
    return torch.from_numpy(array).to(device=device, dtype=dtype)


def constant(value: float, dtype: Any, device: Any) -> Any:
    """Return a tensor of no dimension that lies with the others.

    torch divides by a number of the host, on some devices, as a product with its inverse.
    """
    if dtype in (torch.float32, torch.float64, torch.bool) or abs(value) < 2**53:
        return _table(struct.pack("=d", value), "=f8", (), dtype, device)
    return torch.tensor(value, dtype=dtype, device=device)


SMALL_TABLE = 4096
"""Elements of an op's own constant arrays, which go to the device once."""


class TorchArray(NDArrayOperatorsMixin):
    """A tensor that numpy, and what is written with numpy, takes for an array."""

    __slots__ = ("tensor",)

    def __init__(self, tensor: Any) -> None:
        self.tensor = tensor

    # What an array says of itself.
    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.tensor.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        return NUMPY[self.tensor.dtype]

    @property
    def ndim(self) -> int:
        return int(self.tensor.ndim)

    @property
    def size(self) -> int:
        return int(self.tensor.numel())

    @property
    def nbytes(self) -> int:
        return self.size * self.dtype.itemsize

    @property
    def strides(self) -> tuple[int, ...]:
        return tuple(step * self.dtype.itemsize for step in self.tensor.stride())

    @property
    def real(self) -> TorchArray:
        return TorchArray(self.tensor.real)

    @property
    def imag(self) -> TorchArray:
        return TorchArray(self.tensor.imag)

    @property
    def T(self) -> TorchArray:
        return self.transpose()

    def __len__(self) -> int:
        return len(self.tensor)

    def __iter__(self) -> Iterator[TorchArray]:
        return (TorchArray(part) for part in self.tensor)

    def __repr__(self) -> str:
        return f"TorchArray({self.tensor!r})"

    # What leaves the device.
    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.tensor.detach().cpu().numpy()
        wanted = array.dtype if dtype is None else np.dtype(dtype)
        return array.astype(wanted, copy=copy is not False)

    def __bool__(self) -> bool:
        return bool(self.tensor)

    def __float__(self) -> float:
        return float(self.tensor)

    def __int__(self) -> int:
        return int(self.tensor)

    def __index__(self) -> int:
        return int(self.tensor)

    def item(self) -> Any:
        return self.tensor.item()

    def tolist(self) -> Any:
        return self.tensor.tolist()

    # Views and copies.
    def view(self, dtype: Any) -> TorchArray:
        return TorchArray(self.tensor.view(DTYPES[np.dtype(dtype)]))

    def astype(self, dtype: Any, order: str = "K", copy: bool = True) -> TorchArray:
        return TorchArray(self.tensor.to(DTYPES[np.dtype(dtype)], copy=copy))

    def copy(self, order: str = "C") -> TorchArray:
        kept = torch.preserve_format if order == "K" else torch.contiguous_format
        return TorchArray(self.tensor.clone(memory_format=kept))

    def reshape(self, *shape: Any) -> TorchArray:
        return TorchArray(self.tensor.reshape(*shape))

    def ravel(self, order: str = "C") -> TorchArray:
        if order == "K":  # as it lies in memory
            axes = sorted(range(self.ndim), key=lambda axis: -self.tensor.stride(axis))
            return TorchArray(self.tensor.permute(axes).reshape(-1))
        return TorchArray(self.tensor.reshape(-1))

    def flatten(self, order: str = "C") -> TorchArray:
        return self.ravel(order).copy()

    def transpose(self, *axes: Any) -> TorchArray:
        if len(axes) == 1 and not isinstance(axes[0], int):
            (axes,) = axes
        return TorchArray(self.tensor.permute(axes or tuple(range(self.ndim))[::-1]))

    def swapaxes(self, first: int, second: int) -> TorchArray:
        return TorchArray(self.tensor.swapaxes(first, second))

    def fill(self, value: float) -> None:
        self.tensor.fill_(value)

    def __getitem__(self, key: Any) -> TorchArray:
        return TorchArray(self.tensor[self._key(key)])

    def __setitem__(self, key: Any, value: Any) -> None:
        if key is Ellipsis and isinstance(value, bool | int | float | np.generic):
            self.tensor.fill_(value if not isinstance(value, np.generic) else value.item())
            return
        if isinstance(value, np.ndarray):  # what is fed is no constant
            given = _from_numpy(value).to(self.tensor.device, self.tensor.dtype)
        else:
            given = _tensor(value, self.tensor.device, self.tensor.dtype)
        if key is Ellipsis and given.shape == self.tensor.shape:
            self.tensor.copy_(given)
        elif isinstance(key, TorchArray) and key.tensor.dtype == torch.bool and not given.ndim:
            mask = key.tensor.reshape(*key.shape, *(1,) * (self.ndim - key.ndim))
            self.tensor.masked_fill_(mask, given)  # by its places the host would wait for them
        else:
            self.tensor[self._key(key)] = given.to(self.tensor.dtype)

    def _key(self, key: Any) -> Any:
        parts = key if isinstance(key, tuple) else (key,)
        return tuple(_part(part, self.tensor.device) for part in parts)

    # Rounding, for `rounding.rounder`.
    def rounded(self, grid: Grid, seed: int, counter: int) -> TorchArray:
        """Return the array rounded onto a grid, its elements drawing in C order."""
        x = self.tensor.contiguous()
        keys = keys_of(x.numel(), seed, counter).to(x.device) if grid.stochastic else None
        return TorchArray(rounded(grid, x, keys))

    # What numpy's functions make of it.
    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        outs = kwargs.pop("out", (None,))
        if method == "__call__" and ufunc.__name__ in UFUNCS:
            result = self._call(ufunc, inputs, outs[0], kwargs)
        elif method == "reduce" and ufunc.__name__ in REDUCTIONS:
            result = TorchArray(REDUCTIONS[ufunc.__name__](_bare(inputs[0]), *inputs[1:], **kwargs))
        elif method == "accumulate" and ufunc.__name__ in ACCUMULATIONS:
            result = TorchArray(
                ACCUMULATIONS[ufunc.__name__](_bare(inputs[0]), *inputs[1:], **kwargs)
            )
        elif method == "reduceat" and ufunc is np.add:
            result = TorchArray(sums_from(inputs[0].tensor, inputs[1].tensor))
        elif method == "at" and ufunc in (np.add, np.maximum, np.minimum):
            array, key, values = inputs
            own = array.tensor
            places, values = array._key(key), _tensor(values, own.device, own.dtype)
            put_at(ufunc.__name__, own, places, values)
            return None
        else:
            name = ufunc.__name__ + (f".{method}" if method != "__call__" else "")
            result = self._on_host(name, getattr(ufunc, method), inputs, kwargs)
        return result if outs[0] is None else _written(outs[0], result)

    def _call(self, ufunc: Any, inputs: Any, out: Any, kwargs: dict[str, Any]) -> TorchArray:
        where = kwargs.pop("where", True)
        tensors = self._alike(ufunc, inputs)
        if ufunc is np.matmul and isinstance(out, TorchArray):
            torch.matmul(*tensors, out=out.tensor)
            return out
        function = UFUNCS[ufunc.__name__]
        if where is True and isinstance(out, TorchArray) and _is_written_by(ufunc, tensors, out):
            function(*tensors, out=out.tensor)
            return out
        found = function(*tensors)
        if where is not True:
            found = torch.where(_tensor(where, found.device), found, _tensor(out, found.device))
        return TorchArray(found)

    def _alike(self, ufunc: Any, inputs: Any) -> list[Any]:
        """Return the inputs as tensors of the type that numpy would compute in."""
        device, given = self.tensor.device, [_promotion_operand(each) for each in inputs]
        wanted = DTYPES[_computation_type(ufunc, *given)]
        return [_tensor(each, device, wanted) for each in inputs]

    def __array_function__(self, function: Any, types: Any, args: Any, kwargs: Any) -> Any:
        name = function.__name__
        if name == "copyto":
            return _written(args[0], args[1])
        if name not in FUNCTIONS:
            return self._on_host(name, function, args, kwargs)
        device = self.tensor.device
        kwargs = {key: value for key, value in kwargs.items() if key not in _PLACING}
        kwargs = {key: _known(value, device) for key, value in kwargs.items()}
        found = FUNCTIONS[name](device, *(_known(each, device) for each in args), **kwargs)
        return _array_of(found)

    def _on_host(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        there = {key: _host_value(value) for key, value in kwargs.items()}
        found = function(*(_host_value(each) for each in args), **there)
        several = isinstance(found, tuple | list)
        on_device = [
            _from_host(each, self.tensor.device) for each in (found if several else [found])
        ]
        return type(found)(on_device) if several else on_device[0]


def _is_written_by(ufunc: Any, tensors: Sequence[Any], out: TorchArray) -> bool:
    """Return whether torch writes the result into `out` itself: without one more pass over it."""
    same = all(each.dtype == out.tensor.dtype for each in tensors)
    whole = torch.broadcast_shapes(*(each.shape for each in tensors)) == out.tensor.shape
    return ufunc.__name__ in _WRITES and same and whole


_WRITES = frozenset(("add", "subtract", "multiply", "divide", "sqrt", "exp", "maximum", "minimum"))


def _method(name: str) -> Callable[..., Any]:
    def method(self: TorchArray, *args: Any, **kwargs: Any) -> Any:
        return getattr(np, name)(self, *args, **kwargs)

    return method


for _name in (
    *("sum", "mean", "max", "min", "any", "all", "argmax", "argmin", "argsort", "cumsum", "clip"),
    *("repeat", "squeeze", "take", "nonzero", "var", "prod"),
):
    setattr(TorchArray, _name, _method(_name))


def _bare(value: Any) -> Any:
    return value.tensor if isinstance(value, TorchArray) else value


def _known(value: Any, device: Any) -> Any:
    """Return an argument with its arrays as tensors, inside of sequences too; the rest as it is."""
    if isinstance(value, TorchArray):
        return value.tensor
    if isinstance(value, np.ndarray):
        return _tensor(value, device)
    if isinstance(value, list | tuple) and any(
        isinstance(each, TorchArray | np.ndarray | list | tuple) for each in value
    ):
        return type(value)(_known(each, device) for each in value)
    if isinstance(value, np.dtype | type) and np.dtype(value) in DTYPES and value is not None:
        return DTYPES[np.dtype(value)]
    if isinstance(value, np.generic):
        return constant(value.item(), DTYPES[value.dtype], device)
    return value


def _array_of(found: Any) -> Any:
    if isinstance(found, torch.Tensor):
        return TorchArray(found)
    if isinstance(found, tuple | list):
        return type(found)(_array_of(each) for each in found)
    return found


def _tensor(value: Any, device: Any, dtype: Any = None) -> Any:
    """Return a number or an array as a tensor on the device, of a type if one is given."""
    if isinstance(value, TorchArray):
        return value.tensor if dtype is None else value.tensor.to(dtype)
    if isinstance(value, np.generic | bool | int | float):
        own = DTYPES[np.asarray(value).dtype] if dtype is None else dtype
        return constant(value if not isinstance(value, np.generic) else value.item(), own, device)
    given = np.asarray(value)
    if given.size <= SMALL_TABLE:
        return _table(given.tobytes(), given.dtype.str, given.shape, dtype, device)
    return _from_numpy(given).to(device=device, dtype=dtype)


def _from_numpy(array: Any) -> Any:
    if any(stride < 0 for stride in array.strides) or not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(array)


def _host_value(value: Any) -> Any:
    if isinstance(value, TorchArray):
        return np.asarray(value)
    if isinstance(value, list | tuple):
        return type(value)(_host_value(each) for each in value)
    return value


def _from_host(value: Any, device: Any) -> Any:
    known = isinstance(value, np.ndarray | np.generic) and value.dtype in DTYPES
    return TorchArray(_from_numpy(np.array(value)).to(device)) if known else value


def _written(out: Any, result: Any) -> Any:
    if out is result:
        return out
    if isinstance(out, TorchArray):
        out[...] = result
    else:
        np.copyto(out, np.asarray(result))
    return out


def _part(part: Any, device: Any) -> Any:
    if isinstance(part, TorchArray):
        kept = part.tensor.dtype in (torch.bool, torch.int64)
        return part.tensor if kept else part.tensor.long()
    if isinstance(part, np.ndarray):
        return _tensor(part if part.dtype == np.bool_ else part.astype(np.int64), device)
    return int(part) if isinstance(part, np.integer) else part


def _promotion_operand(value: Any) -> Any:
    """Return what numpy's promotion looks at: a type, or a Python number, which is weak."""
    if isinstance(value, bool):
        return np.dtype(np.bool_)
    return value if isinstance(value, int | float) else value.dtype


_PLACING = frozenset(("like", "device"))
"""Arguments that say where numpy makes an array: here where the others are."""

_FLOATING = frozenset(("divide", "reciprocal"))


def _computation_type(ufunc: Any, *given: Any) -> np.dtype[Any]:
    """Return the type that a numpy function of these types or numbers computes in."""
    found = np.result_type(*given)
    whole = found.kind in "iub" and (
        ufunc.__name__ in _FLOATING
        or all(kind.split("->")[0][0] not in "bBhHiIlLqQ?" for kind in ufunc.types)
    )
    return np.dtype(np.float64) if whole else found
