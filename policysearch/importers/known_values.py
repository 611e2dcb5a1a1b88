"""What forward asks of tensors that no input and no parameter has part in, as a number or a branch.

torch.export knows no values, and ends where one is asked for: of lengths that are all the same, of
points of time, of a buffer that says whether a layer has begun. Here they are computed.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import Any
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


class _Unknown(Exception):
    """A value that depends on inputs or parameters, is drawn, or has been written over."""


class Asked:
    """The values that forward asks of, while a module is exported; `buffers` are those read."""

    def __init__(self, module: Any) -> None:
        self._module, self._real = module, dict(module.named_buffers())
        self.buffers: set[str] = set()

    def value(self, x: Any) -> Any:
        """Return the tensor with its numbers, None where they are not known."""
        tracer = _tracer()
        try:
            return self._of_node(_node_of(x, tracer), tracer)
        except _Unknown:
            return None

    def is_computed(self, x: Any) -> bool:
        """Return whether a tensor is what forward computed of more than what is known."""
        try:
            computed = _node_of(x, _tracer()).op == "call_function"
        except _Unknown:
            return False
        return computed and self.value(x) is None

    def _of_node(self, last: Any, tracer: Any) -> Any:
        needed = _ancestors(last)
        if not _written_bases(last.graph).isdisjoint(map(_base, needed)):
            raise _Unknown
        if op_of(last) in BELOW and op_of(last.args[0]) in SHARES:
            return _of_share(last)
        buffers = self._nodes_of_buffers(tracer)
        read = {buffers[node] for node in needed if node in buffers}
        with _outside(), torch.no_grad():
            values: dict[Any, Any] = {}
            for node in needed:
                if node in buffers:
                    values[node] = self._real[buffers[node]]
                elif node.op == "call_function" and DRAWN not in getattr(node.target, "tags", ()):
                    args, kwargs = torch.fx.map_arg((node.args, node.kwargs), values.__getitem__)
                    values[node] = node.target(*args, **kwargs)
                else:
                    raise _Unknown
        self.buffers |= read
        return values[last]

    def _nodes_of_buffers(self, tracer: Any) -> dict[Any, str]:
        """Return the names of the buffers that are as they were at first, by their nodes."""
        nodes: dict[Any, str] = {}
        for name, buffer in self._module.named_buffers():
            with contextlib.suppress(_Unknown):
                node = _node_of(buffer, tracer)
                if node.op == "placeholder":
                    nodes[node] = name
        return nodes

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


def _is_read(x: Any) -> bool:
    """Return whether a tensor is part of a forward pass that is exported at this moment."""
    try:
        _node_of(x, _tracer())
    except _Unknown:
        return False
    return True


def _tracer() -> Any:
    """Return what records the calls of forward, None where none is exported."""
    mode = torch._ops._get_dispatch_mode_pre_dispatch(torch._C._TorchDispatchModeKey.PROXY)
    return None if mode is None else mode.tracer


def _node_of(x: Any, tracer: Any) -> Any:
    if tracer is None:
        raise _Unknown
    inner = torch._from_functional_tensor(x.elem) if hasattr(x, "elem") else x
    slot = get_proxy_slot(inner, tracer, None)
    if slot is None:
        raise _Unknown
    return slot.proxy.node


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


def _ancestors(last: Any) -> list[Any]:
    """Return the nodes that a value is computed from, in their order, itself the last."""
    waiting, needed = [last], set[Any]()
    while waiting:
        node = waiting.pop()
        if node not in needed:
            needed.add(node)
            waiting += node.all_input_nodes
    return [node for node in last.graph.nodes if node in needed]


class _Data:
    """Tensor.data while a forward pass is read: what it has is seen, as by detach()."""

    def __get__(self, x: Any, owner: Any = None) -> Any:
        return self if x is None else x.detach()

    def __set__(self, x: Any, value: Any) -> None:
        if _is_read(x):  # torch.export forgets that it was set
            raise InputError(
                "forward sets the data of a tensor; expected what it computes with to be written "
                "where it stands, or run forward once before, if only the first does that"
            )
        torch._C.TensorBase.data.__set__(x, value)


@contextlib.contextmanager
def values_known(module: Any) -> Iterator[Asked]:
    """While it is entered, what of a tensor's numbers is known is given where forward asks.

    What torch itself asks of other values is not so, and Tensor.data is a view without gradients.
    """
    asked = Asked(module)

    def asking(name: str) -> Callable[..., Any]:
        real = getattr(torch.Tensor, name)

        def ask(x: Any, *arguments: Any) -> Any:
            known = asked.value(x)
            if known is not None:
                with _outside():
                    return real(known, *arguments)
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
        stack.enter_context(mock.patch.object(torch.Tensor, "data", _Data(), create=True))
        yield asked
