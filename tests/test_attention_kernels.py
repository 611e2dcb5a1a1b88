"""Attention as torch's kernels compute it, beside them: whole steps, and which kernel runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import Tensor, nn
from torch.nn import functional

from policysearch.nn.model import Attention
from tests.attention_nets import (
    CLASSES,
    Batch,
    Called,
    Gpt,
    apart,
    emulated,
    in_torch,
    own_jitter,
    tokens,
    vectors_of_torch,
)
from tests.imported_low_trainings import FLIPPED

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures(vectors_of_torch.__name__)]

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


def assert_the_step_of_torch(
    net: nn.Module, batch: Batch, name: str, kind: Attention, jitter: float, *, pure: bool
) -> None:
    """Within twice what torch's own step moves where weights do, and nearer than written out.

    In float16, whose grid is finer, other sums move more than what a kernel rounds does.
    """
    expected = in_torch(net, batch, name, kind, pure=pure)
    step, _ = emulated(net, batch, name, kind, pure=pure)
    loss, grads = apart(step, expected)
    most_loss, most_grads = own_jitter(net, batch, name, kind, jitter, pure=pure)
    assert loss <= max(LEAST, 2 * most_loss)
    assert grads <= 2 * most_grads
    if name == "bfloat16":
        written, _ = emulated(net, batch, name, "written", pure=pure)
        assert grads < 0.6 * apart(written, expected)[1]


@pytest.mark.parametrize("name", LOW)
@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("case", NETS)
def test_the_first_step_under_autocast_is_that_of_the_kernel(
    case: str, kind: Attention, name: str
) -> None:
    length, count, options = NETS[case]
    net = Gpt(length, **options)
    assert_the_step_of_torch(net, tokens(length, count), name, kind, 1e-7, pure=False)


@pytest.mark.parametrize("name", LOW)
@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("case", ["causal", "added mask of heads", "a block and a part, scaled"])
def test_the_first_step_of_a_cast_net_is_that_of_the_kernel(
    case: str, kind: Attention, name: str
) -> None:
    """As many weights round otherwise as sums in another order do: of 1e-7, next to none would."""
    length, count, options = NETS[case]
    net = Gpt(length, norm=nn.Identity, **options)
    jitter = FLIPPED * torch.finfo(getattr(torch, name)).eps
    assert_the_step_of_torch(net, tokens(length, count), name, kind, jitter, pure=True)


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("case", ["truth values", "shared keys", "a block and a part, scaled"])
def test_in_float32_all_attention_is_the_same(case: str, kind: Attention) -> None:
    length, count, options = NETS[case]
    net, batch = Gpt(length, **options), tokens(length, count)
    step, _ = emulated(net, batch, "float32", kind, pure=False)
    for other in (
        emulated(net, batch, "float32", "written", pure=False)[0],
        in_torch(net, batch, "float32", kind, pure=False),
    ):
        loss, grads = apart(step, other)
        assert loss < LEAST and grads < 1e-5


class Attending(nn.Module):
    """What is `made` of the net and of three linears of x [batch, 1, count, CLASSES]."""

    def __init__(self, made: Callable[..., Tensor]) -> None:
        super().__init__()
        torch.manual_seed(2)
        self.made = made
        self.parts = nn.ModuleList(nn.Linear(CLASSES, CLASSES) for _ in range(3))
        self.bias = nn.Parameter(torch.randn(12, 12))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part(x)[:, None] for part in self.parts)
        return self.made(self, q, k, v).flatten(0, -3)


attention = functional.scaled_dot_product_attention
CALLS: dict[str, tuple[bool, Callable[..., Tensor]]] = {
    "as it is": (True, lambda net, q, k, v: attention(q, k, v)),
    "of one batch": (False, lambda net, q, k, v: attention(q[:, 0], k[:, 0], v[:, 0])[:, None]),
    "narrower values": (
        False,
        lambda net, q, k, v: functional.pad(attention(q, k, v[..., :9]), (0, CLASSES - 9)),
    ),
    "one row": (True, lambda net, q, k, v: attention(q[..., :1, :], k, v) + v),
    "a trained mask": (False, lambda net, q, k, v: attention(q, k, v, attn_mask=net.bias)),
    "a mask made of x": (
        False,
        lambda net, q, k, v: attention(q, k, v, attn_mask=(q * k).sum(-1, keepdim=True)),
    ),
    "a stopped mask": (True, lambda net, q, k, v: attention(q, k, v, attn_mask=net.bias.detach())),
    "a mask of rows": (
        True,
        lambda net, q, k, v: attention(q, k, v, attn_mask=torch.arange(12)[None] < 7),
    ),
    "columns in one piece": (
        False,
        lambda net, q, k, v: attention(q.mT.contiguous().mT, k, v),
    ),
    "between float32 ops": (
        True,
        lambda net, q, k, v: (
            attention(*(x * net.bias[:, :1] for x in (q, k, v))) * net.bias[:, 1:2]
        ),
    ),
    "a negative scale": (True, lambda net, q, k, v: attention(q, k, v, scale=-0.2)),
}
"""Calls of attention, and whether torch's flash kernel takes them."""


@pytest.mark.parametrize("mask", [None, torch.arange(12)[None] < 7])
def test_flash_drops_what_the_composed_kernel_drops(mask: Tensor | None) -> None:
    """CUDA's does; on a CPU torch composes it."""
    net = Attending(lambda _, q, k, v: attention(q, k, v, attn_mask=mask, dropout_p=0.3))
    x = torch.randn(5, 12, CLASSES, generator=torch.Generator().manual_seed(3))
    batch = Batch((x,), torch.arange(60).reshape(5, 12) % CLASSES)
    step, graph = emulated(net, batch, "float32", "flash", pure=False)
    assert any(node.op.name == "flash_attention" for node in graph.nodes)
    whole = Attending(lambda _, q, k, v: attention(q, k, v, attn_mask=mask))
    other, _ = emulated(whole, batch, "float32", "flash", pure=False)
    assert apart(step, other)[1] > 0.1
    kinds: tuple[Attention, ...] = ("math", "flash")
    for kind in kinds:
        with Called() as called:  # draws the same masks
            expected = in_torch(net, batch, "float32", kind, pure=False)
        loss, grads = apart(step, expected)
        assert called.drawn == 1 and loss < LEAST and grads < 1e-5


@pytest.mark.parametrize("kind", KERNELS)
@pytest.mark.parametrize("case", CALLS)
def test_the_kernel_that_torch_takes_is_taken(case: str, kind: Attention) -> None:
    takes, made = CALLS[case]
    net = Attending(made)
    x = torch.randn(5, 12, CLASSES, generator=torch.Generator().manual_seed(3))
    batch = Batch((x,), torch.arange(60).reshape(5, 12) % CLASSES)
    with Called() as called:
        expected = in_torch(net, batch, "bfloat16", kind, pure=False)
    step, graph = emulated(net, batch, "bfloat16", kind, pure=False)
    taken = any(node.op.name == "flash_attention" for node in graph.nodes)
    assert taken == called.flash == (takes and kind == "flash")
    loss, grads = apart(step, expected)
    assert loss < LEAST and grads < 1e-3
