"""Modules that are broken or hostile: each is refused in one line, and never imported wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

import policysearch
from policysearch import InputError

pytestmark = pytest.mark.torch

Forward = Callable[[Any, Any], Any]
WIDTH = 6


class Hostile(nn.Module):
    """A linear layer, and whatever else `forward` does with it."""

    def __init__(self, forward: Forward) -> None:
        super().__init__()
        self.fc, self.does = nn.Linear(WIDTH, WIDTH), forward

    def forward(self, x: torch.Tensor) -> Any:
        return self.does(self, x)


class Clipped(torch.autograd.Function):
    """Keeps its gradient within 1."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x * 2

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0].clamp(-1.0, 1.0)


def _branches(net: Any, x: Any) -> Any:
    y = net.fc(x)
    return y if y.sum() > 0 else -y


def _raises(net: Any, x: Any) -> Any:
    raise RuntimeError("no\nsuch \x1b[31mthing")


def _prints(net: Any, x: Any) -> Any:
    print("\x00\xff\x1b[2J")
    return net.fc(x).mode(1).values


def _makes(net: Any, x: Any) -> Any:
    return nn.Linear(WIDTH, 3)(net.fc(x))


def _moves(net: Any, x: Any) -> Any:
    with torch.no_grad():
        net.fc.weight.mul_(0.5)
    return net.fc(x)


def _counts(net: Any, x: Any) -> Any:
    net.count = getattr(net, "count", 0) + 1
    return net.fc(x) * net.count


def _hooks(net: Any, x: Any) -> Any:
    y = net.fc(x)
    y.register_hook(lambda grad: -grad)
    return y


HOSTILE: dict[str, Forward] = {
    "wrong shapes": lambda net, x: net.fc(x[:, :3]),
    "a branch on values": _branches,
    "a number of values": lambda net, x: net.fc(x) * float(net.fc(x).max()),
    "values as numpy": lambda net, x: torch.from_numpy(net.fc(x).detach().numpy() * 2),
    "a loop as long as a value says": lambda net, x: sum(
        net.fc(x) for _ in range(int(x.abs().sum()))
    ),
    "rows where a mask is true": lambda net, x: net.fc(x)[x[:, 0] > 0],
    "places that are not zero": lambda net, x: net.fc(x).nonzero().float(),
    "unique values": lambda net, x: torch.unique(net.fc(x)),
    "a gradient of its own": lambda net, x: Clipped.apply(net.fc(x)),
    "a hook": _hooks,
    "a counter": _counts,
    "an error of its own": _raises,
    "control characters": _prints,
    "a parameter made in forward": _makes,
    "a parameter moved in forward": _moves,
    "numbers of numpy": lambda net, x: net.fc(x) * float(np.random.default_rng().random()),
    "no tensor": lambda net, x: "nothing",
    "nothing": lambda net, x: None,
    "one number for all": lambda net, x: net.fc(x).sum(),
    "the batch along another axis": lambda net, x: net.fc(x).T,
    "a batch of one alone": lambda net, x: net.fc(x.reshape(1, WIDTH)),
    "half a batch": lambda net, x: net.fc(x)[: len(x) // 2],
    "16 bits": lambda net, x: net.fc(x).half(),
    "another device": lambda net, x: net.fc(x).to("xpu"),
    "a sparse tensor": lambda net, x: net.fc(x).to_sparse(),
    "a quantised tensor": lambda net, x: torch.quantize_per_tensor(
        net.fc(x), 0.1, 0, torch.quint8
    ).dequantize(),
    "a gradient inside": lambda net, x: torch.autograd.grad(net.fc(x).sum(), net.fc.weight)[0],
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_module_is_one_line(name: str, capfd: pytest.CaptureFixture[str]) -> None:
    torch.set_num_threads(1)
    with pytest.raises(InputError) as refusal:
        policysearch.from_torch(Hostile(HOSTILE[name]), torch.randn(2, WIDTH))
    said = str(refusal.value)
    assert "\n" not in said and "\x1b" not in said and len(said) < 600
    assert said.startswith(("model Hostile", "module Hostile", "parameter fc", "results: first"))
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    "inputs",
    [
        (),
        [torch.zeros(2, WIDTH)],
        {"x": torch.zeros(2, WIDTH)},
        torch.zeros(()),
        (torch.zeros(2, WIDTH), torch.zeros(3, WIDTH)),
        torch.zeros(0, WIDTH),
        torch.zeros(2, WIDTH, dtype=torch.complex64),
        "x",
        None,
    ],
)
def test_inputs_that_are_none_are_one_line(inputs: Any) -> None:
    with pytest.raises(InputError) as refusal:
        policysearch.from_torch(nn.Linear(WIDTH, 3), inputs)
    assert "\n" not in str(refusal.value)


def test_a_counter_that_nothing_reads_goes_in_and_is_put_back() -> None:
    def counts(net: Any, x: Any) -> Any:
        net.count += 1
        return net.fc(x)

    net = Hostile(counts)
    net.count = 7
    policysearch.from_torch(net, torch.randn(2, WIDTH))
    assert net.count == 7
