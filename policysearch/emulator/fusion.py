"""Which nodes of a group one pass computes together: momentum SGD and its gradient's rounding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from policysearch.emulator.plan import Plan, is_view
from policysearch.graph import Node


@dataclass(frozen=True)
class FusedUpdate:
    """A velocity and the step it is for; `rounded` is the gradient that is rounded on the way."""

    velocity: Node
    step: Node
    rounded: Node | None

    @property
    def nodes(self) -> tuple[Node, ...]:
        return (self.velocity, self.step, *((self.rounded,) if self.rounded else ()))


def fused_update(plan: Plan, unrounded: Node | None, members: Sequence[Node]) -> FusedUpdate | None:
    """Return the float32 update in place that is among the `members` of a group, if one is.

    `unrounded` waits to be rounded before the group: that can be done on the way if it is the
    gradient and nothing else reads it.
    """
    for step in members:
        if step.op.name != "sgd_step" or step.format != "float32":
            continue
        velocity = plan.graph.nodes[step.inputs[1]]
        if velocity.op.name != "sgd_velocity" or velocity not in members:
            continue
        if plan.readers[velocity.id][0] is not step:
            continue  # who reads it before the step would find it not yet computed
        if velocity.format == "float32" and {velocity.id, step.id} <= plan.in_source.keys():
            alone = unrounded is not None and _is_gradient(plan, unrounded, velocity)
            return FusedUpdate(velocity, step, unrounded if alone else None)
    return None


def _is_gradient(plan: Plan, unrounded: Node, velocity: Node) -> bool:
    grad = plan.graph.nodes[velocity.inputs[1]]
    outputs = {i for _, i in plan.graph.outputs}
    while len(plan.readers[grad.id]) == 1 and grad.id not in outputs:
        if grad is unrounded:
            return grad.rounding.mode == "nearest_even"
        if not (grad.inputs and is_view(plan.graph, grad)):
            break
        grad = plan.graph.nodes[grad.inputs[0]]
    return False
