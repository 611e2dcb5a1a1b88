"""Import rules: LSTMs, unrolled over their time steps (torch.nn.LSTM gives the formulas)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType

from policysearch.importers.attention import dropout
from policysearch.importers.elementwise import add, multiply, plain
from policysearch.importers.layers import linear
from policysearch.importers.shapes import cat, exchanged, part, select, unsqueeze
from policysearch.importers.tracer import Rule, Tensor, Tracer, refuse
from policysearch.ops import activations

_sigmoid, _tanh = plain(activations.sigmoid), plain(activations.tanh)


def lstm(
    t: Tracer,
    x: Tensor,
    states: Sequence[Tensor],
    weights: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout_share: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the outputs of the last layer, and the last h and c of all layers."""
    ways, each = 2 if bidirectional else 1, 4 if has_biases else 2
    if len(weights) != num_layers * ways * each:
        raise refuse("projections", "use proj_size=0")
    h0, c0 = states
    start = len(t.b.nodes)
    x = exchanged(t, x, 0, 1) if batch_first else x
    ends: list[tuple[Tensor, Tensor]] = []
    for layer in range(num_layers):
        outputs = []
        for way in range(ways):
            place = layer * ways + way
            own = weights[place * each : (place + 1) * each]
            h, c = (select(t, state, 0, place) for state in (h0, c0))
            steps, end = _run(t, x, own, h, c, backwards=way == 1)
            outputs.append(steps)
            ends.append(end)
        x = outputs[0] if ways == 1 else cat(t, outputs, 2)
        if layer < num_layers - 1:
            x = dropout(t, x, dropout_share, train)
    last = (
        cat(t, [unsqueeze(t, state, 0) for state in states], 0)
        for states in zip(*ends, strict=True)
    )
    found = (exchanged(t, x, 0, 1) if batch_first else x, *last)
    t.list_under("matmul", start)
    return found  # type: ignore[return-value]


def _run(
    t: Tracer, x: Tensor, weights: Sequence[Tensor], h: Tensor, c: Tensor, *, backwards: bool
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return [time, batch, hidden] and the last states; the inputs of all steps go in at once."""
    w_in, w_state, *biases = weights
    b_in, b_state = biases or (None, None)
    given = linear(t, x, w_in, b_in)
    times = range(x.shape[0])
    found: dict[int, Tensor] = {}
    for time in reversed(times) if backwards else times:
        gates = add(t, select(t, given, 0, time), linear(t, h, w_state, b_state))
        i, f, g, o = _quarters(t, gates)
        c = add(t, multiply(t, _sigmoid(t, f), c), multiply(t, _sigmoid(t, i), _tanh(t, g)))
        h = multiply(t, _sigmoid(t, o), _tanh(t, c))
        found[time] = h
    return cat(t, [unsqueeze(t, found[time], 0) for time in times], 0), (h, c)


def _quarters(t: Tracer, gates: Tensor) -> Iterator[Tensor]:
    width = gates.shape[1] // 4
    return (part(t, gates, 1, place * width, (place + 1) * width) for place in range(4))


RULES: Mapping[str, Rule] = MappingProxyType({"lstm": lstm})
