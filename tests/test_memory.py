"""The memory model against counts by hand and a brute-force walk over random graphs."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from policysearch.cost.devices import DEVICES
from policysearch.cost.memory import (
    CONTEXT_BYTES,
    FRAGMENTS,
    RESERVED_INTERVAL,
    WORKSPACE,
    Life,
    StepMemory,
    block_share,
    lives,
    node_bytes,
    step_memory,
    storage_of,
)
from policysearch.cost.price import price
from policysearch.formats import FORMATS
from policysearch.graph import Graph
from policysearch.nn.chain import Chain
from policysearch.nn.models import lenet5, mlp
from policysearch.ops.builder import Builder
from policysearch.ops.conv import conv2d
from policysearch.ops.dense import bias, matmul
from policysearch.ops.elementwise import add, relu
from policysearch.ops.masks import dropout
from policysearch.ops.optimizers import sgd_step, sgd_velocity
from policysearch.ops.shape import reshape
from policysearch.ops.source import cast, data, parameter, state
from policysearch.ops.update import unscale
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.presets import PRESETS, preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import trace_step


def step(model: Chain, policy: str, batch: int) -> Graph:
    graph = trace_step(model, "softmax_cross_entropy", Optimizer("momentum"), batch)
    return apply_policy(graph, preset(policy, model.layer_names))


@pytest.mark.parametrize(
    ("value", "casts", "free"),
    [
        # a gradient and back, through the buffer of its reduction
        ("wgrad float32", "update bfloat16, update float32", (True, True)),
        ("dgrad float32", "update float16, update float32", (True, True)),
        ("forward float32", "update bfloat16, update float32", (False, False)),
        ("update float32", "update bfloat16, update float32", (False, False)),
        # narrow before the update begins
        ("wgrad float32", "wgrad bfloat16, update float32", (False, False)),
        ("wgrad bfloat16", "update float32, update bfloat16", (False, False)),
        ("wgrad float16", "update bfloat16, update float32", (True, False)),
        ("wgrad float32", "update bfloat16, update float16", (True, False)),
    ],
)
def test_the_buffer_of_a_reduction_holds_what_it_reduces(
    value: str, casts: str, free: tuple[bool, ...]
) -> None:
    b, shape = Builder(), (4, 8)
    made = b.emit(data, attrs={"shape": shape}, role="input", name="x")
    for op, step in zip((relu, cast, cast), (value, *casts.split(", ")), strict=True):
        role, format = step.split()
        made = b.emit(op, made, role=role, format=format)
    storage = storage_of(b.graph({"made": made}))
    assert tuple(storage[i] == storage[i - 1] for i in (made - 1, made)) == free


def test_four_nodes_by_hand() -> None:
    b = Builder()
    x = b.emit(data, attrs={"shape": (100,)})
    y = b.emit(relu, x, format="float16")
    z = b.emit(relu, y)
    b.emit(relu, z)
    memory = step_memory(b.graph({"out": 3}))
    # node 1: 400 + 200; node 2: 400 + 200 + 400; node 3: 400 + 400 + 400
    assert (memory.peak_bytes, memory.peak_node) == (1200, 3)
    assert memory.activation_bytes == 1200


def test_fused_values_and_views_have_no_buffer() -> None:
    b = Builder()
    x = b.emit(data, attrs={"shape": (4, 8)})
    w = b.emit(parameter, attrs={"shape": (8, 8)})
    offset = b.emit(parameter, attrs={"shape": (8,)})
    y = b.emit(bias, b.emit(matmul, x, w, fused=True), offset)
    graph = b.graph({"out": b.emit(reshape, y, attrs={"shape": (32,)})})
    memory = step_memory(graph)
    assert memory.parameter_bytes == 4 * (64 + 8)
    assert memory.activation_bytes == 4 * (32 + 32)
    (row,) = (life for life in lives(graph) if life.owner.id == y)
    assert row.last == len(graph.nodes)


def test_updates_work_in_place() -> None:
    b = Builder()
    p = b.emit(parameter, attrs={"shape": (50,)})
    v = b.emit(state, attrs={"shape": (50,)})
    g = b.emit(data, attrs={"shape": (50,)}, role="wgrad")
    rate = b.emit(data, attrs={"shape": ()})
    with b.scope(role="update"):
        velocity = b.emit(sgd_velocity, v, g, attrs={"momentum": 0.9})
        new = b.emit(sgd_step, p, velocity, rate)
    memory = step_memory(b.graph({}, [(p, new), (v, velocity)]))
    assert memory.peak_bytes == 3 * 200 + 4
    late = b.emit(relu, v)
    memory = step_memory(b.graph({"late": late}, [(p, new), (v, velocity)]))
    assert memory.peak_bytes == 5 * 200 + 4  # the old velocity is read after the new one is made


def test_a_gradient_that_is_read_later_is_not_overwritten() -> None:
    b = Builder()
    x = b.emit(data, attrs={"shape": (50,)})
    scale = b.emit(data, attrs={"shape": ()})
    grad = b.emit(relu, x, role="wgrad")
    with b.scope(role="update"):
        b.emit(unscale, grad, scale)
        assert step_memory(b.graph({})).peak_bytes == 2 * 200 + 4
        b.emit(unscale, grad, scale)
    assert step_memory(b.graph({})).peak_bytes == 3 * 200 + 4


def random_graph(rng: np.random.Generator) -> Graph:
    b = Builder()
    shape, names = (int(rng.integers(1, 40)),), list(FORMATS)
    for _ in range(2):
        b.emit(data, attrs={"shape": shape})
    for _ in range(int(rng.integers(3, 15))):
        i, j = (int(rng.integers(0, len(b.nodes))) for _ in range(2))
        name, made = names[rng.integers(len(names))], len(b.nodes)
        if rng.random() < 0.3:
            b.emit(reshape, i, attrs={"shape": b.shape(i)}, format=b.nodes[i].format)
        else:
            b.emit(add, i, j, format=name)
        assert len(b.nodes) == made + 1
    kept = {f"out{i}": int(rng.integers(2, len(b.nodes))) for i in range(2)}
    return b.graph(kept)


def brute_force_peak(graph: Graph) -> int:
    """Return the largest sum, over moments, of values that are read then or later."""
    owner = list(range(len(graph.nodes)))
    for node in graph.nodes:
        if node.op.kind == "move":
            owner[node.id] = owner[node.inputs[0]]
    peak = 0
    for now in range(len(graph.nodes)):
        needed = {owner[now]} | {n.id for n in graph.nodes if n.op.kind == "source"}
        needed |= {owner[i] for _, i in graph.outputs}
        for later in graph.nodes[now:]:
            needed |= {owner[i] for i in later.inputs}
        peak = max(peak, sum(node_bytes(graph.nodes[i]) for i in needed if i <= now or i < 2))
    return peak


def test_peak_equals_brute_force() -> None:
    for seed in range(200):
        graph = random_graph(np.random.default_rng(seed))
        assert step_memory(graph).peak_bytes == brute_force_peak(graph), seed


@pytest.mark.parametrize("policy", PRESETS)
def test_parts_add_up_and_buffers_cover_every_read(policy: str) -> None:
    graph = step(lenet5(), policy, 8)
    memory = step_memory(graph)
    assert sum(bytes for _, bytes in memory.parts) == memory.peak_bytes
    rows = lives(graph)
    assert live_at(rows, memory.peak_node) == memory.peak_bytes
    assert max(live_at(rows, i) for i in range(len(graph.nodes))) == memory.peak_bytes


def live_at(rows: tuple[Life, ...], i: int) -> int:
    return sum(row.bytes for row in rows if row.first <= i <= row.last)


def test_float32_step_holds_parameters_momentum_and_gradients() -> None:
    model = mlp((300, 200, 100), "relu")
    memory = step_memory(step(model, "float32", 1))
    count = sum(int(np.prod(spec.shape)) for spec in model.parameters())
    assert memory.parameter_bytes == memory.optimizer_bytes == 4 * count
    assert memory.gradient_bytes == 4 * count
    assert memory.weight_copy_bytes == 0


def test_many_activations_make_mixed_precision_smaller() -> None:
    model = mlp((64,) * 9, "relu")
    mixed, plain = (step_memory(step(model, p, 4096)) for p in ("float16", "float32"))
    assert mixed.peak_bytes < 0.75 * plain.peak_bytes


@pytest.mark.parametrize(
    "policy", ["float16", "torch.autocast.float16", "mindspore.O2", "bfloat16"]
)
def test_weight_copies_make_mixed_precision_larger_on_weight_heavy_nets(policy: str) -> None:
    """Masters stay float32 and the low copies come on top, as with autocast's weight cache."""
    model = mlp((4096, 4096, 10), "relu")
    mixed, plain = step(model, policy, 1), step(model, "float32", 1)
    cost = price(mixed, plain, "A100-SXM4-80GB", "torch.eager")
    assert cost.memory_ratio > 1
    narrow, wide = step_memory(mixed), step_memory(plain)
    assert wide.master_bytes == 0 and narrow.master_bytes > 4 * 4096**2
    assert narrow.parameter_bytes + narrow.master_bytes == wide.parameter_bytes


