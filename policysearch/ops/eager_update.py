"""The single operations of an optimizer that runs them one by one, each result stored.

They follow torch 2.13's `torch/optim/sgd.py` and `torch/optim/adam.py` (`_single_tensor_*`, whose
`_multi_tensor_*` twins call the same operations on lists of tensors).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from policysearch.graph import Attrs, FloatArray
from policysearch.ops.optimizers import double, fed_or, first_beta, single, update_op


def _add_damped(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x, grad, step = inputs
    return x + grad * np.where(step == 1.0, np.float32(1.0), np.float32(attrs["share"]))


def _add_lookahead(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    grad, velocity, *fed = inputs
    ahead: FloatArray = grad + velocity * fed_or(fed, attrs.get("momentum", 0.0))
    return ahead


def _add_square(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x, grad = inputs
    return x + grad * np.float32(attrs["share"]) * grad


def _correct(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    root, step = inputs
    return root / single((1.0 - attrs["beta2"] ** double(step)) ** 0.5)


def _add_epsilon(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    return inputs[0] + np.float32(attrs["epsilon"])


def _shrink(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    parameter, rate = inputs
    return parameter * single(1.0 - double(rate) * attrs["weight_decay"])


def _move(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    parameter, m, denominator, rate, step, *share = inputs
    change = -double(rate) / (1.0 - first_beta(share, attrs) ** double(step))
    return parameter + m * single(change) / denominator


def _move_over(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    parameter, grad, denominator, rate = inputs
    return parameter + grad * -rate / denominator


def _direction(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    total: FloatArray = np.sign(inputs[0] + inputs[1])
    return total


def _add_share(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    x, grad = inputs
    return x + grad * np.float32(attrs["share"])


add_damped = update_op("add_damped", _add_damped, 2)
"""x + `share` * grad, x + grad in the first update: the velocity then is the gradient itself."""
sgd_nesterov = update_op("sgd_nesterov", _add_lookahead, 2)
"""grad + momentum * velocity: the direction of Nesterov's momentum."""
add_square = update_op("add_square", _add_square, 3)
"""x + `share` * grad^2."""
adam_root = update_op("adam_root", lambda inputs, attrs: np.sqrt(inputs[0]), 1)
"""sqrt(v)."""
adam_corrected = update_op("adam_corrected", _correct, 1)
"""root / sqrt(1 - beta2^step)."""
adam_epsilon = update_op("adam_epsilon", _add_epsilon, 1)
"""x + epsilon."""
adam_shrunk = update_op("adam_shrunk", _shrink, 1)
"""parameter * (1 - learning_rate * weight_decay), AdamW's decay."""
adam_moved = update_op("adam_moved", _move, 3)
"""parameter - learning_rate / (1 - beta1^step) * m / denominator."""
moved_over = update_op("moved_over", _move_over, 3)
"""parameter - learning_rate * grad / denominator."""
lion_direction = update_op("lion_direction", _direction, 2)
"""sign(x + y)."""
add_share = update_op("add_share", _add_share, 2)
"""x + `share` * grad."""
