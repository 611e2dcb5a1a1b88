"""Batches and schedulers of scripts that are filled up, left out or refused."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch")

import torch

import policysearch as ps
from policysearch.policy.presets import preset
from policysearch.train.scripts.named import script_at
from policysearch.train.scripts.recipe import recorded
from policysearch.train.training import train
from policysearch.values import InputError
from tests.test_scripts import Points, Yields, as_dict, loss_of_dict, net, read, rows

pytestmark = pytest.mark.torch


def lengths(rows: list[tuple[Any, int]]) -> dict[str, Any]:
    """Pad to the longest of the batch, as collators do."""
    longest = max(2 + y for _, y in rows)
    ids = torch.zeros(len(rows), longest, dtype=torch.int64)
    mask = torch.zeros(len(rows), longest)
    for place, (_, y) in enumerate(rows):
        ids[place, : 2 + y], mask[place, : 2 + y] = 1 + y, 1.0
    return {"ids": ids, "mask": mask, "labels": torch.tensor([y for _, y in rows])}


class Bag(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.head = torch.nn.Embedding(5, 6), torch.nn.Linear(6, 3)

    def forward(self, ids: Any, mask: Any) -> Any:
        return self.head((self.table(ids) * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


def bag_loss(module: Any, batch: Any) -> Any:
    return torch.nn.functional.cross_entropy(module(batch["ids"], batch["mask"]), batch["labels"])


def dice(outputs: Any, labels: Any) -> Any:
    """A loss of outputs and labels, as people write one."""
    p, wanted = torch.sigmoid(outputs), torch.nn.functional.one_hot(labels, 3)
    return 1.0 - 2.0 * (p * wanted).sum() / (p.sum() + wanted.sum())


def dice_of_batch(module: Any, batch: Any) -> Any:
    return dice(module(batch[0]), batch[1])


@pytest.mark.parametrize(
    "losses",
    [(dice, dice_of_batch), (torch.nn.functional.cross_entropy, torch.nn.CrossEntropyLoss())],
)
def test_a_function_may_be_a_loss_of_outputs_and_labels(tmp_path: Path, losses: Any) -> None:
    """It trains as the function of net and batch, or the module, that says the same."""
    runs = []
    for number, loss in enumerate(losses):
        (tmp_path / str(number)).mkdir()
        script = read(tmp_path / str(number), loss=loss)
        policy = preset("float32", script.model.layer_names)
        runs.append(train(script.task, policy, 0, dataset=script.data, model=script.model))
    assert runs[0].losses[0] > 0.1 and len(set(runs[0].losses)) > 3
    np.testing.assert_array_equal(runs[0].losses, runs[1].losses)


def smoothed(net: Any, batch: Any) -> Any:
    outputs = net(batch[0])
    loss = torch.nn.functional.cross_entropy(outputs, batch[1], label_smoothing=0.1)
    return loss, outputs


def most_sure(outputs: Any, labels: Any) -> float:
    """A metric of one's own: the largest output."""
    return float(outputs.max())


@pytest.mark.parametrize("loss", [torch.nn.CrossEntropyLoss(label_smoothing=0.1), smoothed])
def test_a_script_has_accuracy_and_a_metric_of_its_outputs(tmp_path: Path, loss: Any) -> None:
    """Those of torch, of a net that its rate leaves as it is."""
    torch.manual_seed(3)
    rows = torch.utils.data.TensorDataset(torch.randn(24, 4), torch.arange(24) % 3)
    held = torch.utils.data.DataLoader(rows, 4)
    still: dict[str, Any] = {"optimizer": "sgd", "learning_rate": 1e-30}
    script = read(tmp_path, held, loss=loss, validation=held, **still)
    task = replace(script.task, metric=most_sure)
    run = train(task, preset("float32", script.model.layer_names), 0, dataset=script.data)
    x, y = rows.tensors
    outputs = net()(x).detach()
    right = float((outputs.argmax(1) == y).float().mean())
    assert run.validation_accuracy == pytest.approx(right) and 0 < right < 1
    assert run.metric == pytest.approx(float(outputs.max()), rel=1e-6)
    assert run.validation_loss == pytest.approx(
        float(torch.nn.functional.cross_entropy(outputs, y, label_smoothing=0.1)), rel=1e-6
    )


