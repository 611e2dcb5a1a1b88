"""Rules of shapes, reductions, products and windows beside torch: many functions in one net.

Each reads values of its own, so that its values and gradients are compared by themselves, in
float32 with what torch makes of them and in 16 bits with its bits.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional as F

from policysearch.emulator.compile import compile_graph
from policysearch.graph import FloatArray, Shape
from policysearch.nn.model import Model
from policysearch.ops.composite import INNER_FORMAT
from policysearch.ops.pad import pad_grad
from policysearch.ops.source import LOSS_SCALE, TARGETS
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.train.feeding import feed_constants
from policysearch.train.tasks import Task
from policysearch.verify.gpu_rounding import AsAGpu
from tests.imported_steps import Array, imported
from tests.shape_rules import CUBES, GROUPS, PLANES, ROWS, Function

pytestmark = pytest.mark.torch

LOSS, SCALE = "mean_squared_error", 128.0
COMPOSED = {"local_response_norm", "masked", "native_channel_shuffle", "max_pool1d_with_indices"}
"""Functions that torch.export has as other calls."""


class Many(nn.Module):
    """Functions of inputs times a weight each; nothing that they give is summed."""

    def __init__(self, shape: Shape, functions: Mapping[str, Function]) -> None:
        super().__init__()
        self.shape, self.functions = shape, dict(functions)
        self.weight = nn.Parameter(1 + torch.rand(len(functions), math.prod(shape)))

    def parts(self, x: torch.Tensor) -> list[Any]:
        inputs = (x.reshape(len(x), 1, -1) * self.weight).unbind(1)
        results = zip(self.functions.values(), inputs, strict=True)
        return [f(y.reshape(len(x), *self.shape)).flatten(1) for f, y in results]

    def forward(self, x: torch.Tensor) -> Any:
        return torch.cat(self.parts(x), 1)


def policy_of(layers: tuple[str, ...], name: str) -> Policy:
    """Return the policy of a module cast to a format, losses apart."""
    if name == "float32":
        return preset(name, layers)
    own = tuple((layer, uniform_layer(name, param=name)) for layer in layers)
    return replace(preset("apex.O3", layers), layers=own, optimizer_state=name)


def both(model: Model, net: Many, x: Array, name: str) -> tuple[list[FloatArray], list[FloatArray]]:
    """Return logits and the gradient of the weight, of the emulator and of torch in a format."""
    dtype = getattr(torch, name)
    x = torch.from_numpy(x).to(dtype).float().numpy()
    task = Task(model=model, loss=LOSS, batch_size=len(x))
    policy = policy_of(model.layer_names, name)
    step = compile_graph(task.tracing(model, len(x)).step_graph(policy))
    feed_constants(step, model)
    low = copy.deepcopy(net).to(dtype)
    shape = step.arrays[TARGETS].shape
    labels = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
    fed = {model.inputs[0].name: x, "weight": low.weight.detach().float().numpy()}
    for array, value in {**fed, TARGETS: labels, LOSS_SCALE: SCALE}.items():
        step.arrays[array][...] = value
    step.forward_backward()
    with AsAGpu():
        logits = low(torch.from_numpy(x).to(dtype))
        (SCALE * F.mse_loss(logits.float(), torch.from_numpy(labels))).backward()
    torchs = [logits.detach().float().numpy(), low.weight.grad.float().numpy()]
    return [step.value("logits"), step.value("grad:weight")], torchs


def by_function(net: Many, x: Array, logits: FloatArray, grad: FloatArray) -> dict[str, Any]:
    """Return what each function gave, and the gradient of its own weights."""
    with torch.no_grad():
        widths = [part.shape[1] for part in net.parts(torch.from_numpy(x))]
    cuts = np.split(logits, np.cumsum(widths)[:-1], 1)
    return dict(zip(net.functions, zip(cuts, grad, strict=True), strict=True))


def made(shape: Shape, functions: Mapping[str, Function]) -> tuple[Any, Many, Array]:
    """Return the model of such a net, the net, and a batch of two."""
    torch.manual_seed(0)
    net = Many(shape, functions)
    x = np.random.default_rng(1).standard_normal((2, math.prod(shape))).astype(np.float32)
    return imported(net, (x,), loss=LOSS), net, x


@pytest.mark.parametrize("group", GROUPS)
def test_a_rule_computes_what_torch_does(group: str) -> None:
    model, net, x = made(*GROUPS[group])
    ours, torchs = (by_function(net, x, *each) for each in both(model, net, x, "float32"))
    off = {}
    for name in net.functions:
        for got, expected in zip(ours[name], torchs[name], strict=True):
            largest = np.abs(expected).max()
            assert np.isfinite(expected).all() and largest > 0, name
            if not np.abs(got - expected).max() <= 3e-5 * largest:
                off[name] = (float(np.abs(got - expected).max()), float(largest))
    assert off == {}
    called = {call.op.removeprefix("aten.") for call in model.program.calls}
    assert {name.split()[0] for name in net.functions} - called <= COMPOSED


# --- in 16 bits: where torch has one kernel there is one rounding ---

IN_16_BITS: dict[str, tuple[Shape, tuple[str, ...]]] = {
    "moves": (ROWS, ("repeat", "repeat_interleave", "flip", "tril", "unfold", "view_as_real")),
    "reductions": (
        ROWS,
        (
            *("max", "min", "amax", "var", "std", "std_mean", "cumsum", "cumprod", "logsumexp"),
            "logcumsumexp",
            *("linalg_vector_norm", "linalg_vector_norm 1", "linalg_vector_norm inf"),
            "linalg_vector_norm 3",
            *("pairwise_distance", "masked mean"),
        ),
    ),
    "products": (
        ROWS,
        (
            *("einsum", "einsum of heads", "einsum of early sums", "einsum without a sum"),
            *("tensordot of the last", "baddbmm of a row", "addmm", "addbmm"),
            *("matmul of one of a stack", "_grouped_mm"),
        ),
    ),
    "images": (
        PLANES,
        (
            *("pad", "upsample_nearest2d"),
            *("upsample_bilinear2d", "upsample_bilinear2d aligned", "upsample_bicubic2d"),
            *("adaptive_max_pool2d", "conv2d same"),
        ),
    ),
    "lines": (
        ROWS,
        (
            *("reflection_pad1d", "replication_pad1d", "pad around"),
            *("upsample_linear1d", "max_pool1d", "conv1d", "conv1d same"),
        ),
    ),
    "spaces": (CUBES, ("upsample_trilinear3d", "max_pool3d", "conv3d")),
}


MOST_DIFFERING = 0.05
"""Bits that another order of additions in float32 may move."""


@pytest.mark.parametrize("group", IN_16_BITS)
def test_it_rounds_where_torch_does(group: str) -> None:
    shape, names = IN_16_BITS[group]
    model, net, x = made(shape, {key: GROUPS[group][1][key] for key in names})
    differing = {}
    for name in ("float16", "bfloat16"):
        ours, torchs = (by_function(net, x, *each) for each in both(model, net, x, name))
        for key in names:
            for got, expected in zip(ours[key], torchs[key], strict=True):
                assert np.isfinite(expected).all() and np.abs(expected).max() > 2.0**-10, key
                if (share := float(np.mean(got != expected))) > MOST_DIFFERING:
                    differing[key, name] = share
    assert differing == {}


WIDTHS = ((2, 3), (3, 2, 1, 0), (3, -1, 1, 0), (1, 2, 1, 1, 2, 0))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("widths", WIDTHS)
@pytest.mark.parametrize("mode", ["reflect", "replicate", "circular"])
def test_gradients_of_borders_are_added_in_16_bits(
    mode: str, widths: tuple[int, ...], dtype: torch.dtype
) -> None:
    """One addition after the other, bit by bit; what is summed in float32 differs."""
    sizes = (3, 4, 5)[-len(widths) // 2 :]
    x = torch.randn(3, 2, *sizes, generator=torch.manual_seed(0)).to(dtype).requires_grad_()
    y = F.pad(x, widths, mode=mode)
    grad = torch.randn(y.shape).to(dtype)
    y.backward(grad)
    pairs = [*zip(widths[::2], widths[1::2], strict=True)]
    every = (*((0, 0),) * (x.dim() - len(pairs)), *reversed(pairs))
    attrs = {"mode": mode, "widths": every, "shape": tuple(x.shape)}
    inner = {INNER_FORMAT: str(dtype).removeprefix("torch.")}
    found = pad_grad.forward([grad.float().numpy()], attrs | inner)
    assert x.grad is not None
    np.testing.assert_array_equal(found, x.grad.float().numpy())
    wide = torch.from_numpy(np.array(pad_grad.forward([grad.float().numpy()], attrs))).to(dtype)
    assert len(widths) == 2 or not torch.equal(wide, x.grad)
