"""The two modes of MindSpore against trainings it recorded, or does now (`make mindspore`)."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from policysearch.emulator.compile import compile_graph
from policysearch.graph import Graph, Node
from policysearch.nn.models import lenet5, resnet, transformer
from policysearch.ops.source import INVERSE_SCALE, LOSS_SCALE
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import trace_forward, trace_step
from tests.mindspore_block import ACT, BLOCK, CHILD, BlockModel
from tests.recorded_lenet5 import Setup, recorded, recorded_setup

ROOT = Path(__file__).parents[1]
PYTHON = ROOT / ".venv-mindspore" / "bin" / "python"
MODES: Mapping[str, dict[str, Any]] = {
    "graph": {"casts": "layer", "bias": "fused"},
    "pynative": {"casts": "op", "bias": "rounded"},
}
DENSE = dict.fromkeys(("fc1", "fc2", "fc3"), "float16")
POLICIES: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "float16": ("float16", {}),
    "float32 fc3": ("float16", {"fc3": "float32"}),
    "float16 dense": ("float32", DENSE),
}
"""As in `tests/record_mindspore.py`: the format of the net, and of layers with another."""
FIXED = LossScale("fixed", 1024.0, skip_on_overflow=False, rule="mindspore.FixedLossScaleManager")
FORMATS = ("float16", "float32")
PAIRS = [(parent, child) for parent in FORMATS for child in FORMATS]
Arrays = dict[str, NDArray[Any]]


@pytest.fixture(
    scope="module", params=["recorded", pytest.param("live", marks=pytest.mark.mindspore)]
)
def runs(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What MindSpore did, by mode."""
    if request.param == "recorded":
        return {mode: recorded(f"mindspore_{mode}") for mode in MODES}
    if not PYTHON.exists():
        pytest.skip(f"no {PYTHON.relative_to(ROOT)}; make mindspore makes it")
    found: dict[str, Arrays] = {}
    for mode in MODES:
        file = tmp_path_factory.mktemp("mindspore") / f"{mode}.npz"
        script = ROOT / "tests" / "record_mindspore.py"
        subprocess.run([PYTHON, script, mode, file], check=True, capture_output=True)
        with np.load(file, allow_pickle=False) as arrays:
            found[mode] = dict(arrays)
    return found


@pytest.fixture(scope="module")
def setup() -> Setup:
    return recorded_setup()


def policy_of(setup: Setup, name: str, mode: str) -> Policy:
    whole, others = POLICIES[name]
    policy = replace(setup.policy("mindspore.O3", FIXED), **MODES[mode])
    formats = {layer: others.get(layer, whole) for layer in setup.layers}
    return policy.with_layers({layer: uniform_layer(form) for layer, form in formats.items()})


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", POLICIES)
def test_losses(runs: dict[str, Arrays], setup: Setup, name: str, mode: str) -> None:
    loss = runs[mode][f"{name}/loss"]
    difference = np.abs(setup.replay(policy_of(setup, name, mode), len(loss)).losses - loss)
    apart = np.abs(runs["graph"][f"{name}/loss"] - runs["pynative"][f"{name}/loss"])
    print(f"{difference[:10].max():.1e} to step 10 (modes {apart[:10].max():.1e})", end=" ")
    print(f"{difference.max():.1e} to step 50 (modes {apart.max():.1e})")
    assert len(loss) == 50 and loss[-1] < loss[0]
    assert difference[:10].max() <= 3e-5
    assert difference.max() <= 1e-3
    assert 0 < apart[:10].max() <= 3e-5


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("name", POLICIES)
def test_first_outputs_tell_the_modes_apart(
    runs: dict[str, Arrays], setup: Setup, name: str, mode: str
) -> None:
    """Of the bits of a float16 dense layer 90 % are the mode's own, 75 % at most the other's."""
    other = next(each for each in MODES if each != mode)
    ours = first_outputs(setup, policy_of(setup, name, mode))
    prefix = f"{name}/bits/"
    layers = {k.removeprefix(prefix) for k in runs[mode] if k.startswith(prefix)}
    assert layers == {k for k in DENSE if POLICIES[name][1].get(k) != "float32"}
    for layer in layers:
        shares = {}
        for each in (mode, other):
            bits = runs[each][prefix + layer]
            same = ours[layer][: len(bits)] == bits.view(np.float16).astype(np.float32)
            shares[each] = float(same.mean())
        print(f"{layer}: {shares}")
        assert shares[mode] >= 0.9
        assert shares[other] <= 0.75


def first_outputs(setup: Setup, policy: Policy) -> Arrays:
    """Return what each dense layer gives for the first batch."""
    model = setup.task.build_model(setup.dataset)
    graph = apply_policy(trace_forward(model, setup.task.batch_size), policy)
    sums = tuple((n.layer, n.id) for n in graph.nodes if n.op.name == "bias" and n.layer in DENSE)
    executable = compile_graph(replace(graph, outputs=sums))
    for name, value in setup.initial.items():
        executable.arrays[name][...] = value
    executable.arrays["images"][...] = setup.dataset.images[setup.batches[0]]
    executable.forward_backward()
    return {layer: np.array(executable.value(layer)) for layer, _ in sums}


def block_step(model: BlockModel, parent: str, child: str, mode: str) -> Graph:
    formats = {CHILD: child, ACT: parent, BLOCK: parent}
    wide = dict.fromkeys(model.layer_names, "float32")
    layers = {layer: uniform_layer(formats.get(layer, wide[layer])) for layer in wide}
    policy = replace(preset("mindspore.O3", model.layer_names), **MODES[mode])
    step = trace_step(model, "", Optimizer("sgd"), 6)
    return apply_policy(step, policy.with_layers(layers))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("cell", ["block", "gated"])
