"""The largest batch that a device holds under a policy."""

from __future__ import annotations

from dataclasses import replace

from policysearch.cost.memory import StepMemory
from policysearch.cost.parallel.shards import shard
from policysearch.cost.parallel.states import spread_memory
from policysearch.cost.reserved import GIB, GROWTH, LARGEST_BATCH, largest_batch, visible_bytes
from policysearch.objective.objective import Objective
from policysearch.policy.policy import Policy
from policysearch.train.tasks import Tracing


def memory_at(objective: Objective, policy: Policy, batch_size: int) -> StepMemory:
    """Return the modeled memory of a step at another batch, that of one of its groups of devices.

    Of the phases of a policy it is that with the largest peak, as in its price.
    """
    tracing = Tracing(objective.task, objective.model, batch_size)
    starts = (0, *objective.phase_starts(policy))
    graphs = (objective.recomputed(tracing.step_graph(policy.at_step(start))) for start in starts)
    parts = (shard(graph, policy.parallel.tensor)[0] for graph in graphs)
    memories = (spread_memory(part, policy.parallel, policy.all_reduce) for part in parts)
    return max(memories, key=lambda memory: memory.peak_bytes)


def largest_batches(objective: Objective, policy: Policy) -> tuple[int, int]:
    """Return the largest batches that fit the device: surely, and as expected; 0 if none does.

    Of all devices together, where the step is spread over several. LARGEST_BATCH of each group
    stands for that or more.
    """

    def live_at(batch_size: int) -> float:
        return memory_at(objective, policy, batch_size).peak_bytes

    visible = visible_bytes(objective.device.memory_bytes / GIB)
    groups = policy.parallel.groups
    return (
        groups * largest_batch(live_at, GROWTH.high, visible),
        groups * largest_batch(live_at, GROWTH.expected, visible),
    )


def largest_lines(objective: Objective, policy: Policy) -> list[str]:
    """Return the largest batches under a policy and in float32, as text."""
    lines = [f"largest batch that fits on {objective.device.name}"]
    for each in (policy, replace(objective.float32, parallel=objective.parallel)):
        sure, expected = largest_batches(objective, each)
        spread = each.parallel.summary
        over = f", over {spread}" if spread else ""
        most = LARGEST_BATCH * each.parallel.groups
        told = [f"{'at least ' * (size == most)}{size}" for size in (sure, expected)]
        lines.append(f"{each.name}: {told[0]} surely, {told[1]} expected{over}")
    return lines