@pytest.mark.parametrize("said", [4, None])
def test_lists_of_different_lengths_are_filled_up_and_train_as_in_torch(
    tmp_path: Path, said: int | None
) -> None:
    """To the length that is said, and to the longest where none is."""
    given = torch.utils.data.DataLoader(Points(), 2, shuffle=True, collate_fn=lengths)
    options: dict[str, Any] = {"module": Bag(), "loss": bag_loss, "steps": 15}
    for known, asked in (({}, "..."), ({"ids": 0}, "0")):
        with pytest.raises(
            ps.InputError,
            match=rf'expected one shape: .*, or say pads={{"ids": {asked}, "mask": \.\.\.}}, ',
        ):
            read(tmp_path, given, **options, pads=known)
    pads = {"ids": 0, "mask": 0}
    options |= {"pads": pads, "length": said, "optimizer": "sgd", "learning_rate": 0.1}
    script = read(tmp_path, given, **{**options, "module": Bag()})
    assert "sequences: filled up to 4" in script.taken
    ours = train(script.task, preset("float32", script.model.layer_names), 0, dataset=script.data)
    module, theirs, widths = Bag(), [], set()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for batch in given:
            widths.add(batch["ids"].shape[1])
            value = bag_loss(module, batch)
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
            theirs.append(float(value.detach()))
    assert len(widths) > 1
    np.testing.assert_allclose(ours.losses, theirs, rtol=2e-6)


def named(rows: list[tuple[Any, int]]) -> dict[str, Any]:
    return {**as_dict(rows), "id": [f"row {float(x[0]):.3f}" for x, _ in rows]}


def test_words_of_every_example_are_left_out_and_a_step_that_reads_them_is_refused(
    tmp_path: Path,
) -> None:
    given = torch.utils.data.DataLoader(Points(), 4, collate_fn=named)
    script = read(tmp_path, given, loss=loss_of_dict, steps=5)
    assert "left out: id, words of every example" in script.taken
    plain = torch.utils.data.DataLoader(Points(), 4, collate_fn=as_dict)
    other = read(tmp_path / "other", plain, loss=loss_of_dict, steps=5)
    np.testing.assert_array_equal(script.data.inputs[0], other.data.inputs[0])
    with pytest.raises(ps.InputError, match="'id'"):
        read(tmp_path, given, loss=lambda m, b: loss_of_dict(m, b) * len(b["id"]), steps=5)


class Corrupt(Points):
    def __getitem__(self, index: int) -> Any:
        raise ValueError("tile 7 is corrupt: its header says 0 x 0")


def test_an_error_in_a_process_of_the_loader_keeps_its_reason(tmp_path: Path) -> None:
    for workers in (0, 1):
        given = torch.utils.data.DataLoader(Corrupt(), 2, num_workers=workers)
        said = r"batch 0: ValueError: 'tile 7 is corrupt: its header says 0 x 0'; expected a batch"
        with pytest.raises(ps.InputError, match=said):
            read(tmp_path, given, module=net(), steps=2)


def test_a_scheduler_that_ends_before_the_run_or_moves_more_is_refused(tmp_path: Path) -> None:
    cycle = torch.optim.lr_scheduler.OneCycleLR
    with pytest.raises(ps.InputError, match=r"scheduler, step \d+: Tried to step"):
        module = net()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        scheduler = cycle(optimizer, 0.1, total_steps=4, cycle_momentum=False)
        read(tmp_path, module=module, optimizer=optimizer, scheduler=scheduler, steps=12)
    optimizer = torch.optim.SGD(net().parameters(), lr=0.1, momentum=0.9)
    scheduler = cycle(optimizer, 0.1, total_steps=20, cycle_momentum=False)
    assert read(tmp_path, module=net(), steps=12).task.momentum == 0.9

    class Decaying(torch.optim.lr_scheduler.LambdaLR):
        def step(self, epoch: Any = None) -> None:
            super().step(epoch)
            self.optimizer.param_groups[0]["weight_decay"] = 0.1 * self.last_epoch

    scheduler = Decaying(optimizer, lambda step: 1.0)
    with pytest.raises(ps.InputError, match=r"step 1: weight_decay 0.1 after 0.0; .* momentum alo"):
        recorded(optimizer, [(scheduler, 1)], 5)
    weights = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    optimizer = torch.optim.SGD([{"params": [p]} for p in weights], lr=0.1)
    own = torch.optim.lr_scheduler.LambdaLR(optimizer, [lambda s: 1.0, lambda s: 0.9**s])
    with pytest.raises(ps.InputError, match=r"scheduler, step 1: .* expected one schedule for all"):
        recorded(optimizer, [(own, 1)], 5)