@pytest.mark.parametrize(("parent", "child"), PAIRS)
def test_a_block_has_the_bits_of_its_mode(
    runs: dict[str, Arrays], parent: str, child: str, cell: str, mode: str
) -> None:
    """A layer that computes with what a layer inside it gives: output, its type and gradients."""
    model = BlockModel(cell == "gated")
    arrays, graph = runs[mode], block_step(model, parent, child, mode)
    step = compile_graph(graph)
    owners = [spec.layer for spec in model.parameters()]
    for layer, weight in zip(owners, arrays["weights"], strict=False):
        step.arrays[f"{layer}.weight"][...] = weight
    for name in ("x", "factors"):
        step.arrays[name][...] = arrays[name]
    for name in (LOSS_SCALE, INVERSE_SCALE):
        step.arrays[name][...] = 1.0
    step.forward_backward()
    where = f"{cell}/{parent}/{child}"
    assert graph.output("logits").format == str(arrays[f"{where}/type"])
    np.testing.assert_array_equal(step.value("logits"), arrays[f"{where}/output"])
    assert len(owners) == 2 + (cell == "gated")
    for layer in owners:
        given = step.value(f"grad:{layer}.weight")
        expected = arrays[f"{where}/{layer.rpartition('.')[2]}"]
        assert np.abs(expected).max() > 0
        np.testing.assert_array_equal(given, expected)


def test_the_modes_of_the_block_differ_in_type_and_gradient(runs: dict[str, Arrays]) -> None:
    graph, pynative = (runs[mode] for mode in MODES)
    assert str(graph["block/float16/float32/type"]) == "float32"
    assert str(pynative["block/float16/float32/type"]) == "float16"
    # a float16 block sums the gradients of what it reads twice itself, or its reader does
    assert (graph["block/float16/float16/stem"] != pynative["block/float16/float16/stem"]).any()


NETS = {
    "lenet5": lenet5(),
    "resnet": resnet((3, 8, 8), 4, (4, 8)),
    "transformer": transformer((4, 8), 3, 8, (16, 16), 2),
}


def both(name: str, level: str) -> list[Graph]:
    """Return the step of the level, and that of its graph mode."""
    model = NETS[name]
    step = trace_step(model, "softmax_cross_entropy", Optimizer(), 4)
    names = (level, f"{level}.graph")
    return [apply_policy(step, preset(each, model.layer_names)) for each in names]


@pytest.mark.parametrize(
    ("name", "level"),
    [
        *((name, "mindspore.O3") for name in NETS),
        ("lenet5", "mindspore.O2"),
        ("resnet", "mindspore.O2"),
    ],
)
def test_a_level_of_one_format_is_graph_mode_already(name: str, level: str) -> None:
    plain, graph = both(name, level)
    assert plain == graph


def test_in_graph_mode_the_gradients_of_a_norm_are_summed_where_it_is_read() -> None:
    plain, graph = both("transformer", "mindspore.O2")
    sums = [
        [n.format for n in step.nodes if "gradient_of" in n.attributes and ".attention" in n.layer]
        for step in (plain, graph)
    ]
    assert sums == [["float32"] * 4, ["float16"] * 4]
    forward = [[n for n in step.nodes if n.role == "fprop"] for step in (plain, graph)]
    assert forward[0] == forward[1]


@pytest.mark.parametrize("level", ["mindspore.O1", "mindspore.O2", "mindspore.O3"])
def test_pynative_rounds_a_product_before_its_bias(level: str) -> None:
    model = NETS["lenet5"]
    for name, fused in ((level, True), (f"{level}.pynative", False)):
        graph = apply_policy(trace_forward(model, 2), preset(name, model.layer_names))
        products = [n for n in graph.nodes if n.op.kind == "gemm"]
        assert len(products) == 5
        assert {(n.fused, n.format) for n in products} == {
            (fused, "float32" if fused else "float16")
        }


CHOICES = st.sampled_from(["float32", "float16", "bfloat16"])


@settings(max_examples=60, deadline=None)
@given(st.lists(CHOICES, min_size=5, max_size=5))
def test_any_formats_of_the_block_meet_at_its_boundary(formats: list[str]) -> None:
    """Every op reads one format but for its weights' float32 masters, and no value is lost."""
    model = BlockModel()
    layers = dict(zip(model.layer_names, map(uniform_layer, formats), strict=True))
    base = replace(preset("mindspore.O3", model.layer_names), casts="layer")
    step = trace_step(model, "", Optimizer("sgd"), 6)
    graph = apply_policy(step, base.with_layers(layers))
    for node in graph.nodes:
        if node.role in ("fprop", "dgrad", "wgrad") and not node.op.converts:
            assert len(set(read(graph, node))) == 1, node
    (entered,) = (n for n in graph.nodes if (n.op.name, n.layer, n.role) == ("add", BLOCK, "fprop"))
    met = {layers[layer].output for layer in (CHILD, ACT, BLOCK)}
    assert entered.format == (met.pop() if len(met) == 1 else "float32")


def read(graph: Graph, node: Node) -> list[str]:
    """Return the formats of what a node reads, the scale of the loss apart."""
    given = [n for n in graph.inputs_of(node) if n.name not in (LOSS_SCALE, "factors", "x")]
    return [n.format for n in given] or ["float32"]
