"""Pointwise ops without new arrays: what a forward does is recorded once, and played back.

The forward is called with stand-ins for its inputs. They have no numbers, they note which functions
numpy is asked for (`__array_ufunc__`, numpy's NEP 13). Those run again and again on fixed arrays:
the last one writes the output, what is between lies in as little scratch as it can. A forward that
looks at a number, or asks for anything but functions of each element, cannot be recorded.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from policysearch.emulator.kernels.kernel import Kernel, Run, like
from policysearch.graph import Attrs, FloatArray, Op, Shape, size

FLOAT = np.dtype(np.float32)


@dataclass(frozen=True)
class Step:
    """One value: a ufunc of values and constants or, without one, a value under another shape."""

    ufunc: np.ufunc | None
    operands: tuple[Any, ...]
    shape: Shape


class _Value(NDArrayOperatorsMixin):
    """Stands for an array of a recording; `place` counts its inputs first, then its steps."""

    def __init__(self, recording: Recording, place: int, shape: Shape) -> None:
        self.recording, self.place, self.shape = recording, place, shape
        self.ndim, self.size = len(shape), size(shape)

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> Any:
        if method != "__call__" or options or ufunc.nout != 1:
            return NotImplemented
        return self.recording.call(ufunc, inputs)

    def __array_function__(self, *call: Any) -> Any:
        return NotImplemented

    def __bool__(self) -> bool:
        raise TypeError("it has no number")

    def reshape(self, *shape: int) -> _Value:
        if self.ndim != 1 or shape[0] != -1 or set(shape[1:]) - {1}:
            raise TypeError("only vectors are made to broadcast")
        if len(shape) == 1:
            return self
        return self.recording.add(Step(None, (self, shape), (self.size, *shape[1:])))


@dataclass(frozen=True)
class Recording:
    """The steps of a forward, from inputs of these shapes."""

    inputs: Sequence[Shape]
    steps: list[Step] = field(default_factory=list)

    def add(self, step: Step) -> _Value:
        """Note a step; return the value it makes."""
        self.steps.append(step)
        return _Value(self, len(self.inputs) + len(self.steps) - 1, step.shape)

    def call(self, ufunc: np.ufunc, operands: tuple[Any, ...]) -> Any:
        """Note a call; TypeError unless all is float32."""
        shapes = [operand.shape for operand in operands if isinstance(operand, _Value)]
        for operand in operands:
            if type(operand) not in (_Value, np.float32, float, int):
                raise TypeError("not a number in float32")
        if ufunc.resolve_dtypes((*(FLOAT,) * len(operands), None))[-1] != FLOAT:
            raise TypeError("the result is not in float32")
        return self.add(Step(ufunc, operands, np.broadcast_shapes(*shapes)))


def recorded(op: Op, inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> list[Step] | None:
    """Return what the op's forward does, step by step; None where that cannot be recorded."""
    recording = Recording(inputs)
    stand_ins = [_Value(recording, place, shape) for place, shape in enumerate(inputs)]
    try:
        result = op.forward(stand_ins, attrs)  # type: ignore[arg-type]
    except (TypeError, AttributeError):
        return None
    last = len(inputs) + len(recording.steps) - 1
    if not recording.steps or not isinstance(result, _Value) or result.place != last:
        return None
    return recording.steps if recording.steps[-1].ufunc and result.shape == out else None


def registers(steps: Sequence[Step], first: int, out: Shape) -> list[int | None]:
    """Return which stretch of scratch each step's value is in; None if it has one of its own.

    A stretch is as large as the output. It is free again for the step that reads it last, as a
    function of each element may write where it reads. `first` is the place of the first step.
    """
    last_read = {
        operand.place: at
        for at, step in enumerate(steps)
        for operand in step.operands
        if isinstance(operand, _Value)
    }
    in_use: dict[int, int] = {}
    stretches: list[int | None] = []
    for at, step in enumerate(steps):
        in_use = {place: r for place, r in in_use.items() if last_read[place] > at}
        if step.ufunc and step.shape == out and at < len(steps) - 1:
            free = next(r for r in range(len(steps)) if r not in in_use.values())
            in_use[first + at] = free
            stretches.append(free)
        else:
            stretches.append(None)
    return stretches


def pointwise_kernel(op: Op, inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
    """Return the kernel that plays the forward of a pointwise op back; None where it cannot."""
    if op.kind != "elementwise" or not op.pointwise:
        return None
    steps = recorded(op, inputs, out, attrs)
    if steps is None:
        return None
    scratch = registers(steps, len(inputs), out)
    stretches = 1 + max((r for r in scratch if r is not None), default=-1)
    return Kernel(partial(_bind, steps, scratch), lambda inputs, out, attrs: stretches * size(out))


def _bind(
    steps: Sequence[Step],
    scratch: Sequence[int | None],
    inputs: Sequence[FloatArray],
    out: FloatArray,
    attrs: Attrs,
    work: FloatArray,
) -> Run:
    values, calls = list(inputs), list[Callable[[], object]]()
    for step, register in zip(steps, scratch, strict=True):
        if step.ufunc is None:
            source, shape = step.operands
            values.append(values[source.place].reshape(shape))
            continue
        # As operands, arrays of no dimension are faster than numbers.
        operands = [
            values[o.place] if isinstance(o, _Value) else np.array(o, np.float32)
            for o in step.operands
        ]
        if step is steps[-1]:
            result = out
        elif register is not None:
            result = like(out, work, register)
        else:
            result = np.empty(np.broadcast_shapes(*(o.shape for o in operands)), np.float32)
        calls.append(partial(step.ufunc, *operands, out=result))
        values.append(result)
    return calls[0] if len(calls) == 1 else lambda: [call() for call in calls]
