"""What forward asks of tensors that no input and no parameter has part in, as a number or a branch.

torch.export knows no values, and ends where one is asked for: of lengths that are all the same, of
points of time, of a buffer that says whether a layer has begun. Here they are computed.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from types import MappingProxyType
from typing import Any, cast
from unittest import mock

import torch
from torch.fx.experimental.proxy_tensor import get_proxy_slot
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.utils._python_dispatch import _disable_current_modes

from policysearch.importers.aliases import VIEWS, op_of, written
from policysearch.values import InputError

VALIDITY = tuple(inspect.getfile(part) for part in (torch.nn.functional, torch.nn.Transformer))
"""Where torch itself asks values whether they are valid, or a causal mask, which is quicker."""

ASKS = ("__bool__", "__int__", "__float__", "__index__", "item", "tolist")
"""What of a tensor gives numbers of Python."""

DRAWN = torch.Tag.nondeterministic_seeded

SHARES = ("aten.rand", "aten.rand_like")
"""Ops that draw from 0 to 1."""

BELOW: Mapping[str, bool] = MappingProxyType(
    {"aten.lt": True, "aten.le": True, "aten.gt": False, "aten.ge": False}
)
"""Whether an op asks if a value is below a number, or above it."""


LIKE = ("ones_like", "zeros_like", "full_like", "new_ones", "new_zeros", "new_full")
"""Ops that read of their first argument what shape and format it has."""


FINITE: Mapping[str, bool] = MappingProxyType(
    {"aten.isnan": False, "aten.isinf": False, "aten.isfinite": True}
)
"""What ops say of values that are finite."""


class KnownValues:
    """Values of a forward pass, while its module is exported; `buffers` are those that were read.

    Not known is what depends on inputs or parameters, is drawn, or has been written over.
    """

    def __init__(self, module: Any) -> None:
        self._module, self._real = module, dict(module.named_buffers())
        self.buffers: set[str] = set()

    def value(self, x: Any) -> Any:
        """Return the tensor with its numbers, None where they are not known."""
        node = _node_of(x)
        return None if node is None else self._of_node(node)

    def while_finite(self, x: Any) -> Any:
        """Return what forward asks of whether activations are finite: while they are.

        Inputs may mark by nan what is missing, and are not taken to be finite.
        """
        node = _node_of(x)
        if node is None:
            return None
        parameters = {_node_of(p) for p in self._module.parameters()}
        checks = (each for each in _ancestors(node) if op_of(each) in FINITE)
        ends = {each for each in checks if parameters & {*_ancestors(each)}}
        return self._of_node(node, ends) if ends else None

    def is_computed(self, x: Any) -> bool:
        """Return whether a tensor is what forward computed of more than what is known."""
        node = _node_of(x)
        return node is not None and node.op == "call_function" and self._of_node(node) is None

    def _of_node(self, last: Any, ends: Collection[Any] = ()) -> Any:
        needed = _with_writers(_ancestors(last, ends), ends)
        if any(written(node) is not None and _base(node).op != "call_function" for node in needed):
            return None
        if op_of(last) in BELOW and op_of(last.args[0]) in SHARES:
            return _of_share(last)
        nodes = ((_node_of(buffer), name) for name, buffer in self._module.named_buffers())
        # One that forward has assigned has another node than the one it began with.
        buffers = {node: name for node, name in nodes if node and node.op == "placeholder"}
        if not all(node in buffers or _is_repeatable(node) for node in needed):
            return None
        self.buffers |= {buffers[node] for node in needed if node in buffers}
        values: dict[Any, Any] = {}
        with _outside(), torch.no_grad():
            for node in needed:
                if node in buffers:
                    values[node] = self._real[buffers[node]]
                elif node in ends:
                    values[node] = torch.full(node.meta["val"].shape, FINITE[op_of(node)])
                else:
                    if _is_like(node):
                        model = node.args[0]
                        shape, dtype = tuple(model.meta["val"].shape), model.meta["val"].dtype
                        values.setdefault(model, torch.empty(shape, dtype=dtype))
                    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
                    values[node] = node.target(*args, **kwargs)
        return values[last]

    def check(self, program: Any) -> None:
        """Raise InputError where forward changes what it read here."""
        signature = program.graph_signature
        places = signature.inputs_to_buffers
        changed = {places.get(node.name) for node in _written_bases(program.graph)}
        changed |= set(signature.buffers_to_mutate.values())
        for name in sorted(self.buffers & changed):
            raise InputError(
                f"buffer {name}: forward branches on it and changes it; expected the same way at "
                "every step: run forward once before, if only the first is another"
            )


@contextlib.contextmanager
def _outside() -> Iterator[None]:
    """Compute with numbers, unseen by what records the calls of forward."""
    with _disable_current_modes(), torch._C.DisableTorchFunction():
        yield


def _of_share(node: Any) -> Any:
    """Return whether a drawn share is below, or above, a number that all or none are below."""
    bound = node.args[1]
    if not isinstance(bound, int | float) or 0.0 < bound < 1.0:
        raise InputError(
            "forward branches on what it draws, as where layers are dropped; expected the same way "
            "at every step: set the probability to 0"
        )
    with _outside():
        return torch.tensor(BELOW[op_of(node)] == (bound >= 1.0))


def _node_of(x: Any) -> Any:
    """Return the node of a tensor in the forward pass that is exported now, None where it has none.

    Of a buffer that was written into it is that of the last writing.
    """
    mode = torch._ops._get_dispatch_mode_pre_dispatch(torch._C._TorchDispatchModeKey.PROXY)
    inner = torch._from_functional_tensor(x.elem) if hasattr(x, "elem") else x
    slot = None if mode is None else get_proxy_slot(inner, mode.tracer, None)
    return None if slot is None else slot.proxy.node


def _is_repeatable(node: Any) -> bool:
    return node.op == "call_function" and DRAWN not in getattr(node.target, "tags", ())


def _is_like(node: Any) -> bool:
    return op_of(node).removeprefix("aten.") in LIKE


def _written_bases(graph: Any) -> set[Any]:
    return {_base(node) for node in graph.nodes if written(node) is not None}


def _base(node: Any) -> Any:
    """Return the node whose memory another one may share."""
    while True:
        into = written(node)
        if into is None and op_of(node).removeprefix("aten.") in VIEWS:
            into = node.args[0]
        if not isinstance(into, torch.fx.Node):
            return node
        node = into


def _ancestors(last: Any, ends: Collection[Any] = ()) -> list[Any]:
    """Return the nodes that a value is computed from, in their order, itself the last.

    Not those behind `ends`.
    """
    waiting, needed = [last], set[Any]()
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += () if node in ends else node.all_input_nodes[_is_like(node) :]
    return [node for node in last.graph.nodes if node in needed]


def _with_writers(needed: list[Any], ends: Collection[Any]) -> list[Any]:
    """Return nodes with those that write into their memory, in their order."""
    graph, bases = needed[-1].graph, set(map(_base, needed))
    writers = [node for node in graph.nodes if written(node) is not None and _base(node) in bases]
    every = {node for writer in writers for node in _ancestors(writer, ends)}.union(needed)
    if len(every) == len(needed):
        return needed
    return _with_writers([node for node in graph.nodes if node in every], ends)


def _chosen(x: Any, mask: Any, count: int) -> Any:
    """Return the `count` rows that a mask chooses: its truths stand first where it is sorted."""
    places = torch.argsort(mask.flatten().logical_not().to(torch.int64), stable=True)[:count]
    return x.reshape(-1, *x.shape[mask.ndim :]).index_select(0, places)


SELECTIONS = (
    (torch.Tensor, "__getitem__"),
    (torch.Tensor, "masked_select"),
    (torch, "masked_select"),
)
"""Where forward chooses by a mask."""


def _known_selection(
    values: KnownValues, real: Callable[..., Any], spread: bool
) -> Callable[..., Any]:
    """Return a selection by a mask that says how many it chooses where the mask is known.

    `spread`: as many axes as either has are chosen from.
    """

    def choose(*given: Any, **named: Any) -> Any:
        plain = len(given) == 2 and not named
        x, mask = cast(tuple[Any, Any], given if plain else (None, None))
        node = _node_of(mask) if _is_mask(mask) else None
        numbers = values.value(mask) if node is not None and node.op == "call_function" else None
        if numbers is None:
            return real(*given, **named)
        if spread:
            x, mask = torch.broadcast_tensors(x, mask)
        with _outside():
            count = int(numbers.expand(tuple(mask.shape)).sum())
        fits = x.shape[: mask.ndim] == mask.shape
        return _chosen(x, mask, count) if fits and count else real(*given, **named)

    return choose


def _is_mask(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.dtype == torch.bool and value.ndim > 0


class _Data:
    """Tensor.data while a forward pass is read: what it has is seen, as by detach()."""

    def __get__(self, x: Any, owner: Any = None) -> Any:
        return self if x is None else x.detach()

    def __set__(self, x: Any, value: Any) -> None:
        if _node_of(x) is not None:  # torch.export forgets that it was set
            raise InputError(
                "forward sets the data of a tensor; expected what it computes with to be written "
                "where it stands, or run forward once before, if only the first does that"
            )
        torch._C.TensorBase.data.__set__(x, value)


@contextlib.contextmanager
def values_known(module: Any) -> Iterator[KnownValues]:
    """While it is entered, what of a tensor's numbers is known is given where forward asks.

    So is how many rows a mask chooses. What torch itself asks of other values is not given, and
    Tensor.data is a view without gradients.
    """
    values = KnownValues(module)

    def asking(name: str) -> Callable[..., Any]:
        real = getattr(torch.Tensor, name)

        def ask(x: Any, *arguments: Any) -> Any:
            numbers = values.value(x)
            numbers = values.while_finite(x) if numbers is None else numbers
            if numbers is not None:
                with _outside():
                    return real(numbers, *arguments)
            try:
                return real(x, *arguments)
            except GuardOnDataDependentSymNode:
                if sys._getframe(1).f_code.co_filename not in VALIDITY:
                    raise
                return False

        return ask

    with contextlib.ExitStack() as stack:
        for name in ASKS:
            stack.enter_context(mock.patch.object(torch.Tensor, name, asking(name)))
        for owner, name in SELECTIONS:
            choose = _known_selection(values, getattr(owner, name), name == "masked_select")
            stack.enter_context(mock.patch.object(owner, name, choose))
        stack.enter_context(mock.patch.object(torch.Tensor, "data", _Data(), create=True))
        yield values
