"""The torch executor against the reference: ops, the nodes of steps, trainings."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from policysearch.accumulators import accumulator_named
from policysearch.emulator.compile import Step, compile_graph
from policysearch.emulator.nodes import attributes
from policysearch.formats import Rounding, format_named
from policysearch.graph import FloatArray, Graph, Node, Op
from policysearch.nn.model import Model
from policysearch.nn.models import MODELS
from policysearch.ops.builder import Builder, backward
from policysearch.ops.catalogue import OPS
from policysearch.ops.elementwise import add
from policysearch.ops.source import data
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.policy import Policy, RoleRounding
from policysearch.policy.presets import preset
from policysearch.products.product import product
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.rounding.rounder import quantise
from policysearch.train.step import trace_step
from tests.emulated_steps import NETS, fill, graph_of
from tests.host_calls import host_calls
from tests.torch_place import FAST, PLACE

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

NEAR = 1e-6
"""Of the magnitudes that enter a value: torch sums in another order."""

WITH_EXAMPLE = [op for op in OPS.values() if op.example is not None]
ON_HOST = {"ctc_loss", "pad", "interpolate", "adaptive_average"}
"""Ops that read a small table on the host while they run."""


def _example_graph(op: Op) -> tuple[Graph, dict[str, FloatArray]]:
    """Return the op's example with its gradients as outputs, and what it is fed."""
    assert op.example is not None
    rng, b = np.random.default_rng(1), Builder()
    example = op.example(rng)
    fed = {f"x{place}": array for place, array in enumerate(example.inputs)}
    ids = [b.emit(data, attrs={"shape": x.shape}, role="input", name=n) for n, x in fed.items()]
    outputs = {"y": b.emit(op, *ids, attrs=example.attrs)}
    if any(op.gradients):
        shape = b.shape(outputs["y"])
        seed = b.emit(data, attrs={"shape": shape}, role="input", name="seed")
        fed["seed"] = rng.standard_normal(shape).astype(np.float32)
        wanted = [i for i, rule in zip(ids, op.gradients, strict=False) if rule is not None]
        found = backward(b, outputs["y"], seed, wanted, add)
        outputs |= {f"gradient {i}": grad for i, grad in found.items()}
    return b.graph(outputs), fed


def _run(graph: Graph, fed: Mapping[str, FloatArray], fast: str) -> dict[str, FloatArray]:
    step = compile_graph(graph, fast=fast)
    for name, array in fed.items():
        step.arrays[name][...] = array
    step.forward_backward()
    return {name: np.array(step.value(name)) for name, _ in graph.outputs}


def _is_near(got: FloatArray, expected: FloatArray, magnitude: FloatArray | None = None) -> bool:
    if got.shape != expected.shape:
        return False
    if magnitude is None:
        finite = expected[np.isfinite(expected)]
        magnitude = np.max(np.abs(finite), initial=0.0)
    same = (got == expected) | (np.isnan(got) & np.isnan(expected))
    with np.errstate(invalid="ignore"):
        return bool((same | (np.abs(got - expected) <= NEAR * magnitude)).all())


@pytest.mark.parametrize("op", WITH_EXAMPLE, ids=lambda op: op.name)
def test_every_op_and_its_gradients_are_near_the_reference(op: Op) -> None:
    graph, fed = _example_graph(op)
    expected = _run(graph, fed, "off")
    step = compile_graph(graph, fast=FAST)
    for name, array in fed.items():
        step.arrays[name][...] = array
    with host_calls() as calls:
        step.forward_backward()
    assert not calls or op.name in ON_HOST, calls
    for name, _ in graph.outputs:
        assert _is_near(np.array(step.value(name)), expected[name]), name


def test_what_must_differ_is_not_near() -> None:
    x = np.ones(4, np.float32)
    assert _is_near(x, x) and not _is_near(x + np.float32(2e-6), x)
    assert not _is_near(np.full(4, np.nan, np.float32), x)
    assert not _is_near(x[:3], x)


def _net(name: str) -> Model:
    if name in NETS:
        return NETS[name]
    shape = (16,) if name == "gpt" else (1, 8, 8)
    return MODELS[name](shape, 10, "gelu" if name == "gpt" else "tanh", (16, 16))


def _policies(model: Model) -> Iterator[Policy]:
    layers = model.layer_names
    for name in ("te.current", "te.mxfp8", "te.nvfp4", "apex.O3", "torchao.rowwise"):
        yield preset(name, layers)
    low = preset("bfloat16", layers)
    by_chance = Rounding("stochastic")
    yield replace(low, rounding=RoleRounding(by_chance, by_chance, by_chance, by_chance))


def _every_value(graph: Graph) -> Graph:
    named = tuple((f"node {node.id}", node.id) for node in graph.nodes if node.op.kind != "source")
    return replace(graph, outputs=(*graph.outputs, *named))


def _values(graph: Graph, step: Step) -> dict[int, Any]:
    fed = {node.id: step.arrays[node.name] for node in graph.nodes if node.op.kind == "source"}
    return fed | {n.id: step.value(f"node {n.id}") for n in graph.nodes if n.id not in fed}


