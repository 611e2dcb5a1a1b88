"""Muon (Keller Jordan, 2024): momentum of matrices, made orthogonal by Newton and Schulz.

As torch 2.13's `torch/optim/_muon.py` has it, with its coefficients and `adjust_lr_fn="original"`:
five steps in bfloat16 whatever the parameters are stored in, each product summed and added to in
float32 and rounded once. It takes matrices alone; other parameters are AdamW's, as its authors
train biases and norms, and so are matrices of a group with `optimizer = "adamw"`, as they train
embeddings and heads.

Without Nesterov torch scales a bfloat16 buffer in place (`grad.bfloat16()` is no copy); here it
stays as it is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from policysearch.formats import format_named
from policysearch.graph import Attrs, FloatArray, Op, Shape, size
from policysearch.layout import empty
from policysearch.ops.builder import Builder
from policysearch.ops.dense import contract, contracted, transposed
from policysearch.ops.eager_update import adam_shrunk
from policysearch.ops.optimizers import adam_m, double, sgd_step, single, update_op
from policysearch.optimizers.adam import ADAMW
from policysearch.optimizers.optimizer import (
    ADD,
    LERP,
    MULTIPLY,
    Array,
    EmitOne,
    Optimizer,
    Place,
    Product,
    Rule,
    TorchClass,
)
from policysearch.rounding.rounder import quantise

STEPS, SMALLEST_NORM = 5, 1e-7
A, B, C = 3.4445, -4.7750, 2.0315
"""Of the quintic a X + b (X X') X + c (X X')^2 X."""


def _ahead(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """As torch's `grad.lerp(buf, momentum)`, whose formula changes at a half."""
    grad, buffer = inputs
    weight = np.float32(attrs["momentum"])
    if weight < 0.5:
        return grad + (buffer - grad) * weight
    return buffer - (buffer - grad) * (np.float32(1.0) - weight)


