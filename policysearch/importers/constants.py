"""What an export computes of constants alone: its values, and how they grow with the batch."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from policysearch.importers.aliases import op_of
from policysearch.importers.decomposition import multiplies
from policysearch.importers.exported import BATCHES, LARGEST, kind_of, path_of
from policysearch.importers.followed import FORMAT
from policysearch.importers.packed import MARK
from policysearch.importers.program import COMPLEX, FLOATS, TRUTHS, WHOLES, Extent
from policysearch.values import InputError

FILLING = ("zeros", "empty", "ones", "full")


def rounded_products(program: Any) -> set[str]:
    """Return the products, of constants too, of modules that compute on inputs or parameters.

    Under autocast they round. A module of constants alone stays float32, and so does what whole
    numbers or truth values are made of.
    """
    signature = program.graph_signature
    live = {*signature.user_inputs, *signature.inputs_to_parameters}
    paths, counted = set[str](), set[str]()
    for node in program.graph.nodes:
        if any(x.name in live for x in node.all_input_nodes):
            live.add(node.name)
            paths.add(path_of(node))
    for node in reversed(program.graph.nodes):
        constant = node.op == "call_function" and node.name not in live
        if constant and (kind_of(node) != FLOATS or any(x.name in counted for x in node.users)):
            counted.add(node.name)
    products = filter(multiplies, program.graph.nodes)
    return {x.name for x in products if path_of(x) in paths and x.name not in counted}


def value_of(node: Any, values: Mapping[str, Any]) -> Any:
    """Return what a call gives on real values."""

    def real(x: Any) -> Any:
        return values[x.name]

    arguments = torch.fx.node.map_arg(node.args, real)
    options = torch.fx.node.map_arg(node.kwargs, real)
    # `empty` gives what lay there, which differs from run to run.
    target = torch.ops.aten.zeros.default if op_of(node) == "aten.empty" else node.target
    with torch.no_grad():  # a region without gradients that fails would leave them off
        return target(*arguments, **options)


def hides_rows(mask: Any) -> bool:
    """Return whether a mask leaves nothing of a row, in the range of float16 for numbers."""
    visible = mask if mask.dtype == torch.bool else mask > torch.finfo(torch.float16).min
    return not bool(visible.any(-1).all())


def copies_keys(node: Any, mask: Any) -> bool:
    """Return whether transformers, where it is not exported, has a copy of keys for every query.

    It has, beside a mask that does more than hide what comes later; None is one that is fed.
    """
    called = "attention_interface(" in (node.meta.get("stack_trace") or "").rpartition("File")[2]
    causal = mask is not None and mask.dtype == torch.bool
    return called and not (causal and torch.equal(mask, torch.ones_like(mask).tril()))


def differs(value: Any, whole: Any) -> bool:
    """Return whether an array is other than `value` repeated."""
    if value.is_complex():
        value, whole = torch.view_as_real(value), torch.view_as_real(whole)
    same = torch.isclose(value.double(), whole.double(), 0.0, 0.0, equal_nan=True)
    return not bool(same.all())


def growing_axes(two: Any, five: Any) -> list[int]:
    """Return the axes along which arrays, at two batch sizes, differ in extent."""
    pairs = enumerate(zip(two.shape, five.shape, strict=True))
    return [axis for axis, (a, b) in pairs if a != b]


def is_even(two: Any, five: Any) -> bool:
    """Return whether arrays, at two batch sizes, are one repeated along at most one axis."""
    if isinstance(two, list | tuple):
        return all(map(is_even, two, five))
    if not isinstance(two, torch.Tensor):
        return True
    axes = growing_axes(two, five)
    value = two.narrow(axes[0], 0, 1) if axes else two
    steps = any((five.shape[axis] - two.shape[axis]) % (BATCHES[2] - BATCHES[0]) for axis in axes)
    return len(axes) < 2 and not steps and not any(differs(value, x) for x in (two, five))


def growth(two: Any, five: Any) -> dict[str, Any]:
    """Return the axis along which an even array grows, and its extent there."""
    if not (axes := growing_axes(two, five)):
        return {}
    (axis,) = axes
    slope = (five.shape[axis] - two.shape[axis]) // (BATCHES[2] - BATCHES[0])
    times = Extent(two.shape[axis] - BATCHES[0] * slope, slope)
    return {"batch_axis": axis, "times": times}


def is_made_low(versions: Sequence[Any], stored: Collection[str], casts_known: bool) -> bool:
    """Return whether a call makes a constant in the format of a value, whose is not said.

    In a bfloat16 copy of the module it gives that format where forward says so, as in
    `torch.zeros(8, dtype=x.dtype)`; what is `stored`, the buffers and what is computed of them, is
    bfloat16 only because the copy is. Where there is no such copy, a call that names a dtype of
    zeros, ones or one number is taken to name that of a value.
    """
    first, copied, _ = versions
    if not casts_known:
        named = first.kwargs.get("dtype") == torch.float32
        return named and op_of(first).removeprefix("aten.") in FILLING
    value = copied.meta.get("val")
    low = isinstance(value, torch.Tensor) and value.dtype == torch.bfloat16
    return low and not any(x.name in stored for x in copied.all_input_nodes)


def format_of(node: Any, names: Mapping[Any, str], made: Mapping[str, str]) -> str:
    """Return the name of the value whose format a constant is made in, "" where none is said.

    What is computed of constants has that of the first that has one, by `made`.
    """
    if FORMAT in node.meta:
        return names.get(node.meta[FORMAT], "")
    formats = (made.get(names[x], "") for x in node.all_input_nodes)
    return next((name for name in formats if name), "")


def kind_of_constant(value: Any) -> str:
    if value.is_complex():
        return COMPLEX
    if value.is_floating_point():
        return FLOATS
    return TRUTHS if value.dtype == torch.bool else WHOLES


def in_range(value: Any) -> Any:
    """Return finite numbers no larger than bfloat16's: `torch.finfo(x.dtype).min` stays finite."""
    return torch.where(value.isinf(), value, value.clamp(-LARGEST, LARGEST))


