"""Calls under `autocast(enabled=False)`: what stays float32 there, in torch and in its file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import policysearch
from benchmarks.census.measure import verdict
from benchmarks.census.net import Net, normal
from policysearch.ops.composite import FLOAT32_ALONE
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import trace_step
from policysearch.train.tasks import Task
from policysearch.values import InputError
from policysearch.verify.verdict import verify
from tests.trained_ops import forked

pytestmark = pytest.mark.torch


class Region(nn.Module):
    """Calls that autocast leaves alone, of 16 bits, and others of what is cast to float32."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 8), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        h = self.first(x)
        with torch.autocast("cpu", enabled=False):
            y = torch.sigmoid(h) * h.sin() + F.layer_norm(2.0 * h.float(), (8,)).exp()
        return torch.as_tensor(self.last(y))


class LinearAttention(nn.Module):
    """Products of what is cast to float32, in a region that autocast leaves alone."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.last = nn.Linear(8, 24), nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        with torch.autocast("cpu", enabled=False):
            q, k, wide = q.relu().float(), k.relu().float(), F.pad(v, (0, 1), value=1.0).float()
            y = q @ (k.transpose(-1, -2) @ wide)
            y = (y[..., :-1] / (y[..., -1:] + 0.1)).exp().to(v.dtype)
        return torch.as_tensor(self.last(y * v))  # the cast back rounded it


PARTS: Mapping[str, Callable[[Any, Tensor], Tensor]] = {
    "linear": lambda net, wide: net.gate(wide),
    "router": lambda net, wide: net.gate(wide).softmax(-1),
    "two": lambda net, wide: net.gate(net.gate(wide).relu()),
    "convolution": lambda net, wide: net.conv(wide.mT).mT,
    "parameter": lambda net, wide: torch.einsum("btd,de->bte", wide, net.matrix),
    "buffer": lambda net, wide: wide @ net.table,
    "norm": lambda net, wide: F.layer_norm(net.gate(wide), (8,)) @ net.matrix,
}
"""What reads a value that is cast to float32, and parameters that are not."""


class Wide(nn.Module):
    """A part of a net that autocast leaves alone; what enters is read in 16 bits again later."""

    table: Tensor

    def __init__(self, part: str) -> None:
        super().__init__()
        self.first, self.gate, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 5)
        self.conv, self.matrix = nn.Conv1d(8, 8, 1), nn.Parameter(0.3 * torch.randn(8, 8))
        self.register_buffer("table", 0.3 * torch.randn(8, 8))
        self.part = part

    def forward(self, x: Tensor) -> Tensor:
        h = torch.tanh(self.first(x))
        with torch.autocast("cpu", enabled=False):
            y = PARTS[self.part](self, h.float())
        return torch.as_tensor(self.last(y * h))


REGIONS: Mapping[str, Callable[[], Any]] = {
    "without products": Region,
    "linear attention": LinearAttention,
    **{part: lambda part=part: Wide(part) for part in PARTS},  # type: ignore[misc]
}


@pytest.mark.parametrize("name", REGIONS)
def test_one_step_is_that_of_torch(name: str) -> None:
    torch.set_num_threads(1)
    width = 6 if name in PARTS else 8
    of_net = verdict(Net(REGIONS[name], normal((6, width))))
    assert not of_net.refusal
    assert of_net.single is not None and of_net.single.within(3.0, 1e-6), of_net.single
    assert of_net.half is not None and of_net.half.within(2.0, 1e-6), of_net.half


@pytest.mark.parametrize("name", ("torch.autocast.bfloat16", "apex.O2", "te.current"))
def test_the_exported_file_leaves_the_region_float32(name: str) -> None:
    rng = np.random.default_rng(0)
    x = rng.standard_normal((48, 4, 6)).astype(np.float32)
    labels = (x @ rng.standard_normal((6, 5))).argmax(-1)
    torch.manual_seed(0)
    model = policysearch.from_torch(Wide("router"), torch.randn(8, 4, 6))
    task = Task(
        model=model,
        data=policysearch.Dataset("own", (x,), labels, 32, 16, 5),
        batch_size=8,
        loss="token_cross_entropy",
        learning_rate=0.02,
    )
    with forked():
        found = verify(preset(name, model.layer_names), task, steps=10)
    assert not found.faults and not found.undecided


class Within(nn.Module):
    def __init__(self, function: Callable[..., Any], *, enabled: bool) -> None:
        super().__init__()
        self.linear, self.function, self.enabled = nn.Linear(4, 3), function, enabled

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.enabled):
            return torch.as_tensor(self.function(y))


def test_products_that_autocast_leaves_alone_are_float32_under_every_policy() -> None:
    model = policysearch.from_torch(LinearAttention(), torch.randn(3, 6, 8))
    for name in ("torch.autocast.bfloat16", "apex.O2", "apex.O3", "te.current"):
        step = trace_step(model, "token_cross_entropy", Optimizer("sgd"), 3)
        graph = apply_policy(step, preset(name, model.layer_names))
        alone = [n for n in graph.nodes if n.op.kind == "gemm" and n.source == FLOAT32_ALONE]
        assert len(alone) == 6 and {n.format for n in alone} == {"float32"}
        others = [n for n in graph.nodes if n.op.kind == "gemm" and n.source != FLOAT32_ALONE]
        assert others and "float32" not in {graph.nodes[n.inputs[0]].format for n in others}


@pytest.mark.parametrize(
    ("function", "enabled", "message"),
    [
        (
            lambda y: y.float() @ y.mT,
            False,
            r"autocast\(enabled=False\); its format is",
        ),
        (torch.relu, True, "a region under autocast; leave it out: formats are the policy's"),
        (
            lambda y: y @ y.mT,
            False,
            "take it out of the region, or write it as a product of x.float",
        ),
        (torch.exp, False, r"exp: under autocast\(enabled=False\), .*; give it x.float\(\)"),
    ],
)
def test_regions_that_name_a_format_are_refused(
    function: Callable[..., Any], enabled: bool, message: str
) -> None:
    with pytest.raises(InputError, match=message):
        policysearch.from_torch(Within(function, enabled=enabled), torch.randn(2, 4))
