"""Training steps as one writes them in numpy: im2col, float32, a new array per operation."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from policysearch.graph import FloatArray
from policysearch.nn.chain import Chain

LEARNING_RATE, MOMENTUM = np.float32(0.01), np.float32(0.9)
Back = Callable[[FloatArray], FloatArray]
Grads = dict[str, FloatArray]


def plain_step(model: Chain, images: FloatArray, targets: FloatArray) -> Callable[[], float]:
    """Return the call that takes one step of an MLP or LeNet-5 and returns the loss."""
    params = model.init(np.random.default_rng(0))
    velocity = {name: np.zeros_like(value) for name, value in params.items()}

    def step() -> float:
        grads: Grads = {}
        tape: list[Back] = []
        x = images
        for layer in model.layers:
            x = _forward(layer.name, x, params, grads, tape)
        shifted = x - x.max(axis=1, keepdims=True)
        share = np.exp(shifted)
        total = share.sum(axis=1, keepdims=True)
        loss = float((np.log(total) - (shifted * targets).sum(axis=1, keepdims=True)).mean())
        grad = (share / total - targets) / np.float32(len(x))
        for back in reversed(tape):
            grad = back(grad)
        for name, value in params.items():
            velocity[name] = MOMENTUM * velocity[name] + grads[name]
            params[name] = value - LEARNING_RATE * velocity[name]
        return loss

    return step


def _forward(
    name: str, x: FloatArray, params: dict[str, FloatArray], grads: Grads, tape: list[Back]
) -> FloatArray:
    if name == "flatten":
        shape = x.shape
        tape.append(lambda g: g.reshape(shape))
        return x.reshape(len(x), -1)
    if name.startswith("relu"):
        mask = x > 0
        tape.append(lambda g: g * mask)
        return x * mask
    if name.startswith("pool"):
        return _pool(x, tape)
    weight, bias = params[f"{name}.weight"], params[f"{name}.bias"]
    rule = _conv if name.startswith("conv") else _dense
    return rule(name, x, weight, grads, tape) + bias.reshape(-1, *(1,) * (x.ndim - 2))


def _dense(
    name: str, x: FloatArray, weight: FloatArray, grads: Grads, tape: list[Back]
) -> FloatArray:
    def back(g: FloatArray) -> FloatArray:
        grads[f"{name}.weight"], grads[f"{name}.bias"] = g.T @ x, g.sum(axis=0)
        return g @ weight

    tape.append(back)
    return x @ weight.T


def _conv(
    name: str, x: FloatArray, weight: FloatArray, grads: Grads, tape: list[Back]
) -> FloatArray:
    n_out, n_in, k, _ = weight.shape
    batch, side = len(x), x.shape[2] - k + 1
    columns = sliding_window_view(x, (k, k), axis=(2, 3)).transpose(0, 2, 3, 1, 4, 5)
    matrix = columns.reshape(batch * side * side, -1)
    flat = weight.reshape(n_out, -1)

    def back(g: FloatArray) -> FloatArray:
        rows = g.transpose(0, 2, 3, 1).reshape(-1, n_out)
        grads[f"{name}.weight"] = (rows.T @ matrix).reshape(weight.shape)
        grads[f"{name}.bias"] = rows.sum(axis=0)
        if name == "conv1":
            return g
        spread = (rows @ flat).reshape(batch, side, side, n_in, k, k)
        dx: NDArray[np.float32] = np.zeros_like(x)
        for i in range(k):
            for j in range(k):
                dx[:, :, i : i + side, j : j + side] += spread[..., i, j].transpose(0, 3, 1, 2)
        return dx

    tape.append(back)
    return (matrix @ flat.T).reshape(batch, side, side, n_out).transpose(0, 3, 1, 2)


def _pool(x: FloatArray, tape: list[Back]) -> FloatArray:
    n, c, h, w = x.shape
    windows = x.reshape(n, c, h // 2, 2, w // 2, 2).transpose(0, 1, 2, 4, 3, 5).reshape(-1, 4)
    first = windows.argmax(axis=1)[:, None]

    def back(g: FloatArray) -> FloatArray:
        spread = np.zeros_like(windows)
        np.put_along_axis(spread, first, g.reshape(-1, 1), axis=1)
        parts = spread.reshape(n, c, h // 2, w // 2, 2, 2)
        return parts.transpose(0, 1, 2, 4, 3, 5).reshape(x.shape)

    tape.append(back)
    return np.take_along_axis(windows, first, axis=1).reshape(n, c, h // 2, w // 2)