def drawn() -> tuple[Any, Any]:
    x = torch.randn(4, 4)
    return x, x[:, :3].argmax(1)


def endless() -> Iterator[tuple[Any, Any]]:
    while True:
        yield drawn()


@pytest.mark.parametrize("loader", [drawn, endless])
def test_a_function_gives_a_batch_a_call_or_what_yields_them(
    tmp_path: Path, loader: Callable[[], Any]
) -> None:
    """As nanoGPT's `get_batch`."""
    script = read(tmp_path, loader, steps=5)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        batches = [drawn() for _ in range(5)]
    x, y = (torch.cat(parts).numpy() for parts in zip(*batches, strict=True))
    (inputs,), labels = script.data.train
    assert np.array_equal(inputs, x) and np.array_equal(labels, y)
    assert script.data.validation_count and script.task.steps == 5


SCRIPT = """
import torch, policysearch

class Own(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = torch.nn.Linear(3, 2)

    def forward(self, x):
        return self.fc(x)

def script():
    torch.manual_seed(0)
    net, criterion = Own(), torch.nn.CrossEntropyLoss()
    rows = torch.utils.data.TensorDataset(torch.randn(32, 3), torch.arange(32) % 2)

    def loss(module, batch):
        x, y = batch
        return criterion(module(x), y)

    loader = torch.utils.data.DataLoader(rows, 8)
    return policysearch.from_loader(net, loader, loss=loss, steps=2)
"""


OF_OUTPUTS = """
    def loss(outputs, labels):
        return criterion(outputs, labels)
"""


@pytest.mark.parametrize("takes", ["batch", "outputs"])
def test_a_net_whose_loss_is_inside_a_function_is_made_again_elsewhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, takes: str
) -> None:
    """As `verify` does in its own process."""
    monkeypatch.chdir(tmp_path)
    text = SCRIPT
    if takes == "outputs":
        before, _, rest = SCRIPT.partition("\n    def loss(module, batch):")
        text = before + OF_OUTPUTS + "\n    loader" + rest.partition("\n    loader")[2]
    (tmp_path / "train.py").write_text(text, encoding="utf-8")
    model: Any = script_at("train.py:script", tmp_path).model
    there = pickle.loads(pickle.dumps(model.source))
    assert model.source.source is not None and there.source is None
    x, y = torch.randn(8, 3), torch.arange(8) % 2
    here, again = model.source()(x, y), there()(x, y)
    (loss, outputs), (same, same_outputs) = here, again  # which come beside the loss, found or told
    assert torch.equal(loss, same) and loss.dim() == 0
    assert torch.equal(outputs, same_outputs) and outputs.shape == (8, 2)


def test_a_loader_that_validates_gives_an_eighth_of_what_is_trained_on(tmp_path: Path) -> None:
    """Or 8 batches, if that is more; without one the same examples validate, and that is said."""
    x, y = torch.randn(400, 3), torch.arange(400) % 2
    batches = list(zip(x.split(4), y.split(4), strict=True))

    def read(steps: int, **options: Any) -> ps.Script:
        loss = torch.nn.functional.cross_entropy
        file = tmp_path / f"{steps} {sorted(options)}.spool"
        return ps.from_loader(
            torch.nn.Linear(3, 2), batches, loss=loss, steps=steps, spool=file, **options
        )

    assert read(16, validation=batches).data.validation_count == 8 * 4
    many = read(160, validation=batches)
    assert many.data.validation_count == 20 * 4 and "validation: 80 examples" in many.taken
    few = read(160, validation=batches, validation_batches=3)
    assert few.data.validation_count == 3 * 4
    own = read(160)
    assert own.data.validation_count == 8 * 4
    assert any("of the same examples: `validation` takes" in line for line in own.taken)


