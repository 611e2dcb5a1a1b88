"""Trainings and studies on torch: losses within their own noise, a journal of their own."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from policysearch import api
from policysearch.cli import main
from policysearch.objective.objective import JITTER, Objective
from policysearch.optimizers.optimizer import trained
from policysearch.policy.presets import preset
from policysearch.report.table import caption
from policysearch.rounding.rounder import check_fast
from policysearch.study.specification import load_spec, objective_of
from policysearch.study.workers.worker import Payload, prepared
from policysearch.train.run import Run
from policysearch.train.training import train
from policysearch.values import InputError
from tests.host_calls import host_calls
from tests.studies import write_study
from tests.torch_place import FAST, PLACE

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.torch

STEPS = 30
SHORT = (("trials = 6", "trials = 2"), ("seeds = [0, 1]", "seeds = [0]"))


def _losses(objective: Objective, name: str, fast: str, seed: int = 0, jitter: float = 0.0) -> Run:
    policy = preset(name, objective.model.layer_names)
    task = objective.task.with_steps(STEPS)
    given = {"dataset": objective.dataset, "model": objective.model}
    return train(task, policy, seed, jitter=jitter, fast=fast, **given)  # type: ignore[arg-type]


def _apart(one: Run, other: Run) -> float:
    return float(np.max(np.abs(one.losses - other.losses)))


@pytest.mark.parametrize("name", ["float32", "te.current", "bfloat16", "apex.O3"])
@pytest.mark.parametrize("study", ["mlp-digits", "lenet5-digits"])
def test_losses_are_within_twice_the_jitter_of_the_emulator(study: str, name: str) -> None:
    objective = objective_of(load_spec(Path(f"studies/{study}.toml")))
    own = _losses(objective, name, "c")
    noise = max(
        _apart(_losses(objective, name, "c", seed), _losses(objective, name, "c", seed, JITTER))
        for seed in (0, 1, 2)
    )
    there = _losses(objective, name, FAST)
    assert there.fast == FAST and own.losses[0] > 1.2 * own.losses[-1]
    assert 0.0 < noise < 0.02 and _apart(there, own) <= 2.0 * noise


@pytest.mark.parametrize("optimizer", trained())
def test_every_optimizer_takes_its_steps(optimizer: str) -> None:
    objective = objective_of(load_spec(Path("studies/mlp-digits.toml")))
    task = replace(objective.task, optimizer=optimizer, learning_rate=1e-3)
    policy = preset("bfloat16", objective.model.layer_names)
    given = {"dataset": objective.dataset, "model": objective.model}
    runs = [train(task.with_steps(8), policy, 0, fast=f, **given) for f in ("c", FAST)]  # type: ignore[arg-type]
    for name, value in runs[0].params.items():
        scale = np.max(np.abs(value)) + 1e-6
        assert np.max(np.abs(runs[1].params[name] - value)) <= 2e-2 * scale, name
    assert not runs[1].diverged and runs[1].losses[0] != runs[1].losses[-1]


def test_no_array_leaves_the_device() -> None:
    from policysearch.train.trainer import PROBE_INTERVAL, Trainer

    objective = objective_of(load_spec(Path("studies/mlp-digits.toml")))
    policy = preset("te.current", objective.model.layer_names)
    trainer = Trainer(objective.model, objective.task, policy, 0, FAST)
    batch = objective.dataset.batch(np.arange(objective.task.batch_size))
    trainer.load(objective.model.init(np.random.default_rng(0)))
    with host_calls() as calls:
        for _ in range(PROBE_INTERVAL + 1):
            trainer.step(*batch)
        assert not calls
        np.asarray(next(iter(trainer._shared.values())))
    assert calls["read"] == 1
    observed = trainer.observations.so_far  # two steps were looked at
    assert len(observed.probed) > 10 and len(observed.watched.shares) == 2


def test_a_failure_is_traced_on_the_device() -> None:
    objective = objective_of(load_spec(Path("studies/mlp-digits.toml")))
    policy = preset("apex.O3", objective.model.layer_names)
    task = replace(objective.task.with_steps(6), learning_rate=1e6)
    given = {"dataset": objective.dataset, "model": objective.model}
    own, there = (train(task, policy, 0, fast=f, **given) for f in ("c", FAST))  # type: ignore[arg-type]
    assert own.origins and [row.kind for row in own.origins] == [row.kind for row in there.origins]
    assert own.origins[0].chain[-1].op == there.origins[0].chain[-1].op


def test_a_study_has_a_journal_of_its_own_and_says_what_ran(tmp_path: Path) -> None:
    study, journal = api.load_study(write_study(tmp_path, *SHORT)), tmp_path / "torch.journal"
    results = api.run_study(study, journal, fast="torch", place=PLACE, processes=0)
    assert {s.fast for t in results.trials for s in t.scores} == {FAST}
    assert "Emulated by torch" in caption(results)
    again = api.run_study(study, journal, fast="torch", place=PLACE, trials=3, processes=0)
    assert len(again.trials) == 3
    with pytest.raises(InputError, match=r"trained by the emulator; expected torch .* on "):
        api.run_study(study, journal, processes=0)
    other = tmp_path / "c.journal"
    api.run_study(study, other, processes=0)
    with pytest.raises(InputError, match=r"trained by torch .* on .*; expected the emulator"):
        api.run_study(study, other, fast="torch", place=PLACE, processes=0, accept_changes=True)


def test_processes_train_on_torch_as_this_one(tmp_path: Path) -> None:
    study = api.load_study(write_study(tmp_path, *SHORT))
    found = [
        api.run_study(study, tmp_path / f"{n}.journal", fast="torch", processes=n) for n in (0, 1)
    ]
    assert [t.scores for t in found[0].trials] == [t.scores for t in found[1].trials]


def test_the_command_line_and_the_study_file_name_it(tmp_path: Path) -> None:
    path, journal = write_study(tmp_path, *SHORT), tmp_path / "tiny.journal"
    words = ["run", str(path), "--storage", str(journal), "--fast", "torch", "--place", PLACE]
    assert main([*words, "--yes", "--no-confirm"]) == 0
    own = ("workers = 2", f'workers = 2\nfast = "torch"\nplace = "{PLACE}"')
    named = api.load_study(write_study(tmp_path, *SHORT, own, name="own.toml"))
    assert len(api.run_study(named, journal, processes=0).trials) == 2


MISTAKES = (
    ("torch", "gpu", r"place: 'gpu'; expected cpu, cuda or cuda:<number>"),
    ("c", "cuda", r"place: 'cuda' with fast 'c'; expected fast 'torch'"),
    (None, "cpu", r"place: 'cpu' with fast None; expected fast 'torch'"),
    ("torch", "cuda:98", r"place: cuda:98, of \d+ CUDA devices that torch sees; expected one"),
)


def _text(journal: Path) -> str:
    return journal.read_text() if journal.exists() else ""


@pytest.mark.parametrize(("fast", "place", "said"), MISTAKES)
def test_mistakes_are_said_before_anything_is_trained(
    tmp_path: Path, fast: str | None, place: str, said: str
) -> None:
    study = api.load_study(write_study(tmp_path, *SHORT))
    with pytest.raises(InputError, match=said):
        api.run_study(study, tmp_path / "a.journal", fast=fast, place=place, processes=0)
    assert "policysearch:run" not in _text(tmp_path / "a.journal")


def test_a_worker_without_the_device_says_so(tmp_path: Path) -> None:
    objective = objective_of(load_spec(write_study(tmp_path)))
    payload = Payload(objective.task, objective.model.fingerprint, "torch:cuda:98")
    assert prepared(payload).startswith("place: cuda:98, of ")


def test_torch_on_a_cpu_has_one_name() -> None:
    assert check_fast("torch") == check_fast("torch:cpu") == "torch"
