"""Loss scaling, finite check, gradient clipping and optimizers as ops of the update."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, Builder, Example, FloatArray, Node, Op, Shape, size


def _first(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return inputs[0]


def _scalar(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return ()


def _bind_scale(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    x, factor = inputs
    return lambda: np.multiply(x, factor, out=out)


def _scale_gradient(b: Builder, node: Node, grad: int) -> int:
    return b.emit(scale_loss, grad, node.inputs[1])


def _scale_example(rng: np.random.Generator) -> Example:
    return Example((rng.standard_normal((3, 4)).astype(np.float32), np.array(8.0, np.float32)))


scale_loss = Op(
    "scale_loss",
    _first,
    _bind_scale,
    gradients=(_scale_gradient, None),
    example=_scale_example,
    placement="fp32",
)
unscale = Op(
    "unscale", _first, _bind_scale, example=_scale_example, placement="fp32", in_place=(0,)
)


def _all_finite(array: FloatArray) -> bool:
    """A NaN or an infinity shows in the sum of squares, and where that overflows, in the ends."""
    if np.isfinite(np.dot(array, array)):
        return True
    return bool(np.isfinite(np.maximum.reduce(array)) and np.isfinite(np.minimum.reduce(array)))


def _bind_finite(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    arrays = [array.ravel(order="K") for array in inputs]

    def run() -> None:
        out[()] = all(_all_finite(array) for array in arrays)

    return run


all_finite = Op(
    "all_finite",
    _scalar,
    _bind_finite,
    flops=lambda inputs, out, attrs: sum(size(shape) for shape in inputs),
    kind="reduce",
    placement="fp32",
)
"""1.0 where every element of every input is finite, else 0.0."""


def _bind_norm(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    arrays = [array.ravel(order="K") for array in inputs]

    def run() -> None:
        out[()] = np.sqrt(np.float32(sum(np.dot(a, a) for a in arrays)))

    return run


global_norm = Op(
    "global_norm",
    _scalar,
    _bind_norm,
    flops=lambda inputs, out, attrs: 2 * sum(size(shape) for shape in inputs),
    kind="reduce",
    placement="fp32",
)
"""Euclidean norm over all elements of all inputs."""


def _bind_clip(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    grad, norm = inputs
    limit = np.float32(attrs["limit"])

    def run() -> None:
        factor = np.minimum(limit / (norm + np.float32(1e-6)), np.float32(1.0))
        np.multiply(grad, factor, out=out)

    return run


clip = Op("clip", _first, _bind_clip, placement="fp32", in_place=(0,))
"""grad * min(1, limit / (norm + 1e-6)), as torch.nn.utils.clip_grad_norm_."""


def _bind_velocity(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    velocity, grad = inputs
    momentum = np.float32(attrs["momentum"])

    def run() -> None:
        np.multiply(velocity, momentum, out=out)
        np.add(out, grad, out=out)

    return run


def _bind_momentum(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    velocity, momentum = inputs[0], np.float32(attrs["momentum"])
    return lambda: np.multiply(velocity, momentum, out=out)


def _bind_step(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    parameter, direction, rate = inputs
    scaled = np.ndarray(direction.shape, np.float32, work, strides=direction.strides)

    def run() -> None:
        np.multiply(direction, rate, out=scaled)
        np.subtract(parameter, scaled, out=out)

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

sgd_decay = Op("sgd_decay", _first, _bind_momentum, placement="fp32", in_place=(0,))
"""momentum * velocity, rounded: the first half of what an optimizer does whose state is a
low-precision tensor; `add` with the gradient is the second."""

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


def _bind_moment(power: int, attr: str) -> Callable[..., Callable[[], object]]:
    def bind(
        inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
    ) -> Callable[[], object]:
        moment, grad = inputs
        keep = np.float32(attrs[attr])
        share = np.float32(1.0 - attrs[attr])
        fresh = np.ndarray(grad.shape, np.float32, work, strides=grad.strides)

        def run() -> None:
            np.multiply(grad, share, out=fresh)
            if power == 2:
                np.multiply(fresh, grad, out=fresh)
            np.multiply(moment, keep, out=out)
            np.add(out, fresh, out=out)

        return run

    return bind


adam_m = Op(
    "adam_m",
    _first,
    _bind_moment(1, "beta1"),
    flops=lambda inputs, out, attrs: 3 * size(out),
    placement="fp32",
    in_place=(0,),
    work=_elements,
)
"""beta1 * m + (1 - beta1) * grad (Kingma and Ba, arXiv 1412.6980)."""

adam_v = Op(
    "adam_v",
    _first,
    _bind_moment(2, "beta2"),
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
