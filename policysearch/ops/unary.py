"""How a function of one tensor gets its gradient: one op of its own, or the several torch has."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Placement, size
from policysearch.ops.builder import Builder
from policysearch.ops.elementwise import one_example, same_shape, scale, shift

Function = Callable[[FloatArray, Attrs], FloatArray]


Steps = Callable[[Builder, int, int, int], int]
"""Of a Builder, the nodes of x, of its function and of the gradient of that: the gradient of x."""

Values = Callable[[np.random.Generator], Example]


def scaled(b: Builder, x: int, factor: float) -> int:
    """Emit x times a constant."""
    return b.emit(scale, x, attrs={"factor": factor})


def shifted(b: Builder, x: int, amount: float) -> int:
    """Emit x plus a constant."""
    return b.emit(shift, x, attrs={"amount": amount})


def positive(rng: np.random.Generator) -> Example:
    """Values away from zero, where roots are steep."""
    return Example((rng.uniform(0.6, 2.0, (3, 5)).astype(np.float32),))


def unary(
    name: str,
    function: Function,
    slope: Function,
    *,
    of_result: bool = False,
    flops: int = 1,
    placement: Placement = "promote",
    attrs: Attrs = MappingProxyType({}),
    example: Values | None = None,
) -> tuple[Op, Op]:
    """Return the op `name` and its gradient op, which multiplies with `slope`.

    `slope` is a function of the input or, `of_result`, of the output. `flops` are those of one
    element, `attrs` and the inputs of `example` those of the example.
    """
    values = example or (positive if of_result else one_example)
    grad_op = Op(
        f"{name}_grad",
        same_shape,
        lambda inputs, attrs: inputs[0] * slope(inputs[1], attrs),
        flops=lambda inputs, out, attrs: (flops + 2) * size(out),
        in_place=(0,),
    )

    def rule(b: Builder, node: Node, grad: int) -> int:
        argument = node.id if of_result else node.inputs[0]
        return b.emit(grad_op, grad, argument, attrs=node.attributes)

    op = Op(
        name,
        same_shape,
        lambda inputs, attrs: function(inputs[0], attrs),
        gradients=(rule,),
        flops=lambda inputs, out, attrs: flops * size(out),
        example=lambda rng: Example(values(rng).inputs, attrs),
        placement=placement,
    )
    return op, grad_op


def stepwise(
    name: str,
    function: Function,
    steps: Steps,
    *,
    flops: int = 10,
    placement: Placement = "promote",
    example: Values = one_example,
) -> Op:
    """Return the op `name`, whose gradient is the ops that `steps` emits: each of them rounds."""
    return Op(
        name,
        same_shape,
        lambda inputs, attrs: function(inputs[0], attrs),
        gradients=(lambda b, node, grad: steps(b, node.inputs[0], node.id, grad),),
        flops=lambda inputs, out, attrs: flops * size(out),
        example=example,
        placement=placement,
    )
