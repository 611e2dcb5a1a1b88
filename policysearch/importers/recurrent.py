"""Import rules: recurrent layers and cells, written out over their steps as torch does on a CPU.

Source: torch 2.13, `aten/src/ATen/native/RNN.cpp`: every product, sum and gate is a call of its
own, and the inputs of all steps go through their product at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from policysearch.graph import Op
from policysearch.importers.attention import dropout
from policysearch.importers.elementwise import add, multiply, plain, subtract
from policysearch.importers.layers import linear
from policysearch.importers.shapes import cat, exchanged, part, select, stack, unsqueeze
from policysearch.importers.tracer import Rule, Tensor, Tracer, refuse
from policysearch.ops import activations, elementwise
from policysearch.ops.comparison import compare
from policysearch.ops.masks import where
from policysearch.ops.shape import reshape

_sigmoid, _tanh = plain(activations.sigmoid), plain(activations.tanh)

States = tuple[Tensor, ...]
"""[batch, hidden] each: h of a layer, and of an LSTM c after it."""
Step = Callable[[Tracer, Tensor, States, "Weights"], States]
"""Of what the product of a step's input gives and the last states: the next states."""


@dataclass(frozen=True)
class Weights:
    """The arrays of one layer in one direction; `projection` is that of an LSTM, if it has one."""

    inner: Tensor
    state: Tensor
    inner_bias: Tensor | None = None
    state_bias: Tensor | None = None
    projection: Tensor | None = None

    def of_input(self, t: Tracer, x: Tensor, *, apart: bool | str = False) -> Tensor:
        return linear(t, x, self.inner, self.inner_bias, apart)

    def of_state(self, t: Tracer, h: Tensor) -> Tensor:
        return linear(t, h, self.state, self.state_bias)


def _parts(t: Tracer, gates: Tensor, count: int) -> Iterator[Tensor]:
    width = gates.shape[1] // count
    return (part(t, gates, 1, place * width, (place + 1) * width) for place in range(count))


def _lstm_step(t: Tracer, inner: Tensor, states: States, weights: Weights) -> States:
    h, c = states
    i, f, g, o = _parts(t, add(t, inner, weights.of_state(t, h)), 4)
    c = add(t, multiply(t, _sigmoid(t, f), c), multiply(t, _sigmoid(t, i), _tanh(t, g)))
    h = multiply(t, _sigmoid(t, o), _tanh(t, c))
    return h if weights.projection is None else linear(t, h, weights.projection), c


def _gru_step(t: Tracer, inner: Tensor, states: States, weights: Weights) -> States:
    """(h - n) z + n, with n = tanh(its input + r times its product with h)."""
    (h,) = states
    of_input, of_state = _parts(t, inner, 3), _parts(t, weights.of_state(t, h), 3)
    (reset, reset_h), (update, update_h), (new, new_h) = zip(of_input, of_state, strict=True)
    r = _sigmoid(t, add(t, reset_h, reset))
    z = _sigmoid(t, add(t, update_h, update))
    n = _tanh(t, add(t, new, multiply(t, new_h, r)))
    return (add(t, multiply(t, subtract(t, h, n), z), n),)


def _simple_step(op: Op) -> Step:
    def step(t: Tracer, inner: Tensor, states: States, weights: Weights) -> States:
        (h,) = states
        return (plain(op)(t, add(t, weights.of_state(t, h), inner)),)

    return step


@dataclass(frozen=True)
class Packed:
    """Steps [time, batch, width] of sequences of these `lengths` [batch]; the rest is no part."""

    steps: Tensor
    lengths: Tensor

    def kept(self, t: Tracer, time: int, new: States, old: States) -> States:
        """Return the states after a step, the old ones of sequences that do not reach it."""
        reaches = {"relation": "greater", "number": float(time)}
        lengths = t.view(self.lengths, (*self.lengths.shape, 1))
        there = t.whole(compare, lengths, **reaches)
        pairs = zip(new, old, strict=True)
        return tuple(t.emit(where, there, after, before) for after, before in pairs)


def _over_time(
    t: Tracer,
    step: Step,
    inner: Tensor,
    weights: Weights,
    states: States,
    packed: Packed | None,
    *,
    back: bool,
) -> tuple[Tensor, States]:
    """Return h of every step [time, batch, hidden], and the last states."""
    times = range(inner.shape[0])
    outputs: dict[int, Tensor] = {}
    for time in reversed(times) if back else times:
        before, states = states, step(t, select(t, inner, 0, time), states, weights)
        states = states if packed is None else packed.kept(t, time, states, before)
        outputs[time] = states[0]
    return cat(t, [unsqueeze(t, outputs[time], 0) for time in times], 0), states


