"""Labels that an imported net learns: refused where they do not fit, counted along their axis."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn
from torch.nn import functional as F

import policysearch as ps
from policysearch.data.datasets import Dataset
from policysearch.policy.presets import preset
from policysearch.train.training import train
from policysearch.values import InputError
from tests.imported_steps import evaluated
from tests.studies import write_study

pytestmark = pytest.mark.torch

COUNT, CLASSES, SIDE = 24, 4, 4
RNG = np.random.default_rng(0)
X = RNG.standard_normal((COUNT, 2, SIDE, SIDE)).astype(np.float32)
PIXELS = np.digitize(X[:, 0], (-0.7, 0.0, 0.7))
PIXEL_EXAMPLE = torch.zeros(2, 2, SIDE, SIDE), torch.zeros(2, SIDE, SIDE, dtype=torch.long)


class Segments(nn.Module):
    """Logits [batch, classes, high, wide], with a loss of its own where labels are given."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv = nn.Conv2d(2, CLASSES, 3, padding=1)

    def forward(self, x: Any, y: Any = None) -> Any:
        logits = self.conv(x)
        return logits if y is None else (F.cross_entropy(logits, y), logits)


def data(labels: Any, x: Any = X) -> Dataset:
    return Dataset("own", (x,), labels, train_count=16, validation_count=8, classes=99)


def own() -> Any:
    return ps.from_torch(Segments(), PIXEL_EXAMPLE, loss="own", labels="y")


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (PIXELS.astype(np.float32), "labels: float32; expected int64 for y of model Segments"),
        (PIXELS + 1, "labels: 4; expected 0 to 3, or -100$"),
        (PIXELS[:, 0], r"labels: \[count, 4\]; expected \[count, 4, 4\]"),
    ],
)
def test_labels_that_the_loss_of_a_net_does_not_take(labels: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        ps.Task(model=own(), data=data(labels)).build_model(data(labels))


def _hits(model: Any, arrays: Any) -> float:
    logits = evaluated(model, (X[16:], PIXELS[16:])[: len(model.inputs)], arrays)
    return float((logits.argmax(1) == PIXELS[16:]).mean())


@pytest.mark.parametrize("loss", ["own", "cross_entropy"])
def test_classes_along_axis_1_are_learned_and_counted(loss: str) -> None:
    """The extents are all 4, so that another axis would fit as well."""
    model = own() if loss == "own" else ps.from_torch(Segments(), PIXEL_EXAMPLE[:1], loss=loss)
    dataset = data(PIXELS)
    task = ps.Task(model=model, data=dataset, batch_size=8, steps=40, tail_steps=4)
    assert task.build_model(dataset) is model
    run = train(task, preset("float32", model.layer_names), 0, dataset=dataset, model=model)
    assert run.losses[-1] < 0.8 * run.losses[0]
    assert run.validation_accuracy == pytest.approx(_hits(model, run.params))
    assert (run.validation_accuracy or 0.0) > 0.5


class Frames(nn.Module):
    """Logits [time, batch, classes], which the labels are no classes of."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(2, CLASSES)

    def forward(self, x: Any, y: Any) -> Any:
        logits = self.fc(x).transpose(0, 1)
        times, counts = torch.full((len(x),), 7), torch.full((len(x),), 3)
        return F.ctc_loss(logits.log_softmax(-1), y, times, counts), logits


def test_labels_of_alignments_have_no_accuracy() -> None:
    x, y = RNG.standard_normal((COUNT, 7, 2)).astype(np.float32), RNG.integers(1, 4, (COUNT, 3))
    example = torch.from_numpy(x[:2]), torch.from_numpy(y[:2])
    model = ps.from_torch(Frames(), example, loss="own", labels="y")
    task = ps.Task(model=model, data=data(y, x), batch_size=4, steps=3, tail_steps=1)
    dataset = task.load_dataset()
    run = train(task, preset("float32", model.layer_names), 0, dataset=dataset)
    assert np.isfinite(run.losses).all() and run.validation_accuracy is None


def test_a_study_and_a_model_that_name_two_losses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    named = 'data = "digits"', 'data = "digits"\nloss = "mean_squared_error"'
    study = ps.load_study(write_study(tmp_path, named))
    net, x = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), torch.zeros(2, 1, 8, 8)
    said = "loss: 'mean_squared_error' in the task, but model Sequential has 'token_cross_entropy'"
    with pytest.raises(InputError, match=said):
        study.with_values(ps.from_torch(net, x), cost=study.cost)
    free = ps.from_torch(net, x, loss="")
    with pytest.raises(TypeError, match="cost"):  # the study's own is another net's
        study.with_values(free)  # type: ignore[call-arg]
    assert study.with_values(free, cost=study.cost).task.loss == "mean_squared_error"
    assert capsys.readouterr().err == ""
