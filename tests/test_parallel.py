"""Steps spread over devices: exchanges, what each holds, waits for and computes."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policysearch.cost.devices import DEVICES, Sourced
from policysearch.cost.memory import node_bytes, step_memory
from policysearch.cost.parallel.collectives import (
    LINK_SHARE,
    PROTOCOLS,
    Gradient,
    gathering_seconds,
    interconnect,
    link_of,
    messages,
    reduction_seconds,
)
from policysearch.cost.parallel.spread import (
    gradients_of,
    parameters_of,
    reduction_buffer_bytes,
    spread_live,
    spread_memory,
)
from policysearch.cost.price import EXCHANGES, step_price
from policysearch.graph import Graph, size
from policysearch.nn.models import mlp
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.parallel import Parallel
from policysearch.policy.policy import LayerPolicy, Policy
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import trace_step
from policysearch.values import InputError
from tests.policy_strategies import parallels

NET = mlp((256, 512, 512, 10), "relu")
NARROWER = ("float16", "bfloat16", "float8_e4m3fn")


def _graph(policy: Policy, batch: int = 32) -> Graph:
    graph = trace_step(NET, "softmax_cross_entropy", Optimizer("adam"), batch)
    return apply_policy(graph, policy)


def _parameters(graph: Graph) -> int:
    return sum(size(n.shape) for n in graph.nodes if n.op.name == "parameter")


@pytest.mark.parametrize("device", ["H100-SXM5", "RTX-4090"])
@pytest.mark.parametrize("devices", [2, 3, 8])
def test_an_all_reduce_is_that_of_a_ring(device: str, devices: int) -> None:
    """Chunk by chunk: each device sends one n-th of the tensor 2 (n - 1) times."""
    link, bytes = interconnect(DEVICES[device], devices), 3 * 2**28
    clock, way = PROTOCOLS["Simple"].start_seconds, PROTOCOLS["Simple"]
    rate = link_of(DEVICES[device]).value * LINK_SHARE
    for _ in range(2 * (devices - 1)):
        clock += way.pcie_seconds if device == "RTX-4090" else way.link_seconds
        clock += bytes / devices / rate
    assert link.seconds("all_reduce", bytes) == pytest.approx(clock)
    halves = link.seconds("reduce_scatter", bytes) + link.seconds("all_gather", bytes)
    assert halves == pytest.approx(clock + way.start_seconds)


@pytest.mark.parametrize(
    ("known", "rate"),
    [
        ({"link_bytes_per_second": 3e11, "pcie_bytes_per_second": 6.4e10}, 3e11),
        ({"pcie_bytes_per_second": 6.4e10}, 6.4e10),
        # PCIe 4: 16 lanes of 16 Gbit/s each way
        ({}, 16 * 16e9 / 8),
    ],
)
def test_devices_are_joined_by_their_links_else_by_pcie(
    known: dict[str, float], rate: float
) -> None:
    other = tuple((name, Sourced(value, "measured")) for name, value in known.items())
    found = link_of(replace(DEVICES["H100-SXM5"], other=other))
    assert found.value == rate and (found.mark == "unsourced") == (not known)


def test_nodes_are_joined_by_a_slower_network() -> None:
    seconds = [
        interconnect(DEVICES["H100-SXM5"], n).seconds("all_reduce", 2**30) for n in (8, 16, 256)
    ]
    assert seconds[0] < seconds[1] / 1.5 < seconds[2]
    assert interconnect(DEVICES["H100-SXM5"], 1).seconds("all_reduce", 2**30) == 0.0


@given(
    st.sampled_from(sorted(DEVICES)),
    parallels(),
    st.lists(st.tuples(st.integers(1, 10**9), st.floats(0, 1)), max_size=30),
    st.sampled_from(NARROWER),
)
def test_a_narrower_reduction_is_never_slower(
    device: str, parallel: Parallel, sizes: list[tuple[int, float]], format: str
) -> None:
    link = interconnect(DEVICES[device], parallel.groups)
    sent = messages([Gradient(n, ready) for n, ready in sizes], parallel)
    wide, narrow = (
        reduction_seconds(sent, parallel, name, 1.0, link) for name in ("float32", format)
    )
    assert all(a <= b for a, b in zip(narrow, wide, strict=True))
    if sizes and parallel.groups > 1:
        assert narrow[0] > 0 and sum(m.elements for m in sent) == sum(n for n, _ in sizes)


@pytest.mark.parametrize("device", ["V100-SXM2", "H100-SXM5", "RTX-4090"])
@pytest.mark.parametrize("stack", ["torch.eager", "torch.compile"])
@pytest.mark.parametrize("base", ["float32", "torch.autocast.float16", "apex.O3"])
def test_a_step_with_a_narrower_reduction_is_never_slower(
    device: str, stack: str, base: str
) -> None:
    policy, faster = preset(base, NET.layer_names), 0
    graphs = {name: _graph(replace(policy, all_reduce=name)) for name in ("float32", *NARROWER[:2])}
    for parallel in (
        Parallel(),
        Parallel(2),
        Parallel(8, zero=2),
        Parallel(8, gradients="tensors"),
    ):
        seconds = {}
        for name, graph in graphs.items():
            spread = replace(policy, parallel=parallel, all_reduce=name)
            seconds[name] = step_price(graph, device, stack, spread).time.step_seconds
        assert max(seconds["float16"], seconds["bfloat16"]) <= seconds["float32"]
        faster += seconds["float16"] < seconds["float32"]
    assert faster >= 2


def state_bytes(graph: Graph, parallel: Parallel) -> float:
    """Return the bytes that a device keeps of the model: parameters, gradients, optimizer state.

    Without activations and buffers. With Adam, 16-bit layers and float32 masters that is 16,
    4 + 12/n, 2 + 14/n and 16/n for each parameter, by stage, over n devices.
    """
    n, zero = parallel.groups, parallel.zero
    parameters = parameters_of(graph).values()
    working = sum(p.working_bytes for p in parameters)
    masters = sum(node_bytes(p.node) for p in parameters if p.master)
    state = sum(node_bytes(node) for node in graph.nodes if node.op.name == "state")
    gradients = sum(node_bytes(node) for node in gradients_of(graph))
    return (
        (masters + state) / (n if zero >= 1 else 1)
        + gradients / (n if zero >= 2 else 1)
        + working / (n if zero >= 3 else 1)
    )


@pytest.mark.parametrize("n", [1, 2, 8, 64])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_zero_divides_the_states_of_adam(stage: int, n: int) -> None:
    """Rajbhandari et al. (2020), figure 1 with their K = 12."""
    graph = _graph(preset("float16", NET.layer_names))
    expected = (16, 4 + 12 / n, 2 + 14 / n, 16 / n)[stage]
    found = state_bytes(graph, Parallel(n, zero=stage)) / _parameters(graph)
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("name", ["float32", "torch.autocast.bfloat16", "apex.O3", "te.delayed"])
def test_every_stage_leaves_less_on_each_device(name: str) -> None:
    graph = _graph(preset(name, NET.layer_names))
    peaks = [spread_memory(graph, Parallel(8, zero=z), "float32").peak_bytes for z in range(4)]
    # stage 3 holds what two layers gather, which is most of a net of three
    assert peaks[0] > peaks[1] >= peaks[2] and peaks[3] < peaks[0]
    alone = spread_memory(graph, Parallel(), "float32")
    assert dataclasses.astuple(alone) == dataclasses.astuple(step_memory(graph))
    parts = dataclasses.astuple(spread_memory(graph, Parallel(8, zero=2), "bfloat16"))
    assert parts[0] == pytest.approx(sum(parts[2:]), abs=3)


def test_no_stage_gathers_more_than_two_neighbours() -> None:
    """A net of one layer has no next one; of three layers the largest pair of neighbours counts."""
    for widths, at_once in (((64, 32), 64 * 32 + 32), ((8, 64, 4, 4), 8 * 64 + 64 + 64 * 4 + 4)):
        net = mlp(widths)
        step = trace_step(net, "softmax_cross_entropy", Optimizer("sgd"), 1)
        graph = apply_policy(step, preset("float32", net.layer_names))
        held = {z: spread_memory(graph, Parallel(8, zero=z), "float32") for z in (2, 3)}
        kept = sum(node_bytes(graph.nodes[old]) for old, _ in graph.updates)
        assert held[2].parameter_bytes == kept
        assert held[3].parameter_bytes == kept / 8
        assert held[3].weight_copy_bytes == 4 * at_once


def test_zero_keeps_one_copy_of_a_parameter() -> None:
    """One that is made of it for a product in float32 goes when that has been read."""
    layers = dict.fromkeys(NET.layer_names, LayerPolicy(param="bfloat16"))
    wide = preset("float32", NET.layer_names).with_layers(layers)
    graph = _graph(
        replace(wide, fp32_ops=(*wide.low_precision_ops, *wide.fp32_ops), low_precision_ops=())
    )
    for zero in (1, 2):
        held = spread_live(graph, Parallel(8, zero=zero), "float32")
        copies = [live["weight_copy"] for _, live in held]
        assert max(copies) > min(copies) == 2 * _parameters(graph)
    peaks = [spread_memory(graph, Parallel(8, zero=z), "float32").peak_bytes for z in range(3)]
    assert peaks[0] > peaks[1] >= peaks[2]


def test_tfloat32_is_reduced_as_float32_is() -> None:
    """It is stored as float32 is: no buffer of its own, and no cast but the buffer's copies."""
    layers = dict.fromkeys(NET.layer_names, LayerPolicy(*("tfloat32",) * 4))
    policy = preset("torch.tf32", NET.layer_names).with_layers(layers)
    policy = replace(policy, parallel=Parallel(8))
    assert {g.format for g in gradients_of(_graph(policy))} == {"tfloat32"}
    for parallel in (Parallel(8), Parallel(8, gradients="tensors")):
        assert reduction_buffer_bytes(gradients_of(_graph(policy)), parallel, "float32") == 0
    kernels = {}
    for name in ("float32", "bfloat16"):
        spread = replace(policy, all_reduce=name)
        price = step_price(_graph(spread), "A100-SXM4-40GB", "torch.eager", spread)
        kernels[name] = len([k for k in price.time.kernels if k.bound != "link"])
    assert kernels["bfloat16"] == kernels["float32"]


