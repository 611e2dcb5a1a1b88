"""Moments apart or in blocks, Kahan sums, remainders: trained, priced, searched, said."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from policysearch.cost.memory import step_memory
from policysearch.emulator.compile import Step, compile_graph
from policysearch.export.targets import target_named, targets
from policysearch.graph import FloatArray, Graph
from policysearch.nn.models import mlp
from policysearch.ops.kept_state import joined_halves, lower_half
from policysearch.ops.source import LEARNING_RATE, STEP_NUMBER
from policysearch.optimizers.optimizer import Optimizer, rules
from policysearch.policy.policy import (
    SECOND_MOMENTS,
    LayerPolicy,
    Policy,
    from_json,
    uniform_layer,
)
from policysearch.policy.presets import preset
from policysearch.rewrite.kept_state import LOST, REMAINDER, SCALE
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.space.encoding import Encoding
from policysearch.space.model_space import make_space
from policysearch.space.section import SpaceSection
from policysearch.train.step import trace_step
from policysearch.values import InputError
from tests.emulated_steps import assert_gives_the_bits_of_the_reference, fill, started

NET = mlp((64, 128, 10), activation="tanh")  # fc1.weight: 8,192 values, fc2.weight: 1,280
ADAM = Optimizer("adamw", weight_decay=0.1)
STORED = {n: uniform_layer("bfloat16", param="bfloat16") for n in ("fc1", "fc2")}


def policy_of(**changes: Any) -> Policy:
    return replace(preset("torch.autocast.bfloat16", NET.layer_names), **changes)


def stored_low(**changes: Any) -> Policy:
    return replace(policy_of(master_weights=False).with_layers(STORED), **changes)


def graph_of(policy: Policy, optimizer: Optimizer = ADAM) -> Graph:
    return apply_policy(trace_step(NET, "softmax_cross_entropy", optimizer, 8), policy)


def source_formats(graph: Graph) -> dict[str, str]:
    return {n.name: n.format for n in graph.nodes if n.op.name in ("state", "parameter")}


def watched(policy: Policy) -> tuple[Graph, Step]:
    """Return a step whose gradients, as updates read them, are outputs."""
    graph = graph_of(policy)
    moments = [n for n in graph.nodes if n.op.name == "adam_m"]
    outputs = {f"grad:{_owner(graph, n.id)}": n.inputs[1] for n in moments}
    graph = replace(graph, outputs=(*graph.outputs, *outputs.items()))
    executable = compile_graph(graph)
    fill(executable, NET)
    return graph, executable


def _owner(graph: Graph, i: int) -> str:
    """Return the parameter whose first moment node `i` makes."""
    node = graph.nodes[i]
    while node.op.name != "state":
        node = graph.nodes[node.inputs[0]]
    return node.name.removesuffix(".m")


def low(values: FloatArray, kind: Any = ml_dtypes.bfloat16) -> FloatArray:
    return values.astype(kind).astype(np.float32)


def ported_moments(m: FloatArray, v: FloatArray, grad: FloatArray) -> tuple[FloatArray, FloatArray]:
    keep = np.float32(ADAM.beta2)
    m = m + (grad - m) * np.float32(1.0 - ADAM.beta1)
    return m, v * keep + grad * np.float32(1.0 - ADAM.beta2) * grad


def ported_step(p: FloatArray, m: FloatArray, v: FloatArray, rate: float, n: int) -> FloatArray:
    root: FloatArray = np.sqrt(v)
    deviation = root / np.float32(np.sqrt(1.0 - ADAM.beta2**n)) + np.float32(ADAM.epsilon)
    change = m / deviation * np.float32(rate / (1.0 - ADAM.beta1**n))
    moved = np.asarray(p * np.float32(1.0 - rate * ADAM.weight_decay) - change, np.float32)
    return moved


def torchao_kept(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return codes and scales as `quantize_fp8` of torchao has them, blocks of 256."""
    blocks = values.reshape(-1, 256)
    scales = np.maximum(np.abs(blocks).max(1), np.float32(1e-12)) / np.float32(448)
    codes = low(blocks / scales[:, None], ml_dtypes.float8_e4m3fn)
    return codes.reshape(values.shape), scales


