"""A training stopped and gone on with in another process is the training that was never stopped."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policysearch.data.datasets import load_dataset
from policysearch.formats import Rounding
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Phase, Policy, RoleRounding, uniform_layer
from policysearch.policy.presets import preset
from policysearch.rounding.rounder import Fast
from policysearch.train.checkpoint import Checkpoint
from policysearch.train.groups import Group
from policysearch.train.run import Run
from policysearch.train.schedule import Schedule
from policysearch.train.tasks import Task
from policysearch.train.training import train
from policysearch.values import InputError

STOPS = (11, 22, 44)
"""Not at a step that is looked at, so that what was counted before must be kept."""

MLP = Task(
    model="mlp",
    widths=(16,),
    data="digits",
    optimizer="adamw",
    learning_rate=0.01,
    weight_decay=0.1,
    schedule=Schedule(kind="cosine"),
    batch_size=32,
    steps=44,
    tail_steps=12,
)
RESNET = replace(MLP, model="resnet", widths=(4, 8), optimizer="momentum", data="digits32")
STOCHASTIC = RoleRounding(*[Rounding("stochastic")] * 4)
FALLING = LossScale(
    kind="dynamic", init_scale=2.0**40, growth_factor=2.0, backoff_factor=0.25, growth_interval=5
)


def policies(task: Task) -> dict[str, Policy]:
    names = task.build_model(load_dataset(task.data_name)).layer_names
    plain = replace(preset("float16", names), loss_scale=LossScale())
    low = tuple((name, uniform_layer("bfloat16")) for name in names)
    delayed = preset("te.delayed", names)
    return {
        "float32": preset("float32", names),
        "float16, scale that falls": replace(plain, loss_scale=FALLING),
        "delayed scaling": delayed,
        "stochastic": replace(preset("bfloat16", names), rounding=STOCHASTIC, master_weights=False),
        "phases": replace(delayed, phases=(Phase(5, low), Phase(15, delayed.layers))),
    }


CASES = [("mlp", MLP, name) for name in policies(MLP)]
CASES += [("batch norm", replace(RESNET, steps=24, tail_steps=8), "float16, scale that falls")]
SUMMED = replace(
    MLP,
    accumulation_steps=3,
    groups=(Group(("fc1.weight",), 0.5, 0.0), Group(("fc1.bias",), frozen=True)),
)
CASES += [(f"sums, {n}", SUMMED, n) for n in ("float16, scale that falls", "stochastic", "phases")]


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[ProcessPoolExecutor]:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield pool


def trained(
    task: Task,
    policy: Policy,
    file: Path | None = None,
    until: int | None = None,
    fast: Fast | None = None,
) -> Run:
    data = load_dataset(task.data_name) if isinstance(task.data, str) else task.data
    return train(task, policy, 3, dataset=data, until=until, checkpoint=file, fast=fast)


def check_same(found: Run, expected: Run) -> None:
    for field in fields(Run):
        mine, theirs = getattr(found, field.name), getattr(expected, field.name)
        if field.name == "params":
            assert mine.keys() == theirs.keys()
            for name in mine:
                np.testing.assert_array_equal(mine[name], theirs[name], err_msg=name)
        elif field.name not in ("resumed_at", "fast"):
            np.testing.assert_equal(mine, theirs, err_msg=field.name)


@pytest.mark.parametrize(("net", "task", "name"), CASES, ids=[f"{n}, {p}" for n, _, p in CASES])
def test_a_training_goes_on_in_another_process_to_the_same_bits(
    net: str, task: Task, name: str, elsewhere: ProcessPoolExecutor, tmp_path: Path
) -> None:
    policy, file = policies(task)[name], tmp_path / "run.npz"
    whole = trained(task, policy)
    assert len(whole.losses) == task.steps and not whole.diverged
    if "falls" in name:
        assert np.count_nonzero(whole.skipped) > 1 and len(set(whole.scales)) > 2
    before = 0
    for stop in (task.steps // 4, task.steps // 2, task.steps):
        run = elsewhere.submit(trained, task, policy, file, stop).result()
        assert run.resumed_at == before and len(run.losses) == stop
        assert file.exists() == (stop < task.steps)
        np.testing.assert_array_equal(run.losses, whole.losses[:stop])
        before = stop
    check_same(run, whole)


def test_a_stopped_run_has_its_share_of_the_tail(tmp_path: Path) -> None:
    run = trained(MLP, policies(MLP)["float32"], tmp_path / "run.npz", 11)
    assert run.tail_loss == pytest.approx(run.losses[-3:].mean())


@pytest.mark.parametrize("name", ["delayed scaling", "phases"])
def test_what_emulates_may_change_between(name: str, tmp_path: Path) -> None:
    policy, file = policies(MLP)[name], tmp_path / "run.npz"
    trained(MLP, policy, file, 13, "off")
    run = trained(MLP, policy, file)
    assert run.resumed_at == 13
    check_same(run, trained(MLP, policy))


def test_only_a_whole_file_of_the_same_training_is_gone_on_from(tmp_path: Path) -> None:
    policy, file = policies(MLP)["float32"], tmp_path / "run.npz"
    trained(MLP, policy, file, 13)
    kept = file.read_bytes()
    half = len(kept) // 2
    damaged = kept[:half] + bytes([kept[half] ^ 255]) + kept[half + 1 :]
    for content in (damaged, kept[:-1], b"", b"\0" * 100):
        with pytest.raises(InputError, match="checkpoint"):
            Checkpoint.from_bytes(content)
        file.write_bytes(content)
        run = trained(MLP, policy, file, 14)
        assert run.resumed_at == 0
    others: dict[str, Any] = {"rate": replace(MLP, learning_rate=0.02), "steps": MLP}
    for word, task in others.items():
        file.write_bytes(kept)
        run = trained(task, policy, file, 12 if word == "steps" else 14)
        assert run.resumed_at == 0, word
    file.write_bytes(kept)
    assert trained(MLP, policies(MLP)["stochastic"], file, 14).resumed_at == 0


def test_a_place_that_cannot_be_written_costs_the_steps_alone(tmp_path: Path) -> None:
    policy, file = policies(MLP)["float32"], tmp_path / "missing" / "run.npz"
    first = trained(MLP, policy, file, 13)
    assert not file.parent.exists()
    run = trained(MLP, policy, file)
    assert run.resumed_at == 0
    np.testing.assert_array_equal(run.losses[:13], first.losses)


@pytest.mark.torch
def test_masks_of_dropout_go_on_where_they_were(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from policysearch.importers.torch_export import from_torch

    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 16), torch.nn.Dropout(0.5), torch.nn.Linear(16, 10)
    )
    task = replace(MLP, model=from_torch(net, torch.zeros(2, 1, 8, 8)))
    policy, file = (
        preset("float16", task.build_model(load_dataset("digits")).layer_names),
        tmp_path / "run.npz",
    )
    whole = trained(task, policy)
    trained(task, policy, file, 11)
    check_same(trained(task, policy, file), whole)