@pytest.mark.parametrize("net", ["mlp", "lenet5", "resnet", "gpt"])
def test_every_node_of_a_step_is_near_on_the_inputs_of_the_reference(net: str) -> None:
    """Before it is rounded; what rounds the same numbers is bit-equal (test_torch_rounding.py)."""
    from policysearch.emulator.torch_array import TorchArray

    model, seen, equal = _net(net), 0, 0
    for policy in _policies(model):
        optimizer = Optimizer("adamw" if net == "gpt" else "sgd", momentum=0.9)
        loss = "token_cross_entropy" if net == "gpt" else "softmax_cross_entropy"
        graph = _every_value(apply_policy(trace_step(model, loss, optimizer, 4), policy))
        step = compile_graph(graph, seed=3, fast="off")
        fill(step, model)
        step.forward_backward()
        values = _values(graph, step)
        for node in graph.nodes:
            if node.op.kind == "source":
                continue
            inputs, attrs = [values[i] for i in node.inputs], attributes(graph, node, "off")
            there: Any = [TorchArray(torch.from_numpy(np.array(x))) for x in inputs]
            with np.errstate(all="ignore"):
                expected = np.asarray(node.op.forward(inputs, attrs), np.float32)
                got = np.asarray(node.op.forward(there, attrs), np.float32)
                magnitude = _entering(node, inputs, attrs)
            assert _is_near(got, expected, magnitude), (policy.name, node.op.name, node.layer)
            seen, equal = seen + got.size, equal + int(np.count_nonzero(got == expected))
    assert seen > 50_000 and equal > 0.8 * seen


def _entering(node: Node, inputs: list[FloatArray], attrs: dict[str, Any]) -> FloatArray | None:
    """Return the sum of magnitudes that enter each value of a product; None for other ops."""
    if node.op.kind != "gemm":
        return None
    return np.asarray(node.op.forward([np.abs(x) for x in inputs], attrs), np.float32)


@pytest.mark.parametrize("net", NETS)
def test_no_rounding_is_dropped(net: str) -> None:
    """Every value lies on its node's format; a compiler that drops casts would leave them off."""
    for mode in ("nearest_even", "stochastic"):
        graph = _every_value(graph_of(NETS[net], "float8_e4m3fn", "adam", mode))
        step = compile_graph(graph, seed=1, fast=FAST)
        fill(step, NETS[net])
        step.forward_backward()
        step.apply_updates()
        low = [n for n in graph.nodes if n.format != "float32" and n.op.kind != "source"]
        for node in low:
            value = np.array(step.value(f"node {node.id}"))
            assert np.array_equal(quantise(value, format_named(node.format)), value), node
        assert len(low) > 10
        bare = tuple(replace(n, format="float32") for n in graph.nodes)
        step = compile_graph(replace(graph, nodes=bare), seed=1, fast=FAST)
        fill(step, NETS[net])
        step.forward_backward()
        step.apply_updates()
        values = [(n, np.array(step.value(f"node {n.id}"))) for n in low]
        off = sum(not np.array_equal(quantise(v, format_named(n.format)), v) for n, v in values)
        assert off > 0.5 * len(low)  # so that the test above can fail


def test_division_is_division() -> None:
    """torch takes a number over a tensor as its product with an inverse, one bit beside."""
    from policysearch.emulator.torch_array import TorchArray

    x = np.random.default_rng(0).uniform(0.5, 500.0, 4096).astype(np.float32)
    tensor = torch.from_numpy(x)
    given: Any = TorchArray(tensor)
    for number in (np.float32(448.0), 448.0):
        assert np.array_equal(np.asarray(number / given), np.float32(448.0) / x)
        assert np.array_equal(np.asarray(given / number), x / np.float32(448.0))
    assert not np.array_equal((448.0 / tensor).numpy(), np.float32(448.0) / x)


def test_products_are_those_of_float32_whatever_the_process_asked_for() -> None:
    from policysearch.emulator.torch_step import exact_products

    torch.set_float32_matmul_precision("medium")
    try:
        with exact_products():
            assert torch.get_float32_matmul_precision() == "highest"
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision("highest")


def test_values_behind_their_last_reader_are_let_go() -> None:
    graph = graph_of(NETS["mlp"], "bfloat16", "sgd")
    step: Any = compile_graph(graph, fast=FAST)
    fill(step, NETS["mlp"])
    step.forward_backward()
    step.apply_updates()
    kept = {i for _, i in graph.outputs} | {i for pair in graph.updates for i in pair}
    held = {i for i in step._values if graph.nodes[i].op.kind != "source"}
    assert held <= kept and len(held) < 0.3 * len(graph.nodes)


class _Tape:
    """Stands for CUDA's graphs: what is captured is run when it is played."""

    mode, played = "default", 0

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda: self)
        monkeypatch.setattr(torch.cuda, "graph", lambda graph: contextlib.nullcontext())
        monkeypatch.setattr(torch.cuda, "get_sync_debug_mode", lambda: self.mode)
        monkeypatch.setattr(torch.cuda, "set_sync_debug_mode", self._set)

    def _set(self, mode: str) -> None:
        self.mode = mode

    def replay(self) -> None:
        self.played += 1