def test_a_loader_without_a_length_validates(tmp_path: Path) -> None:
    x, y = torch.randn(64, 3), torch.arange(64) % 2

    class Stream(torch.utils.data.IterableDataset):
        def __iter__(self) -> Iterator[Any]:
            return iter(zip(x + 9.0, y, strict=True))

    loader = torch.utils.data.DataLoader(Stream(), batch_size=4)
    with pytest.raises(TypeError):
        len(loader)
    script = ps.from_loader(
        torch.nn.Linear(3, 2),
        [*map(list, zip(x.split(4), y.split(4), strict=True))],
        loss=torch.nn.functional.cross_entropy,
        steps=16,
        validation=loader,
        spool=tmp_path / "x.spool",
    )
    (validated,), _ = script.data.validation
    assert np.array_equal(np.asarray(validated), (x + 9.0)[:32].numpy())


def of_tensors(outputs: Any, labels: Any) -> float:
    """As a training script has it: numpy has no clamp."""
    right = (outputs.argmax(1) == labels).sum() / (labels >= 0).sum().clamp(min=1)
    return float(right.item())


def of_arrays(outputs: Any, labels: Any) -> Any:
    return (outputs.argmax(1) == labels).astype(float).mean()


def of_neither(outputs: Any, labels: Any) -> Any:
    return outputs.no_such_thing()


@pytest.mark.parametrize("metric", [of_tensors, of_arrays])
def test_a_metric_may_be_a_function_of_tensors_or_arrays(tmp_path: Path, metric: Any) -> None:
    x = torch.randn(64, 3)
    batches = list(zip(x.split(4), (x[:, 0] > 0).long().split(4), strict=True))

    def script(metric: Any) -> ps.Script:
        return ps.from_loader(
            torch.nn.Linear(3, 2),
            batches,
            loss=torch.nn.functional.cross_entropy,
            steps=16,
            metric=metric,
            spool=tmp_path / "x.spool",
        )

    study = ps.study_of(script(metric), "RTX-4090")
    assert study.task.metric is metric
    run = train(study.task, preset("float32", ("",)), 0, dataset=study.task.load_dataset())
    assert run.metric is not None and 0.0 < run.metric < 1.0
    assert run.metric == pytest.approx(run.validation_accuracy)
    with pytest.raises(InputError, match=r"no_such_thing'; expected a number of .* or tensors"):
        task = ps.study_of(script(of_neither), "RTX-4090").task
        task.build_model(task.load_dataset())


METRIC = """
import torch, policysearch as ps
x = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
y = (x[:, 0] > 0).long()
def share(outputs, labels):
    return (outputs.argmax(1) == labels).float().mean().clamp(min=0.0)
def script():
    batches = list(zip(x.split(4), y.split(4)))
    return ps.from_loader(torch.nn.Linear(3, 2), batches, loss=torch.nn.functional.cross_entropy,
                          steps=16, metric=METRIC)
"""


def test_a_metric_that_the_script_defines_is_known_in_other_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(METRIC.replace("metric=METRIC", "metric=share"))
    script = script_at("train.py:script", Path())
    assert script.recipe["metric"] == f"{Path('train.py').absolute()}:share"
    study = ps.study_of(script, "RTX-4090")
    assert study.task.metric_name == "train.py:share"
    run = train(study.task, preset("float32", ("",)), 0, dataset=study.task.load_dataset())
    assert run.metric == pytest.approx(run.validation_accuracy) and run.metric
    Path("inner.py").write_text(METRIC.replace("metric=METRIC", "metric=lambda *_: 1.0"))
    with pytest.raises(InputError, match=r"metric: <function .*; expected a function that the"):
        script_at("inner.py:script", Path())


def test_epochs_are_told_to_the_loader(tmp_path: Path) -> None:
    """A distributed sampler draws anew where it is told so."""

    class Told(Yields):
        def __init__(self, *batches: Any) -> None:
            super().__init__(*batches)
            self.epochs: list[int] = []

        def set_epoch(self, epoch: int) -> None:
            self.epochs.append(epoch)

    told = Told(rows(), rows())
    assert read(tmp_path, told, steps=5).task.steps == 5
    assert told.epochs[-3:] == [0, 1, 2]  # the first batch is read before, for its shapes


@pytest.mark.parametrize("epochs", [0.0, -1.0])
def test_no_epochs_are_refused(tmp_path: Path, epochs: float) -> None:
    with pytest.raises(ps.InputError, match=f"epochs: {epochs:g}"):
        read(tmp_path, Yields(rows()), steps=None, epochs=epochs).task  # noqa: B018
