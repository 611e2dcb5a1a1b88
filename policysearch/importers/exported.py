"""Programs of torch.export, and what their nodes say.

What a module does to gradients itself, and buffers that it moves itself, are refused: the forward
pass, all that is read, does not show them.
"""

from __future__ import annotations

import contextlib
import copy
import io
import logging
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import torch
from torch._subclasses.fake_impls import op_implementations_dict

from policysearch.importers.program import FLOATS, TRUTHS, WHOLES, Extent, extent, resolved
from policysearch.values import InputError

GRADIENT_REMEDY = "expected the gradients that torch derives; leave it out"

BATCHES = (2, 3, 5)
"""Numbers of examples that a module is exported with."""

FLOAT_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

CASTS = ("aten.to", "aten._to_copy", "aten.type_as")

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


FRAME = re.compile(r'File "(.+)", line (\d+)')
TORCH = os.path.dirname(torch.__file__)


def check_hooks(module: Any) -> None:
    """Raise InputError where a parameter or a part of the module has a hook on gradients."""
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or parameter._post_accumulate_grad_hooks:
            raise InputError(f"parameter {name}: a hook on its gradient; {GRADIENT_REMEDY}")
    for name, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            raise InputError(
                f"module {name or type(part).__name__}: a backward hook; {GRADIENT_REMEDY}"
            )


@contextlib.contextmanager
def own_gradients_refused() -> Iterator[None]:
    """While it is entered, what a forward pass does to gradients itself raises InputError."""
    with (
        mock.patch.object(torch.autograd.Function, "apply", classmethod(_checked_apply)),
        mock.patch.object(torch.Tensor, "register_hook", _refused_hook),
    ):
        yield


@contextlib.contextmanager
def alignments_known() -> Iterator[None]:
    """While it is entered, torch.export takes a `ctc_loss`: without, the shapes are unknown to it.

    They are those of a value inside, which no program of the export has.
    """

    def alignments(mode: Any, op: Any, log_p: Any, *others: Any, **options: Any) -> Any:
        with mode:
            return log_p.new_empty(log_p.shape[1:-1]), log_p.new_empty(log_p.shape)

    overloads = (torch.ops.aten._ctc_loss.default, torch.ops.aten._ctc_loss.Tensor)
    with mock.patch.dict(op_implementations_dict, dict.fromkeys(overloads, alignments)):
        yield


_apply: Callable[..., Any] = torch.autograd.Function.__dict__["apply"].__func__


def _checked_apply(function: Any, *arguments: Any, **options: Any) -> Any:
    """Apply a function of torch's own, which has the gradient of what it computes."""
    if not function.__module__.startswith("torch."):
        raise InputError(
            f"autograd.Function {function.__name__}: a gradient of its own; {GRADIENT_REMEDY}"
        )
    return _apply(function, *arguments, **options)


def _refused_hook(value: Any, hook: Any) -> Any:
    raise InputError(f"Tensor.register_hook in forward: {GRADIENT_REMEDY}")


def exported(module: Any, inputs: tuple[Any, ...]) -> Any:
    """Return the training form of the module, before decomposition; InputError where it has none.

    torch logs and prints what it stumbles over besides raising it; one of them is enough.
    """
    modes = [(part, part.training) for part in module.modules()]
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stderr(io.StringIO()),
            own_gradients_refused(),
            alignments_known(),
        ):
            warnings.simplefilter("ignore")
            return torch.export.export(module.train(), inputs, strict=False)
    except InputError as error:
        raise InputError(f"module {type(module).__name__}: {error}") from error
    except Exception as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise InputError(
            f"module {type(module).__name__}: torch.export: {lines[0]}; expected a forward that it "
            f"takes, here with {len(inputs[0])} examples and without branches on values"
        ) from error
    finally:
        logging.disable(disabled)
        for part, training in modes:
            part.training = training


def exports(module: Any, example: tuple[Any, ...]) -> tuple[tuple[Any, Any, Any], bool]:
    """Return the exports at the BATCHES, and whether casts can be told apart.

    Two tell what depends on the batch and a third whether as they say; the second is of a bfloat16
    copy where there are casts, whose format shows what they follow.
    """
    # In float32 `x.float()` is x, and torch.export leaves no trace of which was meant. A bfloat16
    # copy of the module tells them apart: there the cast changes the dtype.
    first = exported(module, with_batch(example, BATCHES[0]))
    second, casts_known = _second_export(module, example, first)
    third = exported(module, with_batch(example, BATCHES[2]))
    if any(_calls(other) != _calls(first) for other in (second, third)):
        raise InputError(
            f"module {type(module).__name__}: other calls for other batch sizes; "
            "expected the same for all"
        )
    return (first, second, third), casts_known


