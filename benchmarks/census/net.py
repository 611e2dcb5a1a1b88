"""One net of the census: how to make it and what to feed it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

Inputs = Callable[[torch.Generator, int], tuple[Tensor, ...]]


@dataclass(frozen=True)
class Net:
    """A module as its authors write it, in a tiny configuration.

    `inputs` draws the arguments of `forward` for a batch, which is the first axis of each. A net
    with `loss="own"` returns (loss, logits) or the loss alone; `labels` names the argument of
    `forward` that takes the labels, where one does.
    """

    make: Callable[[], nn.Module]
    inputs: Inputs
    loss: str = "token_cross_entropy"
    labels: str = ""


def normal(*shapes: tuple[int, ...]) -> Inputs:
    """Draws one array of standard normal numbers of each shape."""

    def draw(generator: torch.Generator, batch: int) -> tuple[Tensor, ...]:
        return tuple(torch.randn(batch, *shape, generator=generator) for shape in shapes)

    return draw


def whole(*fields: tuple[int, tuple[int, ...]], lowest: int = 0) -> Inputs:
    """Draws whole numbers from `lowest` and below the bound of each field, of its shape."""

    def draw(generator: torch.Generator, batch: int) -> tuple[Tensor, ...]:
        return tuple(
            torch.randint(lowest, bound, (batch, *shape), generator=generator)
            for bound, shape in fields
        )

    return draw


def uniform(*shapes: tuple[int, ...]) -> Inputs:
    """Draws one array of numbers from 0 to 1 of each shape."""

    def draw(generator: torch.Generator, batch: int) -> tuple[Tensor, ...]:
        return tuple(torch.rand(batch, *shape, generator=generator) for shape in shapes)

    return draw


def both(*parts: Inputs) -> Inputs:
    """Draws the arrays of all parts, one after the other."""

    def draw(generator: torch.Generator, batch: int) -> tuple[Tensor, ...]:
        return tuple(array for part in parts for array in part(generator, batch))

    return draw
