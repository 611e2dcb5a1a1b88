"""Training without master weights: the optimizer's bits against torch.optim on such tensors."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from policysearch.emulator.compile import compile_graph
from policysearch.formats import format_named
from policysearch.nn.models import mlp
from policysearch.policy.policy import uniform_layer
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.rounding.rounder import quantise
from policysearch.train.optimizers import Optimizer
from policysearch.train.step import trace_step


@pytest.mark.torch
@pytest.mark.parametrize("name", ["bfloat16", "float16"])
def test_momentum_on_low_precision_parameters_equals_torch_bit_for_bit(name: str) -> None:
    """Gradients come from the emulator; torch.optim.SGD applies them to tensors of the format."""
    torch = pytest.importorskip("torch")
    net = mlp((16, 12, 4))
    layers = {layer: uniform_layer(name, param=name) for layer in net.layer_names}
    policy = preset("float32", net.layer_names).with_layers(layers)
    policy = replace(
        policy,
        low_precision_ops=preset("float16", net.layer_names).low_precision_ops,
        promote_ops=preset("float16", net.layer_names).promote_ops,
        fp32_ops=preset("float16", net.layer_names).fp32_ops,
        master_weights=False,
        optimizer_state=name,
    )
    step = trace_step(net, "softmax_cross_entropy", Optimizer("momentum"), 8)
    executable = compile_graph(apply_policy(step, policy))
    rng = np.random.default_rng(0)
    row, dtype = format_named(name), getattr(torch, name)
    given = {key: quantise(value, row) for key, value in net.init(rng).items()}
    for key, value in given.items():
        executable.arrays[key][...] = value
    executable.arrays["learning_rate"][...] = 0.05
    tensors = {key: torch.tensor(value).to(dtype) for key, value in given.items()}
    optimizer = torch.optim.SGD(tensors.values(), lr=0.05, momentum=0.9)
    for _ in range(20):
        executable.arrays["images"][...] = rng.standard_normal((8, 16))
        executable.arrays["targets"][...] = np.eye(4)[rng.integers(0, 4, 8)]
        executable.forward_backward()
        for key, tensor in tensors.items():
            grad = np.ascontiguousarray(executable.value(f"grad:{key}"))
            tensor.grad = torch.from_numpy(grad.copy()).to(dtype)
        executable.apply_updates()
        optimizer.step()
        for key, tensor in tensors.items():
            np.testing.assert_array_equal(executable.arrays[key], tensor.float().numpy())
