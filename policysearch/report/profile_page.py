"""`profile` as text: where a step's modeled time and memory go, and why it is not faster."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import get_args

from policysearch.cost.memory import (
    GIB,
    LARGEST_BATCH,
    NEEDED,
    Kind,
    StepMemory,
    largest_batch,
    visible_bytes,
)
from policysearch.cost.parallel.shards import shard
from policysearch.cost.parallel.spread import spread_memory
from policysearch.cost.price import compare
from policysearch.cost.time import KernelTime
from policysearch.cost.update_price import update_prices
from policysearch.objective.objective import Objective
from policysearch.policy.policy import Policy
from policysearch.report.causes import Change, Changes, LayerMargins
from policysearch.report.step_cost import (
    KIND_NAMES,
    MIB,
    baseline_line,
    default_line,
    kernel_lines,
    live_line,
    memory_lines,
    phase_lines,
    time_lines,
)
from policysearch.report.text import aligned
from policysearch.train.groups import by_parameter, parameter_groups

MOST_CAUSES = 8
"""So many changes are shown, the largest gain first."""

MOST_LAYERS = 40

LEAST_GAIN = 0.005
"""Changes that gain less are not told."""

KINDS: tuple[Kind, ...] = get_args(Kind)


def profile_page(objective: Objective, changes: Changes, baseline: Policy | None = None) -> str:
    """Return the page on the policy of `changes`, beside the `baseline` where there is one."""
    policy = changes.policy
    cost = compare(changes.graph, changes.price, objective.float32_price)
    phases = phase_lines(objective, policy)
    if phases:
        phases.append(f"all phases: {objective.price(policy).summary}")
    layers = changes.layers()
    time = changes.price.time
    blocks = [
        [
            f"{policy.name} on {_net(objective)}, batch {objective.cost_batch_size}",
            *phases,
        ],
        [
            *([] if baseline is None else [baseline_line(objective, cost, baseline)]),
            *time_lines(cost, time),
            default_line(objective, cost),
        ],
        kernel_lines(time),
        _shares("role", time.kernels, lambda k: k.role),
        layer_lines(layers),
        cause_lines(changes, changes.causes(layers)),
        [*memory_lines(cost), live_line(changes.price.memory)],
        memory_moments(changes),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def _net(objective: Objective) -> str:
    name, net = objective.task.model_name, objective.net
    return name if net is None else f"{name}, priced as {net.words}"


def _shares(
    what: str, kernels: tuple[KernelTime, ...], key: Callable[[KernelTime], str]
) -> list[str]:
    sums: dict[str, list[float]] = {}
    for kernel in kernels:
        row = sums.setdefault(key(kernel), [0.0, 0.0])
        row[0] += kernel.seconds
        row[1] += kernel.seconds * kernel.is_cast
    total = sum(seconds for seconds, _ in sums.values())
    rows = [
        (name, f"{seconds / total:.1%}", f"{casts / total:.1%}")
        for name, (seconds, casts) in sorted(sums.items(), key=lambda pair: -pair[1][0])
    ]
    return aligned([(what, "modeled time", "of it casts"), *rows])


def layer_lines(layers: tuple[LayerMargins, ...]) -> list[str]:
    """Return a line for each layer with products: its share, and one format wider and narrower.

    Of a net that is priced in the place of the one that is trained it says first for which layers
    one stands, whose shares it has together.
    """
    titles = ("layer", "format", "modeled time", "casts", "one wider", "one narrower")
    head = []
    if several := [row for row in layers[:MOST_LAYERS] if row.priced not in ((), (row.layer,))]:
        stands = "; ".join(f"{row.layer} for {_ends(row.priced)}" for row in several)
        head = [f"a layer that is trained stands for those of its stack that are priced: {stands}"]
    rows = [
        (
            row.layer,
            row.format,
            f"{row.share:.1%}",
            f"{row.cast_share:.1%}",
            _gains(row.wider),
            _gains(row.narrower),
        )
        for row in layers[:MOST_LAYERS]
    ]
    more = len(layers) - MOST_LAYERS
    return [*head, *aligned([titles, *rows]), *[f"and {more} layers more"] * (more > 0)]


def _ends(names: tuple[str, ...]) -> str:
    """Return names in order in words, of many the ends: "fc3 to fc6 (4)"."""
    if len(names) < 3:
        return " and ".join(names)
    return f"{names[0]} to {names[-1]} ({len(names)})"


def _gains(change: Change | None) -> str:
    if change is None:
        return "-"
    return f"{change.speedup - 1:+.1%} speed, {change.memory_ratio - 1:+.1%} memory"


def cause_lines(changes: Changes, causes: tuple[Change, ...]) -> list[str]:
    """Return what would make the step faster, each change alone, the largest gain first."""
    launches = changes.without_launches
    gains = [c for c in causes if c.speedup >= 1 + LEAST_GAIN]
    rows = [(c.what, f"{c.speedup:.3f}x", f"{c.memory_ratio:.3f}x") for c in gains[:MOST_CAUSES]]
    titles = ("why not faster: with this one change", "modeled step", "memory")
    lines = aligned([titles, *rows]) if rows else ["no single change of formats makes it faster"]
    if launches >= 1 + LEAST_GAIN:
        lines.append(f"if the host launched in no time (graphs, larger batches): {launches:.3f}x")
    return lines


def memory_moments(changes: Changes) -> list[str]:
    """Return the live bytes by kind along the step and at its peak, in MiB."""
    moments = changes.live()
    totals = [sum(live.values()) for _, live in moments]
    peak = totals.index(max(totals))
    places = {round(i * (len(moments) - 1) / 7) for i in range(8)} | {peak}
    kinds = [kind for kind in KINDS if any(live.get(kind, 0) for _, live in moments)]
    rows = [
        (
            f"{moments[place][0]}{' (peak)' if place == peak else ''}",
            f"{totals[place] / MIB:.4g}",
            *(f"{moments[place][1].get(kind, 0) / MIB:.3g}" for kind in kinds),
        )
        for place in sorted(places)
    ]
    return aligned([("live MiB at", "all", *(KIND_NAMES[kind] for kind in kinds)), *rows])


def memory_at(objective: Objective, policy: Policy, batch_size: int) -> StepMemory:
    """Return the modeled memory of a step at another batch, that of one of its groups of devices.

    Of the phases of a policy it is that with the largest peak, as in its price.
    """
    starts = (0, *objective.phase_starts(policy))
    graphs = (objective.graph_at(policy.at_step(start), batch_size) for start in starts)
    parts = (shard(graph, policy.parallel.tensor)[0] for graph in graphs)
    reduced = policy.all_reduce, policy.reductions
    memories = (spread_memory(part, policy.parallel, *reduced) for part in parts)
    return max(memories, key=lambda memory: memory.peak_bytes)


def largest_batches(objective: Objective, policy: Policy) -> tuple[int, int]:
    """Return the largest batches that fit the device: surely, and as expected; 0 if none does.

    Of all devices together, where the step is spread over several. LARGEST_BATCH of each group
    stands for that or more.
    """

    def live_at(batch_size: int) -> float:
        return memory_at(objective, policy, batch_size).held_bytes

    visible = visible_bytes(objective.device.memory_bytes / GIB)
    groups = policy.parallel.groups
    return (
        groups * largest_batch(live_at, NEEDED.high, visible),
        groups * largest_batch(live_at, NEEDED.expected, visible),
    )


def largest_lines(objective: Objective, policy: Policy) -> list[str]:
    """Return the largest batches under a policy and in float32, as text."""
    lines = [f"largest batch that fits on {objective.device.name}"]
    for compared in (policy, replace(objective.float32, parallel=objective.parallel)):
        sure, expected = largest_batches(objective, compared)
        spread = compared.parallel.summary
        over = f", over {spread}" if spread else ""
        most = LARGEST_BATCH * compared.parallel.groups
        sizes = [f"{'at least ' * (size == most)}{size}" for size in (sure, expected)]
        lines.append(f"{compared.name}: {sizes[0]} surely, {sizes[1]} expected{over}")
    return lines


def optimizer_lines(objective: Objective, changes: Changes) -> list[str]:
    """Return a line for each optimizer and form of its kernels.

    Time is over that of torch's fused Adam, state and temporaries are float32.
    """
    task, specs = objective.priced_task, objective.priced_model.parameters()
    grouped = by_parameter(task.groups, specs)
    groups = parameter_groups(changes.graph, grouped, task.build_optimizer())
    if not groups:
        return ["no parameters are updated"]
    prices = update_prices(groups, objective.device, objective.stack)
    reference = prices["adam", "fused"].seconds
    rows = [
        (
            name,
            kernels,
            f"{price.seconds / reference:.2f}",
            str(price.launches),
            f"{price.state_bytes / MIB:.4g}",
            f"{price.aside_bytes / MIB:.4g}",
        )
        for (name, kernels), price in prices.items()
    ]
    titles = ("update", "kernels", "time over fused Adam", "launches", "state MiB", "aside MiB")
    tensors = sum(map(len, groups))
    head = f"float32 update, {tensors} parameters, groups: {len(groups)}"
    return [head, *aligned([titles, *rows])]
