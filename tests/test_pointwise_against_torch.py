"""Functions element by element beside torch's: random shapes, 16 bits, ties, whole numbers."""

from __future__ import annotations

import copy
from collections.abc import Mapping
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
from tests.imported_low_trainings import trained_low_as_torch
from tests.imported_steps import assert_as_torch, imported
from tests.imported_trainings import Training
from tests.pointwise_functions import ONE_KERNEL, SEVERAL, Function
from tests.test_whole_numbers import rows_of
from tests.test_whole_numbers import step_of as whole_step_of

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


@pytest.mark.parametrize("relation", ["eq", "ne", "lt", "le", "gt", "ge"])
def test_a_value_is_compared_with_the_number_in_its_own_format(relation: str) -> None:
    """No 16 bits have 0.3, and a parameter of 0.3 is what they have for it."""
    module = Parameter((2, 3), lambda x: torch.where(getattr(torch, relation)(x, 0.3), 2.0 * x, x))
    with torch.no_grad():
        module.weight.copy_(torch.tensor([[0.3, -0.3, 0.29], [0.31, 1.0, 0.3]]))
    model = imported(module, (ONE,))
    for name in ("float16", "bfloat16"):
        seed = np.ones((1, 2, 3), np.float32)
        both = zip(ours(model, module, name, seed), theirs(module, name, seed), strict=True)
        for got, value in both:
            np.testing.assert_array_equal(got, value)


class Padded(nn.Module):
    """Looks numbers up that are compared, divided and clamped as whole ones, and leaves padding."""

    def __init__(self) -> None:
        super().__init__()
        self.high, self.low = nn.Embedding(20, 4), nn.Embedding(256, 4)
        self.fc = nn.Linear(4, 3)

    def forward(self, ids: Any) -> Any:
        kept = (ids != 0) & ~(ids == 4097) | ids.lt(-1)
        high = torch.clamp(torch.where(ids > 4095, ids // 256, 3), max=18)
        y = torch.tanh(self.high(high) + self.low(ids % 256))
        y = y.masked_fill(kept.logical_not()[..., None], 0.0)
        return self.fc(y.sum(1) / kept.sum(1, keepdim=True).clamp_min(1))


IDS = np.array([[4095, 4097, 4353], [0, 4609, 257], [4865, 4098, 3], [0, 3, 258]])
"""Neither float16 nor bfloat16 has all of them."""


def test_a_mask_of_padding_and_arithmetic_of_whole_numbers() -> None:
    torch.manual_seed(0)
    module = Padded()
    model = assert_as_torch(module, (IDS,))
    rows = {"high.weight": {3, 17, 18, 16}, "low.weight": {255, 1, 2, 3}}
    for name in ("bfloat16", "apex.O3"):
        step = whole_step_of(model, name, (IDS,), np.array([0, 2, 1, 0]))
        for table, expected in rows.items():
            assert rows_of(step, table) == expected


class Everything(nn.Module):
    """Each function of some features of its own."""

    def __init__(self, functions: Mapping[str, Function]) -> None:
        super().__init__()
        self.functions, width = functions, 4 * len(functions)
        self.fc1, self.fc2 = nn.Linear(12, width), nn.Linear(self._parts(width), 32)
        self.head = nn.Linear(32, 4)

    def _parts(self, width: int) -> int:
        return int(self._applied(torch.zeros(2, width)).shape[1])

    def _applied(self, y: Any) -> Any:
        parts = y.split(4, 1)
        return torch.cat([f(x) for f, x in zip(self.functions.values(), parts, strict=True)], 1)

    def forward(self, x: Any) -> Any:
        return self.head(torch.tanh(self.fc2(self._applied(self.fc1(x)))))


def features(rng: np.random.Generator, batch: int) -> tuple[FloatArray, ...]:
    return (rng.standard_normal((batch, 12)).astype(np.float32),)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
def test_a_net_of_all_functions_trains_as_in_torch(name: str) -> None:
    torch.manual_seed(0)
    functions = {**ONE_KERNEL, **SEVERAL}
    training = Training(lambda: Everything(functions), features, "momentum", 1e-2)
    with AsAGpu():
        assert trained_low_as_torch(training, name) > 0.05
