"""How a function of one tensor gets its gradient op."""

from __future__ import annotations

from collections.abc import Callable
from types import MappingProxyType

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Placement, size
from policysearch.ops.builder import Builder
from policysearch.ops.elementwise import one_example, same_shape

Function = Callable[[FloatArray, Attrs], FloatArray]


def _positive(rng: np.random.Generator) -> tuple[FloatArray]:
    """Values away from zero, where roots are steep."""
    return (rng.uniform(0.6, 2.0, (3, 5)).astype(np.float32),)


def unary(
    name: str,
    function: Function,
    slope: Function,
    *,
    of_result: bool = False,
    flops: int = 1,
    placement: Placement = "promote",
    attrs: Attrs = MappingProxyType({}),
) -> tuple[Op, Op]:
    """Return the op `name` and its gradient op, which multiplies with `slope`.

    `slope` is a function of the input or, `of_result`, of the output. `flops` are those of one
    element, `attrs` those of the example.
    """
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
        example=lambda rng: Example(
            _positive(rng) if of_result else one_example(rng).inputs, attrs
        ),
        placement=placement,
    )
    return op, grad_op
