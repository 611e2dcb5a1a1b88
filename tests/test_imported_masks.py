"""Attention under masks that are fed, beside torch: what a mask holds decides what it does."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional as F

from tests.imported_steps import BATCH, assert_as_torch, evaluated, imported, shaken, tensors

pytestmark = pytest.mark.torch

TIME, WIDTH, HEADS = 6, 8, 2


class Attention(nn.Module):
    """Attention whose mask `mask_of` makes of the one that is fed, [batch, time]."""

    def __init__(self, mask_of: Callable[[Any], Any]) -> None:
        super().__init__()
        self.qkv, self.head = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, 5)
        self.mask_of = mask_of

    def forward(self, x: Any, kept: Any) -> Any:
        shape = (x.shape[0], TIME, HEADS, WIDTH // HEADS)
        q, k, v = (y.reshape(shape).transpose(1, 2) for y in self.qkv(x).chunk(3, -1))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=self.mask_of(kept.bool()))
        return self.head(y.transpose(1, 2).reshape(x.shape))


FED: dict[str, Callable[[Any], Any]] = {
    "truths": lambda kept: kept[:, None, None, :],
    "truths, expanded": lambda kept: kept[:, None, None, :].expand(-1, 1, TIME, -1),
    "numbers made of truths": lambda kept: torch.where(kept, 0.0, -math.inf)[:, None, None, :],
    "numbers": lambda kept: 1.0 * kept[:, None, None, :],
}
DIAGONAL = torch.ones(TIME, TIME, dtype=torch.bool).tril(-1)
"""Its first row lets nothing through."""


@pytest.mark.parametrize("kind", FED)
def test_attention_under_a_mask_that_is_fed(kind: str) -> None:
    rng = np.random.default_rng(0)
    kept = rng.random((BATCH, TIME)) < 0.6
    kept[:, 0] = True
    assert (~kept).sum() > 0 and kept.any(1).all()
    inputs = rng.standard_normal((BATCH, TIME, WIDTH)).astype(np.float32), kept.astype(np.int64)
    assert_as_torch(shaken(Attention(FED[kind])), inputs)


@pytest.mark.parametrize("kind", ["truths", "truths, expanded", "numbers made of truths"])
def test_an_example_of_padding_alone_gives_zeros(kind: str) -> None:
    rng = np.random.default_rng(1)
    kept = rng.random((BATCH, TIME)) < 0.6
    kept[2] = False
    inputs = rng.standard_normal((BATCH, TIME, WIDTH)).astype(np.float32), kept.astype(np.int64)
    assert_as_torch(shaken(Attention(FED[kind])), inputs)


CONSTANT: dict[str, Any] = {
    "truths": DIAGONAL,
    "-inf": torch.zeros(TIME, TIME).masked_fill(~DIAGONAL, -math.inf),
}


@pytest.mark.parametrize("kind", CONSTANT)
def test_a_row_of_a_constant_mask_that_keeps_nothing_gives_zeros(kind: str) -> None:
    rng = np.random.default_rng(2)
    inputs = (
        rng.standard_normal((BATCH, TIME, WIDTH)).astype(np.float32),
        np.ones((BATCH, TIME), np.int64),
    )
    assert_as_torch(shaken(Attention(lambda kept: CONSTANT[kind])), inputs)


class Written(Attention):
    """A softmax written out, of which a mask leaves nothing in some rows."""

    def forward(self, x: Any, kept: Any) -> Any:
        y = self.head(self.qkv(x)[..., :WIDTH])
        return torch.softmax(torch.where(kept.bool()[..., None], y, -math.inf), -1)


def test_a_softmax_of_nothing_is_nan_as_in_torch() -> None:
    rng = np.random.default_rng(3)
    kept = np.ones((BATCH, TIME), np.int64)
    kept[1, 2:] = 0
    inputs = rng.standard_normal((BATCH, TIME, WIDTH)).astype(np.float32), kept
    net = shaken(Written(lambda kept: kept))
    found = evaluated(imported(net, inputs), inputs)
    with torch.no_grad():
        expected = net(*tensors(inputs)).numpy()
    assert np.isnan(expected).any() and not np.isnan(expected).all()
    np.testing.assert_allclose(found, expected, rtol=1e-5)


class Grouped(nn.Module):
    """Keys of one head for two queries, under a window, by an interface as transformers has."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.q, self.k = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH // HEADS)
        self.name = name
        self.register_buffer("window", torch.ones(TIME, TIME).tril().triu(-1).bool())

    def forward(self, x: Any) -> Any:
        attention_interface = other = partial(F.scaled_dot_product_attention, enable_gqa=True)
        q = self.q(x).unflatten(-1, (HEADS, -1)).transpose(1, 2)
        k = self.k(x).unsqueeze(1)
        if self.name == "attention_interface":
            y = attention_interface(q, k, k, attn_mask=self.window)
        else:
            y = other(q, k, k, attn_mask=self.window)
        return y.transpose(1, 2).flatten(2)


@pytest.mark.parametrize("name", ["attention_interface", "other"])
def test_the_line_of_forward_says_whose_attention_it_is(name: str) -> None:
    """transformers copies keys beside such a mask where it is not exported; others do not."""
    x = np.random.default_rng(0).standard_normal((BATCH, TIME, WIDTH)).astype(np.float32)
    model: Any = assert_as_torch(Grouped(name), (x,))
    (call,) = (c for c in model.program.calls if c.op == "aten.scaled_dot_product_attention")
    assert dict(call.options)["copied"] == (name == "attention_interface")
    assert call.line.startswith("test_imported_masks.py:")
