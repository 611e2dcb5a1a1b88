"""Whose format a cast is to: `x.to(y.dtype)`, which torch.export keeps as a cast to a dtype.

While a forward pass runs, who reads the dtype of a value is noted by the place of the code that
does it, and what a cast is called with is looked up there: the read that its arguments hold, or the
variable that only reads are stored in. A copy of the module in bfloat16 has `x.type_as(y)` in its
place. A tensor that is made in the format of a value, as `torch.zeros(8, dtype=y.dtype)`, is noted
to be so. Where Python's code does not say such places as is known here, nothing is followed.
"""

from __future__ import annotations

import contextlib
import dis
import os
import sys
from bisect import bisect_right
from collections.abc import Iterator
from contextlib import AbstractContextManager
from functools import lru_cache
from itertools import pairwise
from types import FrameType
from typing import Any
from unittest import mock

import torch

TORCH = os.path.dirname(torch.__file__)

FOLLOWED = "aten.type_as.default", "aten.to.dtype"
"""The call that says what a cast follows, and the cast."""

Place = tuple[FrameType, Any]
"""A frame and a variable of it or an instruction; it is held, so that no other takes its number."""

ALIAS = "aten.alias.default"
MAKERS = ("full", "zeros", "ones", "empty", "tensor", "as_tensor", "linspace", "arange", "eye")
"""Functions of torch that make a tensor in the format that they are given."""

FORMAT = "format of"
"""Of a node that makes a tensor in the format of a value: that one's node."""

_dtype: Any = torch._C.TensorBase.dtype
_casts: Any = {name: getattr(torch.Tensor, name) for name in ("to", "type", "type_as")}


class _Reads:
    """Of every place the value whose dtype was last read into it."""

    def __init__(self) -> None:
        self.values: dict[Place, Any] = {}

    def note(self, frame: FrameType, value: Any) -> None:
        if frame.f_code.co_filename.startswith(TORCH):
            return
        rows, at = _rows(frame.f_code), _index(frame)
        self.values[frame, rows[at].offset] = value
        if rows[at + 1].opname.startswith("STORE_"):
            for name in set(_names(rows[at + 1])[:1]) & _only_reads(frame.f_code):
                self.values[frame, name] = value

    def behind(self, frame: FrameType, dtype: Any) -> Any:
        """Return the value of this format that the call under way reads, None if none is known."""
        rows, at = _rows(frame.f_code), _index(frame)
        inside = (row for row in reversed(rows[:at]) if _holds(rows[at].positions, row.positions))
        places = (place for row in inside for place in (row.offset, *_names(row)))
        found = (self.values.get((frame, place)) for place in places)
        return next((y for y in found if y is not None and _dtype.__get__(y) == dtype), None)


class _Dtype:
    """Tensor.dtype, noted where it is read."""

    def __init__(self, reads: _Reads) -> None:
        self._reads = reads

    def __get__(self, x: Any, owner: Any = None) -> Any:
        if x is None:
            return self
        dtype = _dtype.__get__(x)
        if dtype.is_floating_point:
            self._reads.note(sys._getframe(1), x)
        return dtype


def followed_known() -> AbstractContextManager[None]:
    """While it is entered, a cast to the dtype of a value is called as one to that of this value.

    It stays a cast in a module of float32, where every value has that dtype.
    """
    return _read_follower(_Reads()) if places_known() else contextlib.nullcontext()


@contextlib.contextmanager
def _read_follower(reads: _Reads) -> Iterator[None]:
    methods = {
        **{name: _cast(reads, name) for name in ("to", "type")},
        **{"type_as": _type_as, "new_tensor": _made_beside(torch.Tensor.new_tensor)},
    }
    with contextlib.ExitStack() as stack:
        patch = mock.patch.object(torch.Tensor, "dtype", _Dtype(reads), create=True)
        stack.enter_context(patch)
        for name, call in methods.items():
            stack.enter_context(mock.patch.object(torch.Tensor, name, call))
        for name in MAKERS:
            call = _maker(reads, getattr(torch, name))
            stack.enter_context(mock.patch.object(torch, name, call))
        yield


def _cast(reads: _Reads, name: str) -> Any:
    def call(x: Any, *arguments: Any, **options: Any) -> Any:
        if len(arguments) == 1 and isinstance(arguments[0], torch.Tensor) and not options:
            return _type_as(x, arguments[0])
        named = (*arguments, options.get("dtype"))
        dtype = next((item for item in named if isinstance(item, torch.dtype)), None)
        copied = options.get("copy") or options.get("memory_format") is not None
        y = None if dtype is None or copied else reads.behind(sys._getframe(1), dtype)
        if y is None:
            return _casts[name](x, *arguments, **options)
        if dtype == torch.float32:
            return _casts["to"](_apart(x), dtype)
        return _casts["type_as"](_apart(x), y)

    return call


