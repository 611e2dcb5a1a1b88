"""What is measured beside the training loss: validation loss, accuracy, a metric of the user's."""

from __future__ import annotations

import csv
import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import t as student

import policysearch as ps
from policysearch.cli import main
from policysearch.data.datasets import load_dataset
from policysearch.nn.model import OWN_LOSS
from policysearch.policy.presets import preset
from policysearch.study.opening import load_results
from policysearch.study.specification import load_spec
from policysearch.study.study import run_study
from policysearch.train.constant import output_losses
from policysearch.train.losses import LOSSES, unit_of
from policysearch.train.tasks import Task
from policysearch.train.training import train
from policysearch.train.user_code import metric_of
from policysearch.values import InputError
from tests.studies import write_study

RNG = np.random.default_rng(0)
OUTPUTS = RNG.standard_normal((40, 5)).astype(np.float32)
CLASSES = RNG.integers(0, 5, 40)
SHARES = RNG.random((40, 5)).astype(np.float32)
TORCH: dict[str, tuple[str, Any]] = {
    "softmax_cross_entropy": ("cross_entropy", CLASSES),
    "mean_squared_error": ("mse_loss", SHARES),
    "token_cross_entropy": ("cross_entropy", CLASSES),
    "cross_entropy": ("cross_entropy", CLASSES),
    "nll": ("nll_loss", CLASSES),
    "l1": ("l1_loss", SHARES),
    "smooth_l1": ("smooth_l1_loss", SHARES),
    "huber": ("huber_loss", SHARES),
    "binary_cross_entropy": ("binary_cross_entropy", SHARES),
    "binary_cross_entropy_with_logits": ("binary_cross_entropy_with_logits", SHARES),
    "kl_div": ("kl_div", SHARES),
    "multi_margin": ("multi_margin_loss", CLASSES),
    "soft_margin": ("soft_margin_loss", np.where(SHARES > 0.5, 1.0, -1.0).astype(np.float32)),
}


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:reduction")
@pytest.mark.parametrize("name", LOSSES)
def test_the_validation_loss_is_that_of_torch(name: str) -> None:
    torch = pytest.importorskip("torch")
    function, labels = TORCH[name]
    outputs = 1.0 / (1.0 + np.exp(-OUTPUTS)) if name == "binary_cross_entropy" else OUTPUTS
    losses = output_losses(outputs, labels, name)
    given = torch.from_numpy(outputs), torch.from_numpy(labels)
    theirs = getattr(torch.nn.functional, function)(*given)
    assert losses is not None and losses.shape == (40,)
    assert losses.mean() == pytest.approx(float(theirs), rel=1e-6)
    row = LOSSES[name]
    if row.one_hot and labels.dtype == np.float32:  # classes stand for rows of 0 and 1
        rows = torch.from_numpy(np.eye(5, dtype=np.float32)[CLASSES])
        theirs = getattr(torch.nn.functional, function)(given[0], rows)
        hot = output_losses(outputs, CLASSES, name)
        assert hot is not None and hot.mean() == pytest.approx(float(theirs), rel=1e-6)


@pytest.mark.torch
def test_shares_of_classes_may_be_learned_too() -> None:
    torch = pytest.importorskip("torch")
    shares = SHARES / SHARES.sum(axis=1, keepdims=True)
    losses = output_losses(OUTPUTS, shares, "softmax_cross_entropy")
    theirs = torch.nn.functional.cross_entropy(torch.from_numpy(OUTPUTS), torch.from_numpy(shares))
    assert losses is not None and losses.mean() == pytest.approx(float(theirs), rel=1e-6)


def test_units_are_those_of_the_loss() -> None:
    likelihoods = {name for name in LOSSES if unit_of(name) == "nats"}
    assert likelihoods == {
        *("softmax_cross_entropy", "token_cross_entropy", "cross_entropy", "nll", "kl_div"),
        *("binary_cross_entropy", "binary_cross_entropy_with_logits", "soft_margin"),
    }
    assert unit_of("mean_squared_error") == "MSE" and unit_of(OWN_LOSS) == "loss"


