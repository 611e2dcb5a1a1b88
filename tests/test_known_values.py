"""What forward asks of tensors as a number or a branch: known where no input has part in it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import policysearch
from policysearch.values import InputError
from tests import imported_steps

pytestmark = pytest.mark.torch

X = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)
CHANGES = "buffer begun: forward branches on it and changes it; expected the same way"
UNKNOWN = "torch.export: a data-dependent branch, or a number out of a tensor; expected a forward"


class Asking(torch.nn.Module):
    """Has a buffer that says whether it has begun, and asks what `ask` asks."""

    def __init__(self, ask: Callable[[Any, Any], Any], begun: bool) -> None:
        super().__init__()
        self.ask, self.layer = ask, torch.nn.Linear(4, 3)
        self.register_buffer("begun", torch.tensor(int(begun)))
        self.register_buffer("factors", torch.tensor([0.5, 2.0]))

    def forward(self, x: Any) -> Any:
        return self.layer(self.ask(self, x))


def assigned(net: Asking, x: Any) -> Any:
    if not net.begun.item() > 0:
        net.begun = torch.tensor(1)
        return 2 * x
    return x


def filled(net: Asking, x: Any) -> Any:
    if not net.begun:
        net.begun.view(1).add_(1)
        return 2 * x
    return x


def written_before(net: Asking, x: Any) -> Any:
    net.begun.view(1).add_(1)
    return 2 * x if net.begun > 1 else x


def layers_dropped(share: float) -> Callable[[Any, Any], Any]:
    """Return how transformers drops layers, and lists them the other way round."""

    def ask(net: Asking, x: Any) -> Any:
        skips = net.training and torch.rand([]) < share
        if not skips and torch.rand([]) >= share:
            x = 2 * x
        return x

    return ask


def of_lengths(net: Asking, x: Any) -> Any:
    count = int(torch.full((len(x),), 2).max())
    times = torch.linspace(0, 1, count)
    return x[:, :count].repeat(1, 2) if (times[1:] > times[:-1]).all() else x


def similar(x: Any) -> Any:
    """Return the similarities of all pairs of rows of two views of a batch."""
    views = torch.cat([x, x.tanh()])
    return views @ views.mT


def off_diagonal(net: Asking, x: Any) -> Any:
    """As the loss of SimCLR has them: all but those of each with itself."""
    sim = similar(x)
    mask = (torch.ones_like(sim) - torch.eye(2 * len(x))).bool()
    return x * sim.masked_select(mask).view(len(sim), -1).exp().sum(1)[: len(x), None]


def positive(net: Asking, x: Any) -> Any:
    """As Lightning has them: each with its other view."""
    sim = similar(x)
    diagonal = torch.eye(len(sim), dtype=torch.bool)
    mask = (torch.ones_like(diagonal) & diagonal).roll(len(x), 0)
    return x * (sim.logsumexp(1) - sim[mask])[: len(x), None]


def filled_diagonal(net: Asking, x: Any) -> Any:
    sim = similar(x)
    mask = torch.ones_like(sim, dtype=torch.bool)
    kept = mask.clone()
    mask.fill_diagonal_(False)
    rows = sim[mask].view(len(sim), -1).mean(1)[: len(x), None]
    return x * rows + sim[kept].view(len(sim), -1).sum(1)[: len(x), None]


def rows_of_one(net: Asking, x: Any) -> Any:
    """Whole rows, and a mask that spreads over others."""
    first = torch.arange(len(x)) < 1
    chosen = torch.masked_select(x, torch.arange(4) % 2 == 0)
    return x + x[first] + chosen.view(len(x), 2).repeat(1, 2)


def checked(net: Asking, x: Any) -> Any:
    """Checks of activations, as users leave them in: they are finite."""
    y = torch.tanh(x @ net.layer.weight.mT @ net.layer.weight)
    assert not torch.isnan(y).any()
    if not y.isfinite().all() or torch.isinf(y).sum() > 0:
        raise ValueError("diverged")
    return torch.where(y.isnan(), 0.0, y) if torch.isnan(y.sum()) else y


KNOWN: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType(
    {
        "bool": lambda net, x: 2 * x if net.begun else x,
        "compared": lambda net, x: 2 * x if net.begun > 0 else x,
        "item": lambda net, x: 2 * x if net.factors.sum().item() > 2 else x,
        "list": lambda net, x: x * net.factors.tolist()[1],
        "float": lambda net, x: x * float(net.factors[0]),
        "constants": of_lengths,
        "no layer dropped": layers_dropped(0.0),
        "each layer dropped": layers_dropped(1.0),
        "assigned": assigned,
        "filled": filled,
        "a mask without the diagonal": off_diagonal,
        "a mask of pairs": positive,
        "a mask filled": filled_diagonal,
        "a mask of rows": rows_of_one,
        "activations are finite": checked,
    }
)


@pytest.mark.parametrize("ask", KNOWN)
def test_a_value_without_inputs_is_known(ask: str) -> None:
    module = imported_steps.shaken(Asking(KNOWN[ask], begun=True))
    imported_steps.assert_as_torch(module, (X,))
    assert module.begun == 1


@pytest.mark.parametrize("ask", ["bool", "compared"])
def test_it_is_that_of_the_buffer_as_it_stands(ask: str) -> None:
    models: list[Any] = [
        imported_steps.imported(Asking(KNOWN[ask], begun), (X,)) for begun in (False, True)
    ]
    calls = [[call.op for call in model.program.calls] for model in models]
    assert calls == [["aten.linear"], ["aten.mul", "aten.linear"]]


REFUSED: Mapping[str, tuple[Callable[[Any, Any], Any], str]] = MappingProxyType(
    {
        "assigned": (assigned, CHANGES),
        "filled": (filled, CHANGES),
        "written before": (written_before, UNKNOWN),
        "of an input": (lambda net, x: 2 * x if x.sum() > 0 else x, UNKNOWN),
        "of a parameter": (lambda net, x: 2 * x if net.layer.bias.sum() > 0 else x, UNKNOWN),
        "values that an input lacks": (lambda net, x: 2 * x if x.isnan().any() else x, UNKNOWN),
        "drawn": (lambda net, x: 2 * x if torch.randn(()) > 0.5 else x, UNKNOWN),
        "a layer dropped": (layers_dropped(0.1), "set the probability to 0"),
    }
)


@pytest.mark.parametrize("ask", REFUSED)
def test_other_values_are_refused_in_a_line(ask: str) -> None:
    function, words = REFUSED[ask]
    module = Asking(function, begun=False)
    with pytest.raises(InputError) as error:
        policysearch.from_torch(module, torch.from_numpy(X))
    assert words in str(error.value) and "\n" not in str(error.value)
    assert module.begun == 0
