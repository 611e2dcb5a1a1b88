"""Training loops of torch read as tasks: what is drawn, kept, refused, and gone on from."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import policysearch as ps
from policysearch.data.spool import SpooledDataset, read_known, reusable
from policysearch.policy.presets import preset
from policysearch.study.specification import load_spec
from policysearch.train import user_code
from policysearch.train.feeding import batch_order
from policysearch.train.training import train

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch


class Points(torch.utils.data.Dataset):  # type: ignore[name-defined]
    """Points with noise that is drawn anew whenever one is read."""

    def __len__(self) -> int:
        return 30

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return torch.full((4,), float(index)) / 30 + 0.1 * torch.randn(4), index % 3


class Stream(torch.utils.data.IterableDataset):  # type: ignore[name-defined]
    def __iter__(self) -> Iterator[Any]:
        points = Points()
        return (points[int(index)] for index in torch.randperm(30))


def as_dict(rows: list[tuple[Any, int]]) -> dict[str, Any]:
    return {
        "x": torch.stack([x for x, _ in rows]),
        "labels": torch.tensor([y for _, y in rows]),
        "keep": torch.tensor([y > 0 for _, y in rows]),
        "kind": "points",
    }


def loader(**options: Any) -> Any:
    return torch.utils.data.DataLoader(Points(), batch_size=4, shuffle=True, **options)


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))


def loss_of_dict(module: Any, batch: dict[str, Any]) -> Any:
    assert batch["kind"] == "points"
    losses = torch.nn.functional.cross_entropy(
        module(batch["x"]), batch["labels"], reduction="none"
    )
    return losses[:, None].mul(batch["keep"][:, None]).mean()


def read(folder: Path, given: Any = None, **options: Any) -> ps.Script:
    chosen = {"loss": "cross_entropy", "steps": 6, "spool": folder / "x.spool", **options}
    module = chosen.pop("module", None) or net()
    return ps.from_loader(module, loader() if given is None else given, **chosen)


def drawn(given: Any, count: int, seed: int = 0) -> list[Any]:
    """Return batches of four as a loop would draw them, its generator seeded."""
    found: list[Any] = []
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        while len(found) < count:
            found += [x for x in given if len(x[1] if isinstance(x, list) else x["x"]) == 4]
    return found[:count]


@pytest.mark.parametrize("seed", [0, 3])
def test_batches_are_those_of_the_loader_with_its_shuffling_and_augmentation(
    tmp_path: Path, seed: int
) -> None:
    script = read(tmp_path, steps=6, accumulation_steps=2, seed=seed)
    assert isinstance(script.data, SpooledDataset)
    order = batch_order(script.task, script.data, 0)
    assert order.shape == (6, 8) and len(script.data.train[1]) == 48
    for step, rows in enumerate(order):
        (x,), labels = script.data.batch(rows)
        two = drawn(loader(), 12, seed)[2 * step : 2 * step + 2]
        np.testing.assert_array_equal(x, torch.cat([b[0] for b in two]).numpy())
        np.testing.assert_array_equal(labels, torch.cat([b[1] for b in two]).numpy())
    assert any("2 batches of fewer than 4" in line or "1 batches" in line for line in script.taken)


def test_what_of_a_validation_loader_is_left_out_is_said(tmp_path: Path) -> None:
    for batch, lines in (
        (4, ["left out: 1 batches of validation, of other than 4 examples"]),
        (5, []),
    ):
        other = torch.utils.data.DataLoader(Points(), batch_size=batch)  # of 30
        script = read(tmp_path, validation=other)
        assert f"validation: {30 // batch * batch} examples" in script.taken
        assert [line for line in script.taken if "of validation" in line] == lines


def test_other_seeds_take_the_steps_in_another_order_and_longer_runs_take_them_again(
    tmp_path: Path,
) -> None:
    script = read(tmp_path, steps=6, accumulation_steps=2)
    task, data = script.task, script.data
    first, other = batch_order(task, data, 0), batch_order(task, data, 1)
    assert (first == np.arange(48).reshape(6, 8)).all() and (other != first).any()
    assert sorted(map(tuple, other)) == sorted(map(tuple, first))
    longer = batch_order(task.with_steps(15), data, 0)
    assert (longer[:6] == first).all() and (longer[6:12] != first).any()
    assert sorted(map(tuple, longer[6:12])) == sorted(map(tuple, first))


@pytest.mark.parametrize("kind", ["map", "iterable", "collated"])
def test_loaders_of_every_kind_train_as_in_torch(tmp_path: Path, kind: str) -> None:
    given: Any = loader(drop_last=True)
    loss: Any = torch.nn.CrossEntropyLoss()
    if kind == "iterable":
        given = torch.utils.data.DataLoader(Stream(), batch_size=4, drop_last=True)
    if kind == "collated":
        given, loss = loader(drop_last=True, collate_fn=as_dict), loss_of_dict
    script = read(tmp_path, given, loss=loss, steps=12, optimizer="sgd", learning_rate=0.5)
    assert script.model.layer_names[:3] == ("0", "1", "2")
    ours = train(script.task, preset("float32", script.model.layer_names), 0, dataset=script.data)
    module, theirs = net(), []
    optimizer = torch.optim.SGD(module.parameters(), lr=0.5)
    for batch in drawn(given, 12):
        value = loss(module, batch) if kind == "collated" else loss(module(batch[0]), batch[1])
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        theirs.append(float(value.detach()))
    np.testing.assert_allclose(ours.losses, theirs, rtol=1e-6)
    assert len(set(theirs)) == 12


def test_a_spool_is_used_again_unless_what_is_drawn_is_other(tmp_path: Path) -> None:
    path = tmp_path / "x.spool"
    before = read(tmp_path).data.fingerprint
    made = path.stat().st_ino
    assert read(tmp_path).data.fingerprint == before and path.stat().st_ino == made
    assert read(tmp_path, seed=1).data.fingerprint != before and path.stat().st_ino != made
    assert os.listdir(tmp_path) == ["x.spool"]
    known = read_known(path)
    content = bytearray(path.read_bytes())
    content[5] ^= 1
    path.write_bytes(content)
    assert reusable(path, known.asked) is None  # its digest is another
    path.write_bytes(content[:-3])
    with pytest.raises(ps.InputError, match="expected a whole spool"):
        read_known(path)
    assert read(tmp_path).data.fingerprint == before


def test_processes_are_sent_the_file_and_not_the_arrays(tmp_path: Path) -> None:
    data = read(tmp_path, steps=40).data
    sent = pickle.dumps(data)
    assert len(sent) < 2000 and pickle.loads(sent).fingerprint == data.fingerprint
    (tmp_path / "x.spool").unlink()
    with pytest.raises(ps.InputError, match="expected a spool of batches"):
        pickle.loads(sent)


KILLED = """
import os, signal, sys
import torch
import policysearch as ps

