"""The calls of a program, emitted one by one by their rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from types import MappingProxyType
from typing import Any

from policysearch.graph import Shape
from policysearch.importers.complex_numbers import complex_rule, is_complex
from policysearch.importers.kernels import Kernel, names_in, rounds_once
from policysearch.importers.places import listed, place_rule, places_in
from policysearch.importers.program import FLOATS, UNCAST, Call, Ref, resolved
from policysearch.importers.rules import FAMILIES, rule_of
from policysearch.importers.selections import chooses, is_selection, selected_at, selection_rule
from policysearch.importers.tracer import Rule, Tensor, Tracer
from policysearch.ops.builder import changed_node
from policysearch.ops.composite import FLOAT32_ALONE
from policysearch.ops.shape import reshape
from policysearch.values import InputError

KEEP_ALL = "a selection whose size depends on values; keep all rows and multiply by the mask, or "
SELECTIONS = ("masked_scatter", "_unique2")
REMEDIES: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(SELECTIONS, f"{KEEP_ALL}choose by torch.where")
)
"""What to do instead of ops without a rule, by their names."""

NO_RULE = "no rule for this op; write it with ops that have one"

SET_APART = ("view", "reshape", "flatten", "unflatten", "unsqueeze", "squeeze")
"""Views that cost nothing: under another shape, what they are of."""

POINTWISE = ("activations", "elementwise", "comparison")
"""The families of ops of each value alone."""

MISSING = object()
"""The results, more than one, of a call that cannot be imported."""

FEW = 20
"""So many unsupported calls are named; of more, how many there are."""


class _Missing(Exception):
    """A call reads MISSING: what is wrong has been said."""


def emit_calls(tracer: Tracer, calls: Sequence[Call], results: Collection[str]) -> str:
    """Emit the calls, of which `results` are read later.

    Return what is wrong with those that cannot be imported, "" if nothing.
    """
    faults: dict[str, None] = {}
    readers = Counter(n for c in calls for n in names_in((c.arguments, c.options)))
    for kernel, group in groupby(calls, lambda call: call.piece.kernel if call.piece else ""):
        pieces = tuple(group)
        if kernel and _emit_kernel(tracer, pieces, calls, results):
            continue
        for call in pieces:
            role = "fprop" if call.kind == FLOATS else "input"
            with tracer.b.scope(layer=call.path, role=role, line=call.line):
                try:
                    _emit(tracer, call)
                    _set_apart(tracer, call, readers)
                except InputError as error:
                    faults[_fault(call, error)] = None
                    _stand_in(tracer, call)
                except _Missing:
                    _stand_in(tracer, call)
    return _said(list(faults))


def _emit_kernel(
    tracer: Tracer, pieces: Sequence[Call], calls: Sequence[Call], results: Collection[str]
) -> bool:
    """Emit the pieces of one kernel as one op; return whether they could be, and had to."""
    last = calls.index(pieces[-1])
    read = {name for call in calls[last + 1 :] for name in names_in((call.arguments, call.options))}
    wanted = [call for call in pieces if call.name in read or call.name in results]
    try:
        kernel = Kernel(tracer, pieces, _emit)
        nodes = kernel.nodes([call.name for call in wanted])
        if any(call.kind != FLOATS for call in wanted) or not rounds_once(nodes):
            return False
        with tracer.b.scope(layer=pieces[0].path, role="fprop", line=pieces[0].line):
            for call in wanted:
                tracer.keep(call.name, kernel.emit(call.name), call.kind)
    except (InputError, _Missing):
        return False  # the pieces, one by one, say what is wrong
    return True


def _emit(tracer: Tracer, call: Call) -> None:
    tracer.path, tracer.kind = call.path, call.kind
    if call.fault:
        raise InputError(call.fault)
    arguments = [tracer.argument(value) for value in call.arguments]
    if _reads_missing(arguments) and rule_of(call.op) is not None:
        raise _Missing
    arguments = tracer.settled(arguments)
    options = {key: tracer.argument(value) for key, value in call.options}
    rule = _rule_for(tracer, call.op, arguments)
    read = Counter(names_in((call.arguments, call.options)))
    tracer.repeated = [tracer.value(name) for name, count in read.items() if count > 1]
    followed, uncast = tracer.followed(arguments), options.pop(UNCAST, False)
    start = len(tracer.b.nodes)
    try:
        with tracer.b.scope(**({} if followed is None else {"role": "input"})):
            result = rule(tracer, *arguments, **options)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{error}; expected what the rule of this op takes") from error
    if uncast:
        _leave_uncast(tracer, start)
    if call.shape is not None and isinstance(result, Tensor):
        expected = resolved(call.shape, tracer.batch)
        if result.shape != expected:
            given = f"shape {list(result.shape)}"
            raise InputError(f"{given}; torch has {list(expected)} (a fault of the importer)")
    if call.kind != FLOATS and not all(tracer.is_whole(x) for x in _tensors(result)):
        given = f"{call.kind} made of floats"
        raise InputError(f"{given}; give them as an int64 input of their own")
    if followed is not None:
        tracer.follow(result, followed)
    tracer.keep(call.name, result, call.kind)
    if call.changed:
        if isinstance(result, Tensor) and call.kind == FLOATS:
            tracer.stored_in(result)
        tracer.keep(call.changed, result, call.kind)


def _rule_for(tracer: Tracer, op: str, arguments: Any) -> Rule:
    """Return the rule of an op of such arguments."""
    name, rule = op.removeprefix("aten."), rule_of(op)
    if places_in(arguments):
        return place_rule(name)
    if name == "where" and len(arguments) == 1:
        return listed
    if is_complex(arguments):
        rule = complex_rule(name, rule)
    if chooses(tracer, name, arguments):
        return selected_at
    if is_selection(arguments):
        pointwise = any(name.removesuffix("_") in FAMILIES[file] for file in POINTWISE)
        return selection_rule(name, rule, pointwise=pointwise)
    if rule is None:
        raise InputError(REMEDIES.get(name, NO_RULE))
    return rule


def _leave_uncast(tracer: Tracer, start: int) -> None:
    """Keep what autocast(enabled=False) leaves in the format that it meets: products of float32.

    Raises InputError where its operands, or those of an op of float32, may be in 16 bits.
    """
    for node in tracer.b.nodes[start:]:
        wide = [tracer.is_float32(i) for i in node.inputs]
        if node.op.placement == "low":
            if not all(wide):
                raise InputError(
                    "a product under autocast(enabled=False); its format is the policy's: take it "
                    "out of the region, or write it as a product of x.float()"
                )
            tracer.b.nodes[node.id] = changed_node(node, source=FLOAT32_ALONE)
        elif node.op.placement == "fp32" and not any(wide):
            raise InputError(
                "under autocast(enabled=False), of what may be in 16 bits; give it x.float()"
            )


def _set_apart(tracer: Tracer, call: Call, readers: Mapping[str, int]) -> None:
    """Give a view a node of its own where several calls read it and others what it is a view of.

    torch sums the gradients of the view first, in its format.
    """
    base = call.arguments[0] if call.arguments else None
    name = call.op.removeprefix("aten.")
    if not (isinstance(base, Ref) and name in SET_APART and call.kind == FLOATS):
        return
    x, view = tracer.value(base.name), tracer.value(call.name)
    if min(readers[base.name], readers[call.name]) < 2 or not isinstance(view, Tensor):
        return
    if view.id == x.id and view.shape != x.shape and not (view.swapped or tracer.is_stored(x)):
        node = tracer.emit_move(reshape, view.id, {"shape": view.shape})
        tracer.keep(call.name, Tensor(node, view.shape))


def _reads_missing(arguments: Any) -> bool:
    parts = arguments if isinstance(arguments, list | tuple) else ()
    return arguments is MISSING or any(_reads_missing(part) for part in parts)


def _tensors(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def _stand_in(tracer: Tracer, call: Call) -> None:
    """Go on behind a call that cannot be imported, to find the others."""
    shape: Shape = () if call.shape is None else resolved(call.shape, tracer.batch)
    tracer.keep(call.name, MISSING if call.shape is None else tracer.stand_in(call.name, shape))


def _fault(call: Call, error: InputError) -> str:
    """Return what is wrong with a call: its module and op first, the user's line at the end."""
    path, line = call.path or "the module itself", f" ({call.line})" if call.line else ""
    op = f"{call.piece.op}, in it {call.op}" if call.piece else call.op
    return f"{path}: {op}: {error}{line}"


def _said(faults: list[str]) -> str:
    more = f"; and {len(faults) - FEW} more" if len(faults) > FEW else ""
    return f"{'; '.join(faults[:FEW])}{more}"