def test_low_precision_parameters_without_masters_are_smaller() -> None:
    model = mlp((1024, 1024, 10), "relu")
    low, plain = step_memory(step(model, "apex.O3", 1)), step_memory(step(model, "float32", 1))
    assert low.parameter_bytes * 2 == plain.parameter_bytes
    assert low.peak_bytes < plain.peak_bytes


def test_a_copy_of_a_weight_lives_until_its_last_reader() -> None:
    graph = step(mlp((32, 16, 10), "relu"), "float16", 4)
    copies = [row for row in lives(graph) if row.kind == "weight_copy"]
    assert copies
    for row in copies:
        readers = [node.id for node in graph.nodes if row.owner.id in node.inputs]
        assert row.last == max(readers)
        assert row.owner.op is cast and row.bytes == 2 * int(np.prod(row.owner.shape))


def test_what_a_step_needs_decides_what_fits_not_what_it_reserves() -> None:
    device = DEVICES["V100-SXM2"]
    assert device.memory_bytes == 16 * 2**30

    def held(gib: float, share: float = 0.0) -> StepMemory:
        return StepMemory(round(gib * 2**30), 0, 0, 0, 0, 0, 0, block_share=share)

    memory, blocks = held(10), held(10, 0.1)
    assert memory.peak_bytes < memory.reserved_high_bytes < blocks.reserved_low_bytes
    growth = RESERVED_INTERVAL[0] * (1 + FRAGMENTS * 0.1)
    assert blocks.reserved_low_bytes == round(10 * 2**30 * growth + CONTEXT_BYTES)
    assert blocks.reserved_low_bytes > device.memory_bytes and blocks.fits(device)
    said = [(held(gib).fits(device), held(gib).may_fit(device)) for gib in (10, 14, 17)]
    assert said == [(True, True), (False, True), (False, False)]


