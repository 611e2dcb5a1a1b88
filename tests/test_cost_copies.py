"""Transpositions that torch copies for, beside those that it counts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

import policysearch  # noqa: E402
from policysearch.cost.copies import copied  # noqa: E402
from policysearch.cost.devices import DEVICES  # noqa: E402
from policysearch.cost.stacks import STACKS  # noqa: E402
from policysearch.cost.time import parts_of  # noqa: E402
from policysearch.graph import Graph  # noqa: E402
from policysearch.nn.model import Attention  # noqa: E402
from policysearch.optimizers.optimizer import Optimizer  # noqa: E402
from policysearch.train.step import trace_step  # noqa: E402

pytestmark = pytest.mark.torch

BATCH, LENGTH, WIDTH, HEADS = 4, 16, 32, 4


class Copies(TorchDispatchMode):
    """Counts the copies that torch makes on its own or because it is asked to."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func.overloadpacket.__name__ in ("clone", "_reshape_copy", "copy_")
        return func(*args, **(kwargs or {}))


class Block(nn.Module):
    """Attention over heads: `packed` products, `rotary` or not, in one kernel or written out."""

    def __init__(self, *, packed: bool = False, rotary: bool = False, fused: bool = True) -> None:
        super().__init__()
        self.packed, self.rotary, self.fused = packed, rotary, fused
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.each = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.out = nn.Linear(WIDTH, WIDTH)

    def heads(self, x: Any) -> Any:
        return x.view(-1, LENGTH, HEADS, WIDTH // HEADS).transpose(1, 2)

    def turned(self, x: Any) -> Any:
        if not self.rotary:
            return x
        first, second = x.chunk(2, -1)
        return 0.8 * x + 0.6 * torch.cat([-second, first], -1)

    def attended(self, q: Any, k: Any, v: Any) -> Any:
        if self.fused:
            return functional.scaled_dot_product_attention(q, k, v)
        return torch.softmax(q @ k.transpose(-2, -1) / (WIDTH // HEADS) ** 0.5, -1) @ v

    def forward(self, x: Any) -> Any:
        parts = self.qkv(x).split(WIDTH, 2) if self.packed else [of(x) for of in self.each]
        q, k, v = map(self.heads, parts)
        y = self.attended(self.turned(q), self.turned(k), v)
        return self.out(y.transpose(1, 2).reshape(-1, LENGTH, WIDTH)).mean(1)


class Mixed(nn.Module):
    """A linear over the positions, as MLP-Mixer has it."""

    def __init__(self) -> None:
        super().__init__()
        self.over, self.out = nn.Linear(LENGTH, LENGTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return self.out(x + self.over(x.transpose(1, 2)).transpose(1, 2)).mean(1)


class Second(Block):
    """Attention with the batch second, as Transformer-XL has it: heads lie beside examples."""

    def heads(self, x: Any) -> Any:
        return x.reshape(LENGTH, -1, WIDTH // HEADS).transpose(0, 1)

    def forward(self, x: Any) -> Any:
        x = x.transpose(0, 1).contiguous()
        q, k, v = (self.heads(of(x)) for of in self.each)
        y = torch.bmm(torch.softmax(torch.bmm(q, k.transpose(1, 2)), -1), v)
        return self.out(y.transpose(0, 1).reshape(LENGTH, -1, WIDTH)).mean(0)


def step_of(net: Any, attention: Attention = "written") -> Graph:
    x = torch.randn(BATCH, LENGTH, WIDTH)
    model = policysearch.from_torch(net, (x,), loss="softmax_cross_entropy")
    if attention != "written":
        model = model.with_attention(attention)
    return trace_step(model, model.loss, Optimizer("sgd"), BATCH)


def copies_in_torch(net: Any) -> tuple[int, int]:
    """Return how many tensors torch copies forward and backward."""
    x, labels = torch.randn(BATCH, LENGTH, WIDTH), torch.zeros(BATCH, dtype=torch.long)
    with Copies() as forward:
        loss = functional.cross_entropy(net(x), labels)
    with Copies() as backward:
        loss.backward()
    return forward.count, backward.count


NETS: dict[str, tuple[Callable[[], Any], Attention, tuple[int, int]]] = {
    "fused": (Block, "flash", (0, 0)),
    "fused, packed": (lambda: Block(packed=True), "flash", (0, 0)),
    "fused, rotary": (lambda: Block(rotary=True), "flash", (0, 0)),
    "written out": (lambda: Block(fused=False), "written", (4, 4)),
    "batch second": (Second, "written", (2, 3)),
    "over positions": (Mixed, "written", (1, 1)),
}


@pytest.mark.parametrize("name", NETS)
def test_as_many_are_copied_as_torch_copies(name: str) -> None:
    make, attention, counts = NETS[name]
    net = make()
    step = step_of(net, attention)
    found = copied(step)
    forward = sum(node.role == "fprop" for node in found)
    assert (forward, len(found) - forward) == copies_in_torch(net) == counts
    assert sum(node.op.name == "transpose" for node in step.nodes) >= 3


def test_packed_attention_with_the_batch_second_is_copied_about_as_torch_does() -> None:
    """`nn.MultiheadAttention`: torch's backward changes the order twice, once is modeled."""

    class Attended(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True)

        def forward(self, x: Any) -> Any:
            return (x + self.inner(x, x, x, need_weights=False)[0]).mean(1)

    net = Attended()
    found = copied(step_of(net, "flash"))
    forward = sum(node.role == "fprop" for node in found)
    assert (forward, len(found) - forward) == (3, 5)
    assert copies_in_torch(net) == (2, 8)


def test_copies_are_what_eager_stacks_pay_for() -> None:
    fused, written = step_of(Block(), "flash"), step_of(Block(), "written")
    launched = {
        (name, stack): sum(
            part.op == "transpose" for part in parts_of(step, DEVICES["L4"], STACKS[stack])
        )
        for name, step in (("fused", fused), ("written", written))
        for stack in ("torch.eager", "torch.compile")
    }
    assert launched["written", "torch.eager"] == 8 and launched["fused", "torch.eager"] == 0
    assert launched["written", "torch.compile"] == 0
