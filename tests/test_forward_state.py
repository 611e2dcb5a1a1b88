"""What a forward pass leaves in its module for the next: buffers that move, and what is refused."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any
from unittest import mock

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import policysearch
from policysearch.values import InputError
from tests import imported_steps
from tests.imported_trainings import Training, trained_as_torch

pytestmark = pytest.mark.torch

X = np.random.default_rng(0).normal(size=(4, 4)).astype(np.float32)


class Part(torch.nn.Module):
    """Does what `change` does, which may leave something."""

    def __init__(self, change: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.change, self.layer = change, torch.nn.Linear(4, 4)
        self.cell = torch.nn.GRU(4, 4, batch_first=True)
        self.norm = torch.nn.BatchNorm1d(4)
        self.register_buffer("mean", torch.full((4,), 0.25))
        self.register_buffer("later", None)
        self.last, self.log = torch.zeros(4), list[Any]()
        self.hidden: Any = None

    def forward(self, x: Any) -> Any:
        return self.change(self, x)


class Net(torch.nn.Module):
    def __init__(self, change: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.part, self.out = Part(change), torch.nn.Linear(4, 3)

    def forward(self, x: Any) -> Any:
        return self.out(self.part(x))


def mean_assigned(part: Part, x: Any) -> Any:
    part.mean = 0.5 * part.mean + 0.5 * x.detach().mean(0)
    return part.layer(x - part.mean)


def mean_assigned_late(part: Part, x: Any) -> Any:
    result = part.layer(x - part.mean)
    part.mean = 0.5 * part.mean + 0.5 * x.detach().mean(0)
    return result


def normed(part: Part, x: Any) -> Any:
    return part.layer(part.norm(x))


def result_kept(part: Part, x: Any) -> Any:
    part.last = part.layer(x)
    part.log.append(part.last)
    return part.log[-1]


def mask_kept(part: Part, x: Any) -> Any:
    if part.hidden is None:
        part.hidden = torch.tril(torch.ones(4, 4))
    return part.layer(x) @ part.hidden


def factors_kept(part: Part, x: Any) -> Any:
    if part.hidden is None:
        part.hidden = part.mean * torch.arange(1.0, 5.0)
    return part.layer(x) * part.hidden


def loss_kept(part: Part, x: Any) -> Any:
    y = part.layer(x)
    part.auxiliary = y.square().mean()
    return y + part.auxiliary


def state_kept(part: Part, x: Any) -> Any:
    y, hidden = part.cell(x[:, None], part.hidden)
    part.hidden = hidden.detach()
    return y[:, 0]


def states_kept(part: Part, x: Any) -> Any:
    y = part.layer(x) if part.hidden is None else part.layer(x) + part.hidden[0]
    part.hidden = (y.detach(),)
    return y


def last_read(part: Part, x: Any) -> Any:
    y = part.layer(x - part.last)
    part.last = x.detach().mean(0)
    return y


def last_written(part: Part, x: Any) -> Any:
    y = part.layer(x - part.last)
    part.last.copy_(x.detach().mean(0))
    return y


def buffer_begun(part: Part, x: Any) -> Any:
    y = part.layer(x) if part.later is None else part.layer(x) - part.later
    part.later = x.detach().mean(0)
    return y


def norm_kept(part: Part, x: Any) -> Any:
    y = part.layer(x) if part.hidden is None else part.layer(x) / part.hidden
    part.hidden = part.layer.weight.detach().norm()
    return y


def weights_limited(part: Part, x: Any) -> Any:
    part.layer.weight.data = torch.renorm(part.layer.weight.data, 2, 0, 0.1)
    return part.layer(x)


def mean_set(part: Part, x: Any) -> Any:
    part.mean.data = x.detach().mean(0)
    return part.layer(x - part.mean)


def mean_grown(part: Part, x: Any) -> Any:
    part.mean = torch.cat((part.mean, part.mean))
    return part.layer(x)


def drawn_by_python(share: float) -> Callable[[Any, Any], Any]:
    """Return how layers are dropped without torch."""

    def change(part: Part, x: Any) -> Any:
        skips = random.random() < share or np.random.uniform(0, 1) < share
        return x if skips else part.layer(x)

    return change


def scaled_by_python(part: Part, x: Any) -> Any:
    return part.layer(x) * random.uniform(0.9, 1.1)


FINE: Mapping[str, Callable[[Any, Any], Any]] = MappingProxyType(
    {
        "mean assigned": mean_assigned,
        "mean assigned late": mean_assigned_late,
        "result kept": result_kept,
        "mask kept": mask_kept,
        "factors kept": factors_kept,
        "loss kept": loss_kept,
        "nothing dropped": drawn_by_python(0.0),
    }
)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", FINE)
def test_it_trains_as_torch_does(name: str) -> None:
    def inputs(rng: np.random.Generator, batch: int) -> tuple[Any, ...]:
        return ((rng.normal(size=(batch, 4)) + 2).astype(np.float32),)

    trained_as_torch(Training(lambda: Net(FINE[name]), inputs, "momentum", 0.02))


def test_a_part_that_assigns_a_buffer_moves_it() -> None:
    models: list[Any] = [imported_steps.imported(Net(f), (X,)) for f in (mean_assigned, loss_kept)]
    assert ["part.mean" in {spec.name for spec in model.kept} for model in models] == [True, False]


KEPT = "and computes with it; expected the same at every step, or a registered buffer of floats"
DRAWS = "forward draws from random or numpy, and computes with that"
SET = "forward sets the data of a tensor; expected what it computes with to be written"

REFUSED: Mapping[str, tuple[Callable[[Any, Any], Any], str]] = MappingProxyType(
    {
        "state": (state_kept, f"forward changes part.hidden {KEPT}"),
        "states": (states_kept, f"forward changes part.hidden {KEPT}"),
        "a tensor read": (last_read, f"forward changes part.last {KEPT}"),
        "a tensor written": (last_written, "tensor part.last: aten.copy_ in forward moves it"),
        "a buffer begun": (buffer_begun, f"forward changes part.later {KEPT}"),
        "of weights": (norm_kept, f"forward changes part.hidden {KEPT}"),
        "data of weights": (weights_limited, SET),
        "data of a buffer": (mean_set, SET),
        "a layer dropped": (drawn_by_python(0.01), DRAWS),
        "a factor drawn": (scaled_by_python, DRAWS),
        "a buffer of another shape": (mean_grown, "buffer mean: forward gives it [8] for [4]"),
    }
)


@pytest.mark.parametrize("name", REFUSED)
def test_what_the_next_pass_reads_is_refused_in_a_line(name: str) -> None:
    function, words = REFUSED[name]
    module = Net(function)
    weights = module.part.layer.weight.detach().clone()
    with pytest.raises(InputError) as error:
        policysearch.from_torch(module, torch.from_numpy(X))
    assert words in str(error.value) and "\n" not in str(error.value)
    assert module.part.hidden is None and torch.equal(module.part.layer.weight, weights)
    assert torch.equal(module.part.mean, torch.full((4,), 0.25)) and module.part.later is None


@pytest.mark.parametrize(("change", "exports"), [(normed, 3), (result_kept, 4)])
def test_a_buffer_that_moves_costs_no_further_export(change: Any, exports: int) -> None:
    """What is kept besides is looked at by a fourth; a quarter of an import is an export."""
    with mock.patch.object(torch.export, "export", wraps=torch.export.export) as export:
        model: Any = imported_steps.imported(Net(change), (X,))
    assert export.call_count == exports
    assert ("part.norm.running_mean" in {spec.name for spec in model.kept}) is (exports == 3)


def test_a_lazy_layer_is_refused_until_it_has_run() -> None:
    net, x = torch.nn.Sequential(torch.nn.LazyLinear(8), torch.nn.Linear(8, 3)), torch.zeros(4, 6)
    with pytest.raises(InputError, match=r"0.weight: of a lazy layer, .*; run forward once before"):
        policysearch.from_torch(net, x)
    net(x)
    assert policysearch.from_torch(net, x).layer_names == ("0", "1")


class Resized(torch.nn.Module):
    """Has a buffer that forward makes anew where its length is another."""

    places: Any

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 4)
        self.register_buffer("places", torch.zeros(1), persistent=False)

    def forward(self, x: Any) -> Any:
        if len(self.places) != x.shape[1]:
            self.places = torch.arange(x.shape[1]).float()
        return self.layer(x) * self.places


def test_a_buffer_of_the_module_itself_that_is_resized_is_refused_until_it_has_run() -> None:
    net, x = Resized(), torch.zeros(3, 4)
    with pytest.raises(InputError, match=r"places: forward gives it \[4\] for \[1\]; expected one"):
        policysearch.from_torch(net, x)
    net(x)
    assert policysearch.from_torch(net, x).layer_names[:1] == ("layer",)
