"""The census: elements of rectifiers at the edge of 0 are found, and taken to the other side."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from torch.nn import functional as F

from benchmarks.census.edges import other_sides

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
