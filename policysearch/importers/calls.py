"""The calls of a program, emitted one by one by their rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from policysearch.graph import Shape
from policysearch.importers.program import FLOATS, Call, resolved
from policysearch.importers.rules import rule_of
from policysearch.importers.tracer import Complex, Tensor, Tracer
from policysearch.values import InputError

KEEP_ALL = "a selection whose size depends on values; keep all rows and multiply by the mask, or "
SELECTIONS = ("nonzero", "nonzero_numpy", "masked_select", "masked_scatter", "_unique2")
REMEDIES: Mapping[str, str] = MappingProxyType(
    dict.fromkeys(SELECTIONS, f"{KEEP_ALL}choose by torch.where")
)
"""What to do instead of ops without a rule, by their names."""

NO_RULE = "no rule for this op; write it with ops that have one"

COMPLEX_OPS = ("mul", "multiply", "view_as_real", "real", "imag")
"""Ops that take complex numbers."""

MISSING = object()
"""The results, more than one, of a call that cannot be imported."""

FEW = 20
"""So many unsupported calls are named; of more, how many there are."""


class _Missing(Exception):
    """A call reads MISSING: what is wrong has been said."""


def emit_calls(tracer: Tracer, calls: Sequence[Call]) -> str:
    """Emit the calls; return what is wrong with those that cannot be imported, "" if nothing."""
    faults: dict[str, None] = {}
    for call in calls:
        with tracer.b.scope(layer=call.path, role="fprop" if call.kind == FLOATS else "input"):
            try:
                _emit(tracer, call)
            except InputError as error:
                faults[_fault(call, error)] = None
                _stand_in(tracer, call)
            except _Missing:
                _stand_in(tracer, call)
    return _said(list(faults))


def _emit(tracer: Tracer, call: Call) -> None:
    tracer.path, tracer.kind = call.path, call.kind
    name = call.op.removeprefix("aten.")
    rule = rule_of(call.op)
    if call.fault or rule is None:
        raise InputError(call.fault or REMEDIES.get(name, NO_RULE))
    arguments = tracer.settled([tracer.argument(value) for value in call.arguments])
    if any(argument is MISSING for argument in arguments):
        raise _Missing
    if any(isinstance(x, Complex) for x in arguments) and name.rstrip("_") not in COMPLEX_OPS:
        raise InputError("complex numbers; multiply them, or compute with view_as_real of them")
    options = {key: tracer.argument(value) for key, value in call.options}
    follows = tracer.follows(arguments)
    try:
        with tracer.b.scope(**({"role": "input"} if follows else {})):
            result = rule(tracer, *arguments, **options)
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{error}; expected what the rule of this op takes") from error
    if call.shape is not None and isinstance(result, Tensor):
        expected = resolved(call.shape, tracer.batch)
        if result.shape != expected:
            given = f"shape {list(result.shape)}"
            raise InputError(f"{given}; torch has {list(expected)} (a fault of the importer)")
    if call.kind != FLOATS and not all(tracer.is_whole(x) for x in _tensors(result)):
        given = f"{call.kind} made of floats"
        raise InputError(f"{given}; give them as an int64 input of their own")
    if follows:
        tracer.follow(result)
    tracer.keep(call.name, result, call.kind)
    if call.changed:
        tracer.keep(call.changed, result, call.kind)


def _tensors(result: Any) -> tuple[Tensor, ...]:
    return result if isinstance(result, tuple) else (result,)


def _stand_in(tracer: Tracer, call: Call) -> None:
    """Go on behind a call that cannot be imported, to find the others."""
    shape: Shape = () if call.shape is None else resolved(call.shape, tracer.batch)
    tracer.keep(call.name, MISSING if call.shape is None else tracer.stand_in(call.name, shape))


def _fault(call: Call, error: InputError) -> str:
    """Return what is wrong with a call, its module before it and the user's line after it."""
    line = f" ({call.line})" if call.line else ""
    return f"{call.path or 'the module itself'}: {call.op}: {error}{line}"


def _said(faults: list[str]) -> str:
    more = f"; and {len(faults) - FEW} more" if len(faults) > FEW else ""
    return f"{'; '.join(faults[:FEW])}{more}"