def _second_export(module: Any, example: tuple[Any, ...], first: Any) -> tuple[Any, bool]:
    inputs = with_batch(example, BATCHES[1])
    if any(op_of(node) in ("aten.to", "aten._to_copy") for node in first.graph.nodes):
        low = tuple(x.to(torch.bfloat16) if x.dtype in FLOAT_TYPES else x for x in inputs)
        try:
            second = exported(copy.deepcopy(module).to(torch.bfloat16), low)
        except InputError:
            second = None
        if second is not None and _calls(second) == _calls(first):
            return second, True
    return exported(module, inputs), False


def with_batch(example: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """Return the example inputs with `count` examples, the first one repeated."""
    for index, x in enumerate(example):
        if not isinstance(x, torch.Tensor) or not x.ndim:
            raise InputError(f"example_inputs[{index}]: {type(x).__name__}; expected a tensor")
        if len(x) != len(example[0]):
            given = f"{len(x)} examples; expected {len(example[0])}, as in the first"
            raise InputError(f"example_inputs[{index}]: {given}")
        if x.dtype == torch.bool:
            remedy = "expected int64 or float32, made truth values in forward: x.bool()"
            raise InputError(f"example_inputs[{index}]: torch.bool; {remedy}")
    if not example or not len(example[0]):
        raise InputError("example_inputs: no example; expected tensors with the batch along axis 0")
    return tuple(x[:1].expand(count, *x.shape[1:]).clone() for x in example)


def _calls(program: Any) -> list[str]:
    return [str(n.target) if n.op == "call_function" else n.op for n in program.graph.nodes]


def op_of(node: Any) -> str:
    """Return "aten.linear" for a call of aten.linear.default."""
    if node.op != "call_function":
        return ""
    return str(getattr(node.target, "overloadpacket", getattr(node.target, "__name__", "")))


def in_place(node: Any) -> bool:
    name = op_of(node)
    return name.endswith("_") and not name.endswith("__")


def kind_of(node: Any) -> str:
    """Return what the result of a node holds, one of KINDS."""
    value = node.meta.get("val")
    value = value[0] if isinstance(value, list | tuple) and value else value
    if not isinstance(value, torch.Tensor) or value.dtype in FLOAT_TYPES:
        return FLOATS
    return TRUTHS if value.dtype == torch.bool else WHOLES


def is_random(node: Any) -> bool:
    """Return whether a call draws, so that every step has another value."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def rows_read(node: Any) -> int:
    """Return how many rows the smallest table has that the numbers of `node` look up; 0 if none."""
    counts = []
    for user in node.users:
        if op_of(user) == "aten.embedding" and user.args[1] is node:
            counts.append(int(user.args[0].meta["val"].shape[0]))
        elif op_of(user).removeprefix("aten.") in RELABELLED and user.args[0] is node:
            counts.append(rows_read(user))
    return min((count for count in counts if count), default=0)


def changes_a_view(node: Any) -> bool:
    """Return whether an op in place changes what is read later through another view."""
    # Here values are new nodes, not memory: another view, made before, would not see the change.
    nodes = list(node.graph.nodes)
    changed, root = _value(node), base_of(node)
    place = nodes.index(node)
    others = (n for n in nodes[:place] if base_of(n) is root and _value(n) is not changed)
    later = set(nodes[place + 1 :])
    return any(not later.isdisjoint(other.users) for other in others)


def _value(node: Any) -> Any:
    """Return the node that a chain of ops in place began with."""
    while in_place(node):
        node = node.args[0]
    return node


def base_of(node: Any) -> Any:
    """Return the node whose memory this one may share."""
    node = _value(node)
    while op_of(node).removeprefix("aten.") in VIEWS:
        node = _value(node.args[0])
    return node


def path_of(node: Any) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    return str(paths[-1]) if paths else ""


def line_of(node: Any) -> str:
    """Return the innermost line of code outside torch that a call comes from, "" if unknown."""
    frames = FRAME.findall(node.meta.get("stack_trace") or "")
    own = [(file, line) for file, line in frames if not file.startswith(f"{TORCH}{os.sep}")]
    return f"{os.path.basename(own[-1][0])}:{own[-1][1]}" if own else ""


def shape_of(nodes: Sequence[Any]) -> tuple[int | Extent, ...] | None:
    """Return the shape of what a call gives at the BATCHES; None where it is no single tensor."""
    values = [node.meta.get("val") for node in nodes]
    if not isinstance(values[0], torch.Tensor):
        return None
    return tuple(extent_of(extents) for extents in zip(*(v.shape for v in values), strict=True))


def single_axes(node: Any) -> tuple[int, ...]:
    """Return the axes of extent 1 of what a call gives; the batch is none, of one example too."""
    return tuple(axis for axis, extent in enumerate(node.meta["val"].shape) if extent == 1)


def shape_at_first(node: Any) -> tuple[int, ...] | None:
    """Return the shape of what a call gives at the first of the BATCHES."""
    value = node.meta.get("val")
    return tuple(value.shape) if isinstance(value, torch.Tensor) else None


def extent_of(extents: Sequence[int]) -> int | Extent:
    """Return the number that is these at the BATCHES; InputError where it grows unevenly."""
    by_batch = extent(int(extents[0]), int(extents[1]))
    if resolved(by_batch, BATCHES[2]) != extents[2]:
        raise _depends(extents)
    return by_batch


def number_of(numbers: Sequence[Any]) -> Any:
    """Return what is the same at all BATCHES; the second is of another format."""
    if numbers[0] != numbers[2]:
        raise _depends(numbers)
    return numbers[0]


def _depends(values: Sequence[Any]) -> InputError:
    return InputError(
        f"{values[0]} with {BATCHES[0]} examples, {values[2]} with {BATCHES[2]}; expected what "
        "does not depend on their number, or grows evenly with it, and is not drawn at random"
    )


def value_of(node: Any, values: Mapping[str, Any]) -> Any:
    """Return what a call gives on real values."""

    def real(x: Any) -> Any:
        return values[x.name]

    arguments = torch.fx.node.map_arg(node.args, real)
    options = torch.fx.node.map_arg(node.kwargs, real)
    with torch.no_grad():  # a region without gradients that fails would leave them off
        return node.target(*arguments, **options)


def adds_apart(node: Any) -> bool:
    """Return whether a linear adds its bias to the rounded product, in a rounding of its own.

    torch adds it before the one rounding to rows of two axes, or that lie side by side in memory
    (`aten/src/ATen/native/Linear.cpp`).
    """
    rows = node.args[0].meta["val"]
    return rows.dim() > 2 and not rows.is_contiguous()


def narrows(node: Any) -> bool:
    """Return whether a call casts float32 to 16 bits, as in a copy of the module in that format."""
    if op_of(node) not in CASTS:
        return False
    source, target = (x.meta["val"].dtype for x in (node.args[0], node))
    return source == torch.float32 and target in (torch.float16, torch.bfloat16)


def hides_rows(mask: Any) -> bool:
    """Return whether a mask leaves nothing of a row, in the range of float16 for numbers."""
    visible = mask if mask.dtype == torch.bool else mask > torch.finfo(torch.float16).min
    return not bool(visible.any(-1).all())


def differs(value: Any, whole: Any) -> bool:
    """Return whether an array is other than `value` repeated."""
    same = torch.isclose(value.double(), whole.double(), 0.0, 0.0, equal_nan=True)
    return not bool(same.all())


def array_names(module: Any, program: Any) -> tuple[tuple[str, str], ...]:
    """Return (placeholder, full name) pairs; a tied parameter has its first name."""
    first = {id(p): name for name, p in module.named_parameters()}
    every = dict(module.named_parameters(remove_duplicate=False))
    signature = program.graph_signature
    parameters = ((n, first[id(every[full])]) for n, full in signature.inputs_to_parameters.items())
    return (*parameters, *signature.inputs_to_buffers.items())


def region_nodes(program: Any, node: Any) -> Iterator[Any]:
    """Yield the nodes of the regions that a node calls, as of `with torch.no_grad()`."""
    for operand in node.all_input_nodes:
        if operand.op == "get_attr":
            yield from program.graph_module.get_submodule(operand.target).graph.nodes


class BufferUpdates:
    """Which of these `buffers`, by their placeholders, calls move, and the `nodes` in place."""

    def __init__(self, program: Any, buffers: Collection[str]) -> None:
        self.nodes: set[str] = set()
        self.buffers: set[str] = set()
        for node in program.graph.nodes:
            changed = {base_of(node).name} if in_place(node) else set()
            if any(in_place(part) for part in region_nodes(program, node)):
                changed = {operand.name for operand in node.all_input_nodes}
            self.buffers |= changed & set(buffers)
            if in_place(node) and not changed.isdisjoint(buffers):
                self.nodes.add(node.name)

    def read_by(self, node: Any) -> str:
        """Return the moved buffer that a node reads, "" where it reads none."""
        read = (base_of(operand).name for operand in node.all_input_nodes)
        return next((name for name in read if name in self.buffers), "")
