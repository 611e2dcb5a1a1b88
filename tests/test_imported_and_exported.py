"""Values and gradients of imported nets under policies, beside those of the exported file."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional as F

from policysearch.emulator.compile import compile_graph
from policysearch.export.torch import export
from policysearch.export.torch_runs import runs
from policysearch.ops.source import INVERSE_SCALE, LEARNING_RATE, LOSS_SCALE, STEP_NUMBER
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.feeding import feed_constants, feed_inputs
from policysearch.train.step import trace_step
from policysearch.verify.gpu_rounding import AsAGpu
from tests.imported_steps import LOSS, assert_as_torch, imported

pytestmark = pytest.mark.torch

BATCH, WIDTH, CLASSES = 16, 32, 8


def normal(x: Any) -> Any:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def angles() -> Any:
    return 1 / 100 ** torch.linspace(0, 1, WIDTH // 4)


BETWEEN: Mapping[str, Callable[[Any], Any]] = {
    "to": lambda h: normal(h.float()).to(h.dtype),
    "type_as": lambda h: normal(h.float()).type_as(h),
    "softmax": lambda h: F.softmax(h, -1, dtype=torch.float32).to(h.dtype),
    "beside what is cast": lambda h: normal(h.float()).to(h.dtype) + h,
    "quotient": lambda h: 2.7 / (h * h + 1),
    "not back": lambda h: normal(h.float()) + h,
    "F.normalize": lambda h: F.normalize(h, dim=-1),
    "pairs of an einsum": lambda h: torch.einsum(
        "bij,jk,b->bik",
        *(h.unflatten(1, (4, -1)), angles().diag().roll(1, 0), h.detach().float().mean(-1)),
    ).flatten(1),
    "product of constants": lambda h: h * torch.outer(torch.arange(4.0), angles()).cos().flatten(),
    "matrix product of constants": lambda h: h * _table().cos().flatten(),
    "a view read by several": lambda h: _several(h),
    "put by a mask": lambda h: _put(h) * h.detach().mean(-1, keepdim=True),
    "pairwise distance": lambda h: h * F.pairwise_distance(1.5 * h, h, keepdim=True),
    "constants of a format": lambda h: torch.cat(
        (torch.zeros(len(h), 1, dtype=h.dtype), h[:, 1:].float().to(h.dtype)), 1
    ),
}


def _put(h: Any) -> Any:
    changed = 1.1 * h
    changed[h > 0.2] = 0.3
    return changed


def _several(h: Any) -> Any:
    view = h.unsqueeze(-1)
    return (view.sin() + 1.7 * view.cos() + view.tanh() * view).squeeze(-1)


def _table() -> Any:
    return 3 * torch.arange(4.0)[:, None] @ angles()[None]


class Casting(nn.Module):
    """Values between two linears."""

    def __init__(self, between: Callable[[Any], Any]) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, CLASSES)
        self.between = between

    def forward(self, x: Any) -> Any:
        h = self.first(x)
        return self.last(F.silu(self.between(h)) * h)


class Attending(nn.Module):
    """Attention; where its weights are asked for, a softmax between two products."""

    def __init__(self, need_weights: bool) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.need_weights = need_weights

    def forward(self, h: Any) -> Any:
        x = h.reshape(-1, WIDTH // 4, 4)
        return self.attention(x, x, x, need_weights=self.need_weights)[0].flatten(1)


class Shifting(nn.Module):
    """A parameter added in place, which leaves the format of what it is added to, or cast to it."""

    def __init__(self, in_place: bool) -> None:
        super().__init__()
        self.shift, self.in_place = nn.Parameter(torch.randn(WIDTH)), in_place

    def forward(self, h: Any) -> Any:
        if self.in_place:
            return (1.5 * h).add_(self.shift)
        return 1.5 * h + self.shift.to(h.dtype)


class Latents(nn.Module):
    """Parameters that are the same for every example, through a linear: a cast writes them out."""

    def __init__(self) -> None:
        super().__init__()
        self.latents, self.project = nn.Parameter(torch.randn(4, 8)), nn.Linear(8, 8)

    def forward(self, h: Any) -> Any:
        return h * self.project(self.latents.expand(len(h), -1, -1)).flatten(1)


class Angles(nn.Module):
    """Constants multiplied by a module of their own, as rotary positions are."""

    def forward(self) -> Any:
        return (31 * (torch.arange(4.0)[:, None] @ angles()[None])).cos()


class Rotating(nn.Module):
    """Values times Angles."""

    def __init__(self) -> None:
        super().__init__()
        self.angles = Angles()

    def forward(self, h: Any) -> Any:
        return h * self.angles().flatten()


class Numbers(nn.Module):
    """Parameters of no axes, whose gradients are sums in the format of what they meet."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.tensor(0.7)), nn.Parameter(torch.tensor(0.1))

    def forward(self, h: Any) -> Any:
        return 1.3 * h * self.scale + self.shift