def made_anew(node: Any) -> list[Any]:
    """Return what a call reads that is to be had at every batch size: not where bags begin."""
    operands = list(node.all_input_nodes)
    if op_of(node) == "aten.embedding_bag":
        operands.remove(node.args[2])
    return operands


def arguments_of(node: Any) -> tuple[Any, ...]:
    """Return the arguments of a call, None for where bags begin (`bag_sizes`)."""
    if op_of(node) != "aten.embedding_bag":
        return tuple(node.args)
    return (*node.args[:2], None, *node.args[3:])


def bag_sizes(node: Any, ends: Mapping[str, Any]) -> tuple[int, ...]:
    """Return how many numbers the bags of an `embedding_bag` have; one where it is that of all.

    `ends` are the values of constants at the first and the last batch size.
    """
    offsets = ends.get(node.args[2].name)
    if offsets is None:
        raise InputError(
            "bags that are fed; give numbers [batch, size of a bag], and a padding_idx"
        )
    count = node.args[1].meta["val"].numel()
    starts = offsets[0][:-1] if node.args[7:8] == (True,) else offsets[0]
    sizes = torch.diff(starts, append=torch.tensor([count])).tolist()
    if len(set(sizes)) == 1:
        return (sizes[0],)
    if not torch.equal(*offsets):
        raise InputError(
            "bags of other sizes in every example; give numbers [batch, size of a bag]"
        )
    return tuple(sizes)


def check_lengths(node: Any, ends: Mapping[str, Any]) -> None:
    """Raise InputError where no packed sequence has all steps, as constant lengths may say."""
    if op_of(node) != f"policysearch.{MARK}" or node.args[1].name not in ends:
        return
    steps, longest = node.args[0].meta["val"].shape[0], int(ends[node.args[1].name][0].max())
    if longest < steps:
        raise InputError(
            f"packed sequences of at most {longest} of {steps} steps; expected the longest to have "
            f"all: x[:, :{longest}]"
        )
