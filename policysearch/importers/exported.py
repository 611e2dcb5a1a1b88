"""Programs of torch.export, and what their nodes say."""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import warnings
from collections.abc import Mapping
from typing import Any

import torch

from policysearch.importers.program import Extent, extent
from policysearch.values import InputError

FLOATS = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

RELABELLED = ("view", "reshape", "flatten", "unsqueeze", "squeeze", "contiguous", "to", "slice")
"""Ops that change no value."""

VIEWS = frozenset(
    {
        *(*RELABELLED, "alias", "t", "mT", "numpy_T", "transpose", "permute", "unflatten"),
        *("expand", "expand_as", "select", "narrow", "unbind", "split", "split_with_sizes"),
        *("chunk", "getitem"),
    }
)
"""Ops whose result may share the memory of what they read."""


def exported(module: Any, inputs: tuple[Any, ...]) -> Any:
    """Return the training form of the module, before decomposition; InputError where it has none.

    torch logs and prints what it stumbles over besides raising it; one of them is enough.
    """
    modes = [(part, part.training) for part in module.modules()]
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            return torch.export.export(module.train(), inputs, strict=False)
    except Exception as error:
        said = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(
            f"module {type(module).__name__}: torch.export: {said[0]}; expected a forward that it "
            f"takes, here with {len(inputs[0])} examples and without branches on values"
        ) from error
    finally:
        logging.disable(disabled)
        for part, training in modes:
            part.training = training


def second_export(module: Any, example: tuple[Any, ...], first: Any) -> tuple[Any, bool]:
    """Return the export at batch size 3, of a bfloat16 copy where there are casts to tell apart."""
    inputs = with_batch(example, 3)
    if any(op_of(node) in ("aten.to", "aten._to_copy") for node in first.graph.nodes):
        low = tuple(x.to(torch.bfloat16) if x.dtype in FLOATS else x for x in inputs)
        try:
            second = exported(copy.deepcopy(module).to(torch.bfloat16), low)
        except InputError:
            second = None
        if second is not None and _calls(second) == _calls(first):
            return second, True
    second = exported(module, inputs)
    if _calls(second) != _calls(first):
        raise InputError(
            f"module {type(module).__name__}: other calls for other batch sizes; "
            "expected the same for all"
        )
    return second, False


def with_batch(example: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """Return the example inputs with `count` examples, the first one repeated."""
    for index, x in enumerate(example):
        if not isinstance(x, torch.Tensor) or not x.ndim:
            raise InputError(f"example_inputs[{index}]: {type(x).__name__}; expected a tensor")
        if len(x) != len(example[0]):
            given = f"{len(x)} examples; expected {len(example[0])}, as in the first"
            raise InputError(f"example_inputs[{index}]: {given}")
    if not example or not len(example[0]):
        raise InputError("example_inputs: no example; expected tensors with the batch along axis 0")
    return tuple(x[:1].expand(count, *x.shape[1:]).clone() for x in example)


def _calls(program: Any) -> list[str]:
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


def op_of(node: Any) -> str:
    """Return "aten.linear" for a call of aten.linear.default."""
    if node.op != "call_function":
        return ""
    return str(getattr(node.target, "overloadpacket", getattr(node.target, "__name__", "")))


def in_place(node: Any) -> bool:
    name = op_of(node)
    return name.endswith("_") and not name.endswith("__")


def rows_read(node: Any) -> int:
    """Return how many rows the smallest table has that the numbers of `node` look up; 0 if none."""
    found = []
    for user in node.users:
        if op_of(user) == "aten.embedding" and user.args[1] is node:
            found.append(int(user.args[0].meta["val"].shape[0]))
        elif op_of(user).removeprefix("aten.") in RELABELLED and user.args[0] is node:
            found.append(rows_read(user))
    return min((count for count in found if count), default=0)


def seen_elsewhere(node: Any) -> bool:
    """Return whether an op in place changes what is read later through another view."""
    nodes = list(node.graph.nodes)
    changed, root = _value(node), _base(node)
    place = nodes.index(node)
    others = (n for n in nodes[:place] if _base(n) is root and _value(n) is not changed)
    later = set(nodes[place + 1 :])
    return any(not later.isdisjoint(other.users) for other in others)


def _value(node: Any) -> Any:
    """Return the node that a chain of ops in place began with."""
    while in_place(node):
        node = node.args[0]
    return node


def _base(node: Any) -> Any:
    """Return the node whose memory this one may share."""
    node = _value(node)
    while op_of(node).removeprefix("aten.") in VIEWS:
        node = _value(node.args[0])
    return node


def path_of(node: Any) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    return str(paths[-1]) if paths else ""


def shape_of(two: Any, three: Any) -> tuple[int | Extent, ...] | None:
    a, b = two.meta.get("val"), three.meta.get("val")
    if not isinstance(a, torch.Tensor):
        return None
    return tuple(extent(int(x), int(y)) for x, y in zip(a.shape, b.shape, strict=True))


def value_of(node: Any, values: Mapping[str, Any]) -> Any:
    """Return what a call gives on real values."""

    def real(x: Any) -> Any:
        return values[x.name]

    arguments = torch.fx.node.map_arg(node.args, real)
    options = torch.fx.node.map_arg(node.kwargs, real)
    with torch.no_grad():  # a region without gradients that fails would leave them off
        return node.target(*arguments, **options)