def _part(tape: _Tape, runs: list[int], waits: bool = False, changes: bool = False) -> Any:
    """Return a part of a step that may wait for the device, or give other bits in every run."""
    from policysearch.emulator.torch_array import TorchArray

    def part() -> dict[int, Any]:
        runs.append(len(runs))
        if waits and tape.mode == "error":
            raise RuntimeError("called a synchronizing CUDA operation")
        return {7: TorchArray(torch.tensor([len(runs) if changes else 1.0, torch.nan]))}

    return part


def test_a_part_is_captured_in_its_third_run_and_played(monkeypatch: pytest.MonkeyPatch) -> None:
    from policysearch.emulator.torch_step import Capture

    tape, runs = _Tape(monkeypatch), list[int]()
    capture = Capture(_part(tape, runs))
    found = [capture() for _ in range(5)]
    assert capture.is_played and len(runs) == 4 and tape.played == 3
    assert found[2] is found[3] is found[4] is not found[1]


def test_what_waits_or_gives_other_bits_is_never_played(monkeypatch: pytest.MonkeyPatch) -> None:
    from policysearch.emulator.torch_step import Capture

    tape, runs = _Tape(monkeypatch), list[int]()
    waiting = Capture(_part(tape, runs, waits=True))
    reader = Capture(_part(tape, list[int]()), after=waiting)
    for _ in range(4):
        assert 7 in waiting() and 7 in reader()
    assert not waiting.is_played and len(runs) == 5 and tape.mode == "default"
    assert not reader.is_played  # what it reads lies elsewhere every time
    changing = Capture(_part(tape, runs, changes=True))
    for _ in range(4):
        changing()
    assert not changing.is_played and tape.played == 1


def _waits(function: Any, args: Any) -> bool:
    """Return whether a call needs places that the device counts: of a mask, or of what is true."""
    places = args[1] if "index" in str(function) and isinstance(args[1], list | tuple) else ()
    masks = [each for each in places if each is not None and each.dtype == torch.bool]
    return bool(masks) or "nonzero" in str(function).replace("count_nonzero", "")


@pytest.mark.parametrize("net", NETS)
def test_a_step_asks_the_host_for_no_places(net: str) -> None:
    """An H200 did not capture the steps of two nets, whose loss wrote by a mask."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Watched(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):  # type: ignore[no-untyped-def]
            calls[str(function)] += _waits(function, args)
            return function(*args, **(kwargs or {}))

    calls = Counter[str]()
    step: Any = compile_graph(graph_of(NETS[net], "float8_e4m3fn", "adam"), fast=FAST)
    fill(step, NETS[net])
    with Watched():
        step.forward_backward()
        step.apply_updates()
    assert len(calls) > 10 and not +calls, calls


@pytest.mark.skipif(not FAST.startswith("torch:cuda"), reason="needs a GPU: `make cuda`")
@pytest.mark.parametrize("mode", ["nearest_even", "stochastic"])
@pytest.mark.parametrize("net", NETS)
def test_a_captured_step_has_the_bits_of_an_eager_one(
    net: str, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from policysearch.emulator import torch_step

    graph, found = graph_of(NETS[net], "float8_e4m3fn", "adam", mode), list[Any]()
    for captured in (True, False):
        if not captured:
            monkeypatch.setattr(torch_step, "Capture", lambda part, after=None: part)
        step: Any = compile_graph(graph, seed=1, fast=FAST)
        fill(step, NETS[net])
        for _ in range(6):
            step.forward_backward()
            step.apply_updates()
        assert not captured or (step._outputs.is_played and step._moved.is_played)
        found.append({name: np.array(each) for name, each in step.arrays.items()})
    moved = [name for name, each in found[0].items() if np.any(each)]
    assert len(moved) > 4
    for name, each in found[0].items():
        assert np.array_equal(each, found[1][name], equal_nan=True), name


@pytest.mark.skipif(not FAST.startswith("torch:cuda"), reason="needs a GPU: `make cuda`")
def test_matrix_units_are_near_float32_and_are_no_float32() -> None:
    from policysearch.emulator.torch_array import TorchArray
    from policysearch.emulator.torch_step import on_units

    rng = np.random.default_rng(0)
    for shapes in (((64, 2048), (2048, 48)), ((3, 2, 32, 512), (3, 2, 512, 16))):
        for name in ("float8_e4m3fn", "bfloat16", "float16"):
            fmt = format_named(name)
            left, right = (quantise(rng.standard_normal(s, np.float32), fmt) for s in shapes)
            units: Any = product(accumulator_named("matrix_units"), fmt)
            expected = left.astype(np.float64) @ right.astype(np.float64)
            out: Any = TorchArray(torch.empty(expected.shape, device=PLACE))
            there: Any = [TorchArray(torch.from_numpy(x).to(PLACE)) for x in (left, right)]
            on_units(getattr(torch, units.operands), *there, out=out)
            error = np.abs(np.asarray(out) - expected) / (np.abs(left) @ np.abs(right))
            assert 0.0 < error.max() < 1e-5