def _arrays(
    t: Tracer, weights: Any, ways: int, layers: int, *, biases: Any, projected: bool
) -> list[Weights]:
    """Return the arrays by layer and direction; torch has them one after the other."""
    count = (4 if biases else 2) + projected
    if len(weights) != count * ways * layers:
        raise refuse(f"{len(weights)} arrays", f"expected {count * ways * layers}")
    read = [_read_once(t, array) for array in weights]
    rows = [read[start : start + count] for start in range(0, len(read), count)]
    return [_weights(row, biases=biases, projected=projected) for row in rows]


def _read_once(t: Tracer, array: Tensor) -> Tensor:
    """Return an array, a state or an input as one call of torch reads it.

    It is cast once for all steps, so that its gradients are summed in that format.
    """
    return Tensor(t.b.emit(reshape, t.full(array), attrs={"shape": array.shape}), array.shape)


def _weights(row: Sequence[Tensor], *, biases: bool, projected: bool) -> Weights:
    inner_bias, state_bias = row[2:4] if biases else (None, None)
    return Weights(row[0], row[1], inner_bias, state_bias, row[-1] if projected else None)


def _layer_rule(step: Step) -> Rule:
    """Return the rule of layers of a kind: the outputs of the last, and the last states of all."""

    def rule(
        t: Tracer,
        x: Tensor | Packed,
        states: Any,
        weights: Any,
        has_biases: Any,
        num_layers: int,
        dropout_share: float,
        train: bool,
        bidirectional: bool,
        batch_first: bool = False,
        apart: bool | str = False,
    ) -> tuple[Tensor, ...]:
        ways, given = 2 if bidirectional else 1, states if isinstance(states, tuple) else (states,)
        start, ends, first = len(t.b.nodes), list[States](), [_read_once(t, each) for each in given]
        projected = len(first) == 2 and first[0].shape[-1] != first[1].shape[-1]
        rows = _arrays(t, weights, ways, num_layers, biases=has_biases, projected=projected)
        x, packed = (x.steps, x) if isinstance(x, Packed) else (x, None)
        x = exchanged(t, x, 0, 1) if batch_first else _read_once(t, x)
        for layer in range(num_layers):
            outputs = list[Tensor]()
            for way in range(ways):
                row, place = rows[layer * ways + way], layer * ways + way
                own = tuple(select(t, state, 0, place) for state in first)
                inner = row.of_input(t, x, apart=apart and not (layer or packed))
                steps, end = _over_time(t, step, inner, row, own, packed, back=bool(way))
                outputs.append(steps)
                ends.append(end)
            x = outputs[0] if ways == 1 else cat(t, outputs, 2)
            if layer < num_layers - 1:
                x = dropout(t, x, dropout_share, train)
        last = (stack(t, states, 0) for states in zip(*ends, strict=True))
        results = (exchanged(t, x, 0, 1) if batch_first else x, *last)
        t.list_under("matmul", start)
        return results

    return rule


def _cell(step: Step) -> Rule:
    """Return the rule of one step: the next state, or those of an LSTM."""

    def rule(t: Tracer, x: Tensor, states: Any, *arrays: Tensor | None) -> Any:
        start = len(t.b.nodes)
        weights = Weights(*arrays)  # type: ignore[arg-type]
        given = states if isinstance(states, tuple) else (states,)
        first = tuple(_read_once(t, state) for state in given)
        following = step(t, weights.of_input(t, x), first, weights)
        t.list_under("matmul", start)
        return following if len(following) > 1 else following[0]

    return rule


STEPS: Mapping[str, Step] = MappingProxyType(
    {
        "lstm": _lstm_step,
        "gru": _gru_step,
        "rnn_tanh": _simple_step(activations.tanh),
        "rnn_relu": _simple_step(elementwise.relu),
    }
)
"""A step by the name of its layer."""

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **{name: _layer_rule(step) for name, step in STEPS.items()},
        **{f"{name}_cell": _cell(step) for name, step in STEPS.items()},
        "_pack_padded_sequence": lambda t, x, lengths: Packed(x, lengths),
    }
)
