"""The frameworks' own tutorial samples, trained: levels O3 and O2, and manual precision.

MindSpore's samples feed random numbers; here the inputs are the handwritten digits, for the dense
sample tiled eight times to its 512 inputs.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policysearch.data.datasets import Dataset, load_dataset
from policysearch.graph import Graph
from policysearch.nn.chain import Chain
from policysearch.nn.layers import Activation, Flatten, Linear
from policysearch.nn.models import lenet5
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.run import Run
from policysearch.train.step import trace_step
from policysearch.train.tasks import Task
from policysearch.train.training import train

DENSE = Task(model="mlp", learning_rate=0.1, momentum=0.9, steps=60, tail_steps=20)
LENET = replace(DENSE, model="lenet5", loss="mean_squared_error")
GIVEN_SCALE = LossScale(
    "fixed", 1024.0, skip_on_overflow=False, rule="mindspore.FixedLossScaleManager"
)


def dense_net() -> tuple[Chain, Dataset]:
    """Return Dense(512, 128) with ReLU and the tiled digits, of 128 classes 10 are used."""
    digits = load_dataset("digits")
    images = np.tile(digits.images.reshape(-1, 1, 1, 64), (1, 1, 8, 1))
    counts = (digits.train_count, digits.validation_count)
    layers = (Flatten("flatten"), Linear("dense", 512, 128), Activation("relu", "relu"))
    dataset = Dataset("tiled digits", (images,), digits.labels, *counts, 128)
    return Chain("dense", layers, (1, 8, 64), 128), dataset


def step_of(model: Chain, task: Task, policy: Policy) -> Graph:
    traced = trace_step(model, task.loss, task.build_optimizer(), task.batch_size)
    return apply_policy(traced, policy)


def operand_formats(graph: Graph, layer: str) -> set[str]:
    """Return the formats of the operands of all products of a layer: fprop, dgrad, wgrad."""
    products = [n for n in graph.nodes if n.layer == layer and n.op.kind == "gemm"]
    assert products
    return {graph.nodes[i].format for node in products for i in node.inputs}


def learns(run: Run, start: float, end: float) -> bool:
    return not run.diverged and run.losses[0] > start and run.tail_loss < end


def test_dense_at_level_o3_without_loss_scale() -> None:
    model, dataset = dense_net()
    policy = preset("mindspore.O3", model.layer_names)
    assert policy.loss_scale.kind == "none"
    graph = step_of(model, DENSE, policy)
    assert operand_formats(graph, "dense") == {"float16"}
    assert graph.source("dense.weight").format == "float32"
    assert graph.output("loss").format == "float32"
    run = train(DENSE, policy, 0, dataset=dataset, model=model)
    assert learns(run, start=4.0, end=1.0)
    assert set(run.scales) == {1.0} and not run.skipped.any()


def test_lenet5_at_level_o2_with_a_given_loss_scale() -> None:
    model, dataset = lenet5(), load_dataset("digits32")
    policy = replace(preset("mindspore.O2", model.layer_names), loss_scale=GIVEN_SCALE)
    graph = step_of(model, LENET, policy)
    for layer in ("conv1", "conv2", "fc1", "fc2", "fc3"):
        assert operand_formats(graph, layer) == {"float16"}
    run = train(LENET, policy, 0, dataset=dataset)
    assert learns(run, start=0.09, end=0.05)
    assert set(run.scales) == {1024.0}


def test_dense_net_with_one_layer_in_float32() -> None:
    """Manual precision: dense stays float32 although the net around it is float16."""
    model, dataset = dense_net()
    outer = preset("mindspore.O3", model.layer_names)
    policy = outer.with_layers({"dense": uniform_layer("float32")})
    graph = step_of(model, DENSE, policy)
    assert operand_formats(graph, "dense") == {"float32"}
    assert {n.format for n in graph.nodes if n.layer == "flatten" and n.role == "fprop"} == {
        "float16"
    }
    run = train(DENSE, policy, 0, dataset=dataset, model=model)
    assert learns(run, start=4.0, end=1.0)


@pytest.mark.parametrize("inner_first", [True, False])
def test_lenet5_with_one_dense_layer_in_float32(inner_first: bool) -> None:
    """The inner setting wins whatever the order of the calls.

    In MindSpore the last write wins, and a recursive float16 overwrites the layer's own float32.
    """
    model, dataset = lenet5(), load_dataset("digits32")
    inner = {"fc3": uniform_layer("float32")}
    others = {name: uniform_layer("float16") for name in model.layer_names if name not in inner}
    outer = replace(preset("mindspore.O2", model.layer_names), loss_scale=GIVEN_SCALE)
    steps = (inner, others) if inner_first else (others, inner)
    policy = outer.with_layers(steps[0]).with_layers(steps[1])
    assert policy == outer.with_layers(inner)
    graph = step_of(model, LENET, policy)
    assert operand_formats(graph, "fc3") == {"float32"}
    for layer in ("conv1", "conv2", "fc1", "fc2"):
        assert operand_formats(graph, layer) == {"float16"}
    run = train(LENET, policy, 0, dataset=dataset)
    assert learns(run, start=0.09, end=0.05)
