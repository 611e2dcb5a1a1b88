"""The outputs of a training step that returns its loss alone: found where the labels pull."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import policysearch as ps
from policysearch.policy.presets import preset
from policysearch.train.constant import constant_of
from policysearch.train.training import train

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

from policysearch.train.scripts.outputs import Place, outputs_place  # noqa: E402

pytestmark = pytest.mark.torch

Step = Callable[[Any, Any, Any], Any]


class Net(nn.Module):
    """A body that is as wide as its head, so that either could be the outputs."""

    def __init__(self, wide: int = 4) -> None:
        super().__init__()
        self.body = nn.Linear(6, wide)
        self.head = nn.Linear(wide, wide)

    def forward(self, x: Any) -> Any:
        return {"hidden": (hidden := self.body(x)), "scores": self.head(hidden.tanh())}


def place(net: Any, step: Step, x: Any, labels: Any) -> Place | None:
    return outputs_place(net, lambda: step(net, x, labels), labels)


def drawn(shape: tuple[int, ...], classes: int = 4) -> tuple[Any, Any]:
    torch.manual_seed(0)
    return torch.randn(*shape, 6), torch.randint(classes, shape)


LOSSES: dict[str, Step] = {
    "cross entropy": lambda net, x, y: F.cross_entropy(net(x)["scores"], y),
    "smoothed": lambda net, x, y: F.cross_entropy(net(x)["scores"], y, label_smoothing=0.1),
    "margins": lambda net, x, y: F.multi_margin_loss(net(x)["scores"], y),
    "by hand": lambda net, x, y: -net(x)["scores"].log_softmax(-1)[torch.arange(len(y)), y].mean(),
    "some ignored": lambda net, x, y: F.cross_entropy(net(x)["scores"], y, ignore_index=2),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_classes_are_found_by_what_pulls_them_up(loss: str) -> None:
    x, labels = drawn((16,))
    assert place(Net(), LOSSES[loss], x, labels) == Place("", "scores")


def test_where_the_step_calls_only_parts_it_is_their_result() -> None:
    x, labels = drawn((16,))
    step: Step = lambda net, x, y: F.cross_entropy(net.head(net.body(x)), y)  # noqa: E731
    assert place(Net(), step, x, labels) == Place("head")


def test_the_next_label_of_a_sequence_is_seen() -> None:
    x, labels = drawn((3, 9))

    def step(net: Any, x: Any, y: Any) -> Any:
        return F.cross_entropy(net(x)["scores"][:, :-1].flatten(0, 1), y[:, 1:].flatten())

    assert place(Net(), step, x, labels) == Place("", "scores", ahead=True)


NONE: dict[str, Step] = {
    "of other labels": lambda net, x, y: F.cross_entropy(net(x)["scores"], y.roll(1)),
    "of what comes two later": lambda net, x, y: F.cross_entropy(net(x)["scores"][:-2], y[2:]),
    "away from them": lambda net, x, y: -F.cross_entropy(net(x)["scores"], y),
    "without labels": lambda net, x, y: net(x)["scores"].square().mean(),
    "of modules called twice": lambda net, x, y: F.cross_entropy(
        net(x)["scores"] + net(x)["scores"], y
    ),
    "that fails": lambda net, x, y: net(x)["nothing"],
}


@pytest.mark.parametrize("loss", NONE)
def test_no_outputs_where_nothing_is_compared(loss: str) -> None:
    x, labels = drawn((16,))
    assert place(Net(), NONE[loss], x, labels) is None


def test_numbers_are_found_where_they_are_pulled_to_theirs() -> None:
    x, _ = drawn((16,))
    labels = torch.randn(16)
    square: Step = lambda net, x, y: F.mse_loss(net(x)["scores"][:, 0], y)  # noqa: E731
    assert place(Net(), square, x, labels) is None  # four numbers for each label
    one = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    of_one: Step = lambda net, x, y: F.l1_loss(net(x).squeeze(-1), y)  # noqa: E731
    assert place(one, of_one, x, labels) == Place("")
    twice: Step = lambda net, x, y: F.l1_loss(2.0 * net(x).squeeze(-1), y)  # noqa: E731
    assert place(one, twice, x, labels) is None  # what it gives is half of what is compared


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.tags = nn.Embedding(11, 12), nn.Linear(12, 11)

    def forward(self, ids: Any) -> Any:
        return self.tags(self.words(ids))


def next_words(module: Any, batch: Any) -> Any:
    scores = module(batch["ids"])
    return F.cross_entropy(scores[:, :-1].flatten(0, 1), batch["labels"][:, 1:].flatten())


def test_accuracy_and_metric_of_next_words_are_those_of_the_net(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    start = rng.integers(11, size=(160, 1))
    ids = torch.from_numpy((start + 3 * np.arange(8)) % 11)  # each is three after the last
    batches = [{"ids": part, "labels": part.clone()} for part in ids.split(16)]
    torch.manual_seed(1)
    net = Tagger()
    script = ps.from_loader(
        net,
        batches[:8],
        loss=next_words,
        steps=60,
        optimizer=torch.optim.Adam(net.parameters(), lr=0.03),
        validation=batches[8:],
        spool=tmp_path / "x.spool",
        metric=top_two,
    )
    assert "outputs: the module, of the next label" in script.taken
    policy = preset("float32", script.model.layer_names)
    run = train(script.task, policy, 0, dataset=script.data)
    assert run.validation_accuracy == 1.0 and run.metric == 1.0
    constant = constant_of(script.data, "own", script.task.outputs_of(script.model))
    assert constant is not None and constant.validation_labels == 32 * 7
    unlearned = train(
        ps.Task(**{**vars(script.task), "learning_rate": 1e-9}), policy, 0, dataset=script.data
    )
    torch.manual_seed(1)
    with torch.no_grad():
        scores, wanted = Tagger()(ids[128:])[:, :-1], ids[128:, 1:]
    share = (scores.argmax(-1) == wanted).float().mean().item()
    assert unlearned.validation_accuracy == pytest.approx(share) and share < 0.4
    assert unlearned.metric == pytest.approx(top_two(scores.numpy(), wanted.numpy()))


def top_two(outputs: Any, labels: Any) -> float:
    """Return the share of labels among the two best classes."""
    return float((np.argsort(outputs, -1)[..., -2:] == labels[..., None]).any(-1).mean())