class Spread(nn.Module):
    """Matrices that every example is multiplied by, one for each of its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.matrices = nn.Parameter(torch.randn(1, 4, 8, 8) * 0.3)

    def forward(self, h: Any) -> Any:
        return (self.matrices @ h.sin().view(-1, 4, 8, 1)).flatten(1)


class Recurring(nn.Module):
    """A recurrent layer over the parts of what it gets; its input lies in memory as torch finds it.

    Its biases are added to rounded products where the batch comes first, and the gradients of its
    arrays are summed over the steps in the format they are cast to.
    """

    def __init__(self, layer: Any) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, h: Any) -> Any:
        x = h.reshape(-1, WIDTH // 4, 4)
        first = self.layer.batch_first
        steps = self.layer(x if first else x.transpose(0, 1).contiguous())[0]
        return (steps if first else steps.transpose(0, 1)).flatten(1)


INSIDE: Mapping[str, Callable[[], Any]] = {
    "attention": lambda: Attending(need_weights=True),
    "attention in one call": lambda: Attending(need_weights=False),
    "in place": lambda: Shifting(in_place=True),
    "a parameter cast": lambda: Shifting(in_place=False),
    "a module of constants": Rotating,
    "parameters of no axes": Numbers,
    "spread matrices": Spread,
    "repeated parameters": Latents,
    "gru both ways": lambda: Recurring(nn.GRU(4, 2, 2, bidirectional=True, batch_first=True)),
    "gru, steps first": lambda: Recurring(nn.GRU(4, 4)),
    "rnn": lambda: Recurring(nn.RNN(4, 4, batch_first=True)),
}


POLICIES = ("torch.autocast.bfloat16", "bfloat16")
NOT_STORED_LOW = ("product of constants", "matrix product of constants", "repeated parameters")
"""Cases of float32 parameters: the file rounds products of constants, and casts no low ones."""

CASES = [
    (policy, name)
    for name in (*BETWEEN, *INSIDE)
    for policy in POLICIES
    if policy != "bfloat16" or name not in NOT_STORED_LOW
]
RECURRENT = ("gru both ways", "gru, steps first", "rnn")
"""Torch rounds inside the gradients of sigmoids of float16 on a CPU."""

CASES += [("torch.autocast.float16", name) for name in (*BETWEEN, *INSIDE) if name not in RECURRENT]


@pytest.mark.parametrize(("policy_name", "name"), CASES)
def test_values_and_gradients_are_those_of_the_exported_module(policy_name: str, name: str) -> None:
    torch.manual_seed(0)
    module, rng = Casting(BETWEEN.get(name) or INSIDE[name]()), np.random.default_rng(0)
    x = rng.standard_normal((BATCH, WIDTH)).astype(np.float32)
    labels = rng.integers(0, CLASSES, BATCH)
    model = imported(module, (x,))
    if name == "attention in one call":
        model = model.with_attention("math")
    policy = runs(preset(policy_name, model.layer_names), model)
    step = compile_graph(apply_policy(trace_step(model, LOSS, Optimizer("sgd"), BATCH), policy))
    scalars: dict[str, Any] = {LOSS_SCALE: 1, INVERSE_SCALE: 1, LEARNING_RATE: 0, STEP_NUMBER: 1}
    for key, value in {**model.init(rng), **scalars}.items():
        step.arrays[key][...] = value
    feed_constants(step, model)
    feed_inputs(step, model, (x,), labels)
    step.forward_backward()
    file: dict[str, Any] = {"__name__": "exported"}
    exec(export(policy, model), file)
    exported = file["apply_policy"](copy.deepcopy(module))
    with AsAGpu():
        logits = exported(torch.from_numpy(x))
        F.cross_entropy(logits, torch.from_numpy(labels)).backward()
    assert np.mean(step.value("logits") != logits.detach().numpy()) < 0.02
    for key, parameter in exported.named_parameters():
        expected = parameter.grad.numpy()
        assert np.mean(step.value(f"grad:{key}") != expected) < 0.05, key
        assert (expected != 0).mean() > 0.9


class Unread(nn.Module):
    """Modules with parameters that its result does not read: unused, tied, or without any value."""

    def __init__(self) -> None:
        super().__init__()
        self.unused, self.tied = nn.Linear(WIDTH, 3), nn.Linear(WIDTH, CLASSES, bias=False)
        self.wide, self.none = nn.Linear(WIDTH, CLASSES, bias=False), nn.Linear(WIDTH, 0)
        self.tied.weight = self.wide.weight

    def forward(self, x: Any) -> Any:
        return torch.cat((self.wide(x), self.none(x)), 1) / (len(x) - 1)


@pytest.mark.filterwarnings("ignore:Initializing zero-element")
def test_parameters_that_nothing_reads_are_left_as_they_are_and_obey_no_policy() -> None:
    torch.manual_seed(0)
    module, rng = Unread(), np.random.default_rng(0)
    x = rng.standard_normal((BATCH, WIDTH)).astype(np.float32)
    model = assert_as_torch(module, (x,))
    assert "unused" not in model.layer_names and model.parameters_of("none")
    space: dict[str, Any] = {}
    exec(export(preset("bfloat16", model.layer_names), model), space)
    before = module.unused.weight.dtype, module.wide(torch.from_numpy(x))
    changed = space["apply_policy"](module, device_type="cpu")
    after = changed.wide(torch.from_numpy(x))
    assert changed.unused.weight.dtype == before[0] == torch.float32
    assert after.dtype == torch.bfloat16 and bool((after.float() != before[1]).any())


def test_functions_of_torch_in_python_obey_the_policy_inside() -> None:
    """`F.normalize` is a norm, in float32 under autocast, and a quotient of its result."""
    torch.manual_seed(0)
    x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(1))
    module = Casting(lambda h: F.normalize(h, dim=-1))
    model = imported(module, (x.numpy(),))
    space: dict[str, Any] = {}
    exec(export(preset("torch.autocast.bfloat16", model.layer_names), model), space)
    changed = space["apply_policy"](copy.deepcopy(module), device_type="cpu")
    seen: list[Any] = []

    def normalized(h: Any) -> Any:
        seen[:] = h, F.normalize(h, dim=-1)
        return seen[1]

    changed.between = normalized
    changed(x)
    h, unit = seen
    assert h.dtype == torch.bfloat16
    length = torch.linalg.vector_norm(h.float(), dim=-1, keepdim=True)
    assert unit.dtype == torch.float32 and bool((unit == h / length).all())
