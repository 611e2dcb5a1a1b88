"""The largest batch that a device holds under a policy."""

from __future__ import annotations

from policysearch.cost.memory import StepMemory, step_memory
from policysearch.cost.reserved import GIB, GROWTH, largest_batch, visible_bytes
from policysearch.objective.objective import Objective
from policysearch.policy.policy import Policy
from policysearch.train.tracing import Tracing


def memory_at(objective: Objective, policy: Policy, batch_size: int) -> StepMemory:
    """Return the modeled memory of a step at another batch."""
    tracing = Tracing(objective.task, objective.model, batch_size)
    return step_memory(objective.recomputed(tracing.step_graph(policy)))


def largest_batches(objective: Objective, policy: Policy) -> tuple[int, int]:
    """Return the largest batches that fit the device: surely, and as expected; 0 if none does."""

    def live_at(batch_size: int) -> float:
        return memory_at(objective, policy, batch_size).peak_bytes

    visible = visible_bytes(objective.device.memory_bytes / GIB)
    return (
        largest_batch(live_at, GROWTH.high, visible),
        largest_batch(live_at, GROWTH.expected, visible),
    )


def largest_lines(objective: Objective, policy: Policy) -> list[str]:
    """Return the largest batches under a policy and in float32, as text."""
    lines = [f"largest batch that fits on {objective.device.name}"]
    for name, each in ((policy.name, policy), ("float32", objective.float32)):
        sure, expected = largest_batches(objective, each)
        lines.append(f"{name}: {sure} surely, {expected} expected")
    return lines
