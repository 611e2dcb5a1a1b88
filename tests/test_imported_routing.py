"""Nets that route, stop gradients and draw, trained beside torch in three formats."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

from policysearch.nn.model import DRAWN as DRAWN_VALUES
from policysearch.policy.presets import preset
from policysearch.train.step import trace_forward
from policysearch.train.tasks import Task
from tests.imported_low_trainings import trained_low_as_torch
from tests.imported_steps import assert_as_torch, evaluated, imported, tensors
from tests.imported_trainings import Training, trained_as_torch
from tests.routed_nets_of_torch import DRAWN, NETS, WAYS, Drawing, Dropping, Moving, rows

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def repeatable_torch() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("net", NETS)
def test_fifty_steps_are_torchs(net: str, name: str) -> None:
    make, inputs, own_loss = NETS[net]
    training = Training(make, inputs, "momentum", 1e-2)
    assert trained_low_as_torch(training, name, own_loss=own_loss) > 0.05


@pytest.mark.parametrize("name", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("net", DRAWN)
def test_what_a_net_draws_is_fed(net: str, name: str) -> None:
    training = Training(DRAWN[net], rows, "momentum", 1e-1)
    assert trained_low_as_torch(training, name, steps=8) > 0.01


@pytest.mark.parametrize("way", WAYS)
def test_buffers_move_as_torchs(way: str) -> None:
    """Losses, the buffer itself and the evaluated net."""
    trained_as_torch(Training(lambda: Moving(way), rows, "momentum", 1e-2))


def test_evaluation_drops_nothing_and_draws_what_it_draws() -> None:
    x = rows(np.random.default_rng(0), 5)
    dropping = Dropping()
    with torch.no_grad():
        expected = dropping.eval()(*tensors(x)).numpy()
    np.testing.assert_allclose(evaluated(imported(dropping, x), x), expected, rtol=1e-5, atol=1e-6)
    drawing = imported(Drawing(), x)
    fed = [n for n in trace_forward(drawing, 5).nodes if DRAWN_VALUES in n.attributes]
    assert len(fed) == 6


def test_what_is_drawn_has_the_format_of_what_it_meets_as_under_autocast() -> None:
    """Whether it is drawn like a value or, as in torchvision, in a dtype."""
    x = rows(np.random.default_rng(0), 5)
    model = imported(Dropping(), x)
    task = Task(model=model, loss="token_cross_entropy", batch_size=5)
    policy = preset("torch.autocast.bfloat16", model.layer_names)
    graph = task.tracing(model, 5).step_graph(policy)
    read = [n for n in graph.nodes if n.op.name in ("like", "multiply") and n.role == "fprop"]
    assert {node.format for node in read} == {"bfloat16"}
    assert sum(node.op.name == "like" for node in read) == 4  # two paths, channels, values


class LookingUp(torch.nn.Module):
    """Indexes its parameter by numbers that are fed."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.randn(7, 5))

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        picked = self.table[numbers].sum(1)
        return picked * self.table.index_select(0, numbers[:, 0])


def test_numbers_that_are_fed_index_a_parameter_and_are_bounded_by_it() -> None:
    numbers = np.random.default_rng(0).integers(0, 7, (5, 3))
    model = assert_as_torch(LookingUp(), (numbers,))
    assert [(item.whole, item.below) for item in model.inputs] == [(True, 7)]
