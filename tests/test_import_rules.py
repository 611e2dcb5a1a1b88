"""Every op that can be imported, in a small function beside torch: value and gradients."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional as F

from policysearch.graph import Shape
from policysearch.importers.rules import FAMILIES, RULES
from policysearch.train.step import trace_forward
from tests import cases_of_indexing
from tests.imported_steps import BATCH, assert_as_torch
from tests.pointwise_functions import ONE_KERNEL, OTHERS, SEVERAL, TRUTHS
from tests.shape_rules import NAMES

pytestmark = pytest.mark.torch

FLAT, ROWS, PLANES = (24,), (4, 6), (2, 3, 4)
Function = Callable[[Any], Any]
MASK = torch.arange(24).reshape(4, 6) % 3 == 0


def _grid(x: Any) -> Any:
    """Return x under values that no op has a kink or a pole at."""
    return 0.5 + x.sigmoid()


def _kernel(x: Any) -> Any:
    """Return [2, 2, 2, 2] made of x."""
    return x[0, :, :2, :2].reshape(2, 1, 2, 2) * x[1, :, 1:, 2:].reshape(1, 2, 2, 2)


def _changed_alone(x: Any) -> Any:
    y = (x * 2.0).flatten(1)
    y.relu_()
    return y * 1.5


def _reversed(x: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch would rather have it called permute
        return x.T


def _chosen(of: Function, x: Any) -> Any:
    return torch.where(of(x), x, x * x)


CASES: dict[str, tuple[Shape, Function]] = {
    "matmul": (PLANES, lambda x: x @ x.mT),
    "matmul of a vector": (ROWS, lambda x: x @ x[0, 0]),
    "matmul from a vector": (ROWS, lambda x: x[0, 0] @ x.mT),
    "matmul of one for all": (ROWS, lambda x: x @ x[0].T),
    "bmm": (ROWS, lambda x: torch.bmm(x, x.transpose(1, 2))),
    "mm": (FLAT, lambda x: torch.mm(x, x.t()[:, :1].contiguous()) * x),
    "addmm": (FLAT, lambda x: torch.addmm(x[0, :4], x, x[0, :, None] * x[1, :4])),
    "matmul of two vectors": (ROWS, lambda x: x * (x[0, 0] @ x[0, 1])),
    "numpy_T": (FLAT, lambda x: x @ x[:1].T * x),
    "numpy_T of three axes": (PLANES, lambda x: x[:, :, :2, :2] * _reversed(x[0, :, :2, :2])),
    "softmax": (ROWS, lambda x: x.softmax(-1)),
    "softmax in float32": (ROWS, lambda x: x.softmax(-1, torch.float32).to(x.dtype)),
    "softmax of one row": (FLAT, lambda x: F.softmax(x, 1)),
    "masked_fill": (ROWS, lambda x: x.masked_fill(MASK, -2.0)),
    "masked_fill_": (ROWS, lambda x: (x * 1.5).masked_fill_(MASK[:1], -2.0)),
    "where": (ROWS, lambda x: torch.where(MASK, x, x * x)),
    "where or a number": (ROWS, lambda x: torch.where(MASK, 3.0, x)),
    "where else a number": (ROWS, lambda x: torch.where(MASK, x, 3.0)),
    "dropout": (ROWS, lambda x: F.dropout(x * 2.0, 0.0)),
    "scaled_dot_product_attention": (
        PLANES,
        lambda x: F.scaled_dot_product_attention(x, 2.0 * x, x + 1.0, scale=0.3),
    ),
    "attention under a mask": (
        ROWS,
        lambda x: F.scaled_dot_product_attention(x, x, x * x, attn_mask=MASK[:, :4] | MASK[:, 2:]),
    ),
    "attention with a bias": (
        PLANES,
        lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=x[..., :3] * 0.5),
    ),
    "attention under truth values": (
        ROWS,
        lambda x: F.scaled_dot_product_attention(
            x, x, x, attn_mask=(torch.zeros_like(x[:, :1, :4]) + MASK[:, :4]).bool()
        ),
    ),
    "attention of rows without any": (
        ROWS,
        lambda x: F.scaled_dot_product_attention(x, x, x * x, attn_mask=MASK[:, :4] & MASK[:1, :1]),
    ),
    "attention of the past": (
        PLANES,
        lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),
    ),
    "attention in groups": (
        PLANES,
        lambda x: F.scaled_dot_product_attention(x, x[:, :1], x[:, 1:], enable_gqa=True),
    ),
    "conv1d": (ROWS, lambda x: F.conv1d(x, x[0, :, :3].reshape(2, 2, 3), x[0, 0, :2], 2, 1, 1, 2)),
    "conv2d": (
        PLANES,
        lambda x: F.conv2d(x, _kernel(x), x[0, 0, 0, :2], (1, 2), (1, 0)),
    ),
    "conv_transpose2d": (
        PLANES,
        lambda x: F.conv_transpose2d(x, _kernel(x), x[0, 0, 0, :2], 2, 1, 1),
    ),
    "max_pool2d": (PLANES, lambda x: F.max_pool2d(x, 2, 1, 1)),
    "avg_pool2d": (PLANES, lambda x: F.avg_pool2d(x, 2, 1, 1, False, False)),
    "adaptive_avg_pool2d": (PLANES, lambda x: F.adaptive_avg_pool2d(x, (3, 2))),
    "add": (ROWS, lambda x: torch.add(x, x[:, :1], alpha=0.5) + 1.0),
    "relu in place of a view": (ROWS, _changed_alone),
    "add_": (ROWS, lambda x: (x * 2.0).add_(x)),
    "sub": (ROWS, lambda x: torch.sub(x * x, x[..., :1], alpha=2) - 1.0),
    "subtract": (ROWS, lambda x: torch.subtract(x * x, x)),
    "rsub": (ROWS, lambda x: torch.rsub(x, 2.0) * (1.0 - x)),
    "mul": (ROWS, lambda x: 2.0 * x * x[:, :, :1]),
    "multiply": (ROWS, lambda x: torch.multiply(x, x[0, 0])),
    "div": (ROWS, lambda x: 3.0 / _grid(x) + x / _grid(x)[0] + x / 4.0),
    "true_divide": (ROWS, lambda x: torch.true_divide(x, _grid(x))),
    "neg": (ROWS, lambda x: -x * x),
    "pow": (ROWS, lambda x: x**3 + _grid(x) ** -0.5),
    "square": (ROWS, lambda x: x.square()),
    "reciprocal": (ROWS, lambda x: _grid(x).reciprocal()),
    "relu": (ROWS, lambda x: x.relu()),
    "relu_": (ROWS, lambda x: (x * 1.0).relu_()),
    "tanh": (ROWS, lambda x: x.tanh()),
    "sigmoid": (ROWS, lambda x: x.sigmoid()),
    "silu": (ROWS, lambda x: F.silu(x)),
    "hardswish": (ROWS, lambda x: F.hardswish(x)),
    "relu6": (ROWS, lambda x: F.relu6(5.0 * x)),
    "hardtanh": (ROWS, lambda x: F.hardtanh(x, -0.2, 0.3)),
    "leaky_relu": (ROWS, lambda x: F.leaky_relu(x, 0.2)),
    "exp": (ROWS, lambda x: x.exp()),
    "sqrt": (ROWS, lambda x: _grid(x).sqrt()),
    "rsqrt": (ROWS, lambda x: _grid(x).rsqrt()),
    "gelu": (ROWS, lambda x: F.gelu(x)),
    "gelu by tanh": (ROWS, lambda x: F.gelu(x, approximate="tanh")),
    "linear": (ROWS, lambda x: F.linear(x, x[0], x[0, :, 0])),
    "cosine_similarity": (PLANES, lambda x: x * F.cosine_similarity(x, x[:, :1], 3)[..., None]),
    "embedding": (ROWS, lambda x: F.embedding(torch.arange(6).reshape(1, 6) % 4, x[0]) + x[:, :1]),
    "layer_norm": (PLANES, lambda x: F.layer_norm(x, (3, 4), x[0, 0], None)),
    "rms_norm": (ROWS, lambda x: F.rms_norm(x, (6,), x[0, 0], 1e-3)),
    "batch_norm": (PLANES, lambda x: F.batch_norm(x, None, None, x[0, :, 0, 0], None, True)),
    "group_norm": (ROWS, lambda x: F.group_norm(x, 2, x[0, :, 0], x[0, :, 1], 1e-3)),
    "cross_entropy_loss": (
        ROWS,
        lambda x: x * F.cross_entropy(x[0], torch.tensor([1, 0, 5, 2]), ignore_index=5),
    ),
    "mse_loss": (FLAT, lambda x: x * F.mse_loss(torch.ones_like(x), x)),
    "mT": (ROWS, lambda x: x.mT),
    "broadcast_tensors": (ROWS, lambda x: torch.broadcast_tensors(x, x[:, :1])[1] * x),
    "view": (ROWS, lambda x: x.view(x.shape[0], -1, 3).tanh()),
    "reshape": (ROWS, lambda x: x.mT.reshape(x.shape[0], 4, 6)),
    "ones_like": (ROWS, lambda x: x * torch.ones_like(x)),
    "zeros_like": (ROWS, lambda x: x + torch.zeros_like(x)),
    "alias": (ROWS, lambda x: x.alias() if hasattr(x, "alias") else torch.ops.aten.alias(x)),
    "clone": (ROWS, lambda x: x.clone()),
    "contiguous": (ROWS, lambda x: x.mT.contiguous().tanh()),
    "type_as": (ROWS, lambda x: x.type_as(x) * 2.0),
    "flatten": (PLANES, lambda x: x.flatten(2).tanh()),
    "unflatten": (FLAT, lambda x: x.unflatten(1, (4, -1)).tanh()),
    "unsqueeze": (ROWS, lambda x: x.unsqueeze(-2) * x.unsqueeze(-3)),
    "squeeze": (ROWS, lambda x: x[:, :1].squeeze(1) * x[..., :1].squeeze(-1)[:, :1]),
    "permute": (PLANES, lambda x: x.permute(0, 3, 1, 2).tanh()),
    "transpose": (PLANES, lambda x: x.transpose(1, 3)),
    "t": (FLAT, lambda x: x @ x[:1].t() * x),
    "expand": (ROWS, lambda x: x[:, :1].expand(-1, 3, 6)),
    "expand_as": (ROWS, lambda x: x[:, :1].expand_as(x) * x),
    "broadcast_to": (ROWS, lambda x: x[:, :1].broadcast_to(x.shape) * x),
    "slice": (ROWS, lambda x: x[:, 1:-1, ::2]),
    "narrow": (ROWS, lambda x: x.narrow(2, 1, 3)),
    "select": (ROWS, lambda x: x.select(1, -1)),
    "getitem": (ROWS, lambda x: x.split(2, 1)[1]),
    "unbind": (ROWS, lambda x: x.unbind(1)[2]),
    "split": (ROWS, lambda x: x.split(4, -1)[1] * x[0].split(1)[2][:, 4:]),
    "split_with_sizes": (ROWS, lambda x: x.split([1, 3, 2], -1)[1]),
    "chunk": (ROWS, lambda x: x.chunk(4, 2)[2] if x.shape[2] == 6 else x),
    "cat": (ROWS, lambda x: torch.cat([x, x * x], -1) * torch.cat([x[0], x[0]])[3:4, :1]),
    "cat of an empty vector": (ROWS, lambda x: torch.cat([torch.zeros(0), x * x], -1)),
    "concat": (ROWS, lambda x: torch.concat([x, x * x], 1)),
    "stack": (ROWS, lambda x: torch.stack([x, x * x], -1) * torch.stack([x[0, 0], x[0, 1]])[0, 2]),
    "roll": (PLANES, lambda x: torch.roll(x, (1, -1), (1, 3)) * x),
    "mean": (PLANES, lambda x: x.mean((1, -1)) + x.mean()),
    "mean of the last": (PLANES, lambda x: x.mean(-1, keepdim=True) * x),
    "sum": (PLANES, lambda x: x.sum(2) * x.sum((1, 2, 3), keepdim=True)[:, 0]),
    "sum of the swapped": (PLANES, lambda x: x.mT.sum(-1)),
    "to": (ROWS, lambda x: (x * x).to(torch.float32)),
    "lstm": (ROWS, lambda x: x),
    "as_strided": (ROWS, lambda x: x.as_strided((len(x), 3, 4), (24, 4, 1), 2)),
    "cummax": (ROWS, lambda x: x.cummax(-1).values),
    "cummin": (ROWS, lambda x: x.cummin(-1).values),
    **{name: (ROWS, function) for name, function in {**OTHERS, **SEVERAL, **ONE_KERNEL}.items()},
    **{name: (ROWS, partial(_chosen, of)) for name, of in TRUTHS.items()},
    **cases_of_indexing.CASES,
}
"""By name, where it has no space that of the rule: the shape of an example and the function."""

INDIRECT = {
    "_softmax": "softmax",
    "_unsafe_view": "view",
    "_to_copy": "to",
    "lift_fresh": "alias",
    "dropout_": "dropout",
    "_log_softmax": "log_softmax",
    "floor_divide": "div",
    "lift_fresh_copy": "alias",
}
"""Other names of a rule, which torch gives after lowering, and the rule that they are."""


ELSEWHERE = (
    *("draws", "recurrent", "losses", "class_losses", "margin_losses"),
    *("complex_numbers", "linear_algebra"),
)
"""Files of rules that have tests of their own."""


class Of(nn.Module):
    """A function of a linear layer's output."""

    def __init__(self, shape: Shape, function: Function) -> None:
        super().__init__()
        self.shape, self.function = shape, function
        self.fc = nn.Linear(24, math.prod(shape))

    def forward(self, x: torch.Tensor) -> Any:
        y = self.function(self.fc(x).reshape(len(x), *self.shape))
        return y.reshape(len(y), -1)