def test_moments_in_blocks_are_those_of_torchao_step_by_step() -> None:
    graph, step = watched(policy_of(optimizer_state="float8_e4m3fn", state_block=256))
    zeros = np.zeros_like(step.arrays["fc1.weight"])
    kept: dict[str, FloatArray] = {"m": zeros, "v": zeros}
    p = step.arrays["fc1.weight"].copy()
    for n in range(1, 5):
        step.arrays[STEP_NUMBER][...] = n
        step.forward_backward()
        grad = step.value("grad:fc1.weight").copy()
        step.apply_updates()
        m, v = ported_moments(kept["m"], kept["v"], grad)
        p = ported_step(p, m, v, float(step.arrays[LEARNING_RATE]), n)
        np.testing.assert_array_equal(step.arrays["fc1.weight"], p)
        for key, value in (("m", m), ("v", v)):
            codes, scales = torchao_kept(value)
            np.testing.assert_array_equal(step.arrays[f"fc1.weight.{key}"], codes)
            np.testing.assert_array_equal(step.arrays[f"fc1.weight.{key}{SCALE}"], scales)
            kept[key] = (codes.reshape(-1, 256) * scales[:, None]).reshape(codes.shape)
            assert (kept[key] != value).mean() > 0.5 and np.abs(codes).max() == 448
    # below 4,096 values, or no multiple of the block: float32 (torchao `_new_buffer`)
    formats = source_formats(graph)
    assert formats["fc1.weight.m"] == "float8_e4m3fn"
    assert formats["fc2.weight.m"] == formats["fc1.bias.v"] == "float32"


def test_kahan_sums_keep_what_rounding_loses() -> None:
    """torchdistx's equations, the update in float32: gather, move, keep what is lost."""
    _, step = watched(stored_low(compensation="kahan"))
    zeros = np.zeros_like(step.arrays["fc1.weight"])
    p, m, v, lost = low(step.arrays["fc1.weight"]), zeros, zeros, zeros
    step.arrays["fc1.weight"][...] = p
    step.arrays[LEARNING_RATE][...] = 2.0**-14
    moved, kept = 0.0, 0.0
    for n in range(1, 7):
        step.arrays[STEP_NUMBER][...] = n
        step.forward_backward()
        grad = step.value("grad:fc1.weight").copy()
        step.apply_updates()
        m, v = ported_moments(m, v, grad)
        new = ported_step(p, m, v, 2.0**-14, n)
        gathered = low(lost + (new - p))
        moved_to = low(p + gathered)
        lost = low(gathered + (p - moved_to))
        moved, kept = moved + float((moved_to != p).mean()), float(np.abs(lost).max())
        p = moved_to
        np.testing.assert_array_equal(step.arrays["fc1.weight"], p)
        np.testing.assert_array_equal(step.arrays[f"fc1.weight{LOST}"], lost)
    assert 0 < moved < 6 and kept > 0  # most single updates are below half a unit


def te_split(whole: FloatArray) -> tuple[FloatArray, Any]:
    """Return what `AdamFunctorMasterParamRemainder` of Transformer Engine stores, in int16."""
    bits = whole.view(np.uint32)
    rest = (bits & 0xFFFF).astype(np.uint16).view(np.int16)
    kept = (bits >> 16).astype(np.uint16).view(np.int16) + (rest < 0).astype(np.int16)
    return (kept.view(np.uint16).astype(np.uint32) << 16).view(np.float32), rest


def te_joined(kept: FloatArray, rest: Any) -> FloatArray:
    half = (kept.view(np.uint32) >> 16).astype(np.uint16).view(np.int16) - (rest < 0)
    bits = half.astype(np.int16).view(np.uint16).astype(np.uint32) << 16
    return np.asarray((bits | rest.view(np.uint16)).view(np.float32))