class Batches:
    def __iter__(self):
        for index in range(1000):
            if index == 500:
                print("half", flush=True)
                os.kill(os.getpid(), signal.SIGKILL)
            yield torch.ones(4, 4), torch.zeros(4, dtype=torch.int64)

ps.from_loader(torch.nn.Linear(4, 3), Batches(), loss="cross_entropy", steps=1000,
    spool=sys.argv[1])
"""


def test_a_killed_spool_leaves_no_half_file(tmp_path: Path) -> None:
    command = [sys.executable, "-c", KILLED, str(tmp_path / "x.spool")]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == -signal.SIGKILL and ended.stdout == "half\n", ended.stderr
    assert os.listdir(tmp_path) == []


LARGE = """
import resource, sys
import torch
import policysearch as ps
from policysearch.policy.presets import preset
from policysearch.train.training import train

class Batches:
    def __iter__(self):
        while True:
            yield torch.randn(64, 3, 128, 128), torch.arange(64) % 3

net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 8, 8), torch.nn.Flatten(), torch.nn.Linear(1024, 3))
script = ps.from_loader(net, Batches(), loss="cross_entropy", steps=160, validation_batches=2,
    spool=sys.argv[1], optimizer="sgd", learning_rate=0.001)
run = train(script.task, preset("float32", script.model.layer_names), 0, dataset=script.data)
print(len(run.losses), script.data.fingerprint != "")
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
"""


@pytest.mark.slow
def test_a_study_over_two_gigabytes_stays_below_one(tmp_path: Path) -> None:
    command = [sys.executable, "-c", LARGE, str(tmp_path / "x.spool")]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    steps, peak = ended.stdout.splitlines()
    assert steps == "160 True" and (tmp_path / "x.spool").stat().st_size > 2e9
    assert int(peak) < 2**30


class Yields:
    """A loader of these batches; an error among them is raised."""

    def __init__(self, *batches: Any) -> None:
        self.batches = batches

    def __iter__(self) -> Iterator[Any]:
        for batch in self.batches:
            if isinstance(batch, Exception):
                raise batch
            yield batch


def rows(count: int = 4, width: int = 4) -> tuple[Any, Any]:
    return torch.ones(count, width), torch.arange(count) % 3


GPU = RuntimeError("Found no NVIDIA driver on your system.\nPlease check that you have one.")
BAD: list[tuple[Any, dict[str, Any], str]] = [
    (Yields(), {}, "loader: yields nothing; expected at least one batch"),
    (Yields(rows(), rows(width=5)), {}, r"input_0: shape \[4, 5\] after \[4, 4\]; expected one"),
    (Yields(rows(), rows(5)), {}, r"shape \[5, 4\] after \[4, 4\].* pad to a fixed length$"),
    (Yields(rows(), ValueError("lost\nfile")), {}, "batch 1: ValueError: 'lost file'; expected"),
    (Yields(GPU), {}, "RuntimeError: 'Found no NVIDIA driver on your system. Please"),
    (Yields((torch.ones(4, 4) / 0, rows()[1])), {}, "NaN or infinity; expected finite"),
    (Yields({"x": object()}), {}, "batch x: object; expected tensors and numbers"),
    (Yields(torch.tensor(1.0)), {}, "expected"),
    (Yields(rows(), rows()[:1]), {}, "input_0; expected input_0, input_1, as in the first"),
    (iter([rows()]), {}, "which yields once; expected what begins again, or a function"),
    (rows, {"steps": None, "epochs": 1}, "epochs: of a function, which has no end"),
    (lambda: 5, {}, "batch"),
    (5, {}, "loader: int; expected a DataLoader"),
    (Yields(rows()), {"steps": None}, "steps and epochs: none or both"),
    (Yields(rows()), {"loss": "entropy"}, "loss: 'entropy'; expected one of"),
    (Yields(rows()), {"rate": 0.1}, "option: 'rate'; expected one of"),
    (Yields(rows()), {"spool_bytes": 100}, "more than .* GiB; expected fewer steps"),
    (Yields(rows()), {"steps": None, "epochs": 1, "accumulation_steps": 2}, "too few batches"),
    (Yields(torch.ones(4, 4)), {}, "of batches without labels"),
    (Yields(rows()), {"precision": "fp7"}, "fp7"),
]


@pytest.mark.parametrize("given, options, message", BAD, ids=[row[2][:40] for row in BAD])
def test_bad_input_is_said_in_one_line_before_training(
    tmp_path: Path, given: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ps.InputError, match=message) as error:
        read(tmp_path, given, **options).task  # noqa: B018
    assert "\n" not in str(error.value)
    assert not list(tmp_path.glob(".*")) and not list(tmp_path.glob("*.tmp"))


def loop(module: Any, optimizer: Any, scheduler: Any, batches: list[Any]) -> list[float]:
    losses = []
    for x, y in batches:
        value = torch.nn.functional.cross_entropy(module(x), y)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        scheduler.step()
        losses.append(float(value.detach()))
    return losses


def parts(module: Any, kind: str) -> tuple[Any, Any]:
    made = {
        "adamw": lambda p: torch.optim.AdamW(p, lr=0.05, betas=(0.8, 0.95), weight_decay=0.1),
        "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, dampening=0.2),
        "adafactor": lambda p: torch.optim.Adafactor(p, lr=0.05, weight_decay=0.1),
        "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, alpha=0.95),
        "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
    }[kind](module.parameters())
    return made, torch.optim.lr_scheduler.LinearLR(made, 1.0, 0.1, 16)


@pytest.mark.parametrize("keys", [("model", "optimizer", "scheduler"), ("state_dict",)])
@pytest.mark.parametrize("kind", ["adamw", "momentum", "adafactor", "rmsprop", "adagrad"])
def test_a_checkpoint_is_gone_on_from(tmp_path: Path, kind: str, keys: tuple[str, ...]) -> None:
    first, then = drawn(loader(), 8, seed=9), drawn(loader(), 8)
    module = net()
    optimizer, scheduler = parts(module, kind)
    loop(module, optimizer, scheduler, first)
    states = [x.state_dict() for x in (module, optimizer, scheduler)]
    torch.save(dict(zip(keys, states, strict=False)), tmp_path / "x.pt")
    if len(keys) == 1:  # the weights alone: the others begin anew
        optimizer, scheduler = parts(module, kind)
    fresh = net()
    own = dict(zip(("optimizer", "scheduler"), parts(fresh, kind), strict=True))
    options = {"module": fresh, "steps": 8, "init_from": tmp_path / "x.pt", **own}
    script = read(tmp_path, **options)
    theirs = loop(module, optimizer, scheduler, then)
    assert script.model.updates_done == (0 if len(keys) == 1 else 1 if kind == "momentum" else 8)
    policy = preset("float32", script.model.layer_names)
    ours = train(script.task, policy, 0, dataset=script.data)
    np.testing.assert_allclose(ours.losses, theirs, rtol=2e-6)
    low = train(script.task, preset("bfloat16", script.model.layer_names), 0, dataset=script.data)
    assert 0 < abs(low.losses[0] / theirs[0] - 1) < 0.02  # begins at the same weights


def test_a_checkpoint_of_another_net_is_refused(tmp_path: Path) -> None:
    torch.save(torch.nn.Linear(4, 3).state_dict(), tmp_path / "x.pt")
    with pytest.raises(
        ps.InputError, match=r"init_from: .*x\.pt: module: .*; expected one that fits"
    ):
        read(tmp_path, init_from=tmp_path / "x.pt")
    with pytest.raises(ps.InputError, match=r"init_from: .*none\.pt: "):
        read(tmp_path, init_from=tmp_path / "none.pt")


REFUSED: list[tuple[Any, str]] = [
    (lambda p: torch.optim.Adam(p, lr=0.1, amsgrad=True), "optimizer amsgrad: True; expected"),
    (lambda p: torch.optim.AdamW(p, lr=0.1, maximize=True), "optimizer maximize: True; expected"),
    (lambda p: torch.optim.Adafactor(p, d=2.0), "optimizer d: 2.0; expected 1.0"),
    (lambda p: torch.optim.Rprop(p, lr=0.1), "optimizer: Rprop; expected one of"),
    (lambda p: torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1), "not of the module"),
]


@pytest.mark.parametrize("make, message", REFUSED, ids=[row[1][:24] for row in REFUSED])
def test_optimizers_that_are_no_recipe_are_refused(tmp_path: Path, make: Any, message: str) -> None:
    module = net()
    with pytest.raises(ps.InputError, match=message):
        read(tmp_path, module=module, optimizer=make(module.parameters()))


def test_groups_frozen_parts_and_schedulers_are_read(tmp_path: Path) -> None:
    module = net()
    groups = [{"params": [module[0].weight]}, {"params": [module[2].bias], "lr": 0.02}]
    optimizer = torch.optim.AdamW(groups, lr=0.1, weight_decay=0.3)
    scheduler = torch.optim.lr_scheduler.SequentialLR(
        optimizer,
        [
            torch.optim.lr_scheduler.LinearLR(optimizer, 0.1, 1.0, 3),
            torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 9),
        ],
        [3],
    )
    task = read(tmp_path, module=module, optimizer=optimizer, scheduler=scheduler, steps=12).task
    assert [g.words for g in task.groups] == [
        "2.bias: rate x 0.2",
        "0.bias, 2.weight: frozen",
    ]
    rates = []
    for _ in range(12):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        scheduler.step()
    np.testing.assert_allclose([task.rate_at(step) for step in range(12)], rates, rtol=1e-12)
    with pytest.raises(ps.InputError, match="ReduceLROnPlateau; expected one whose rate"):
        plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
        read(tmp_path, module=module, optimizer=optimizer, scheduler=plateau)


SCRIPT = """
import torch
import policysearch as ps

