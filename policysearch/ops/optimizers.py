"""SGD, momentum, weight decay and Adam as ops of the update."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from policysearch.graph import Attrs, FloatArray, Forward, Op, size
from policysearch.ops.elementwise import same_shape


def update_op(name: str, forward: Forward, flops_per_element: int) -> Op:
    """Return an op that takes the place of its first input, in float32 by default."""
    return Op(
        name,
        same_shape,
        forward,
        flops=lambda inputs, out, attrs: flops_per_element * size(out),
        placement="fp32",
        in_place=(0,),
    )


def double(scalar: Any) -> Any:
    """Return the one number of a source in float64: where it lies, if that is no host's memory."""
    return float(scalar) if isinstance(scalar, np.ndarray) else scalar.astype(np.float64)


def single(number: Any) -> Any:
    """Return a number of `double` in float32."""
    return np.float32(number) if isinstance(number, float) else number.astype(np.float32)


def fed_or(fed: Sequence[FloatArray], number: float) -> Any:
    """Return the number that is fed, if one is, or this one in float32."""
    return fed[0] if fed else np.float32(number)


def _velocity(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    velocity, grad, *fed = inputs
    moved: FloatArray = velocity * fed_or(fed, attrs.get("momentum", 0.0)) + grad
    return moved


def _step(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    parameter, direction, rate = inputs
    return parameter - direction * rate


def _weight_decay(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    grad, parameter = inputs
    return grad + parameter * np.float32(attrs["weight_decay"])


def _first_moment(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    moment, grad, *fed = inputs
    moved: FloatArray = moment + (grad - moment) * fed_or(fed, 1.0 - attrs.get("beta1", 0.0))
    return moved


def _second_moment(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    moment, grad = inputs
    keep, share = np.float32(attrs["beta2"]), np.float32(1.0 - attrs["beta2"])
    return moment * keep + grad * share * grad


def first_beta(share: Sequence[FloatArray], attrs: Attrs) -> Any:
    """Return beta1 in float64: of the `share`, 1 - beta1, that is fed, if one is."""
    return 1.0 - double(share[0]) if share else float(attrs["beta1"])


def _adam_step(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """As torch.optim.AdamW: decay first, then m / (sqrt(v / correction2) + epsilon)."""
    parameter, m, v, rate, step, *share = inputs
    beta1, beta2 = first_beta(share, attrs), float(attrs["beta2"])
    lr, count, decay = double(rate), double(step), float(attrs.get("weight_decay", 0.0))
    root: FloatArray = np.sqrt(v)
    deviation = root / single(np.sqrt(1.0 - beta2**count)) + np.float32(attrs["epsilon"])
    change = m / deviation * single(lr / (1.0 - beta1**count))
    return parameter * single(1.0 - lr * decay) - change


def _root_step(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """As torch's addcdiv of the gradient over sqrt(squares) + epsilon."""
    parameter, grad, squares, rate = inputs
    root: FloatArray = np.sqrt(squares)
    return parameter + grad * -rate / (root + np.float32(attrs["epsilon"]))


def _lion_step(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    parameter, m, grad, rate = inputs
    keep, share = np.float32(attrs["beta1"]), np.float32(1.0 - attrs["beta1"])
    shrunk = parameter * single(1.0 - double(rate) * attrs["weight_decay"])
    direction: FloatArray = np.sign(m * keep + grad * share)
    return shrunk - direction * rate


def _lion_m(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    m, grad = inputs
    return m * np.float32(attrs["beta2"]) + grad * np.float32(attrs["share"])


sgd_velocity = update_op("sgd_velocity", _velocity, 2)
"""momentum * velocity + grad (torch.optim.SGD without dampening); momentum may be fed."""
sgd_step = update_op("sgd_step", _step, 2)
"""parameter - learning_rate * direction."""
weight_decay = update_op("weight_decay", _weight_decay, 2)
"""grad + weight_decay * parameter (the coupled L2 penalty of SGD and Adam)."""
adam_m = update_op("adam_m", _first_moment, 3)
"""m + (1 - beta1) * (grad - m) (Kingma and Ba, arXiv 1412.6980; torch's `lerp_`).

1 - beta1 may be fed."""
adam_v = update_op("adam_v", _second_moment, 4)
"""beta2 * v + (1 - beta2) * grad^2 (Kingma and Ba, arXiv 1412.6980)."""
adam_step = update_op("adam_step", _adam_step, 8)
"""One Adam or (with the `weight_decay` attribute, decoupled) AdamW step; `step` counts from 1.

1 - beta1 may be fed."""
root_step = update_op("root_step", _root_step, 5)
"""parameter - learning_rate * grad / (sqrt(squares) + epsilon): RMSprop's step, and Adagrad's."""
lion_step = update_op("lion_step", _lion_step, 7)
"""The parameter after decay, minus learning_rate * sign(beta1 * m + (1 - beta1) * grad)."""
lion_m = update_op("lion_m", _lion_m, 3)
"""beta2 * m + `share` * grad, which is 1 - beta2 of it."""