def _type_as(x: Any, other: Any) -> Any:
    own = not sys._getframe(1).f_code.co_filename.startswith(TORCH)
    return _casts["type_as"](_apart(x) if own else x, other)


def _maker(reads: _Reads, make: Any) -> Any:
    def call(*arguments: Any, dtype: Any = None, **options: Any) -> Any:
        tensor = make(*arguments, dtype=dtype, **options)
        y = None if dtype is None else reads.behind(sys._getframe(1), dtype)
        return tensor if y is None else _casts["type_as"](_apart(tensor), y)

    return call


def _made_beside(make: Any) -> Any:
    def call(x: Any, *arguments: Any, **options: Any) -> Any:
        tensor = make(x, *arguments, **options)
        alike = tensor.is_floating_point() and _dtype.__get__(tensor) == _dtype.__get__(x)
        return _casts["type_as"](_apart(tensor), x) if alike else tensor

    return call


def note_formats(graph: Any) -> None:
    """Put at each tensor made in the format of a value the node of that, for casts to it."""
    for node in list(graph.nodes):
        apart = node.args[0] if str(node.target) == FOLLOWED[0] else None
        maker = apart.args[0] if apart is not None and str(apart.target) == ALIAS else None
        if maker is not None and not maker.all_input_nodes and maker.op == "call_function":
            maker.meta[FORMAT] = node.args[1]
            node.replace_all_uses_with(maker)
            graph.erase_node(node)
            graph.erase_node(apart)


def _apart(x: Any) -> Any:
    """Return x by another name: a cast that changes nothing gives x, whose later uses it takes.

    Not a tensor that is no value of the pass: a module may hold it, and put the cast in its place.
    """
    return x if type(x) is torch.Tensor else torch.ops.aten.alias(x)


class _Tried(_Reads):
    """Reads that keep what was found behind every cast."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[Any] = []

    def behind(self, frame: FrameType, dtype: Any) -> Any:
        self.found.append(super().behind(frame, dtype))
        return self.found[-1]


@lru_cache(maxsize=1)
def places_known() -> bool:
    """Return whether this Python says where reads and casts are; tried, in each of their forms."""
    x, y, tried = torch.zeros(1), torch.zeros(1, dtype=torch.float64), _Tried()
    try:
        with _read_follower(tried):
            _casts_in_all_forms(x, y, torch.float64)
    except (AttributeError, IndexError, TypeError, ValueError):
        return False
    return [value is y for value in tried.found] == [True] * 4 + [False] * 2


def _casts_in_all_forms(x: Any, y: Any, other: Any) -> None:
    """Cast four times to the dtype of y, then twice to one that is only the same."""
    kept = y.dtype
    changed = y.dtype
    x.to(y.dtype)
    x.to(kept).to(device="cpu", dtype=y.dtype)
    (lambda: x.to(y.dtype))()
    changed = other
    x.to(changed)
    x.to(other)


def call_name(node: Any) -> str:
    """Return the name of a call, the same of a cast and of what says whom it follows."""
    says, is_cast = FOLLOWED
    return str(node.target).replace(says, is_cast) if node.op == "call_function" else str(node.op)


@lru_cache(maxsize=4096)
def _rows(code: Any) -> list[dis.Instruction]:
    return list(dis.get_instructions(code))


@lru_cache(maxsize=4096)
def _only_reads(code: Any) -> frozenset[str]:
    """Return the variables that nothing but a value's dtype is stored in."""
    pairs = [(before, name) for before, row in pairwise(_rows(code)) for name in _stored_names(row)]
    others = {name for row, name in pairs if (row.opname, row.argval) != ("LOAD_ATTR", "dtype")}
    return frozenset(name for _, name in pairs) - others


def _stored_names(row: Any) -> tuple[str, ...]:
    return _names(row) if "STORE_" in row.opname else ()


def _index(frame: FrameType) -> int:
    """Return the place of the instruction under way; a call's own number lies behind its caches."""
    return bisect_right(_rows(frame.f_code), frame.f_lasti, key=lambda row: row.offset) - 1


def _names(row: Any) -> tuple[str, ...]:
    """Return the variables of an instruction, of which later versions of Python join two."""
    if "FAST" not in row.opname and "DEREF" not in row.opname:
        return ()
    return row.argval if isinstance(row.argval, tuple) else (row.argval,)


def _holds(outer: Any, inner: Any) -> bool:
    if inner is None or None in (*outer, *inner):
        return False
    starts = (outer.lineno, outer.col_offset) <= (inner.lineno, inner.col_offset)
    return bool(
        starts
        and (inner.end_lineno, inner.end_col_offset) <= (outer.end_lineno, outer.end_col_offset)
    )
