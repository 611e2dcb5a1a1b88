"""A loss that the model or the labels contradict is one line before anything is trained."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from policysearch import Dataset, InputError, Task
from policysearch.nn.model import OWN_LOSS
from policysearch.nn.models import mlp
from policysearch.ops.loss import IGNORED
from policysearch.policy.presets import preset
from policysearch.train.losses import LOSSES
from policysearch.train.training import train

COUNT = 48


def data(labels: Any) -> Dataset:
    x = np.random.default_rng(0).standard_normal((COUNT, 6)).astype(np.float32)
    return Dataset("own", (x,), labels, train_count=32, validation_count=16, classes=4)


WHOLE = np.arange(COUNT) % 4
SHARES = np.random.default_rng(1).dirichlet(np.ones(4), COUNT).astype(np.float32)
ROWS = (SHARES > 0.2).astype(np.int64)
ONE_NUMBER = SHARES[:, :1].copy()
IGNORING = np.where(WHOLE == 1, IGNORED, WHOLE)


def task(loss: str, labels: Any, own: str = "", outputs: int = 4) -> Task:
    model = replace(mlp((6, 8, outputs)), loss=own)
    return Task(model=model, data=data(labels), batch_size=8, steps=2, tail_steps=1, loss=loss)


NO_CLASSES = r"labels: float32, but loss '\w+' is for classes; expected int64, or a loss for num"
TWO = "in the task, but model mlp has {}; expected one: leave it out of the task, or give it to"


@pytest.mark.parametrize(
    ("loss", "labels", "own", "message"),
    [
        (
            "mean_squared_error",
            WHOLE,
            "token_cross_entropy",
            f"loss: 'mean_squared_error' {TWO.format(repr('token_cross_entropy'))}",
        ),
        ("huber", SHARES, OWN_LOSS, f"loss: 'huber' {TWO.format('its own')}"),
        ("softmax_cross_entropy", SHARES, "l1", f"loss: '{'softmax_cross_entropy'}' {TWO[:20]}"),
        ("token_cross_entropy", SHARES, "", NO_CLASSES),
        ("", SHARES, "token_cross_entropy", NO_CLASSES),
        ("", SHARES, "l2", "loss: 'l2'; expected one of softmax_cross_entropy, mean_squared"),
        ("l2", SHARES, "", "loss: 'l2'; expected one of softmax_cross_entropy, mean_squared"),
    ],
)
def test_what_needs_no_trace_is_said_of_the_task_itself(
    loss: str, labels: Any, own: str, message: str
) -> None:
    with pytest.raises(InputError, match=message) as refusal:
        task(loss, labels, own)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("loss", "labels", "outputs", "message"),
    [
        ("mean_squared_error", ONE_NUMBER, 4, r"labels: \[1\] per example; expected \[4\], of"),
        ("mean_squared_error", WHOLE, 1, "labels: int64; expected float32, the numbers to be met"),
        ("huber", WHOLE, 4, "labels: int64; expected float32, the numbers to be met by model mlp"),
        ("mean_squared_error", WHOLE, 3, "labels: 3; expected 0 to 2$"),
        ("token_cross_entropy", WHOLE, 3, "labels: 3; expected 0 to 2, or -100$"),
        ("", WHOLE, 3, "labels: 3; expected 0 to 2$"),
        ("", IGNORING, 4, "labels: -100; expected 0 to 3$"),
        ("mean_squared_error", ROWS, 4, r"labels: \[4\] per example; expected \[\], of model mlp"),
        ("", ROWS, 4, r"labels: \[4\] per example; expected \[\], of model mlp for loss"),
        ("", ONE_NUMBER, 1, r"outputs \[batch, 1\]; expected 2 classes or more"),
        ("", ONE_NUMBER, 4, r"labels: \[1\] per example; expected \[4\], of model mlp for loss"),
        ("", 3.0 * SHARES, 4, "labels: 2[.0-9]*; expected 0 to 1, for model mlp"),
        ("binary_cross_entropy_with_logits", SHARES - 1.0, 4, "labels: -0[.0-9]*; expected 0 to"),
        ("nll", np.stack([WHOLE, WHOLE], 1), 4, r"labels: \[2\] per example; expected \[\], of"),
        ("nll", WHOLE * 0, 1, r"outputs \[batch, 1\]; expected 2 classes or more"),
    ],
)
def test_labels_that_a_loss_does_not_take_are_one_line(
    loss: str, labels: Any, outputs: int, message: str
) -> None:
    tried = task(loss, labels.astype(np.float32 if labels.dtype != np.int64 else np.int64))
    tried = replace(tried, model=mlp((6, 8, outputs)))
    with pytest.raises(InputError, match=message) as refusal:
        tried.build_model(tried.load_dataset())
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("loss", "labels", "own"),
    [
        *((loss, SHARES, "") for loss, row in LOSSES.items() if not row.classes),
        *((loss, WHOLE, "") for loss, row in LOSSES.items() if row.classes),
        ("", WHOLE, ""),
        ("binary_cross_entropy_with_logits", ROWS, ""),
        ("binary_cross_entropy_with_logits", WHOLE, ""),
        ("token_cross_entropy", IGNORING, ""),
        ("softmax_cross_entropy", WHOLE, "token_cross_entropy"),
        ("", SHARES, ""),
        ("mean_squared_error", WHOLE, ""),
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
    assert np.isfinite(run.losses).all() and len(set(run.losses)) == 2
