"""Nets, layer formats and steps that the scaling tests share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from policysearch.emulator.compile import Step
from policysearch.graph import Graph
from policysearch.nn.chain import Chain
from policysearch.nn.layers import Conv2d, Flatten, Linear
from policysearch.nn.model import Model
from policysearch.nn.models import lenet5, mlp, transformer
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.policy import LayerPolicy, Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.policy.scaling import RECIPES, Recipe, Scaling
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import trace_step

E4M3 = LayerPolicy("float8_e4m3fn", "bfloat16", "float8_e4m3fn", "bfloat16")
HYBRID = uniform_layer("float8_e4m3fn")
FP4 = uniform_layer("float4_e2m1fn")
ACTIVE = tuple(recipe for recipe in RECIPES if recipe != "none")
NETS = {
    "lenet5": lenet5(),
    "convolutions": Chain(
        "convolutions",
        (
            Conv2d("conv1", 3, 36, 3, padding=1),
            Conv2d("conv2", 36, 8, 3, stride=2),
            Flatten("flatten"),
            Linear("fc1", 72, 10),
        ),
        (3, 8, 7),
        10,
    ),
    "mlp": mlp((400, 40, 12, 10), activation="tanh"),
    "transformer": transformer((4, 12), 10, hidden=(24,), width=16, heads=2),
}


def policy_of(model: Model, scaling: Scaling | Recipe, layer: LayerPolicy = HYBRID) -> Policy:
    """Return preset float8 with this scaling (a history of 4) and all layers like `layer`."""
    row = scaling if isinstance(scaling, Scaling) else Scaling(scaling, history=4)
    layers = tuple((name, layer) for name in model.layer_names)
    return replace(preset("float8", model.layer_names), layers=layers, scaling=row)


def step_of(
    model: Chain, policy: Policy, batch: int = 8, loss: str = "softmax_cross_entropy"
) -> Graph:
    """Return a training step with momentum under `policy`."""
    return apply_policy(trace_step(model, loss, Optimizer("momentum"), batch), policy)


def fill(executable: Step, values: Mapping[str, Any]) -> None:
    """Write sources by name."""
    for name, value in values.items():
        executable.arrays[name][...] = value
