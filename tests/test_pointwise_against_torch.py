"""Functions element by element beside torch's: random shapes, 16 bits, ties, whole numbers."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from policysearch.emulator.compile import Step, compile_graph
from policysearch.graph import FloatArray, Shape
from policysearch.nn.model import Model, emit_arrays
from policysearch.ops.builder import Builder, backward
from policysearch.ops.catalogue import FORWARD_OPS
from policysearch.ops.elementwise import add
from policysearch.ops.source import data
from policysearch.policy.policy import uniform_layer
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.feeding import feed_constants
from policysearch.verify.gpu_rounding import AsAGpu
from tests.imported_steps import imported
from tests.pointwise_functions import ONE_KERNEL, SEVERAL, Function

pytestmark = pytest.mark.torch

SHAPE = (32, 64, 3)


class Parameter(nn.Module):
    """A function of a parameter, for examples that are all 1."""

    def __init__(self, shape: Shape, function: Function) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(torch.randn(shape)), function

    def forward(self, x: Any) -> Any:
        return self.function(self.weight * x.reshape(-1, *(1,) * self.weight.dim()))


ONE = np.ones((1, 1), np.float32)


def step_of(model: Model, name: str) -> Step:
    """Return the forward pass and the gradient of the parameter, every op in the format `name`."""
    b = Builder()
    fed = model.emit_inputs(b, 1) | emit_arrays(b, model.parameters())
    made = model.trace(b, fed, training=True).output
    seed = b.emit(data, attrs={"shape": b.shape(made)}, role="input", name="seed")
    grad = backward(b, made, seed, [fed["weight"]], add)[fed["weight"]]
    row = preset("float32", model.layer_names)
    policy = replace(
        row,
        layers=tuple((layer, uniform_layer(name, param=name)) for layer, _ in row.layers),
        low_precision_ops=FORWARD_OPS,
        fp32_ops=(),
        promote_ops=(),
    )
    return compile_graph(apply_policy(b.graph({"y": made, "grad": grad}), policy))


def ours(model: Model, module: Any, name: str, seed: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the result and the gradient of the parameter."""
    step = step_of(model, name)
    feed_constants(step, model)
    weight = module.weight.detach().to(getattr(torch, name)).float().numpy()
    for key, value in {"weight": weight, "seed": seed, model.inputs[0].name: ONE}.items():
        step.arrays[key][...] = value
    step.forward_backward()
    return step.value("y").copy(), step.value("grad").copy()


def theirs(module: Any, name: str, seed: FloatArray) -> tuple[FloatArray, FloatArray]:
    dtype = getattr(torch, name)
    module = copy.deepcopy(module).to(dtype)
    with AsAGpu():
        y = module(torch.from_numpy(ONE).to(dtype))
        y.backward(torch.from_numpy(seed).to(dtype))
    return y.detach().float().numpy(), module.weight.grad.float().numpy()


ONE_IN = 500
"""Values of which at most one differs: the exponentials of two libraries, next to a halfway."""

DIFFERENT = {("sigmoid", "float16"): 0.4}
"""Gradients that torch rounds inside: share of values that may differ by that."""


@pytest.mark.parametrize("function", [*ONE_KERNEL, *SEVERAL])
def test_16_bits_round_where_torch_rounds(function: str) -> None:
    torch.manual_seed(0)
    module = Parameter(SHAPE, {**ONE_KERNEL, **SEVERAL}[function])
    with torch.no_grad():
        shape = module(torch.ones(1, 1)).shape
    model = imported(module, (ONE,))
    for name in ("float16", "bfloat16"):
        seed = torch.randn(shape).to(getattr(torch, name)).float().numpy()
        found, expected = ours(model, module, name, seed), theirs(module, name, seed)
        allowed = 1.0 / ONE_IN, DIFFERENT.get((function, name), 1.0 / ONE_IN)
        for got, value, share in zip(found, expected, allowed, strict=True):
            assert np.ptp(value) > 0.0
            assert np.mean(got != value) <= share
