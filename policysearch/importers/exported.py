"""Programs of torch.export, and what their nodes say.

Numbers that a module changes itself and computes with are refused: the forward pass, all that is
read, does not show them.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import os
import re
import warnings
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from policysearch.importers.aliases import Aliases, in_place, op_of, open_regions, read_in_regions
from policysearch.importers.decomposition import meets_two, take_apart
from policysearch.importers.followed import FORMAT, call_name, followed_known, note_formats
from policysearch.importers.forward_state import (
    assignments_written,
    draw_states,
    draws_at,
    left_known,
)
from policysearch.importers.known_values import values_known
from policysearch.importers.packed import packed_known
from policysearch.importers.program import (
    FLOATS,
    TRUTHS,
    WHOLES,
    Extent,
    Grown,
    Logarithm,
    extent,
    resolved,
)
from policysearch.importers.rules import rule_of
from policysearch.importers.stand_ins import (
    attributes_kept,
    counts_known,
    fields_known,
    module_copy,
    own_gradients_refused,
    read_alone,
    results_known,
    said_of,
)
from policysearch.ops.dense import BIAS_UNCAST, UNCAST
from policysearch.values import USER_FAULTS, InputError

BATCHES = (2, 3, 5)
"""Numbers of examples that a module is exported with."""

NEAR_ONE = 1.0 - 2.0**-24
"""The last share that is drawn from 0 to 1."""

LARGEST = torch.finfo(torch.bfloat16).max

FLOAT_TYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)

CASTS = ("aten.to", "aten._to_copy", "aten.type_as")

RELABELLED = ("view", "reshape", "flatten", "unsqueeze", "squeeze", "contiguous", "to", "slice")
"""Ops that change no value."""

DRAWING = frozenset(
    {
        *("randn", "randn_like", "rand", "rand_like", "uniform", "normal", "exponential"),
        *("bernoulli", "randint", "randint_like", "random", "randperm"),
    }
)
"""Ops whose results are drawn, in place or not."""

ADDING = ("aten.linear", "aten.lstm", "aten.gru", "aten.rnn_tanh", "aten.rnn_relu")
"""Ops that add biases to products of what they read first."""

RECURRENT_ARGUMENTS = 9
"""So many has a recurrent layer, the last of which says whether the batch comes first."""

FRAME = re.compile(r'File "(.+)", line (\d+)')


def exported(
    module: Any, inputs: tuple[Any, ...], training: bool = True, lines: bool = True
) -> Any:
    """Return a form of the module, before decomposition, regions open; InputError if it has none.

    torch logs and prints what it stumbles over besides raising it; one of them is enough. Without
    `lines` of the user's code, which one of several exports has, it takes three quarters as long.
    """
    modes = [(part, part.training) for part in module.modules()]
    disabled = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        with (
            warnings.catch_warnings(),
            contextlib.redirect_stderr(io.StringIO()),
            own_gradients_refused(),
            # what distributions check of their arguments is a branch on values
            mock.patch.object(torch.distributions.Distribution, "_validate_args", False),
            # transformers has grouped queries without copies of keys, but not where it is exported
            mock.patch.dict(os.environ, {"TRANSFORMERS_SDPA_FORCE_GQA": "1"}),
            results_known(),
            fields_known(module),
            packed_known(),
        ):
            warnings.simplefilter("ignore")
            module.train(training)
            return _program(module, inputs, lines)
    except InputError as error:
        raise InputError(f"module {type(module).__name__}: {error}") from error
    except USER_FAULTS as error:
        fault = said_of(error, len(inputs[0]))
        raise InputError(f"module {type(module).__name__}: torch.export: {fault}") from error
    finally:
        logging.disable(disabled)
        for part, training in modes:
            part.training = training


def _program(module: Any, inputs: tuple[Any, ...], lines: bool) -> Any:
    with (
        counts_known(),
        attributes_kept(module),
        followed_known(),
        read_alone(lines),
        assignments_written(module),
        values_known(module) as values,
    ):
        program = torch.export.export(module, inputs, strict=False)
    open_regions(program.graph_module)
    note_formats(program.graph)
    _unify_copies(program.graph)
    values.check(program)
    take_apart(program, rule_of)
    return program


def _unify_copies(graph: Any) -> None:
    """Put the same calls where a copy of the module in another format has others.

    Casts assert what their input is, and transformers has torch's grouped products in 16 bits only.
    """
    for node in list(graph.nodes):
        if op_of(node) == "aten._assert_tensor_metadata":
            graph.erase_node(node)
        elif op_of(node) == "transformers.grouped_mm_fallback":
            node.target = torch.ops.aten._grouped_mm.default


@dataclass(frozen=True)
class Exports:
    """Programs at the BATCHES; whether the second tells casts apart; what the first writes into."""

    programs: tuple[Any, Any, Any]
    casts_known: bool
    aliases: Aliases


def exports(module: Any, example: tuple[Any, ...], training: bool) -> Exports:
    """Return the exports at the BATCHES.

    Two tell what depends on the batch and a third whether as they say; the second is of a bfloat16
    copy where there are casts, whose format shows what they follow.
    """
    # In float32 `x.float()` is x, and torch.export leaves no trace of which was meant. A bfloat16
    # copy of the module tells them apart: there the cast changes the dtype.
    states = draw_states()
    first = _first_export(module, with_batch(example, BATCHES[0]), training)
    if draw_states() != states:
        _check_draws(module, with_batch(example, BATCHES[0]), training)
    second, casts_known = _second_export(module, example, first, training)
    third = exported(module, with_batch(example, BATCHES[2]), training, lines=False)
    programs = first, second, third
    aliases = [Aliases(program.graph) for program in programs]
    if any(_calls(other) != _calls(first) for other in (second, third)):
        raise InputError(
            f"module {type(module).__name__}: other calls for other batch sizes; "
            "expected the same for all"
        )
    return Exports(programs, casts_known, aliases[0])


def _first_export(module: Any, inputs: tuple[Any, ...], training: bool) -> Any:
    """Return the export; InputError where forward computes with what it changes, as a counter.

    torch.export takes that as it is at the first call and puts it back afterwards.
    """
    with left_known(module) as left:
        first = exported(module, inputs, training)
    if left.values and (
        left.is_read_in(first)
        or _call_texts(exported(left.copy_of(module), inputs, training)) != _call_texts(first)
    ):
        raise InputError(
            f"module {type(module).__name__}: forward changes {', '.join(left.names)} and computes "
            "with it; expected the same at every step, or a registered buffer of floats"
        )
    return first


def _check_draws(module: Any, inputs: tuple[Any, ...], training: bool) -> None:
    """Raise InputError where what forward draws outside of torch changes what it computes."""
    texts = []
    for share in (0.0, NEAR_ONE):
        with draws_at(share):
            texts.append(_call_texts(exported(module, inputs, training, lines=False)))
    if texts[0] != texts[1]:
        raise InputError(
            f"module {type(module).__name__}: forward draws from random or numpy, and computes "
            "with that; expected torch to draw, or no draw at all: a probability of 0"
        )


def _call_texts(program: Any) -> list[str]:
    return [f"{n.target} {n.args} {n.kwargs}" for n in program.graph.nodes]


def _second_export(
    module: Any, example: tuple[Any, ...], first: Any, training: bool
) -> tuple[Any, bool]:
    inputs = with_batch(example, BATCHES[1])
    if any(_names_a_format(node) for node in first.graph.nodes):
        low = tuple(x.to(torch.bfloat16) if x.dtype in FLOAT_TYPES else x for x in inputs)
        copied = _in_bfloat16(module, read_in_regions(first))
        cast = torch.autocast("cpu", torch.bfloat16)
        for way in (contextlib.nullcontext(), cast):  # the second where products meet two formats
            with contextlib.suppress(InputError), way:
                second = exported(copied, low, training, lines=False)
                plain = way is cast or not any(map(meets_two, second.graph.nodes))
                if plain and _calls(second) == _calls(first):
                    return second, True
    return exported(module, inputs, training, lines=False), False


def _names_a_format(node: Any) -> bool:
    """Return whether a call says in which format its result is, by name or by that of a value."""
    return op_of(node) in ("aten.to", "aten._to_copy") or (
        node.op == "call_function" and node.kwargs.get("dtype") == torch.float32
    )


def _in_bfloat16(module: Any, kept: Collection[str]) -> Any:
    """Return a copy with floats in bfloat16 but for the arrays `kept`; complex numbers stay.

    Nothing reads what its parameters hold, and they hold anything.
    """
    low = {
        id(p): torch.nn.Parameter(torch.empty_like(p, dtype=torch.bfloat16), p.requires_grad)
        for name, p in module.named_parameters()
        if type(p) is torch.nn.Parameter and p.is_floating_point() and name not in kept
    }
    copied = module_copy(module, low)
    arrays = (*copied.named_parameters(), *copied.named_buffers())
    wide = {id(x) for name, x in arrays if name in kept or not x.is_floating_point()}
    return copied._apply(lambda x: x if id(x) in wide else x.to(torch.bfloat16))


def with_batch(example: tuple[Any, ...], count: int) -> tuple[Any, ...]:
    """Return the example inputs with `count` examples, the first one repeated."""
    for index, x in enumerate(example):
        if not isinstance(x, torch.Tensor) or not x.ndim:
            raise InputError(f"example_inputs[{index}]: {type(x).__name__}; expected a tensor")
        if len(x) != len(example[0]):
            given = f"{len(x)} examples; expected {len(example[0])}, as in the first"
            raise InputError(f"example_inputs[{index}]: {given}")
        if x.is_complex() or x.is_quantized:
            valid = "expected float32 or int64; complex numbers as pairs, by torch.view_as_real"
            raise InputError(f"example_inputs[{index}]: {x.dtype}; {valid}")
        if x.dtype == torch.bool:
            remedy = "expected int64 or float32, made truth values in forward: x.bool()"
            raise InputError(f"example_inputs[{index}]: torch.bool; {remedy}")
    if not example or not len(example[0]):
        raise InputError("example_inputs: no example; expected tensors with the batch along axis 0")
    return tuple(x[:1].expand(count, *x.shape[1:]).clone() for x in example)


def _calls(program: Any) -> list[str]:
    return [call_name(node) for node in program.graph.nodes]


def _holds_floats(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or value.dtype in FLOAT_TYPES or value.is_complex()


def kind_of(node: Any) -> str:
    """Return what the result of a node holds, one of KINDS; of several, floats if any does."""
    value = node.meta.get("val")
    if isinstance(value, list | tuple) and value:
        value = next((x for x in value if _holds_floats(x)), value[0])
    if _holds_floats(value):
        return FLOATS
    return TRUTHS if value.dtype == torch.bool else WHOLES


def is_random(node: Any) -> bool:
    """Return whether a call draws, so that every step has another value."""
    return torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())


def draws(node: Any) -> bool:
    """Return whether the result of a call is drawn, and not only what it multiplies by."""
    return op_of(node).removeprefix("aten.").removesuffix("_") in DRAWING


def like_of_draw(node: Any) -> Any:
    """Return the value whose format a draw has, None where no value says it."""
    made = node.args[0] if in_place(node) else node
    name = op_of(made).removeprefix("aten.")
    like = made
    if name.startswith("new_") or name.endswith("_like"):
        like = made.args[0]
    elif made is node or (made.op == "call_function" and not made.all_input_nodes):
        return None
    named = made.kwargs.get("dtype") not in (None, like.meta["val"].dtype)
    return None if named or kind_of(like) != FLOATS else like


def read_by(node: Any) -> Sequence[Any]:
    """Return the values that a call reads, if only their formats; not what a draw writes over."""
    if not (draws(node) and in_place(node)):
        return (*node.all_input_nodes, *filter(None, (node.meta.get(FORMAT),)))
    like = like_of_draw(node)
    others = (x for x in node.all_input_nodes if x is not node.args[0])
    return (*others, *(() if like is None else (like,)))


def rows_read(node: Any) -> int:
    """Return how many rows the smallest table has that the numbers of `node` look up; 0 if none."""
    counts = []
    for user in node.users:
        name = op_of(user).removeprefix("aten.")
        if name in ("embedding", "embedding_bag") and user.args[1] is node:
            counts.append(_extent(user.args[0], 0))
        elif name == "index" and node in user.args[1]:
            counts.append(_extent(user.args[0], user.args[1].index(node)))
        elif name in ("index_select", "gather") and user.args[2] is node:
            counts.append(_extent(user.args[0], user.args[1]))
        elif name in RELABELLED and user.args[0] is node:
            counts.append(rows_read(user))
    return min((count for count in counts if count), default=0)


def _extent(table: Any, axis: int) -> int:
    return int(table.meta["val"].shape[axis])


def path_of(node: Any) -> str:
    stack = node.meta.get("nn_module_stack") or {}
    paths = [path for path, _ in stack.values()]
    return str(paths[-1]) if paths else ""


def line_of(node: Any) -> str:
    """Return the innermost line of the user's code that a call comes from, "" if unknown."""
    found = FRAME.search(node.meta.get("stack_trace") or "")
    return f"{os.path.basename(found[1])}:{found[2]}" if found else ""


