"""Gradients of powers that an imported net computes in 16 bits, beside torch's: op by op."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional as F

from policysearch.emulator.compile import compile_graph
from policysearch.ops.source import LOSS_SCALE, TARGETS
from policysearch.policy.policy import uniform_layer
from policysearch.policy.presets import preset
from policysearch.train.tasks import Task
from policysearch.verify.gpu_rounding import AsAGpu
from tests.imported_steps import LOSS, imported

pytestmark = pytest.mark.torch

WIDTH, TARGET, SCALE = 64, 3, 1024.0


class Scaled(nn.Module):
    """A function of values times a weight each, whose gradient sums nothing."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.weight, self.function = nn.Parameter(1 + torch.rand(WIDTH)), function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x * self.weight)


FUNCTIONS: Mapping[str, Callable[[Any], Any]] = {
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "square": torch.square,
    "cube": lambda x: x**3,
    "inverse square": lambda x: x**-2,
    "exponent that no 16 bits have": lambda x: x**1.7,
    "quotient": lambda x: 2.7 / x,
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_of_powers_round_as_torchs(name: str, dtype: torch.dtype) -> None:
    """On a CPU, which rounds an exponent and, in bfloat16, the square in a cube."""
    torch.manual_seed(0)
    function = FUNCTIONS[name]
    net, x = Scaled(function), np.linspace(0.6, 1.2, WIDTH, dtype=np.float32)[np.newaxis]
    model = imported(net, (x,))
    task = Task(model=model, loss=LOSS, batch_size=1)
    row = uniform_layer(str(dtype).removeprefix("torch."), param=str(dtype).removeprefix("torch."))
    policy = preset("apex.O3", model.layer_names)
    policy = policy.with_layers(dict.fromkeys(model.layer_names, row))
    step = compile_graph(task.tracing(model, 1).step_graph(policy))
    weight = net.to(dtype).weight.detach().float().numpy()
    x = torch.from_numpy(x).to(dtype).float().numpy()
    step.arrays[model.inputs[0].name][...] = x
    for name, value in {"weight": weight, TARGETS: TARGET, LOSS_SCALE: SCALE}.items():
        step.arrays[name][...] = value
    step.forward_backward()
    with AsAGpu():
        logits = net(torch.from_numpy(x).to(dtype))
        (SCALE * F.cross_entropy(logits.float(), torch.tensor([TARGET]))).backward()
    np.testing.assert_array_equal(step.value("logits"), logits.detach().float().numpy())
    expected = net.weight.grad.float().numpy()
    assert (np.abs(expected) > 2.0**-14).all()
    assert np.mean(step.value("grad:weight") != expected) < 0.05