@pytest.mark.torch
@pytest.mark.parametrize("count", [96, 70, 68])
@pytest.mark.parametrize("logits_too", [True, False])
def test_a_loss_of_the_net_itself_is_validated(logits_too: bool, count: int) -> None:
    """Over whole batches; one batch is as small as the part."""
    torch = pytest.importorskip("torch")

    class Own(torch.nn.Module):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.fc = torch.nn.Linear(6, 4)

        def forward(self, y: Any, x: Any) -> Any:
            logits = self.fc(x)
            loss = 3.0 * torch.nn.functional.cross_entropy(logits, y)
            return (loss, logits) if logits_too else loss

    torch.manual_seed(0)
    module, x = Own(), np.random.default_rng(0).standard_normal((count, 6)).astype(np.float32)
    data = ps.Dataset("own", (x,), x[:, :4].argmax(1), 64, count - 64, 4)
    example = torch.zeros(2, dtype=torch.long), torch.zeros(2, 6)
    model = ps.from_torch(module, example, loss="own", labels="y")
    task = ps.Task(model=model, data=data, steps=20, tail_steps=5, batch_size=16, learning_rate=0.1)
    run = train(task, preset("float32", model.layer_names), 0, dataset=data)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(torch.from_numpy(run.params[name]))
    whole = 64 + (count - 64) // 16 * 16 if count > 80 else count
    labels, inputs = (torch.from_numpy(a[64:whole].copy()) for a in (data.labels, x))
    found = module(labels, inputs)
    loss = (found[0] if logits_too else found).item()
    assert run.validation_loss == pytest.approx(loss, rel=1e-5) and run.loss_unit == "loss"


METRIC = """
import numpy as np

def hits_of_three(outputs, labels):
    assert outputs.dtype == np.float32 and len(outputs) == len(labels)
    best = np.argsort(outputs, axis=1)[:, -3:]
    return (best == labels[:, None]).any(axis=1).mean()

def fails(outputs, labels):
    raise ValueError("no\\nsuch thing")

def text(outputs, labels):
    return "0.5"

number = 0.5
"""
TASK = Task(model="mlp", widths=(16,), data="digits", steps=40, tail_steps=5, learning_rate=0.1)


