"""The single operations of an optimizer that runs them one by one, each result stored.

They follow torch 2.13's `torch/optim/sgd.py` and `torch/optim/adam.py` (`_single_tensor_*`, whose
`_multi_tensor_*` twins call the same operations on lists of tensors).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from policysearch.graph import Attrs, Bind, FloatArray, Op, Shape, size

Compute = Callable[[Sequence[FloatArray], Attrs, FloatArray, FloatArray], None]
"""Sets the second array to the result for these inputs; the first one is scratch."""


def _first(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    return inputs[0]


def _elements(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> int:
    return size(out)


def _binding(compute: Compute) -> Bind:
    def bind(
        inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
    ) -> Callable[[], object]:
        given = tuple(inputs)
        scratch = np.ndarray(out.shape, np.float32, work, strides=out.strides)
        return lambda: compute(given, attrs, scratch, out)

    return bind


def _op(name: str, compute: Compute, flops_per_element: int) -> Op:
    return Op(
        name,
        _first,
        _binding(compute),
        flops=lambda inputs, out, attrs: flops_per_element * size(out),
        placement="fp32",
        in_place=(0,),
        work=_elements,
    )


def _add_damped(
    inputs: Sequence[FloatArray], attrs: Attrs, scratch: FloatArray, out: FloatArray
) -> None:
    x, grad, step = inputs
    share = 1.0 if float(step) == 1.0 else attrs["share"]
    np.multiply(grad, np.float32(share), out=scratch)
    np.add(x, scratch, out=out)


def _add_lookahead(
    inputs: Sequence[FloatArray], attrs: Attrs, scratch: FloatArray, out: FloatArray
) -> None:
    grad, velocity = inputs
    np.multiply(velocity, np.float32(attrs["momentum"]), out=scratch)
    np.add(grad, scratch, out=out)


def _add_square(
    inputs: Sequence[FloatArray], attrs: Attrs, scratch: FloatArray, out: FloatArray
) -> None:
    x, grad = inputs
    np.multiply(grad, np.float32(attrs["share"]), out=scratch)
    np.multiply(scratch, grad, out=scratch)
    np.add(x, scratch, out=out)


def _root(inputs: Sequence[FloatArray], attrs: Attrs, scratch: FloatArray, out: FloatArray) -> None:
    np.sqrt(inputs[0], out=out)


def _corrected(
    inputs: Sequence[FloatArray], attrs: Attrs, scratch: FloatArray, out: FloatArray
) -> None:
    root, step = inputs
    np.divide(root, np.float32((1.0 - attrs["beta2"] ** float(step)) ** 0.5), out=out)


def _add_epsilon(
    inputs: Sequence[FloatArray], attrs: Attrs, scratch: FloatArray, out: FloatArray
) -> None:
    np.add(inputs[0], np.float32(attrs["epsilon"]), out=out)


def _shrunk(
    inputs: Sequence[FloatArray], attrs: Attrs, scratch: FloatArray, out: FloatArray
) -> None:
    parameter, rate = inputs
    np.multiply(parameter, np.float32(1.0 - float(rate) * attrs["weight_decay"]), out=out)


def _moved(
    inputs: Sequence[FloatArray], attrs: Attrs, scratch: FloatArray, out: FloatArray
) -> None:
    parameter, m, denominator, rate, step = inputs
    change = -float(rate) / (1.0 - attrs["beta1"] ** float(step))
    np.multiply(m, np.float32(change), out=scratch)
    np.divide(scratch, denominator, out=scratch)
    np.add(parameter, scratch, out=out)


add_damped = _op("add_damped", _add_damped, 2)
"""x + `share` * grad, x + grad in the first update: the velocity then is the gradient itself."""
sgd_nesterov = _op("sgd_nesterov", _add_lookahead, 2)
"""grad + momentum * velocity: the direction of Nesterov's momentum."""
add_square = _op("add_square", _add_square, 3)
"""x + `share` * grad^2."""
adam_root = _op("adam_root", _root, 1)
"""sqrt(v)."""
adam_corrected = _op("adam_corrected", _corrected, 1)
"""root / sqrt(1 - beta2^step)."""
adam_epsilon = _op("adam_epsilon", _add_epsilon, 1)
"""x + epsilon."""
adam_shrunk = _op("adam_shrunk", _shrunk, 1)
"""parameter * (1 - learning_rate * weight_decay), AdamW's decay."""
adam_moved = _op("adam_moved", _moved, 3)
"""parameter - learning_rate / (1 - beta1^step) * m / denominator."""