def shape_of(nodes: Sequence[Any]) -> tuple[int | Extent, ...] | None:
    """Return the shape of what a call gives at the BATCHES; None where it is no single tensor.

    Nor where a constant mask decides it: torch.export takes that to depend on values.
    """
    values = [node.meta.get("val") for node in nodes]
    if shape_at_first(nodes[0]) is None:
        return None
    return tuple(extent_of(extents) for extents in zip(*(v.shape for v in values), strict=True))


def single_axes(node: Any) -> tuple[int, ...]:
    """Return the axes of extent 1 of what a call gives; the batch is none, of one example too."""
    return tuple(axis for axis, extent in enumerate(node.meta["val"].shape) if extent == 1)


def shape_at_first(node: Any) -> tuple[int, ...] | None:
    """Return the shape of what a call gives at the first of the BATCHES."""
    value = node.meta.get("val")
    known = isinstance(value, torch.Tensor) and all(isinstance(e, int) for e in value.shape)
    return tuple(value.shape) if known else None


def extent_of(extents: Sequence[int]) -> int | Extent:
    """Return the number that is these at the BATCHES; InputError where it grows unevenly.

    Evenly is with the examples, or with these and their pairs, as in losses of a whole batch.
    """
    first, second, _ = map(int, extents)
    pairs = (2 * second - 3 * first) // 6
    for law in (extent(first, second), Extent(0, first // 2 - 2 * pairs, pairs)):
        if [resolved(law, batch) for batch in BATCHES] == list(extents):
            return law
    raise _depends(extents)


def number_of(numbers: Sequence[Any]) -> Any:
    """Return what is the same at all BATCHES; the second is of another format.

    Finite ones no larger than bfloat16's: `torch.finfo(x.dtype).min` stays finite.
    """
    number = numbers[0]
    if number != numbers[2]:
        return _growth_law(numbers)
    finite = isinstance(number, float) and math.isfinite(number)
    return min(max(number, -LARGEST), LARGEST) if finite else number


def _growth_law(numbers: Sequence[Any]) -> Grown | Logarithm:
    """Return the law of floats that grow as the examples, their pairs or logarithm, or shrink."""
    if all(isinstance(n, float) and math.isfinite(n) for n in numbers):
        for power in (1, -1, 2, -2):
            first, *others = (n / batch**power for n, batch in zip(numbers, BATCHES, strict=True))
            if all(math.isclose(first, other, rel_tol=1e-12) for other in others):
                return Grown(first, power)
        logs = [math.log(batch) for batch in BATCHES]
        factor = (numbers[2] - numbers[0]) / (logs[2] - logs[0])
        base = numbers[0] - factor * logs[0]
        if math.isclose(base + factor * logs[1], numbers[1], rel_tol=1e-12):
            return Logarithm(base, factor)
    raise _depends(numbers)


def _depends(values: Sequence[Any]) -> InputError:
    return InputError(
        f"{values[0]} with {BATCHES[0]} examples, {values[2]} with {BATCHES[2]}; expected what "
        "does not depend on their number, or grows evenly with it, and is not drawn at random"
    )


def adds_apart(node: Any) -> bool | str:
    """Return whether a linear adds its bias to the rounded product, in a rounding of its own.

    torch adds it before the one rounding to rows of two axes, or that lie side by side in memory
    (`aten/src/ATen/native/Linear.cpp`). So does a recurrent layer, whose steps of a batch that
    comes first do not lie so; but not an LSTM without projections, which oneDNN runs. UNCAST where
    a cast writes them side by side: it keeps the order of axes, not parts and repetitions. A bias
    whose values do not lie side by side is added to more axes apart: BIAS_UNCAST.
    """
    if op_of(node) not in ADDING:
        return False
    rows = node.args[0].meta["val"]
    if len(node.args) == RECURRENT_ARGUMENTS:
        states = [x.meta["val"].shape for x in node.args[1]] if op_of(node) == "aten.lstm" else []
        if len(set(states)) == 1:
            return False
        rows = rows.transpose(0, 1) if node.args[-1] else rows
    if rows.dim() < 3 or rows.is_contiguous():
        bias = node.args[2] if op_of(node) == "aten.linear" and len(node.args) > 2 else None
        strided = rows.dim() > 2 and bias is not None and not bias.meta["val"].is_contiguous()
        return BIAS_UNCAST if strided else False
    strides = [s for s, n in zip(rows.stride(), rows.shape, strict=True) if s and n > 1]
    return UNCAST if strides == sorted(strides, reverse=True) else True


def memory_order(node: Any) -> tuple[int, ...]:
    """Return the axes of what a call reads first as they lie in memory; () where in their order.

    InputError where its values do not fill the memory, one after the other.
    """
    value = node.args[0].meta["val"]
    if value.is_contiguous():
        return ()
    order = sorted(range(value.dim()), key=lambda axis: (-value.stride(axis), axis))
    if not value.permute(order).is_contiguous():
        raise InputError("a view of parts of a tensor; expected a whole one: x.contiguous()")
    return tuple(order)


def way_of_cast(node: Any) -> str:
    """Return what a cast does in a copy of the module in 16 bits: "back" to them, or nothing.

    One to float32 of what is that already says "kept"; "" of all others.
    """
    if op_of(node) not in CASTS:
        return ""
    source, target = (x.meta["val"].dtype for x in (node.args[0], node))
    if source != torch.float32:
        return ""
    if target in (torch.float16, torch.bfloat16):
        return "back"
    return "kept" if target == source else ""


def array_names(module: Any, program: Any) -> tuple[tuple[str, str], ...]:
    """Return (placeholder, full name) pairs; what is tied has its first name."""
    arrays = [*module.named_parameters(), *module.named_buffers()]
    every = dict(module.named_parameters(remove_duplicate=False))
    every |= dict(module.named_buffers(remove_duplicate=False))
    first = {id(array): name for name, array in arrays}
    signature = program.graph_signature
    named = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    return tuple((n, first[id(every[f])] if f in every else f) for n, f in named.items())
