"""Nets and steps that the tests of rules rewrite, and how those are run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from policysearch.emulator.compile import Step, compile_graph
from policysearch.graph import FloatArray, Graph
from policysearch.nn.chain import Chain
from policysearch.nn.layers import Activation, Conv2d, Flatten, Linear, Pool
from policysearch.nn.model import Model
from policysearch.nn.models import resnet
from policysearch.nn.norms import BatchNorm
from policysearch.optimizers.optimizer import Optimizer
from policysearch.train.step import trace_step

LOSS = "softmax_cross_entropy"
RESNET = resnet((3, 8, 8), 4, (4, 8))
WITH_BIAS = Chain(
    "net",
    (
        Conv2d("conv", 2, 4, 3),
        BatchNorm("norm", 4),
        Activation("relu", "relu"),
        Pool("pool", 2),
        Flatten("flatten"),
        Linear("fc", 4 * 3 * 3, 10),
    ),
    (2, 8, 8),
    10,
)


def step_of(model: Model, optimizer: str = "momentum") -> Graph:
    return trace_step(model, LOSS, Optimizer(optimizer), 4)


def run(graph: Graph, arrays: Mapping[str, FloatArray]) -> Step:
    step = compile_graph(graph, fast="off")
    for name, values in arrays.items():
        step.arrays[name][...] = values
    step.forward_backward()
    return step


def feeds(graph: Graph) -> dict[str, FloatArray]:
    """Random values of every source, running variances positive."""
    rng = np.random.default_rng(1)
    found = {}
    for source in (n for n in graph.nodes if n.op.kind == "source"):
        values = rng.standard_normal(source.shape).astype(np.float32)
        if "running_var" in source.name:
            values = np.abs(values) + np.float32(0.5)
        found[source.name] = values
    return found
