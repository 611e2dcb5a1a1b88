"""What a step of several micro-batches takes, and what groups cost in a larger net."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from policysearch.cost.measured import time_of_last
from policysearch.cost.memory import node_bytes, step_memory
from policysearch.cost.price import step_price
from policysearch.cost.roofline import joined_seconds
from policysearch.cost.tables import slot_prices
from policysearch.cost.time import StepTime
from policysearch.graph import Graph
from policysearch.objective.objective import Objective
from policysearch.objective.priced_net import PricedNet
from policysearch.policy.parallel import Parallel
from policysearch.policy.policy import Policy
from policysearch.policy.presets import preset
from policysearch.train.groups import Group
from policysearch.train.tasks import Task

TASK = Task(model="mlp", data="digits", widths=(1024, 1024), batch_size=16, optimizer="adam")


def _objective(count: int, stack: str = "torch.compile", batch: int = 4096, **kw: Any) -> Objective:
    task = replace(TASK, accumulation_steps=count, **kw)
    return Objective(task, "A100-SXM4-40GB", stack, cost_batch_size=batch)


def _policy(objective: Objective, name: str = "torch.autocast.bfloat16") -> Policy:
    return preset(name, objective.model.layer_names)


def _gradients(graph: Graph) -> int:
    return sum(node_bytes(n) for n in graph.nodes if n.op.name == "parameter")


@pytest.mark.parametrize("stack", ["torch.compile", "torch.eager"])
@pytest.mark.parametrize("name", ["float32", "torch.autocast.bfloat16", "te.delayed"])
@pytest.mark.parametrize("count", [2, 8])
def test_micro_batches_repeat_all_but_the_update(count: int, name: str, stack: str) -> None:
    several = _objective(count, stack)
    policy, graph = _policy(several, name), several.step_graph(_policy(several, name))
    last, all = time_of_last(graph, several.device, several.stack), several.step_price(policy).time
    if name == "float32":  # of others the casts of gradients join an update that reads them
        last = _objective(1, stack).step_price(policy).time

    def total(time: StepTime, what: str, *roles: str) -> float:
        picked = (k for k in time.kernels if k.role in roles and k.op not in EXTRA)
        return float(sum(getattr(k, what) for k in picked))

    for what in ("seconds", "launches", "flops"):
        passes = ("input", "fprop", "dgrad", "wgrad")
        assert total(all, what, *passes) == pytest.approx(count * total(last, what, *passes))
        assert total(all, what, "update") == pytest.approx(total(last, what, "update"))
    # the first gradient is the sum as it is
    sums = [k for k in all.kernels if k.op == "accumulate"]
    parameters = sum(n.op.name == "parameter" for n in graph.nodes)
    assert sum(k.launches for k in sums) == (count - 1) * parameters
    joined = joined_seconds(all.kernel_seconds, all.launch_seconds, several.device)
    assert all.step_seconds == pytest.approx(float(joined))
    assert 1.0 < all.step_seconds / last.step_seconds < count * 1.2


EXTRA = ("accumulate", "divide_loss", "scale_loss", "amax_history", "delayed_scale")
"""What only a step of several micro-batches does, and what moves with each of them."""


def test_the_update_is_a_smaller_share_of_a_longer_step() -> None:
    costs = [o.price(_policy(o)) for o in (_objective(1, batch=256), _objective(8, batch=256))]
    assert 0 < costs[1].optimizer_share < 0.5 * costs[0].optimizer_share
    assert costs[1].float32_step_seconds > 4 * costs[0].float32_step_seconds


@pytest.mark.parametrize("name", ["float32", "torch.autocast.bfloat16", "bfloat16"])
@pytest.mark.parametrize("batch", [16, 65536])
def test_sums_of_gradients_are_held_throughout(batch: int, name: str) -> None:
    one, several = _objective(1, batch=batch), _objective(4, batch=batch)
    graphs = [o.step_graph(_policy(o, name)) for o in (one, several)]
    alone, all = map(step_memory, graphs)
    sums = _gradients(graphs[1])
    assert sums == _gradients(graphs[0]) > 0
    assert all.gradient_bytes >= sums
    grown = all.peak_bytes - alone.peak_bytes
    # In the middle of a large batch nothing else is held of gradients. At the end of a small one
    # all are there with one micro-batch too, and on top comes the largest before it is added.
    largest = max(node_bytes(n) for n in graphs[1].nodes if n.op.name == "gradient_buffer")
    assert grown == pytest.approx(sums if batch > 16 else largest, rel=0.05)


@pytest.mark.parametrize(("zero", "again"), [(0, ()), (1, ()), (2, (0,)), (3, (0, 1))])
def test_exchanges_wait_for_the_last_micro_batch(zero: int, again: tuple[int, ...]) -> None:
    ops = ("all_reduce", "reduce_scatter", "all_gather")
    parallel = Parallel(8, zero=zero, overlap=False)
    waits = []
    for count in (1, 4):
        objective = _objective(count)
        policy = replace(_policy(objective), parallel=parallel)
        kernels = objective.step_price(policy).time.kernels
        waits.append({op: sum(k.seconds for k in kernels if k.op == op) for op in ops})
    repeated = {("reduce_scatter", "all_gather")[place] for place in again}
    for op in ops:
        times = 4 if op in repeated else 1
        assert waits[1][op] == pytest.approx(times * waits[0][op]), op
    assert sum(waits[0].values()) > 0


def test_tables_of_the_search_have_the_price_of_all_micro_batches() -> None:
    objective = _objective(4)
    graph = objective.step_graph(_policy(objective))
    names = objective.model.layer_names
    rows = slot_prices(
        graph, dict(zip(names, range(9), strict=False)).get, 9, objective.device, objective.stack
    )
    exact = step_price(graph, objective.device, objective.stack)
    kernels, launches = rows.seconds.sum(axis=0)
    joined = float(joined_seconds(kernels, launches, objective.device))
    assert joined == pytest.approx(exact.time.step_seconds)
    assert rows.peak_bytes == exact.memory.peak_bytes


def test_groups_of_a_larger_net_are_those_of_the_counterparts() -> None:
    """The second of two hidden layers stands for the upper half of four, "fc2" by name or not."""
    groups = (
        Group(("fc1.*",), frozen=True),
        Group(("fc2.weight",), rate_factor=0.5),
        Group(("*3.bias",), weight_decay=0.25),
    )
    task = replace(TASK, widths=(32, 32), groups=groups, accumulation_steps=4)
    net = PricedNet(widths=(64, 64, 64, 64))
    objective = Objective(task, "A100-SXM4-40GB", "torch.compile", 64, net=net)
    held = {group: group.match for group in objective.priced_task.groups}
    frozen, slow, decayed = held
    assert (frozen.frozen, slow.rate_factor, decayed.weight_decay) == (True, 0.5, 0.25)
    layers = {name: objective.trained_layer(name) for name in objective.priced_model.layer_names}

    def named(there: str, *suffixes: str) -> tuple[str, ...]:
        return tuple(f"{n}.{s}" for n, t in layers.items() if t == there for s in suffixes)

    assert held[frozen] == named("fc1", "weight", "bias")
    assert held[slow] == named("fc2", "weight") and held[decayed] == named("fc3", "bias")
    assert len(held[frozen] + held[slow] + held[decayed]) > len(("fc1.*", "fc2", "fc3"))
    graph = objective.step_graph(objective.float32)
    moved = {graph.nodes[old].name for old, _ in graph.updates}
    assert "fc4.weight" in moved and not moved & set(held[frozen])
    own = Objective(objective.priced_task, "A100-SXM4-40GB", "torch.compile", 64)
    assert objective.price(objective.float32) == own.price(own.float32)
