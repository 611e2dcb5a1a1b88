"""A loss that the model or the labels contradict is one line before anything is trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from policysearch import Dataset, InputError, Task
from policysearch.nn.model import OWN_LOSS
from policysearch.nn.models import mlp
from policysearch.policy.presets import preset
from policysearch.train.losses import LOSSES
from policysearch.train.training import train

COUNT = 48


def data(labels: Any) -> Dataset:
    x = np.random.default_rng(0).standard_normal((COUNT, 6)).astype(np.float32)
    return Dataset("own", x, labels, train_count=32, validation_count=16, classes=4)


WHOLE = np.arange(COUNT) % 4
SHARES = np.random.default_rng(1).dirichlet(np.ones(4), COUNT).astype(np.float32)
ONE_NUMBER = SHARES[:, :1].copy()


def task(loss: str, labels: Any, own: str = "") -> Task:
    model = replace(mlp((6, 8, 4)), loss=own)
    options: dict[str, Any] = {"loss": loss} if loss else {}
    return Task(model=model, data=data(labels), batch_size=8, steps=2, tail_steps=1, **options)


@pytest.mark.parametrize(
    ("loss", "labels", "own", "message"),
    [
        (
            "mean_squared_error",
            WHOLE,
            "token_cross_entropy",
            "loss: 'mean_squared_error' beside model mlp, whose loss is 'token_cross_entropy'; "
            "expected no loss, or a model made with loss='mean_squared_error'",
        ),
        ("huber", SHARES, OWN_LOSS, "loss: 'huber' beside model mlp, whose loss is 'own'; expect"),
        ("token_cross_entropy", SHARES, "", "labels: float32; expected int64, numbers of classes"),
        ("", SHARES, "token_cross_entropy", "labels: float32; expected int64, numbers of classes"),
        ("mean_squared_error", ONE_NUMBER, "", r"labels: \[1\] per example; expected \[4\], as"),
        ("", ONE_NUMBER, "", r"labels: \[1\] per example; expected \[4\], as model mlp gives"),
        ("l2", SHARES, "", "loss: 'l2'; expected"),
    ],
)
def test_a_contradiction_is_one_line(loss: str, labels: Any, own: str, message: str) -> None:
    with pytest.raises(InputError, match=message) as refusal:
        made = task(loss, labels, own)
        made.build_model(made.load_dataset())
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("loss", "labels", "own"),
    [
        *((loss, SHARES, "") for loss in LOSSES if 1 not in LOSSES[loss].pinned),
        ("", WHOLE, ""),
        ("", SHARES, ""),
        ("mean_squared_error", WHOLE, ""),
        ("token_cross_entropy", WHOLE, ""),
        ("token_cross_entropy", WHOLE, "token_cross_entropy"),
        ("", WHOLE, "token_cross_entropy"),
        ("huber", SHARES, "huber"),
    ],
)
def test_what_fits_trains(loss: str, labels: Any, own: str) -> None:
    made = task(loss, labels, own)
    dataset = made.load_dataset()
    model = made.build_model(dataset)
    if "binary_cross_entropy" in (loss, own):
        return  # of probabilities, which these logits are not
    policy = preset("float32", model.layer_names)
    run = train(made, policy, 0, dataset=dataset, model=model)
    assert np.isfinite(run.losses).all() and (np.asarray(run.losses) > 0).any()
