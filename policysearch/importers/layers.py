"""Import rules: the layers torch keeps whole; an LSTM is unrolled over its steps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from policysearch.graph import size
from policysearch.importers.attention import dropout
from policysearch.importers.elementwise import add, multiply, plain
from policysearch.importers.shapes import cat, exchanged, part, select, unsqueeze
from policysearch.importers.tracer import Rule, Tensor, Tracer, refuse
from policysearch.ops import activations, dense
from policysearch.ops.embedding import embedding as embedding_op


def linear(
    t: Tracer, x: Tensor, weight: Tensor, bias: Tensor | None = None, apart: bool = False
) -> Tensor:
    """x w^T + b over the last axis of x; `apart`: the product is rounded before b is added."""
    product = t.emit_nodes(dense.matmul, t.rows(x), t.full(weight), transpose_b=True)
    if bias is not None:
        attrs: dict[str, Any] = {"apart": True} if apart else {}
        product = t.emit_nodes(dense.bias, product.id, t.full(bias), **attrs)
    return t.view(product, (*x.shape[:-1], weight.shape[0]))


def embedding(
    t: Tracer,
    weight: Tensor,
    indices: Tensor,
    padding_idx: int = -1,
    scale_grad_by_freq: bool = False,
    *_: Any,
) -> Tensor:
    """Look rows up; the row of `padding_idx` gets no gradient, as in torch."""
    if scale_grad_by_freq:
        raise refuse("scale_grad_by_freq", "leave it out")
    attrs: dict[str, Any] = {"padding_index": padding_idx} if padding_idx >= 0 else {}
    rows = t.shaped(indices, (size(indices.shape),))
    table_rows = t.emit_nodes(embedding_op, t.full(weight), rows, **attrs)
    return t.view(table_rows, (*indices.shape, weight.shape[1]))


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
    ways, arrays = 2 if bidirectional else 1, 4 if has_biases else 2
    if len(weights) != num_layers * ways * arrays:
        raise refuse("projections", "use proj_size=0")
    h0, c0 = states
    start = len(t.b.nodes)
    x = exchanged(t, x, 0, 1) if batch_first else x
    ends: list[tuple[Tensor, Tensor]] = []
    for layer in range(num_layers):
        outputs = []
        for way in range(ways):
            place = layer * ways + way
            own = weights[place * arrays : (place + 1) * arrays]
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
    results = (exchanged(t, x, 0, 1) if batch_first else x, *last)
    t.list_under("matmul", start)
    return results  # type: ignore[return-value]


def _run(
    t: Tracer, x: Tensor, weights: Sequence[Tensor], h: Tensor, c: Tensor, *, backwards: bool
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Return [time, batch, hidden] and the last states; the inputs of all steps go in at once."""
    w_in, w_state, *biases = weights
    b_in, b_state = biases or (None, None)
    inputs = linear(t, x, w_in, b_in)
    times = range(x.shape[0])
    outputs: dict[int, Tensor] = {}
    for time in reversed(times) if backwards else times:
        gates = add(t, select(t, inputs, 0, time), linear(t, h, w_state, b_state))
        i, f, g, o = _quarters(t, gates)
        c = add(t, multiply(t, _sigmoid(t, f), c), multiply(t, _sigmoid(t, i), _tanh(t, g)))
        h = multiply(t, _sigmoid(t, o), _tanh(t, c))
        outputs[time] = h
    return cat(t, [unsqueeze(t, outputs[time], 0) for time in times], 0), (h, c)


def _quarters(t: Tracer, gates: Tensor) -> Iterator[Tensor]:
    width = gates.shape[1] // 4
    return (part(t, gates, 1, place * width, (place + 1) * width) for place in range(4))


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "linear": linear,
        "embedding": embedding,
        "lstm": lstm,
    }
)