def test_a_parameter_and_its_remainder_are_the_bits_of_float32() -> None:
    """As Transformer Engine's kernel: split, undo the rounding, update in float32, split."""
    bits = np.random.default_rng(1).integers(0, 2**32, 2**20, dtype=np.uint32)
    bits[: 2**17] = np.arange(2**17) + 0x3F80_0000  # every lower half, ties too
    whole = bits.view(np.float32)[np.isfinite(bits.view(np.float32))]
    kept, rest = te_split(whole)
    low_half = rest.view(np.uint16).astype(np.float32)
    np.testing.assert_array_equal(lower_half.forward([whole], {}), low_half)
    joined = np.asarray(joined_halves.forward([kept, low_half], {}))
    np.testing.assert_array_equal(joined.view(np.uint32), whole.view(np.uint32))

    _, step = watched(stored_low(compensation="remainder"))
    name, rate = "fc1.weight", 2.0**-14
    p = low(step.arrays[name])
    step.arrays[name][...] = p
    step.arrays[LEARNING_RATE][...] = rate
    m = v = np.zeros_like(p)
    for n in range(1, 7):
        step.arrays[STEP_NUMBER][...] = n
        step.forward_backward()
        grad = step.value(f"grad:{name}").copy()
        step.apply_updates()
        m, v = ported_moments(m, v, grad)
        p = ported_step(p, m, v, rate, n)
        kept, rest = te_split(p)
        np.testing.assert_array_equal(step.arrays[name], kept)
        left = step.arrays[f"{name}{REMAINDER}"].astype(np.uint16).view(np.int16)
        np.testing.assert_array_equal(left, rest)
        np.testing.assert_array_equal(te_joined(kept, left), p)
    assert np.unique(rest).size > 1000 and (rest < 0).any()


def test_a_compensated_parameter_follows_the_masters_where_a_rounded_one_stands_still() -> None:
    rate, far = 2.0**-14, {}
    policies = {
        "masters": policy_of(),
        "nearest": stored_low(),
        "kahan": stored_low(compensation="kahan"),
        "remainder": stored_low(compensation="remainder"),
    }
    for name, policy in policies.items():
        executable = compile_graph(graph_of(policy))
        fill(executable, NET)
        first = low(executable.arrays["fc1.weight"])
        executable.arrays["fc1.weight"][...] = first
        executable.arrays[LEARNING_RATE][...] = rate
        for n in range(1, 41):
            executable.arrays[STEP_NUMBER][...] = n
            executable.forward_backward()
            executable.apply_updates()
        moved = executable.arrays["fc1.weight"] - first
        far[name] = moved + (executable.arrays.get(f"fc1.weight{LOST}", np.float32(0)))
    true = np.linalg.norm(far["masters"])
    assert np.linalg.norm(far["kahan"] - far["masters"]) < 0.1 * true
    assert np.linalg.norm(far["remainder"] - far["masters"]) < 0.1 * true
    assert np.linalg.norm(far["nearest"] - far["masters"]) > 0.5 * true


@pytest.mark.parametrize(
    "changes",
    [
        {"optimizer_state": "float8_e4m3fn", "state_block": 256},
        {"optimizer_state": "bfloat16", "second_moment": "float32"},
        {"optimizer_state": "bfloat16", "second_moment": "float8_e5m2", "state_block": 128},
    ],
)
@pytest.mark.parametrize("fast", ["c", "numpy"])
def test_every_way_gives_the_bits_of_the_reference(changes: dict[str, Any], fast: Any) -> None:
    for policy in (
        policy_of(**changes),
        stored_low(compensation="kahan", **changes),
        stored_low(compensation="remainder", **changes),
    ):
        graph = graph_of(policy)
        assert_gives_the_bits_of_the_reference(graph, started(graph, NET), fast)


