"""SGD, momentum, weight decay and Adam as ops of the update."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, FloatArray, Op, Shape, size


def _first(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return inputs[0]


def _bind_velocity(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    velocity, grad = inputs
    momentum = np.array(attrs["momentum"], np.float32)  # faster than a number, on short spans

    def run() -> None:
        np.multiply(velocity, momentum, out)
        np.add(out, grad, out)

    return run


def _bind_step(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    parameter, direction, rate = inputs
    scaled = np.ndarray(direction.shape, np.float32, work, strides=direction.strides)

    def run() -> None:
        np.multiply(direction, rate, scaled)
        np.subtract(parameter, scaled, out)

    return run


def _elements(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> int:
    return size(out)


sgd_velocity = Op(
    "sgd_velocity",
    _first,
    _bind_velocity,
    flops=lambda inputs, out, attrs: 2 * size(out),
    placement="fp32",
    in_place=(0,),
)
"""momentum * velocity + grad (torch.optim.SGD without dampening)."""

sgd_step = Op(
    "sgd_step",
    _first,
    _bind_step,
    flops=lambda inputs, out, attrs: 2 * size(out),
    placement="fp32",
    in_place=(0,),
    work=_elements,
)
"""parameter - learning_rate * direction."""


def _bind_decay(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    grad, parameter = inputs
    scaled, decay = (
        np.ndarray(grad.shape, np.float32, work, strides=grad.strides),
        np.float32(attrs["weight_decay"]),
    )

    def run() -> None:
        np.multiply(parameter, decay, out=scaled)
        np.add(grad, scaled, out=out)

    return run


weight_decay = Op(
    "weight_decay",
    _first,
    _bind_decay,
    flops=lambda inputs, out, attrs: 2 * size(out),
    placement="fp32",
    in_place=(0,),
    work=_elements,
)
"""grad + weight_decay * parameter (the coupled L2 penalty of SGD and Adam)."""


def _bind_first_moment(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    moment, grad = inputs
    share = np.float32(1.0 - attrs["beta1"])
    change = np.ndarray(grad.shape, np.float32, work, strides=grad.strides)

    def run() -> None:
        np.subtract(grad, moment, out=change)
        np.multiply(change, share, out=change)
        np.add(moment, change, out=out)

    return run


def _bind_second_moment(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    moment, grad = inputs
    keep, share = np.float32(attrs["beta2"]), np.float32(1.0 - attrs["beta2"])
    fresh = np.ndarray(grad.shape, np.float32, work, strides=grad.strides)

    def run() -> None:
        np.multiply(grad, share, out=fresh)
        np.multiply(fresh, grad, out=fresh)
        np.multiply(moment, keep, out=out)
        np.add(out, fresh, out=out)

    return run


adam_m = Op(
    "adam_m",
    _first,
    _bind_first_moment,
    flops=lambda inputs, out, attrs: 3 * size(out),
    placement="fp32",
    in_place=(0,),
    work=_elements,
)
"""m + (1 - beta1) * (grad - m) (Kingma and Ba, arXiv 1412.6980; torch's `lerp_`)."""

adam_v = Op(
    "adam_v",
    _first,
    _bind_second_moment,
    flops=lambda inputs, out, attrs: 4 * size(out),
    placement="fp32",
    in_place=(0,),
    work=_elements,
)
"""beta2 * v + (1 - beta2) * grad^2 (Kingma and Ba, arXiv 1412.6980)."""


def _bind_adam_step(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    """As torch.optim.AdamW: decay first, then m / (sqrt(v / correction2) + epsilon)."""
    parameter, m, v, rate, step = inputs
    beta1, beta2 = float(attrs["beta1"]), float(attrs["beta2"])
    epsilon, decay = np.float32(attrs["epsilon"]), float(attrs.get("weight_decay", 0.0))
    change = np.ndarray(parameter.shape, np.float32, work, strides=parameter.strides)

    def run() -> None:
        count, lr = float(step), float(rate)
        np.sqrt(v, out=change)
        np.divide(change, np.float32(np.sqrt(1.0 - beta2**count)), out=change)
        np.add(change, epsilon, out=change)
        np.divide(m, change, out=change)
        np.multiply(change, np.float32(lr / (1.0 - beta1**count)), out=change)
        np.multiply(parameter, np.float32(1.0 - lr * decay), out=out)
        np.subtract(out, change, out=out)

    return run


adam_step = Op(
    "adam_step",
    _first,
    _bind_adam_step,
    flops=lambda inputs, out, attrs: 8 * size(out),
    placement="fp32",
    in_place=(0,),
    work=_elements,
)
"""One Adam or (with the `weight_decay` attribute, decoupled) AdamW step; `step` counts from 1."""
