"""Nets with losses of their own train as torch does, in float32 and in 16 bits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional as F

from tests.imported_low_trainings import trained_low_as_torch
from tests.imported_steps import Array
from tests.imported_trainings import Training

pytestmark = pytest.mark.torch

CLASSES, TIME, WIDTH, LABELS = 5, 9, 8, 3
LEARNED = 0.02


def _normal(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


class Segmenting(nn.Module):
    """A class for each pixel, rare ones weigh more, some pixels are of none."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 8, 3, padding=1), nn.Conv2d(8, CLASSES, 1)
        self.register_buffer("weights", torch.tensor([0.3, 1.0, 2.0, 0.7, 1.5]))

    def forward(self, x: Any, classes: Any) -> Any:
        logits = self.last(torch.tanh(self.first(x))).float()
        weights: Any = self.weights
        return F.cross_entropy(
            logits, classes, weights.float(), ignore_index=3, label_smoothing=0.1
        )


def segmented(rng: np.random.Generator, count: int) -> tuple[Array, ...]:
    x = _normal(rng, count, 2, 6, 6)
    return x, np.digitize(x[:, 0] + x[:, 1], (-1.5, -0.5, 0.5, 1.5))


class Tagging(nn.Module):
    """Any number of tags for an example, those that are there weighing more."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, CLASSES))
        self.register_buffer("rarity", torch.tensor([1.0, 2.0, 3.0, 1.5, 2.5]))

    def forward(self, x: Any, tags: Any) -> Any:
        logits, rarity = self.net(x).float(), self.rarity.float()
        return F.binary_cross_entropy_with_logits(logits, tags.float(), pos_weight=rarity)


def tagged(rng: np.random.Generator, count: int) -> tuple[Array, ...]:
    x = _normal(rng, count, WIDTH)
    return x, (x[:, :CLASSES] > 0.3).astype(np.int64)


class Spelling(nn.Module):
    """Labels in the order of frames, wherever they lie."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, CLASSES))

    def forward(self, x: Any, labels: Any, times: Any, counts: Any) -> Any:
        log_p = self.net(x).float().log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(log_p, labels, times, counts)


def spelled(rng: np.random.Generator, count: int) -> tuple[Array, ...]:
    labels = rng.integers(1, CLASSES, (count, LABELS))
    x = 0.3 * _normal(rng, count, TIME, WIDTH)
    for place in range(LABELS):
        x[np.arange(count), 3 * place + 1, labels[:, place]] += 2.0
    return x, labels, rng.integers(TIME - 1, TIME + 1, count), rng.integers(1, LABELS + 1, count)


class Comparing(nn.Module):
    """An anchor is to be nearer to one of its kind than to another."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, 4))

    def forward(self, anchor: Any, alike: Any, other: Any) -> Any:
        near, far = self.net(alike).float(), self.net(other).float()
        return F.triplet_margin_loss(self.net(anchor).float(), near, far, margin=1.0, swap=True)


def compared(rng: np.random.Generator, count: int) -> tuple[Array, ...]:
    anchor, other = _normal(rng, count, WIDTH), _normal(rng, count, WIDTH)
    return anchor, anchor + 0.8 * _normal(rng, count, WIDTH), other


class Distilling(nn.Module):
    """A student meets the softened probabilities of a teacher."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(WIDTH, 16), nn.Tanh(), nn.Linear(16, CLASSES))

    def forward(self, x: Any, taught: Any) -> Any:
        log_p, shares = (F.log_softmax(y.float() / 2.0, -1) for y in (self.net(x), taught))
        return 4.0 * F.kl_div(log_p, shares, reduction="batchmean", log_target=True)


def distilled(rng: np.random.Generator, count: int) -> tuple[Array, ...]:
    x = _normal(rng, count, WIDTH)
    # on the grid of both 16-bit formats: torch has its inputs in that of the module
    return x, (np.round(16.0 * x[:, :CLASSES]) / 8.0).astype(np.float32)


NETS: dict[str, Training] = {
    "segmenting": Training(Segmenting, segmented, "momentum", 0.1),
    "tagging": Training(Tagging, tagged, "momentum", 0.05),
    "spelling": Training(Spelling, spelled, "momentum", 0.05),
    "comparing": Training(Comparing, compared, "momentum", 0.02),
    "distilling": Training(Distilling, distilled, "momentum", 0.02),
}


@pytest.mark.parametrize("format_name", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", NETS)
def test_a_net_with_its_own_loss_trains_as_torch_does(name: str, format_name: str) -> None:
    torch.manual_seed(0)
    moved = trained_low_as_torch(NETS[name], format_name, own_loss=True)
    assert moved > LEARNED