def test_overlap_hides_all_but_the_last_bucket() -> None:
    link = interconnect(DEVICES["H100-SXM5"], 8)
    ready = [Gradient(10**7, 0.1 * i) for i in range(1, 11)]
    hidden = Parallel(8, bucket_mib=1.0)
    one = link.seconds("all_reduce", 4e7)
    for parallel, late in (
        (hidden, one),
        (replace(hidden, overlap=False), 10 * one),
        (replace(hidden, gradients="combined"), link.seconds("all_reduce", 4e8)),
        (replace(hidden, zero=1), link.seconds("reduce_scatter", 4e7)),
    ):
        sent = messages(ready, parallel)
        assert reduction_seconds(sent, parallel, "float32", 1.0, link)[1] == pytest.approx(late)
    small = messages([Gradient(1000, 1.0)] * 50, replace(hidden, gradients="tensors"))
    assert len(small) == 50 and len(messages([Gradient(1000, 1.0)] * 50, hidden)) == 1


def test_gathering_waits_for_the_first_layer_alone() -> None:
    link = interconnect(DEVICES["H100-SXM5"], 8)
    taken = link.seconds("all_gather", 10**8)
    layers = [(10**8, 10 * taken)] * 5
    total, waited = gathering_seconds(layers, True, link)
    assert total == pytest.approx(5 * taken) and waited == pytest.approx(taken)
    assert gathering_seconds(layers, False, link)[1] == pytest.approx(5 * taken)
    starved = gathering_seconds([(10**8, taken / 10)] * 5, True, link)[1]
    assert starved == pytest.approx(5 * taken + taken / 10 - 5 * taken / 10)


