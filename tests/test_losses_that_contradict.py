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
    return Dataset("own", (x,), labels, train_count=32, validation_count=16, classes=9)


WHOLE = np.arange(COUNT) % 4
SHARES = np.random.default_rng(1).dirichlet(np.ones(4), COUNT).astype(np.float32)
ROWS = (SHARES > 0.2).astype(np.int64)
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
        ("", ONE_NUMBER, "", r"labels: \[1\] per example; expected \[4\], as the"),
        ("l2", SHARES, "", "loss: 'l2'; expected"),
        (
            "huber",
            WHOLE,
            "",
            "int64; expected float32, numbers to be met, for loss 'huber'",
        ),
        ("mean_squared_error", ROWS, "", "labels: int64; expected float32, numbers to be met"),
        ("", WHOLE + 1, "", r"labels: 4; expected 0 to 3$"),
        ("token_cross_entropy", WHOLE + 1, "", "labels: 4; expected 0 to 3, or -100"),
        ("", np.where(WHOLE, WHOLE, -100), "", r"labels: -100; expected 0 to 3$"),
        ("", ROWS, "", r"labels: \[4\] per example; expected \[\]"),
        ("", 4.0 * SHARES, "", "expected 0 to 1, probabilities, for loss 'softmax_cross_entropy'"),
        ("binary_cross_entropy_with_logits", -SHARES, "", "labels: -.*; expected 0 to 1, prob"),
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
        ("binary_cross_entropy_with_logits", WHOLE, ""),
        ("token_cross_entropy", np.where(WHOLE, WHOLE, -100), ""),
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
    policy = preset("float32", model.layer_names)
    run = train(made, policy, 0, dataset=dataset, model=model)
    assert np.isfinite(run.losses).all() and (np.asarray(run.losses) > 0).any()


def test_a_contradiction_of_a_model_in_hand_is_said_as_the_task_is_made() -> None:
    model = replace(mlp((6, 8, 4)), loss="token_cross_entropy")
    with pytest.raises(InputError, match="loss: 'l1' beside model mlp, whose loss is 'token_"):
        Task(model=model, data=data(SHARES), loss="l1")


@pytest.mark.parametrize("loss", ["softmax_cross_entropy", "token_cross_entropy"])
def test_a_single_logit_has_no_loss_of_classes(loss: str) -> None:
    made = Task(model=mlp((6, 8, 1)), data=data(ONE_NUMBER), loss=loss, batch_size=8)
    with pytest.raises(InputError, match="model mlp: 1 logit; expected one for each class"):
        made.build_model(made.load_dataset())
