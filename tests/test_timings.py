"""Prices from timed kernels: what is looked up, what is estimated, what is still in the cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from policysearch.cost.devices import DEVICES, Device
from policysearch.cost.measured import INSIDE, Call, cached_shares, calls_of, measured_time
from policysearch.cost.memory import node_bytes, storage_of
from policysearch.cost.stacks import stack_named
from policysearch.cost.timings import Extents, Timing, Timings, Work, between
from policysearch.graph import Graph, size
from policysearch.nn.models import mlp, transformer
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.policy import uniform_layer
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import trace_step
from policysearch.values import InputError

EAGER = stack_named("torch.eager")
H100 = DEVICES["H100-SXM5"]
NETS = {
    "mlp": mlp((12, 32, 24, 5)),
    "transformer": transformer((4, 6), 5, 16, (32,)),
}


def step(net: str, policy: str = "torch.autocast.bfloat16", wide: Sequence[str] = ()) -> Graph:
    model = NETS[net]
    graph = trace_step(model, "softmax_cross_entropy", Optimizer("momentum"), 8)
    layers = {name: uniform_layer("float32") for name in wide}
    return apply_policy(graph, preset(policy, model.layer_names).with_layers(layers))


def unit_device(op_seconds: float = 1.0, **fields: object) -> Device:
    """A device on which every kernel that is not cached takes `op_seconds`, a cached one half."""
    pairs = (("add", (1, 1)), ("matmul.nt", (1, 1, 1, 1)))
    rows = [Timing(op, "float32", e, op_seconds, op_seconds / 2) for op, e in pairs]
    return replace(H100, timings=FlatTimings(tuple(rows)), **fields)  # type: ignore[arg-type]


class FlatTimings(Timings):
    """Timings in which size plays no part."""

    def seconds(self, work: Work, cached_share: float = 0.0) -> float:
        return self.rows[0].within(cached_share)


def test_what_was_timed_is_looked_up_as_the_median_at_its_cached_share() -> None:
    rows = [Timing("add", "float32", (4, 4), s, s / 10) for s in (1.0, 2.0, 7.0)]
    table = Timings(tuple(rows))
    work = Work("add", "float32", (4, 4))
    assert table.seconds(work) == 2.0
    assert table.seconds(work, 1.0) == pytest.approx(0.2)
    assert table.seconds(work, 0.25) == pytest.approx(0.25 * 0.2 + 0.75 * 2.0)


def test_between_finds_a_power_law() -> None:
    def seconds(e: Extents) -> float:
        return float(1e-9 * e[0] ** 0.5 * e[1] * e[2] ** 0.25)

    places = [(a, b, c) for a in (4, 32, 256) for b in (4, 32, 256) for c in (4, 32, 256)]
    for wanted in ((10, 100, 50), (4, 256, 32), (512, 7, 1000)):
        found = between(places, map(seconds, places), wanted)
        assert found == pytest.approx(seconds(wanted), rel=1e-3)


def test_between_follows_a_bend_by_its_neighbours() -> None:
    def seconds(n: float) -> float:
        return 1e-5 + 1e-9 * n  # a call that costs something, then a rate

    places = [(4**k,) for k in range(12)]
    for n in (3, 300, 12_000, 50_000, 900_000):
        found = between(places, [seconds(n) for (n,) in places], (n,))
        assert found == pytest.approx(seconds(n), rel=0.15)


def test_between_never_falls_with_an_extent_and_scales_one_place_by_its_rate() -> None:
    falling = between([(10,), (1000,)], [2.0, 1.0], (5000,))
    assert 1.0 <= falling <= 2.0
    assert between([(8, 8)], [1e-3], (16, 8)) == pytest.approx(2e-3)


def test_an_op_and_a_format_that_were_not_timed_take_the_likest() -> None:
    rows = (
        Timing("add", "float32", (8, 8), 1.0, 1.0),
        Timing("add", "bfloat16", (8, 8), 2.0, 2.0),
        Timing("matmul.nt", "bfloat16", (1, 8, 8, 8), 3.0, 3.0),
    )
    table = Timings(rows)
    assert table.seconds(Work("sinh", "float32", (8, 8))) == 1.0
    assert table.seconds(Work("add", "float16", (8, 8))) == 2.0
    assert table.seconds(Work("matmul.tt", "float32", (1, 8, 8, 8))) == 3.0
    assert table.seconds(Work("transpose.021", "float32", (2, 8, 8))) == pytest.approx(2.0)
    with pytest.raises(InputError, match=r"no kernel like 'matmul\.nn'; expected 'matmul\.nt'"):
        Timings(rows[:2]).seconds(Work("matmul.nn", "float32", (1, 1, 1, 1)))


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("policy", ["float32", "torch.autocast.bfloat16", "mindspore.O2"])
def test_every_node_with_work_is_in_one_kernel(net: str, policy: str) -> None:
    graph = step(net, policy)
    view = storage_of(graph)
    taken = [node.id for task in calls_of(graph, H100, EAGER) for node in task.nodes]
    free = [n for n in graph.nodes if view[n.id] != n.id and n.op.name != "transpose"]
    scalar = [
        n
        for n in graph.nodes
        if n.id not in taken and max(size(x.shape) for x in (n, *graph.inputs_of(n))) == 1
    ]
    inside = [n for n in graph.nodes if n.op.name in INSIDE]
    sources = [n for n in graph.nodes if n.op.kind == "source"]
    left_out = {n.id for n in (*free, *scalar, *inside, *sources)}
    assert set(taken) | left_out == set(range(len(graph.nodes)))
    later = [n for n in graph.nodes if n.op.name == "bias"]  # than the one after the product
    later = [n for n in later if graph.inputs_of(n)[0].op.kind != "gemm"]
    assert len(later) == (net == "transformer")
    alone = [task.lead.id for task in calls_of(graph, H100, EAGER) if task.lead in later]
    assert alone == [n.id for n in later]


@pytest.mark.parametrize("net", NETS)
def test_the_extents_of_products_hold_all_their_flops(net: str) -> None:
    graph = step(net)
    priced = [t.work for t in calls_of(graph, H100, EAGER) if t.work.op[:6] in ("matmul", "linear")]
    flops = [
        n.op.flops([x.shape for x in graph.inputs_of(n)], n.shape, n.attributes)
        for n in graph.nodes
        if n.op.kind == "gemm"
    ]
    assert len(priced) > 5
    assert sorted(2 * int(np.prod(w.extents)) for w in priced) == sorted(flops)


def brute_shares(graph: Graph, tasks: Sequence[Call], cache_bytes: int) -> list[float]:
    """Of every read, look back through all that was touched since the value was, one by one."""
    view = storage_of(graph)
    order = sorted(tasks, key=lambda t: max((n.id for n in t.nodes), default=t.lead.id))
    past: list[tuple[set[int], int]] = []
    found: dict[int, float] = {}
    for task in [*order, *order]:
        nodes = task.nodes or (task.lead,)
        own = {n.id for n in nodes}
        reads = {view[i] for n in nodes for i in n.inputs if view[i] not in own}
        made = {max(own)} if task.lead.op.kind == "gemm" else own
        writes = {view[i] for i in made}
        near = 0
        for i in reads:
            since = 0
            for touched, moved in reversed(past):
                if i in touched:
                    near += node_bytes(graph.nodes[i]) * (since <= cache_bytes)
                    break
                since += moved
        total = sum(node_bytes(graph.nodes[i]) for i in reads)
        found[id(task)] = near / total if total else 1.0
        moved = sum(node_bytes(graph.nodes[i]) for i in (*reads, *writes))
        past.append((reads | writes, moved))
    return [found[id(task)] for task in tasks]


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("cache_bytes", [0, 2_000, 20_000, 10**9])
def test_cached_shares_are_those_of_looking_back_at_every_read(net: str, cache_bytes: int) -> None:
    graph = step(net, wide=["fc2"] if net == "mlp" else ["block1.fc1"])
    tasks = calls_of(graph, H100, EAGER)
    shares = cached_shares(graph, tasks, cache_bytes)
    assert shares == pytest.approx(brute_shares(graph, tasks, cache_bytes))
    if cache_bytes == 10**9:
        assert set(shares) == {1.0}
    elif cache_bytes:
        assert any(0 < share < 1 for share in shares)


def test_a_step_is_its_kernels_and_its_host() -> None:
    graph = step("mlp")
    tasks = calls_of(graph, H100, EAGER)
    one = measured_time(graph, unit_device(2.0), EAGER)
    shares = cached_shares(graph, tasks, 0)
    kernels = sum(2.0 - share for share in shares)
    assert one.kernel_seconds == pytest.approx(kernels) == one.step_seconds
    adds = unit_device(2.0, host="adds", host_seconds=0.5, host_step_seconds=3.0)
    host = 3.0 + 0.5 * len(tasks)
    assert measured_time(graph, adds, EAGER).step_seconds == pytest.approx(kernels + host)
    slow = replace(adds, host="overlaps", host_seconds=5.0)
    assert measured_time(graph, slow, EAGER).step_seconds == 3.0 + 5.0 * len(tasks)
    assert measured_time(graph, slow, EAGER).host_bound


def test_a_format_the_device_lacks_is_widened_first() -> None:
    volta = replace(DEVICES["V100-SXM2"], timings=unit_device().timings)
    tasks = calls_of(step("mlp"), volta, EAGER)
    widened = [task for task in tasks if not task.nodes]
    assert {task.work.format for task in widened} == {"bfloat16>float32"}
    assert not [task for task in calls_of(step("mlp"), H100, EAGER) if not task.nodes]
    times = measured_time(step("mlp"), volta, EAGER).kernels
    assert sum(k.op == "convert" and k.is_cast for k in times) == len(widened) > 0
