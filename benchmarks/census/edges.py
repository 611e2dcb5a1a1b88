"""Where a rectifier's input is so near 0 that float32 may take either side of it.

One such element moves whole gradients, in any float32 that sums in another order. Whether that is
all a net is off by is seen in float64: there the element is taken to the other side by itself.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import torch
from torch.nn import functional as F

NEAR = 3e-6
"""So small, of the largest of its tensor, float32's own error may be larger."""
MOST = 60
"""So many elements are tried, the nearest first."""

Edge = tuple[int, int]
"""Which call of a rectifier, and which element of its input."""


@contextmanager
def other_sides(taken: frozenset[Edge]) -> Iterator[list[tuple[float, Edge]]]:
    """While it is entered, rectifiers have the elements of `taken` on the other side of 0.

    Yields the elements that are near 0, with how near, as the rectifiers are called.
    """
    near: list[tuple[float, Edge]] = []
    calls = 0

    def rectified(x: Any, slope: float) -> Any:
        nonlocal calls
        flat = x.detach().flatten()
        shares = flat.abs() / flat.abs().max()
        near.extend((float(shares[i]), (calls, int(i))) for i in (shares < NEAR).nonzero())
        positive = flat > 0
        for call, element in taken:
            if call == calls:
                positive[element] = ~positive[element]
        calls += 1
        return torch.where(positive.reshape(x.shape), x, slope * x)

    def relu(x: Any, inplace: bool = False) -> Any:
        return rectified(x, 0.0)

    def leaky_relu(x: Any, negative_slope: float = 0.01, inplace: bool = False) -> Any:
        return rectified(x, negative_slope)

    with mock.patch.object(F, "relu", relu), mock.patch.object(F, "leaky_relu", leaky_relu):
        yield near
