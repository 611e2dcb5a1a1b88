"""How a function of one tensor gets its gradient op."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType

import numpy as np

from policysearch.graph import Attrs, Bind, Example, FloatArray, Node, Op, Placement, size
from policysearch.ops.builder import Builder
from policysearch.ops.elementwise import one_example, same_shape

Function = Callable[[FloatArray, FloatArray, Attrs], object]
"""Writes a function of the first array into the second, which is another."""

Slope = Callable[[FloatArray, FloatArray, FloatArray, Attrs], object]
"""As `Function`; the third array is scratch."""


def _forward(function: Function) -> Bind:
    def bind(
        inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
    ) -> Callable[[], object]:
        return lambda: function(inputs[0], out, attrs)

    return bind


def _backward(slope: Slope) -> Bind:
    def bind(
        inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
    ) -> Callable[[], object]:
        grad, known = inputs
        factor, scratch = (
            np.ndarray(known.shape, np.float32, part, strides=known.strides)
            for part in (work, work[known.size :])
        )

        def run() -> None:
            slope(known, factor, scratch, attrs)
            np.multiply(grad, factor, out=out)

        return run

    return bind


def _apart(rng: np.random.Generator) -> tuple[FloatArray]:
    """Positive values away from zero, where roots are steep."""
    return (rng.uniform(0.6, 2.0, (3, 5)).astype(np.float32),)


def with_gradient(
    name: str,
    function: Function,
    slope: Slope,
    *,
    of_result: bool = False,
    flops: int = 1,
    placement: Placement = "promote",
    attrs: Attrs = MappingProxyType({}),
) -> tuple[Op, Op]:
    """Return the op `name` and its gradient op.

    `slope` is a function of the input or, `of_result`, of the output. `flops` are those of one
    element, `attrs` those of the example.
    """
    grad_op = Op(
        f"{name}_grad",
        same_shape,
        _backward(slope),
        flops=lambda inputs, out, attrs: (flops + 2) * size(out),
        in_place=(0,),
        work=lambda inputs, out, attrs: 2 * size(out),
    )

    def rule(b: Builder, node: Node, grad: int) -> int:
        known = node.id if of_result else node.inputs[0]
        return b.emit(grad_op, grad, known, attrs=node.attributes)

    op = Op(
        name,
        same_shape,
        _forward(function),
        gradients=(rule,),
        flops=lambda inputs, out, attrs: flops * size(out),
        example=lambda rng: Example(_apart(rng) if of_result else one_example(rng).inputs, attrs),
        placement=placement,
    )
    return op, grad_op
