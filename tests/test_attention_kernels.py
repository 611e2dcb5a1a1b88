"""Attention as torch's kernels compute it, beside them: whole steps, and which kernel runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.nn import functional

from policysearch.cost.price import step_price
from policysearch.nn.model import Attention
from policysearch.values import InputError
from tests.attention_nets import (
    Batch,
    Called,
    Gpt,
    apart,
    emulated,
    imported,
    in_torch,
    own_jitter,
    tokens,
)
from tests.imported_low_trainings import FLIPPED

pytestmark = pytest.mark.torch

LOW = ("bfloat16", "float16")
KERNELS: tuple[Attention, ...] = ("math", "flash")
LEAST = 1e-6
"""A first loss that is no further off is that of torch."""


def seeded(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


NETS: dict[str, tuple[int, int, dict[str, Any]]] = {
    "causal": (40, 6, {"is_causal": True}),
    "truth values": (40, 6, {"attn_mask": torch.ones(40, 40, dtype=torch.bool).tril(2)}),
    "added mask of heads": (40, 6, {"attn_mask": seeded(1, 4, 40, 40)}),
    "added mask of three axes": (40, 6, {"attn_mask": seeded(4, 40, 40)}),
    "shared keys": (70, 6, {"pairs": 2, "enable_gqa": True, "is_causal": True}),
    "a block and a part, scaled": (600, 2, {"is_causal": True, "scale": 0.3}),
    "longer blocks of queries": (800, 2, {}),
}
"""Lengths, examples and options of nets."""


@pytest.mark.parametrize("name", LOW)
@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("case", NETS)
def test_the_first_step_under_autocast_is_that_of_the_kernel(
    case: str, kind: Attention, name: str
) -> None:
    """Within twice what torch's own step moves where weights do by 1e-7 of themselves."""
    length, count, options = NETS[case]
    net, batch = Gpt(length, **options), tokens(length, count)
    with Called() as called:
        expected = in_torch(net, batch, name, kind, pure=False)
    step, graph = emulated(net, batch, name, kind, pure=False)
    taken = any(node.op.name == "flash_attention" for node in graph.nodes)
    assert taken == called.flash == (kind == "flash" and case != "added mask of three axes")
    loss, grads = apart(step, expected)
    most_loss, most_grads = own_jitter(net, batch, name, kind, 1e-7, pure=False)
    assert loss <= max(LEAST, 2 * most_loss)
    assert grads <= 2 * most_grads


@pytest.mark.parametrize("name", LOW)
@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("case", NETS)
def test_the_first_step_of_a_cast_net_is_that_of_the_kernel(
    case: str, kind: Attention, name: str
) -> None:
    """As above, where as many weights round otherwise as sums in another order do."""
    length, count, options = NETS[case]
    net, batch = Gpt(length, norm=nn.Identity, **options), tokens(length, count)
    expected = in_torch(net, batch, name, kind, pure=True)
    step, _ = emulated(net, batch, name, kind, pure=True)
    loss, grads = apart(step, expected)
    jitter = FLIPPED * torch.finfo(getattr(torch, name)).eps
    most_loss, most_grads = own_jitter(net, batch, name, kind, jitter, pure=True)
    assert loss <= max(LEAST, 2 * most_loss)
    assert grads <= 2 * most_grads