def _normed_direction(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    low = format_named("bfloat16")
    x = quantise(inputs[0], low)
    flat = x.ravel(order="K")
    norm = quantise(np.sqrt(np.dot(flat, flat)), low)
    least: Any = quantise(np.array(SMALLEST_NORM, np.float32), low)
    normed: FloatArray = x / np.maximum(norm, least)
    return normed


def _product_shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    left, right = inputs[:2]
    rows = left[-1] if attrs.get("transpose_a") else left[-2]
    return rows, right[-2] if attrs.get("transpose_b") else right[-1]


def _product(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    shape = _product_shape([x.shape for x in inputs], attrs)
    left, right = transposed(inputs[0], inputs[1], attrs)
    made = contract(left, right, attrs, empty(shape, inputs[0]))
    if len(inputs) == 2:
        return made
    return made * np.float32(attrs["alpha"]) + inputs[2] * np.float32(attrs["beta"])


def _step(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    parameter, direction, rate, own = inputs
    shrunk: FloatArray = parameter * single(1.0 - double(rate) * attrs["weight_decay"])
    return shrunk - direction * own


muon_ahead = update_op("muon_ahead", _ahead, 3)
"""grad + momentum * (buffer - grad): the direction of Nesterov's momentum."""
muon_normed = update_op("muon_normed", _normed_direction, 4)
"""The matrix in bfloat16 over its Euclidean norm."""
muon_product = Op(
    "muon_product",
    _product_shape,
    _product,
    flops=lambda inputs, out, attrs: 2 * size(out) * contracted(inputs, attrs),
    kind="gemm",
    placement="fp32",
)
"""left @ right, or with a third input alpha * left @ right + beta * it (torch's `addmm`)."""
muon_rate = Op(
    "muon_rate",
    lambda inputs, attrs: (),
    lambda inputs, attrs: single(double(inputs[0]) * attrs["factor"]),
    placement="fp32",
)
"""learning_rate * `factor`."""
own_rate_step = update_op("own_rate_step", _step, 3)
"""The parameter after decay, minus a rate of its own times the direction."""


def _emit(b: Builder, optimizer: Optimizer, at: Place) -> tuple[tuple[int, ...], int]:
    buffer = b.emit(adam_m, at.states[0], at.grad, attrs={"beta1": optimizer.momentum})
    ahead = {"momentum": optimizer.momentum}
    x = b.emit(muon_ahead, at.grad, buffer, attrs=ahead) if optimizer.nesterov else buffer
    rows, columns = b.shape(at.parameter)
    direction = _orthogonal(b, x, tall=rows > columns)
    factor = math.sqrt(max(1.0, rows / columns))
    adjusted = b.emit(muon_rate, at.rate, attrs={"factor": factor})
    attrs = {"weight_decay": at.decay}
    return (buffer,), b.emit(own_rate_step, at.parameter, direction, at.rate, adjusted, attrs=attrs)


def _orthogonal(b: Builder, x: int, tall: bool) -> int:
    """Emit the iteration; a tall matrix is not transposed, its products are."""
    own: dict[str, Any] = {"format": "bfloat16"}

    def product(*inputs: int, **attrs: Any) -> int:
        return b.emit(muon_product, *inputs, attrs={**own, **attrs}, **own)

    x = b.emit(muon_normed, x, attrs=own, **own)
    for _ in range(STEPS):
        gram = product(x, x, **{"transpose_a" if tall else "transpose_b": True})
        square = product(gram, gram, gram, alpha=C, beta=B)
        if tall:
            x = product(x, square, x, transpose_b=True, alpha=1.0, beta=A)
        else:
            x = product(square, x, x, alpha=1.0, beta=A)
    return x


def eager_own_rate_step(emit: EmitOne, attrs: Attrs, inputs: Sequence[int]) -> int:
    """As `param.mul_(1 - lr * weight_decay)`, `param.add_(update, alpha=-adjusted_lr)`.

    torch multiplies without a decay too, by 1.
    """
    parameter, direction, rate, adjusted = inputs
    if attrs["weight_decay"]:
        parameter = emit(adam_shrunk, parameter, rate, attrs=attrs)
    return emit(sgd_step, parameter, direction, adjusted)


def _plain(
    optimizer: Optimizer,
    parameter: Array,
    states: tuple[Array, ...],
    grad: Array,
    rate: float,
    step: int,
) -> tuple[tuple[Array, ...], Array]:
    buffer = optimizer.momentum * states[0] + (1.0 - optimizer.momentum) * grad
    ahead = optimizer.momentum * buffer + (1.0 - optimizer.momentum) * grad
    x = _bfloat16_values(ahead if optimizer.nesterov else buffer)
    x = _bfloat16_values(x / _bfloat16_values(np.array(np.linalg.norm(x))))
    for _ in range(STEPS):
        gram = _bfloat16_values(x @ x.T)
        x = _bfloat16_values(A * x + _bfloat16_values(B * gram + C * gram @ gram) @ x)
    adjusted = rate * math.sqrt(max(1.0, parameter.shape[0] / parameter.shape[1]))
    return (buffer,), parameter * (1.0 - rate * optimizer.weight_decay) - adjusted * x


def _bfloat16_values(x: Array) -> Array:
    """Without it what rounding leaves of directions without a gradient is another."""
    return quantise(x.astype(np.float32), format_named("bfloat16")).astype(np.float64)


def _products(shape: Shape) -> tuple[Product, ...]:
    short, long = sorted(shape)
    return ((short, short, long), (short, short, short), (short, long, short)) * STEPS


def _arguments(optimizer: Optimizer) -> dict[str, Any]:
    own = {"momentum": optimizer.momentum, "nesterov": optimizer.nesterov}
    return {**own, "eps": SMALLEST_NORM, "ns_steps": STEPS, "ns_coefficients": (A, B, C)}


MUON = Rule(
    "muon",
    "buffer = momentum * buffer + (1 - momentum) * grad; parameter * (1 - learning_rate * "
    "weight_decay) - learning_rate * sqrt(max(1, rows / columns)) * buffer made orthogonal; "
    "as adamw where no matrix",
    "torch.optim.Muon; kellerjordan.github.io/posts/muon",
    states=("momentum_buffer",),
    reads=("momentum", "nesterov", "weight_decay", "beta1", "beta2", "epsilon"),
    # momentum, the matrix in bfloat16, its norm and the division; decay and step
    separate=(LERP, LERP, MULTIPLY, (1, 0), MULTIPLY, MULTIPLY, ADD),
    aside=2,
    norms=1,
    emit=_emit,
    plain=_plain,
    decoupled=True,
    torch=TorchClass("Muon", _arguments, fused=False),
    eager={"own_rate_step": eager_own_rate_step},
    gradients=("muon_ahead",),
    numbers=("muon_rate",),
    elementwise=False,
    axes=(2, 2),
    others=ADAMW,
    products=_products,
)