def test_moments_have_formats_apart() -> None:
    formats = source_formats(graph_of(policy_of(second_moment="bfloat16")))
    assert formats["fc1.weight.m"] == "float32" and formats["fc1.weight.v"] == "bfloat16"
    formats = source_formats(graph_of(policy_of(optimizer_state="bfloat16")))
    assert formats["fc1.weight.m"] == formats["fc1.weight.v"] == "bfloat16"
    momentum = source_formats(graph_of(policy_of(second_moment="bfloat16"), Optimizer("momentum")))
    assert momentum["fc1.weight.velocity"] == "float32"
    shapes = (3,), (3, 4)
    names = {state for row in rules().values() for shape in shapes for state in row.kept(shape)}
    assert names > SECOND_MOMENTS


def test_what_is_kept_is_priced() -> None:
    def kept(policy: Policy) -> int:
        return step_memory(graph_of(policy)).optimizer_bytes

    count = sum(int(np.prod(spec.shape)) for spec in NET.parameters())
    whole = kept(policy_of())
    assert whole == 8 * count
    assert kept(policy_of(second_moment="bfloat16")) == 6 * count
    blocked = kept(policy_of(optimizer_state="float8_e4m3fn", state_block=256))
    assert whole - blocked == 2 * 8192 * 3 - 2 * 4 * 8192 // 256
    bare = kept(stored_low())
    for compensation in ("kahan", "remainder"):
        assert kept(stored_low(compensation=compensation)) - bare == 2 * count


def test_digests_and_files_of_before_stay() -> None:
    policy = policy_of()
    again = replace(policy, second_moment="bfloat16")
    assert again.digest != policy.digest and from_json(again.to_json()) == again
    assert replace(again, second_moment="optimizer_state").digest == policy.digest
    with pytest.raises(InputError, match="expected 'fused'"):
        stored_low(compensation="kahan", optimizer_order="eager")
    with pytest.raises(InputError, match="second_moment: unknown format"):
        policy_of(second_moment="state")


@pytest.mark.parametrize("name", targets())
def test_what_a_target_does_not_keep_so_is_a_loss(name: str) -> None:
    there = target_named(name)
    plain = stored_low(optimizer_state="bfloat16")
    for changes in (
        {"second_moment": "float32"},
        {"state_block": 256, "optimizer_state": "float8_e4m3fn"},
        {"compensation": "kahan"},
        {"compensation": "remainder"},
    ):
        policy = replace(plain, **changes)
        running = there.runs(policy, NET)
        (field, *_) = changes
        if getattr(running, field) != changes[field]:
            assert any(field in line for line in there.losses(policy, NET)), (name, field)
    assert there.runs(running, NET) == running
    assert isinstance(running.layer("fc1"), LayerPolicy)


SECTION = SpaceSection(
    ("float32", "bfloat16"),
    master_weights=(True, False),
    optimizer_states=("float32", "bfloat16", "float8_e4m3fn"),
    second_moments=("same", "float32", "bfloat16"),
    state_blocks=(0, 256),
    compensations=("none", "kahan", "remainder"),
    granularity="net",
)


def test_forms_of_storage_are_searched_and_one_where_they_do_nothing() -> None:
    space = make_space(SECTION, NET)
    encoding = Encoding(space)
    names, values = [*space.choices()], [*space.choices().values()]
    by_policy: dict[str, set[Any]] = {}
    by_row: dict[Any, set[str]] = {}
    for chosen in itertools.product(*values):
        params = dict(zip(names, chosen, strict=True))
        policy, row = space.policy(params), encoding.row(params)
        by_policy.setdefault(policy.digest, set()).add(row)
        by_row.setdefault(row, set()).add(policy.digest)
        assert space.policy(space.project(policy)).digest == policy.digest
    assert all(len(digests) == 1 for digests in by_row.values())
    assert all(len(rows) == 1 for rows in by_policy.values())
    low = {f"format.{group.name}": "bfloat16" for group in space.groups}
    for name in ("kahan", "remainder"):
        kept = space.policy(low | {"master_weights": False, "compensation": name})
        assert kept.compensation == name and name in kept.name
        assert space.policy(low | {"compensation": name}).compensation == "none"
    blocks = low | {"optimizer_state": "float8_e4m3fn", "state_block": 256}
    assert space.policy(blocks).state_block == 256
    assert space.policy({**blocks, "optimizer_state": "bfloat16"}).state_block == 0