def test_a_share_of_a_block_is_that_of_what_the_step_makes() -> None:
    """By hand: two of 10 bytes and one of 20 of 100, what is held from the start left out."""
    rows = [("parameter", 0, 9, 60.0), *(("activation", 1, 2, b) for b in (10.0, 10.0, 20.0))]
    assert block_share(rows, 100) == (100 + 100 + 400) / 40 / 100  # type: ignore[arg-type]


def test_kernels_of_windows_have_work_space() -> None:
    """Of 3 x 3 windows over all channels, where they run: not of 1 x 1 and not of groups."""

    def space(kernel: int, groups: int = 1) -> int:
        b = Builder()
        x = b.emit(data, attrs={"shape": (4, 8, 16, 16)})
        w = b.emit(parameter, attrs={"shape": (8, 8 // groups, kernel, kernel)})
        attrs = {"stride": 1, "padding": kernel // 2, "groups": groups}
        b.emit(conv2d, x, w, attrs=attrs)
        graph = b.graph({})
        found = step_memory(graph)
        assert found.held_bytes == found.peak_bytes + found.workspace_bytes
        return found.workspace_bytes

    tensors = 4 * (2 * 4 * 8 * 256 + 8 * 8 * 9)
    assert space(3) == WORKSPACE * tensors
    assert space(1) == space(3, groups=8) == 0


def test_masks_of_dropout_are_bytes_of_their_own_kind() -> None:
    b = Builder()
    x, mask = (b.emit(data, attrs={"shape": (100,)}) for _ in range(2))
    b.emit(dropout, x, mask, attrs={"p": 0.5})
    memory = step_memory(b.graph({}))
    assert (memory.mask_bytes, memory.activation_bytes) == (100, 800)


@pytest.mark.parametrize("seed", range(20))
def test_a_wider_format_never_needs_less_without_casts(seed: int) -> None:
    """Any node of a random graph one format wider, the others as they were."""
    rng = np.random.default_rng(seed)
    graph = random_graph(rng)
    before, widened = step_memory(graph).peak_bytes, 0
    for node in graph.nodes:
        if node.op.kind in ("source", "move"):
            continue
        for name, format in FORMATS.items():
            if format.bits > FORMATS[node.format].bits:
                nodes = list(graph.nodes)
                nodes[node.id] = dataclasses.replace(node, format=name)
                widened += 1
                assert (
                    step_memory(dataclasses.replace(graph, nodes=tuple(nodes))).peak_bytes >= before
                )
    assert widened


@pytest.mark.parametrize("kind", ["momentum", "adamw"])
def test_a_narrow_state_of_a_fused_update_takes_its_own_bytes_alone(kind: str) -> None:
    """The wide value that it is rounded from is in registers: nothing of it is held."""
    model = mlp((256, 256, 256))
    step = trace_step(model, "softmax_cross_entropy", Optimizer(kind), 4)
    plain = preset("float32", model.layer_names)
    wide, narrow = (
        step_memory(apply_policy(step, dataclasses.replace(plain, optimizer_state=name)))
        for name in ("float32", "bfloat16")
    )
    assert wide.optimizer_bytes == 2 * narrow.optimizer_bytes > 0
    assert narrow.peak_bytes == wide.peak_bytes - narrow.optimizer_bytes
