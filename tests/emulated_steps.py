"""Steps that the emulator's tests run, and the reference as the oracle of every faster way."""

from __future__ import annotations

import numpy as np

from policysearch.emulator.compile import Step, compile_graph
from policysearch.formats import Rounding
from policysearch.graph import FloatArray, Graph
from policysearch.nn.model import Model
from policysearch.nn.models import lenet5, mlp
from policysearch.ops.catalogue import FORWARD_OPS
from policysearch.ops.source import INVERSE_SCALE, LEARNING_RATE, LOSS_SCALE, STEP_NUMBER, TARGETS
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy, RoleRounding, uniform_layer
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.rounding.rounder import Fast
from policysearch.train.feeding import feed_constants
from policysearch.train.step import trace_step

LOW = ("matmul", "conv2d", "bias")
HIGH = ("softmax_cross_entropy", "mean_squared_error")
REST = tuple(op for op in FORWARD_OPS if op not in LOW + HIGH)
FAST_OFF: Fast = "off"
NETS = {"lenet5": lenet5(), "mlp": mlp((400, 300, 12, 10), activation="tanh")}


def graph_of(model: Model, name: str, optimizer: str, mode: str = "nearest_even") -> Graph:
    layers = tuple((layer, uniform_layer(name)) for layer in model.layer_names)
    each = Rounding(mode)  # type: ignore[arg-type]
    policy = Policy(
        name,
        layers,
        LOW,
        HIGH,
        REST,
        loss_scale=LossScale("fixed", 64.0),
        rounding=RoleRounding(each, each, each, each),
    )
    step = trace_step(model, "softmax_cross_entropy", Optimizer(optimizer), 8)
    return apply_policy(step, policy)


def fill(executable: Step, model: Model, seed: int = 0) -> None:
    rng = np.random.default_rng(seed)
    for name, values in model.init(rng).items():
        executable.arrays[name][...] = values
    feed_constants(executable, model)
    (given,), targets = model.inputs, executable.arrays[TARGETS]
    source = executable.arrays[given.name]
    source[...] = (
        rng.integers(0, 10, source.shape) if given.whole else rng.standard_normal(source.shape)
    )
    classes = rng.integers(0, 10, len(targets))
    targets[...] = np.eye(10)[classes] if targets.ndim == 2 else classes
    for name, value in ((LOSS_SCALE, 64), (INVERSE_SCALE, 1 / 64), (LEARNING_RATE, 0.05)):
        executable.arrays[name][...] = value
    executable.arrays[STEP_NUMBER][...] = 1


def assert_gives_the_bits_of_the_reference(
    graph: Graph, start: dict[str, FloatArray], fast: Fast, steps: int = 2
) -> None:
    """Take steps from the sources `start`: every output and every update, bit for bit."""
    own, reference = (compile_graph(graph, seed=3, fast=way) for way in (fast, FAST_OFF))
    assert (own.fast, reference.fast) == (fast, "off")
    for step in (own, reference):
        for name, values in start.items():
            step.arrays[name][...] = values
    for _ in range(steps):
        for step in (own, reference):
            step.forward_backward()
        for name, _i in graph.outputs:
            _assert_same(own.value(name), reference.value(name), name)
        for step in (own, reference):
            step.apply_updates()
        for name in own.arrays:
            _assert_same(own.arrays[name], reference.arrays[name], name)


def started(graph: Graph, model: Model) -> dict[str, FloatArray]:
    """Return values for all sources: initial parameters, a random batch, zeros as state."""
    step = compile_graph(graph, fast="off")
    fill(step, model)
    return step.arrays


def _assert_same(got: FloatArray, expected: FloatArray, name: str) -> None:
    """Equal bits, or both a NaN, whose payload is nobody's business."""
    same = (got.view(np.uint32) == expected.view(np.uint32)) | (np.isnan(got) & np.isnan(expected))
    assert same.all(), f"{name}: {np.count_nonzero(~same)} of {same.size} differ"