def test_a_metric_of_the_users_own_is_of_all_outputs_and_labels(tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(METRIC)
    seen: list[tuple[Any, Any]] = []

    def accuracy(outputs: Any, labels: Any) -> float:
        seen.append((outputs, labels))
        return float((outputs.argmax(axis=1) == labels).mean())

    named = replace(TASK, metric=f"{tmp_path}/own.py:hits_of_three")
    dataset = load_dataset("digits")
    model = named.build_model(dataset)
    policy = preset("bfloat16", model.layer_names)
    run = train(named, policy, 0, dataset=dataset)
    own = train(replace(TASK, metric=accuracy), policy, 0, dataset=dataset)
    outputs, labels = seen[-1]
    assert len(outputs) == dataset.validation_count and (labels == dataset.validation[1]).all()
    assert own.metric == own.validation_accuracy is not None
    best = np.argsort(outputs, axis=1)[:, -3:]
    assert run.metric == pytest.approx((best == labels[:, None]).any(axis=1).mean())
    assert own.metric is not None and run.metric is not None
    assert 0.2 < own.metric < run.metric < 1.0
    losses = output_losses(outputs, labels, "softmax_cross_entropy")
    assert losses is not None and run.validation_loss == pytest.approx(float(losses.mean()))
    # what is measured is part of the record, what is not measured is none of an older one
    assert replace(TASK, metric=accuracy).to_plain()["metric"] == "accuracy"
    assert named.to_plain()["metric"] == "own.py:hits_of_three"
    before = named.fingerprint
    (tmp_path / "own.py").write_text(METRIC.replace("-3:", "-2:"))
    assert named.fingerprint != before and "metric" not in TASK.to_plain()


@pytest.mark.parametrize("value", [1, 0.25, np.float32(0.5), np.array(2.0), np.nan, np.inf])
def test_a_metric_that_is_not_finite_is_none(value: Any) -> None:
    def constant(outputs: Any, labels: Any) -> Any:
        return value

    expected = float(value) if np.isfinite(value) else None
    assert metric_of(constant, OUTPUTS, CLASSES) == expected


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("own.py:fails", "metric: own.py:fails: no such thing; expected a number of outputs and"),
        ("own.py:text", "metric: own.py:text returned str '0.5'; expected a number"),
        ("own.py:number", "no function 'number'; expected one of hits_of_three, fails, text"),
        ("none.py:f", "'none.py': no such file; expected a Python file"),
        ("accuracy", "metric: 'accuracy'; expected file.py:function"),
    ],
)
def test_a_wrong_metric_is_named_before_training(
    name: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.py").write_text(METRIC)
    path = write_study(tmp_path, ('data = "digits"', f'data = "digits"\nmetric = "{name}"'))
    assert main(["run", str(path), "--yes"]) == 2
    error = capsys.readouterr().err
    assert said in error and len(error.splitlines()) == 1
    assert not list(tmp_path.glob("**/*.journal"))


def test_views_show_the_metric_with_its_interval(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("own.py").write_text(METRIC)
    Path("results").mkdir()
    changes = ('data = "digits"', 'data = "digits"\nmetric = "own.py:hits_of_three"')
    study = load_spec(write_study(tmp_path, changes, ("trials = 6", "trials = 1")))
    results = run_study(study, Path("results/tiny.journal"), processes=0)
    assert results == load_results(study, Path("results/tiny.journal"))
    trial = results.trials[0]
    values = [score.metric for score in trial.scores]
    assert len(values) == 2 and None not in values
    row = next(row for row in results.rows() if row.trial == trial.number)
    # of fewer than four policies each has its own spread: the t interval of two numbers
    here = np.array(values, float)
    wide = student.ppf(0.975, 1) * here.std(ddof=1) / math.sqrt(2)
    assert row.metric == pytest.approx(here.mean())
    assert (row.metric_low95, row.metric_high95) == pytest.approx(
        (here.mean() - wide, here.mean() + wide)
    )
    assert row.validation_loss is not None and row.validation_loss_low95 is not None
    assert row.validation_loss_low95 < row.validation_loss < (row.validation_loss_high95 or 0.0)
    assert main(["show", "tiny.toml"]) == 0
    assert "hits_of_three" in capsys.readouterr().out
    assert main(["show", "tiny.toml", "--trial", str(trial.number)]) == 0
    page = capsys.readouterr().out
    assert f"own.py:hits_of_three: {here.mean():.4g}, " in page and "validation accuracy: " in page
    assert f"validation loss: {trial.validation_loss:.4g} nats, " in page
    assert main(["show", "tiny.toml", "--csv"]) == 0
    table = "\n".join(x for x in capsys.readouterr().out.splitlines() if not x.startswith("#"))
    (first, *_) = csv.DictReader(io.StringIO(table))
    assert first["metric_name"] == "own.py:hits_of_three" and float(first["metric"]) > 0.0


def test_classes_are_said_where_there_are_any() -> None:
    x = np.zeros((10, 1, 8, 8), np.float32)
    numbers = ps.Dataset("own", (x,), np.zeros((10, 3), np.float32), 8, 2)
    assert (numbers.kind, numbers.outputs, numbers.classes) == ("numbers", 3, 0)
    task = Task(model="mlp", widths=(4,), data=numbers, loss="mean_squared_error")
    model = task.build_model(numbers)
    assert {spec.name: spec.shape for spec in model.parameters()}["fc2.bias"] == (3,)
    digits = load_dataset("digits")
    assert (digits.kind, digits.outputs) == ("classes", 10)
    with pytest.raises(InputError, match="labels: 0 to 0; expected"):
        ps.Dataset("own", (x,), np.zeros(10, np.int64), 8, 2)