@pytest.mark.parametrize(
    ("name", "tensor", "expected"),
    [("te.delayed", 1, 1), ("te.current", 1, 0), ("te.current", 2, 2), ("te.delayed", 2, 1)],
)
def test_largest_values_are_reduced_where_a_recipe_agrees_on_them(
    name: str, tensor: int, expected: int
) -> None:
    """Delayed in messages of the step; current ones only of a tensor that is split."""
    policy = replace(preset(name, NET.layer_names), parallel=Parallel(8, tensor))
    price = step_price(_graph(policy), "H100-SXM5", "torch.compile", policy)
    found = [kernel for kernel in price.time.kernels if kernel.op == "amax_reduce"]
    assert len(found) >= expected and bool(found) == bool(expected)
    assert all(kernel.op in EXCHANGES for kernel in price.time.kernels if kernel.bound == "link")
    waited = sum(kernel.seconds for kernel in price.time.kernels if kernel.bound == "link")
    alone = math.hypot(price.time.kernel_seconds - waited, price.time.launch_seconds)
    assert price.time.step_seconds == pytest.approx(alone + waited) and waited > 0


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"devices": 0}, "devices: 0; expected a number from 1"),
        ({"devices": 8, "tensor": 3}, "tensor: 3 of 8 devices; expected a divisor"),
        ({"zero": 4}, "zero: 4; expected a number from 0 to 3"),
        ({"gradients": "all"}, "gradients: 'all'; expected one of tensors, buckets, combined"),
        ({"bucket_mib": 0}, "bucket_mib: 0; expected a number"),
    ],
)
def test_mistakes_are_named(fields: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Parallel(**fields)  # type: ignore[arg-type]


def test_a_group_takes_its_part_of_the_batch() -> None:
    assert Parallel(8, 2).batch(64) == 16
    with pytest.raises(InputError, match="batch_size: 60 over 8 groups of devices"):
        Parallel(8).batch(60)
