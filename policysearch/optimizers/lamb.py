"""LAMB (arXiv 1904.00962, algorithm 2): Adam's step, made as long as the parameter it moves.

The scaling function is the identity, as in the paper's experiments, and the ratio is 1 where either
norm is 0. Apex's FusedLAMB clips the norm of all gradients besides: `clip_norm` of the task.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, FloatArray, Op, size
from policysearch.ops.builder import Builder
from policysearch.ops.optimizers import adam_m, adam_v, double, single, update_op
from policysearch.optimizers.adam import MOMENTS, eager_second_moment, moments_of
from policysearch.optimizers.optimizer import ADD, MULTIPLY, Array, Optimizer, Place, Rule

NORM, DIRECTION = (1, 0), (2, 1)


def _direction(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    m, v, parameter, step = inputs
    count = double(step)
    root: FloatArray = np.sqrt(v / single(1.0 - attrs["beta2"] ** count))
    moved = m / single(1.0 - attrs["beta1"] ** count) / (root + np.float32(attrs["epsilon"]))
    direction: FloatArray = moved + parameter * np.float32(attrs["weight_decay"])
    return direction


def _norm(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    flat = inputs[0].ravel(order="K")
    norm: FloatArray = np.sqrt(np.dot(flat, flat))
    return norm


def _step(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    parameter, direction, length, reach, rate = inputs
    known = (length > 0.0) & (reach > 0.0)
    ratio: FloatArray = np.where(known, length / reach, np.float32(1.0))
    return parameter - direction * (ratio * rate)


lamb_direction = update_op("lamb_direction", _direction, 8)
"""unbiased m / (sqrt(unbiased v) + epsilon) + weight_decay * parameter."""
tensor_norm = Op(
    "tensor_norm",
    lambda shapes, attrs: (),
    _norm,
    flops=lambda inputs, out, attrs: 2 * size(inputs[0]),
    kind="reduce",
    placement="fp32",
)
"""The Euclidean norm of one tensor."""
lamb_step = update_op("lamb_step", _step, 2)
"""parameter - learning_rate * (norm of parameter / norm of direction) * direction."""


def _emit(b: Builder, optimizer: Optimizer, at: Place) -> tuple[tuple[int, ...], int]:
    m = b.emit(adam_m, at.states[0], at.grad, attrs={"beta1": optimizer.beta1})
    v = b.emit(adam_v, at.states[1], at.grad, attrs={"beta2": optimizer.beta2})
    attrs = {name: getattr(optimizer, name) for name in ("beta1", "beta2", "epsilon")}
    attrs["weight_decay"] = at.decay
    direction = b.emit(lamb_direction, m, v, at.parameter, at.step, attrs=attrs)
    length, reach = (b.emit(tensor_norm, tensor) for tensor in (at.parameter, direction))
    return (m, v), b.emit(lamb_step, at.parameter, direction, length, reach, at.rate)


def _plain(
    optimizer: Optimizer,
    parameter: Array,
    states: tuple[Array, ...],
    grad: Array,
    rate: float,
    step: int,
) -> tuple[tuple[Array, ...], Array]:
    m, v, unbiased_m, unbiased_v = moments_of(optimizer, states, grad, step)
    direction = unbiased_m / (np.sqrt(unbiased_v) + optimizer.epsilon)
    direction = direction + optimizer.weight_decay * parameter
    norms = np.linalg.norm(parameter), np.linalg.norm(direction)
    ratio = norms[0] / norms[1] if all(norms) else 1.0
    return (m, v), parameter - rate * ratio * direction


LAMB = Rule(
    "lamb",
    "adam's direction plus decay, per tensor as long as the parameter",
    "arXiv 1904.00962, algorithm 2; kernels as of Apex FusedLAMB",
    states=("m", "v"),
    reads=("beta1", "beta2", "epsilon", "weight_decay"),
    separate=(*MOMENTS, DIRECTION, ADD, NORM, NORM, MULTIPLY, ADD),
    # Apex's kernels: both moments with the step, the norms of it and of parameters, the step.
    fused=((4, 3), (2, 0), (2, 1)),
    aside=2,
    norms=2,
    emit=_emit,
    plain=_plain,
    decoupled=True,
    eager={"adam_v": eager_second_moment},
)