class Both(nn.Module):
    """An LSTM that looks both ways, its time first, and what it ends in."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 3, num_layers=2, bidirectional=True, bias=False)

    def forward(self, x: torch.Tensor) -> Any:
        steps, (h, c) = self.lstm(x.reshape(len(x), 4, 6).transpose(0, 1))
        parts = steps.transpose(0, 1).flatten(1), h.transpose(0, 1).flatten(1), c[1]
        return torch.cat(parts, 1)


def test_every_rule_has_a_case() -> None:
    assert {name.removesuffix("_") for name in RULES} <= {
        *(name.removesuffix("_") for name in CASES),
        *(name.removesuffix("_") for name in (*INDIRECT, *NAMES)),
        *(name for file in ELSEWHERE for name in FAMILIES[file]),
        "cosine_similarity",  # with the losses
        *("item", "_local_scalar_dense"),  # in test_imported_spectra
    }
    for name, other in INDIRECT.items():
        assert name not in CASES and other in RULES


@pytest.mark.parametrize("name", CASES)
def test_a_rule_computes_what_torch_does(name: str) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    module = Both() if name == "lstm" else Of(*CASES[name])
    x = np.random.default_rng(0).standard_normal((BATCH, 24)).astype(np.float32)
    model: Any = assert_as_torch(module, (x,))
    if " " not in name and name not in ("t",):
        calls = {call.op.removeprefix("aten.").removesuffix("_") for call in model.program.calls}
        assert name.removesuffix("_") in calls or name.removesuffix("_") == "dropout", calls


@pytest.mark.parametrize("function", [lambda x: x[:, :1].squeeze(), lambda x: x[:, :1].squeeze_()])
def test_a_squeeze_without_axes_leaves_the_batch_of_one_example(function: Function) -> None:
    """As at all batches that torch exported it with."""
    x = np.random.default_rng(0).standard_normal((BATCH, 24)).astype(np.float32)
    model = assert_as_torch(Of(ROWS, function), (x,))
    assert trace_forward(model, 1).output("logits").shape == (1, ROWS[1])