def loader():
    x = torch.randn(40, 4, generator=torch.Generator().manual_seed(0))
    rows = torch.utils.data.TensorDataset(x, x[:, :3].argmax(1))
    return torch.utils.data.DataLoader(rows, batch_size=8, shuffle=True)

def study():
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3))
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.02)
    return ps.from_loader(net, loader(), loss=torch.nn.CrossEntropyLoss(), steps=30,
        optimizer=optimizer, precision="bf16", clip_norm=1.0)
"""

STUDY = """
[study]
name = "own"
trials = 3
seeds = [0, 1]
target = "torch"
confirm_share = 0
[task]
script = "train.py:study"
learning_rate = 0.05
[cost]
device = "L4"
stack = "torch.compile"
[space]
formats = ["float32", "bfloat16"]
"""


def test_a_study_file_names_a_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    user_code._module.cache_clear()
    Path("train.py").write_text(textwrap.dedent(SCRIPT))
    Path("own.toml").write_text(STUDY)
    spec = load_spec(Path("own.toml"))
    assert spec.study.baseline == "torch.autocast.bfloat16"
    task = spec.task
    assert (task.learning_rate, task.steps, task.batch_size, task.clip_norm) == (0.05, 30, 8, 1.0)
    results = ps.run_study(spec, "own.journal", processes=0)
    again = load_spec(Path("own.toml"))
    assert again.task.fingerprint == task.fingerprint
    assert len(ps.load_results(again, "own.journal").trials) == len(results.trials) == 3
    assert Path("results/Sequential.spool").is_file()
    for bad, message in (
        ('script = "train.py:loader"', "task.script: train.py:loader returned DataLoader"),
        ('script = "train.py:study"\nmodel = "mlp"', "task.model: beside script"),
        ("script = 3", "task.script: 3; expected str"),
    ):
        Path("bad.toml").write_text(STUDY.replace('script = "train.py:study"', bad))
        with pytest.raises(ps.InputError, match=message):
            load_spec(Path("bad.toml"))
    user_code._module.cache_clear()


def test_a_script_becomes_a_study_that_processes_run(tmp_path: Path) -> None:
    script = read(tmp_path, steps=30, precision="bf16", learning_rate=0.1)
    study = ps.study_of(script, "L4", trials=2, seeds=(0, 1), confirm_share=0.0)
    assert study.study.baseline == "torch.autocast.bfloat16" and study.priced_batch_size == 4
    here = ps.run_study(study, tmp_path / "a.journal", processes=0)
    there = ps.run_study(study, tmp_path / "b.journal", processes=2)
    assert [t.scores for t in here.trials] == [t.scores for t in there.trials]
    with pytest.raises(ps.InputError, match="expected keys of"):
        ps.study_of(script, "L4", speed=1)


def test_recipe_precision_and_scaler_are_listed_and_go_into_the_study(tmp_path: Path) -> None:
    module = net()
    optimizer = torch.optim.AdamW(module.parameters(), lr=0.02, betas=(0.8, 0.9), eps=1e-6)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.5, total_iters=5)
    numbers = {"init_scale": 2.0**11, "growth_factor": 4.0, "backoff_factor": 0.25}
    scaler = torch.amp.GradScaler("cpu", growth_interval=7, **numbers)  # type: ignore[arg-type]
    given = {"module": module, "optimizer": optimizer, "scheduler": scheduler, "clip_norm": 0.5}
    script = read(tmp_path, precision="fp16", scaler=scaler, **given)
    assert script.taken[:6] == (
        "optimizer: adamw, learning_rate 0.02, weight_decay 0.01, beta1 0.8, beta2 0.9, "
        "epsilon 1e-06",
        "steps: 6, the loss of the last 1 is reported",
        "schedule: 6 rates, from 0.02 to 0.01",
        "clip_norm: 0.5",
        "precision: torch.autocast.float16, the baseline unless another is given",
        "loss scale: begins at 2048, 4 times as large after 7 clean steps, 0.25 times after an "
        "overflow; that of dynamic scales in [space]",
    )
    section = ps.study_of(script, "V100-SXM2").space
    assert section.loss_scales == ("none", "dynamic") and section.log2_scale == (11, 11)
    found = section.growth_intervals, section.growth_factors, section.backoff_factors
    assert found == ((7,), (4.0,), (0.25,))
    assert ps.study_of(read(tmp_path, precision="fp16"), "V100-SXM2").space.growth_intervals == ()
    other = read(tmp_path, scaler={**numbers, "growth_interval": 7})
    assert other.loss_scale == script.loss_scale
    bare = read(tmp_path, scaler={}).loss_scale
    assert bare is not None and bare.init_scale == 65536.0 and bare.growth_interval == 2000
    plain = read(tmp_path, scaler=torch.amp.GradScaler("cpu", enabled=False))
    assert plain.loss_scale is None and plain.taken[0].endswith("assumed: the script says none")
    with pytest.raises(ps.InputError, match="scaler: 'interval'; expected one of init_scale, "):
        read(tmp_path, scaler={"interval": 7})
    with pytest.raises(ps.InputError, match="scaler: int; expected a GradScaler, or a dict"):
        read(tmp_path, scaler=3)


def test_a_spool_knows_the_classes_of_whole_labels_alone(tmp_path: Path) -> None:
    for kind, loss, classes in ((torch.int64, "cross_entropy", 7), (torch.float32, "l1", 1)):
        labels = torch.tensor([0, 2, 6, 1]).to(kind)
        labels = labels if classes > 1 else labels[:, None]
        batches = [(torch.ones(4, 4), labels) for _ in range(3)]
        path = tmp_path / f"{loss}.spool"
        ps.from_loader(torch.nn.Linear(4, classes), batches, loss=loss, steps=3, spool=path)
        assert read_known(path).classes == classes
