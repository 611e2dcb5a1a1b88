"""Whether a net with a loss of its own has learned: that loss is asked, not squares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import policysearch as ps
from policysearch.policy.presets import preset
from policysearch.study.results.learning import Beside
from policysearch.train.chance import ByChance
from policysearch.train.constant import constant_of
from policysearch.train.run import Run
from policysearch.train.training import train

PIXELS = np.random.default_rng(0).standard_normal((96, 1, 8, 8)).astype(np.float32)
IMAGES = PIXELS + np.roll(PIXELS, 1, -1)
MASKS = (IMAGES > 0.7).astype(np.float32)
OTHERS = MASKS[np.random.default_rng(1).permutation(96)]


def segmenter(*, reads_labels: bool = True, gives: str = "logits") -> Any:
    """Return a net of masks with the Dice loss and cross entropy of many scripts."""
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional

    class Segmenter(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.body = torch.nn.Conv2d(1, 4, 3, padding=1)
            self.head = torch.nn.Conv2d(4, 1, 1)
            torch.nn.init.constant_(self.head.bias, 2.0)  # so that there is something to gain

        def forward(self, x: Any, y: Any) -> Any:
            logits = self.head(functional.silu(self.body(x)))
            wanted = y if reads_labels else (x > 0.7).float()
            shares = logits.sigmoid()
            both, all = (shares * wanted).sum((1, 2, 3)), (shares + wanted).sum((1, 2, 3))
            crossed = functional.binary_cross_entropy_with_logits(logits, wanted)
            loss = 0.5 * crossed + 0.5 * (1 - (2 * both + 1) / (all + 1)).mean()
            return {"logits": (loss, logits), "shares": (loss, shares), "": loss}[gives]

    torch.manual_seed(0)
    example = torch.zeros(2, 1, 8, 8), torch.zeros(2, 1, 8, 8)
    return ps.from_torch(Segmenter(), example, loss="own", labels="y")


def trained(
    model: Any, masks: Any = MASKS, rate: float = 0.5, policy: str = "float32", seed: int = 0
) -> tuple[Run, Beside]:
    data = ps.Dataset("masks", (IMAGES,), masks, 64, 32, 1)
    steps = {"steps": 60, "tail_steps": 5, "batch_size": 16}
    task = ps.Task(model=model, data=data, learning_rate=rate, **steps)  # type: ignore[arg-type]
    run = train(task, preset(policy, model.layer_names), seed, dataset=data)
    constant = constant_of(data, "own", (1, 8, 8))
    assert constant is not None and constant.validation_loss is None
    return run, Beside(constant, (), (run.validation_gain,) if run.validation_gain else ())


@pytest.mark.torch
@pytest.mark.parametrize("gives", ["logits", "shares", ""])
def test_a_net_that_learns_masks_has_learned(gives: str) -> None:
    run, beside = trained(segmenter(gives=gives))
    assert run.losses[-5:].mean() < 0.05 * run.losses[0]
    assert beside.checked and beside.learned and "other examples' labels" in beside.said


@pytest.mark.torch
@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("what", ["others' masks", "a rate of zero"])
def test_a_net_at_chance_has_not(what: str, seed: int) -> None:
    masks, rate = (MASKS, 1e-9) if what == "a rate of zero" else (OTHERS, 0.5)
    run, beside = trained(segmenter(), masks, rate, seed=seed)
    assert what == "a rate of zero" or run.losses[-5:].mean() < run.losses[0] - 0.03
    assert beside.checked and not beside.learned


@pytest.mark.torch
def test_the_constant_is_the_best_under_the_loss_itself() -> None:
    torch = pytest.importorskip("torch")
    rare = (IMAGES > 2.0).astype(np.float32)
    run, _ = trained(segmenter(), rare, rate=1e-9)
    wanted = torch.tensor(rare[64:])

    def loss(shares: Any) -> float:
        both, all = (shares * wanted).sum((1, 2, 3)), (shares + wanted).sum((1, 2, 3))
        crossed = torch.nn.functional.binary_cross_entropy(shares, wanted)
        return float(0.5 * crossed + 0.5 * (1 - (2 * both + 1) / (all + 1)).mean())

    by_place = wanted.mean(0, keepdim=True).clamp(1e-6, 1 - 1e-6).expand_as(wanted)
    assert run.validation_gain is not None and run.validation_loss is not None
    constant = run.validation_loss + run.validation_gain[0]
    scan = [loss(torch.full_like(wanted, share)) for share in np.linspace(0.01, 0.99, 99)]
    assert loss(by_place) < 0.7 * loss(torch.full_like(wanted, 0.5))  # it is worth something
    assert min(*scan, loss(by_place)) * 0.99 < constant <= loss(by_place) * 1.00001
    assert constant < run.validation_loss


@pytest.mark.torch
@pytest.mark.parametrize("policy", ["float32", "bfloat16"])
def test_where_labels_do_not_enter_the_loss_nothing_is_said(policy: str) -> None:
    reads = policy == "bfloat16"  # of a low format nobody asks
    run, beside = trained(segmenter(reads_labels=reads), policy=policy)
    assert run.losses[-5:].mean() < 0.2 * run.losses[0]
    assert run.validation_gain is None and not beside.checked


def test_how_far_chance_goes_is_that_of_one_more_draw() -> None:
    rng, passed = np.random.default_rng(0), 0
    for _ in range(20_000):
        *draws, loss = rng.normal(3.0, 0.2, 17)
        mean, error = ByChance(loss, tuple(draws), None).gain or (np.nan, np.nan)
        passed += mean > 3.0902 * error
    assert 8 <= passed <= 34  # CHANCE of them is 20
    sure = ByChance(1.0, (3.0, 3.1, 2.9), None).gain
    beside = ByChance(1.0, (3.0, 3.1, 2.9), 1.5).gain
    assert sure is not None and beside is not None
    assert beside[0] == 0.5 and sure[0] / sure[1] == pytest.approx(beside[0] / beside[1])
    worse = ByChance(1.0, (3.0, 3.1, 2.9), 0.5).gain
    assert worse is not None and worse[0] == -0.5
    assert ByChance(1.0, (3.0, 3.1), np.nan).gain is None
