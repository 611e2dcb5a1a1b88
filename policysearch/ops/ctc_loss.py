"""Connectionist temporal classification: the loss of a sequence over all its alignments.

Source: Graves et al. 2006, https://www.cs.toronto.edu/~graves/icml_2006.pdf, equations 6 to 16, in
logarithms; blanks, lengths and the gradient are those of torch 2.13,
`aten/src/ATen/native/LossCTC.cpp`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from policysearch.graph import Attrs, Example, FloatArray, Op, size

Whole = NDArray[np.intp]

NORMAL = "normal"
"""The attribute of a loss whose gradient takes its first input for a logarithm of a softmax.

So torch does, whatever it is given: to the derivative it adds the probabilities, which cancel in
the gradient of a log_softmax.
"""


def _log_sum(*terms: FloatArray) -> FloatArray:
    """Return log(sum of exp) of arrays of one shape; -inf where all are."""
    stacked = np.stack(terms)
    highest = np.maximum.reduce(stacked, axis=0)
    shift = np.where(np.isneginf(highest), np.float32(0.0), highest)
    with np.errstate(divide="ignore"):
        logarithm: FloatArray = np.log(np.add.reduce(np.exp(stacked - shift), axis=0))
    return logarithm + shift


def _shift(values: FloatArray, places: int) -> FloatArray:
    """Return [batch, states] moved to later states, to earlier ones by places below 0."""
    result = np.full_like(values, -np.inf)
    if places >= 0:
        result[:, places:] = values[:, : values.shape[1] - places]
    else:
        result[:, :places] = values[:, -places:]
    return result


def _padded_targets(targets: FloatArray, lengths: Whole) -> Whole:
    """Return targets [batch, longest]; what one row after the other lies in a vector is padded."""
    if targets.ndim == 2:
        return targets.astype(np.intp)
    rows = np.zeros((len(lengths), int(lengths.max(initial=0))), np.intp)
    rows[np.arange(rows.shape[1]) < lengths[:, None]] = targets[: lengths.sum()]
    return rows


class _Lattice:
    """The states of each example: its labels, with a blank before, between and behind them."""

    def __init__(self, inputs: Sequence[FloatArray], attrs: Attrs) -> None:
        self.log_p, targets, steps, labels = inputs
        self.steps, self.labels = steps.astype(np.intp), labels.astype(np.intp)
        rows = _padded_targets(targets, self.labels)
        batch, longest = rows.shape
        inside = np.arange(longest) < self.labels[:, None]
        self.classes = np.full((batch, 2 * longest + 1), attrs.get("blank", 0), np.intp)
        self.classes[:, 1::2] = np.where(inside, rows, attrs.get("blank", 0))
        self.there = np.arange(2 * longest + 1) <= 2 * self.labels[:, None]
        self.skips = np.zeros_like(self.there)  # a label may follow another that differs from it
        self.skips[:, 3::2] = self.classes[:, 3::2] != self.classes[:, 1:-2:2]
        self.emitted = self.log_p[:, np.arange(batch)[:, None], self.classes]

    def _mask(self, values: FloatArray, mask: NDArray[np.bool_]) -> FloatArray:
        return np.where(mask, values, np.float32(-np.inf))

    def forwards(self) -> FloatArray:
        """Return alpha [time, batch, states]: of all beginnings that are in a state at a time."""
        alpha = np.full_like(self.emitted, -np.inf)
        alpha[0, :, :2] = self._mask(self.emitted[0], self.there)[:, :2]
        for time in range(1, len(alpha)):
            before = alpha[time - 1]
            skipped = self._mask(_shift(before, 2), self.skips)
            total = _log_sum(before, _shift(before, 1), skipped) + self.emitted[time]
            alpha[time] = self._mask(total, self.there)
        return alpha

    def backwards(self) -> FloatArray:
        """Return beta [time, batch, states]: of all ends from a state at a time, with that time."""
        states = np.arange(self.classes.shape[1])
        last = 2 * self.labels[:, None]
        beta = np.full_like(self.emitted, -np.inf)
        for time in reversed(range(len(beta))):
            here = self.emitted[time]
            if time + 1 < len(beta):
                after = beta[time + 1]
                skipped = _shift(self._mask(after, self.skips), -2)
                total = _log_sum(after, _shift(after, -1), skipped) + here
                beta[time] = self._mask(total, (time < self.steps[:, None] - 1) & self.there)
            final = self.there & (states >= last - 1) & (time == self.steps[:, None] - 1)
            beta[time] = np.where(final, here, beta[time])
        return beta

    def losses(self, alpha: FloatArray) -> FloatArray:
        """Return -log of the probability of the labels, by example; inf of those too short."""
        rows, last = np.arange(len(self.labels)), 2 * self.labels
        end = alpha[np.maximum(self.steps, 1) - 1, rows]
        before = np.where(self.labels > 0, end[rows, last - 1], np.float32(-np.inf))
        total = -_log_sum(end[rows, last], before)
        empty = np.where(self.labels > 0, np.float32(np.inf), np.float32(0.0))
        return np.where(self.steps > 0, total, empty)


def _ctc(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    lattice = _Lattice(inputs, attrs)
    losses = lattice.losses(lattice.forwards())
    return np.where(np.isposinf(losses), 0.0, losses) if attrs.get("zero_infinity") else losses


def _ctc_grad(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """-P(the class is emitted | the labels) of each time, class and example, times `grad`."""
    grad, *others = inputs
    lattice = _Lattice(others, attrs)
    alpha = lattice.forwards()
    losses = lattice.losses(alpha)
    with np.errstate(invalid="ignore"):
        joint = alpha + lattice.backwards() - lattice.emitted + losses[:, None]
    slope = np.exp(lattice.log_p) if attrs.get(NORMAL) else np.zeros_like(lattice.log_p)
    for state, classes in enumerate(lattice.classes.T):
        shares = np.where(lattice.there[:, state], np.exp(joint[:, :, state]), np.float32(0.0))
        slope[:, np.arange(len(grad)), classes] -= shares
    slope *= grad[:, None]
    slope[:, np.isposinf(losses)] = 0.0 if attrs.get("zero_infinity") else np.nan
    slope[np.arange(len(slope))[:, None] >= lattice.steps] = 0.0
    return slope


def _example(rng: np.random.Generator) -> Example:
    log_p = rng.standard_normal((7, 3, 5)).astype(np.float32)
    targets = np.array([[1, 1, 3], [4, 2, 0], [0, 0, 0]], np.float32)
    return Example(
        (log_p, targets, np.array([7, 5, 6], np.float32), np.array([3, 2, 0], np.float32))
    )


ctc_loss_grad = Op(
    "ctc_loss_grad",
    lambda inputs, attrs: inputs[1],
    _ctc_grad,
    flops=lambda inputs, out, attrs: 2 * size(out) + 30 * out[0] * out[1],
    kind="reduce",
    placement="fp32",
    pinned=(2, 3, 4),
)
ctc_loss = Op(
    "ctc_loss",
    lambda inputs, attrs: (inputs[0][1],),
    _ctc,
    gradients=(
        lambda b, node, grad: b.emit(ctc_loss_grad, grad, *node.inputs, attrs=node.attributes),
        None,
        None,
        None,
    ),
    flops=lambda inputs, out, attrs: 30 * inputs[0][0] * inputs[0][1] * (2 * inputs[1][-1] + 1),
    example=_example,
    kind="reduce",
    placement="fp32",
    pinned=(1, 2, 3),
)
"""-log P(labels) by example, of log p [time, batch, classes], labels, and the lengths of both.

Labels are [batch, longest], or a vector, one example after the other. `blank` is the class between
labels; with `zero_infinity` an example too short for its labels counts 0, and is inf without.
"""


def _per_label(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    losses, labels = inputs
    return np.divide(losses, np.maximum(labels, 1.0), dtype=np.float32)


per_label: Op = Op(
    "per_label",
    lambda inputs, attrs: inputs[0],
    _per_label,
    gradients=(lambda b, node, grad: b.emit(per_label, grad, node.inputs[1]), None),
    example=lambda rng: Example(
        (rng.standard_normal(3).astype(np.float32), np.array([2, 0, 4], np.float32))
    ),
    placement="fp32",
    pinned=(1,),
)
"""The loss of each example over the number of its labels, at least 1."""
