"""The nets, batches and policies that the benchmarks train."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from policysearch import load_study
from policysearch.emulator.compile import Step, compile_graph
from policysearch.graph import FloatArray, Graph
from policysearch.nn.chain import Chain
from policysearch.nn.model import NEXT
from policysearch.nn.models import gpt, lenet5, mlp, resnet, transformer
from policysearch.ops.source import TARGETS
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import LayerPolicy, Policy
from policysearch.policy.presets import preset
from policysearch.policy.scaling import Scaling
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.rounding.rounder import Fast
from policysearch.train.feeding import feed_scalars
from policysearch.train.step import trace_step

STUDIES = ("mlp-digits", "gpt-sums")
"""Shipped studies whose nets are timed alone, beside nothing else."""


def of_study(name: str) -> Chain:
    """Return the net of a shipped study."""
    task = load_study(f"studies/{name}.toml").task
    model = task.build_model(task.load_dataset())
    assert isinstance(model, Chain)
    return model


NETS: dict[str, Callable[[], Chain]] = {
    "mlp": lambda: mlp((784, 512, 512, 10)),
    "lenet5": lenet5,
    "transformer": lambda: transformer((1, 32, 32), 10, 64, (256,), 4),
}
ALL_NETS: dict[str, Callable[[], Chain]] = {
    **NETS,
    "deep": lambda: transformer((1, 32, 32), 10, 256, (1024,) * 6, 8),
    "resnet": lambda: resnet((3, 8, 8), 10),
    "gpt": lambda: gpt((32,), 64, 64, (256, 256), 4),
    **{name: partial(of_study, name) for name in STUDIES},
}
"""With those that are timed beside torch alone, for who asks for them."""
TWINS: dict[str, Callable[[], Chain]] = {
    **NETS,
    "transformer_tanh": lambda: transformer((1, 32, 32), 10, 64, (256,), 4, "gelu_tanh"),
}
"""With what was the transformer of trees in which GELU was the tanh form alone."""
TITLES = {
    "mlp": "MLP 784-512-512-10",
    "lenet5": "LeNet-5 (32 x 32)",
    "transformer": "transformer block (32 tokens of width 64, 4 heads)",
    "deep": "transformer of 6 blocks (32 tokens of width 256, 8 heads)",
    "resnet": "ResNet-18 of widths 8 to 64 (8 x 8 images)",
    "gpt": "GPT of 2 blocks (32 of 64 tokens, width 64, 4 heads)",
    **{name: f"net of studies/{name}.toml" for name in STUDIES},
}
BATCHES = (16, 64, 256)


EVERYWHERE = "float8_e4m3fn"
"""Stands for one format for everything: operands, results, gradients of both kinds."""


BARE = "te.nvfp4.bare"
"""Stands for te.nvfp4 without square blocks of weights and without Hadamard transforms."""


def policy_of(model: Chain, name: str, accumulator: str = "float32") -> Policy:
    """Return a preset, its products summed by `accumulator`; uniform ones are not scaled."""
    if name == BARE:
        whole = policy_of(model, "te.nvfp4", accumulator)
        return replace(whole, scaling=replace(whole.scaling, weights="rows", hadamard=False))
    made = preset("float8" if name == EVERYWHERE else name, model.layer_names)
    layers = made.layers
    if name == EVERYWHERE:
        layers = tuple((layer, LayerPolicy(name, name, name, name)) for layer in model.layer_names)
    layers = tuple((layer, replace(row, accumulator=accumulator)) for layer, row in layers)
    return replace(made, layers=layers, scaling=made.scaling if "." in name else Scaling())


def step_graph(model: Chain, policy: Policy, batch: int) -> Graph:
    """Return the training step with momentum under `policy`, for its loss and the update."""
    loss = model.loss or "softmax_cross_entropy"
    graph = trace_step(model, loss, Optimizer("momentum"), batch)
    moved = [name for name, _ in graph.outputs if name.startswith(NEXT)]
    return apply_policy(graph, policy).wanting("loss", "finite", *moved)


def batch_of(model: Chain, batch: int) -> tuple[FloatArray, FloatArray]:
    """Return inputs and targets, the same on every call.

    Standard-normal images and one-hot rows, or tokens [batch, time] and one number for each.
    """
    rng = np.random.default_rng(1)
    if model.loss:
        drawn = rng.integers(0, model.classes, (2, batch, *model.input_shape))
        tokens, targets = drawn.astype(np.float32)
        return tokens, targets.ravel()
    images = rng.standard_normal((batch, *model.input_shape), np.float32)
    return images, np.eye(model.classes, dtype=np.float32)[rng.integers(0, model.classes, batch)]


def prepared(model: Chain, policy: Policy, batch: int, *, fast: Fast | None = None) -> Step:
    """Return the compiled step with initial parameters and a batch in place."""
    executable = compile_graph(step_graph(model, policy, batch), fast=fast)
    for name, value in model.init(np.random.default_rng(0)).items():
        executable.arrays[name][...] = value
    inputs, targets = batch_of(model, batch)
    executable.arrays["tokens" if model.loss else "images"][...] = inputs
    for name, value in model.constants.items():
        executable.arrays[name][...] = value
    executable.arrays[TARGETS][...] = targets
    feed_scalars(executable, 1.0, 0.01)
    return executable


def our_step(
    model: Chain,
    name: str,
    batch: int,
    *,
    fast: Fast | None,
    accumulator: str = "float32",
    loss_scale: bool = False,
) -> Callable[[], float]:
    """Return the call that takes one emulated step (forward, backward, statistics, update).

    Unless `loss_scale`, the preset's loss scale, its unscaling and its finite check are left out.
    """
    policy = policy_of(model, name, accumulator)
    if not loss_scale:
        policy = replace(policy, loss_scale=LossScale())
    executable = prepared(model, policy, batch, fast=fast)
    moved = [name for name, _ in executable.graph.outputs if name.startswith(NEXT)]

    def step() -> float:
        executable.forward_backward()
        for name in moved:
            executable.arrays[name.removeprefix(NEXT)][...] = executable.value(name)
        executable.apply_updates()
        return float(executable.value("loss"))

    return step
