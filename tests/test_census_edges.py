"""The census: an element of a rectifier at the edge of 0 is no fault of a net, all else is."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.census import measure
from benchmarks.census.__main__ import _result
from benchmarks.census.edges import Edge, other_sides
from benchmarks.census.net import Net
from policysearch.importers.stand_ins import module_copy

pytestmark = pytest.mark.torch


def test_an_element_at_the_edge_is_found_and_has_the_other_slope() -> None:
    x = torch.tensor([-2.0, 1e-6, 3.0, -1e-7], dtype=torch.float64, requires_grad=True)
    with other_sides(frozenset()) as near:
        F.relu(x + 1.0)
        (F.leaky_relu(x, 0.5) + F.relu(x)).sum().backward()
    assert [edge for _, edge in sorted(near)] == [(1, 3), (2, 3), (1, 1), (2, 1)]
    assert x.grad.tolist() == [0.5, 2.0, 2.0, 0.5]
    x.grad = None
    with other_sides(frozenset({(1, 1), (2, 3)})):
        F.relu(x + 1.0)
        (F.leaky_relu(x, 0.5) + F.relu(x)).sum().backward()
    assert x.grad.tolist() == [0.5, 1.5, 2.0, 1.5]


class Rectified(nn.Module):
    """One rectifier, the second of whose inputs is beside 0."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.head = nn.Linear(3, 3, bias=False), nn.Linear(3, 2)
        nn.init.eye_(self.first.weight)

    def forward(self, x: Any) -> Any:
        return self.head(F.relu(self.first(x)))


@pytest.mark.parametrize(
    ("edges", "factor", "result"),
    [
        (frozenset({(0, 1)}), 1.0, "in, a rectifier at its edge"),
        (frozenset({(0, 1)}), 1.001, "wrong"),
        (frozenset({(0, 0)}), 1.0, "wrong"),  # not beside 0
        (frozenset[Edge](), 1.0, "in"),
    ],
)
def test_only_what_lies_at_the_edge_is_excused(
    edges: frozenset[Edge], factor: float, result: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = torch.tensor([[2.0, 1e-6, -1.0], [0.5, 1.0, 1.5], [-1.0, 0.3, 0.2], [1.0, -2.0, 0.7]])
    net = Net(Rectified, lambda _, batch: (x[:batch],))

    def emulated(model: Any, policy: Any, inputs: Any, labels: Any) -> measure.Values:
        double = module_copy(model.source).to(torch.float64)
        with other_sides(edges):
            values = measure.of_torch(net, double, inputs, labels)
        return measure.Values(values.loss, {n: factor * g for n, g in values.grads.items()})

    monkeypatch.setattr(measure, "emulated", emulated)
    single = _result(measure.verdict(net)).split(", bfloat16")[0]
    assert single == result
