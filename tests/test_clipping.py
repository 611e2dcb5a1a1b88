"""Clipping of the recipe: against trainings in torch, and what older policy files said of it."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policysearch.api import export_policy
from policysearch.cli import main
from policysearch.data.datasets import Dataset, batches
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy, from_json, to_data
from policysearch.policy.policy_file import read_clipped, read_policy
from policysearch.policy.presets import preset
from policysearch.report.one_trial import exported_notes, trial_page
from policysearch.report.table import confirmed_table, warnings
from policysearch.space.rules_file import read_rules
from policysearch.study.opening import load_results
from policysearch.study.questions.by_hand import try_policy
from policysearch.study.specification import load_spec
from policysearch.train.feeding import initial_parameters
from policysearch.train.tasks import Task
from policysearch.train.training import train
from policysearch.values import InputError, from_plain, to_plain
from tests.studies import as_before, replaced_training, write_study

STEPS, JITTERS = 30, 4
TASK = Task(
    model="mlp",
    activation="tanh",
    widths=(24, 24),
    data="digits",
    learning_rate=0.1,
    batch_size=64,
    steps=STEPS,
    tail_steps=5,
)
CLIPPED: list[dict[str, Any]] = [{"clip_norm": 0.2}, {"clip_value": 0.01}]
SCALES = {
    "float32": LossScale(),
    "torch.autocast.bfloat16": LossScale(),
    "torch.autocast.float16": LossScale("fixed", 1024.0),
    "float16": LossScale("dynamic", 2.0**22, growth_interval=4),
}


@pytest.mark.torch
@pytest.mark.filterwarnings("ignore:.*optimizer.step.*:UserWarning")  # the first step is skipped
@pytest.mark.parametrize("clipped", CLIPPED, ids=str)
@pytest.mark.parametrize("name", SCALES)
def test_clipped_trainings_are_torchs(name: str, clipped: dict[str, Any], digits: Dataset) -> None:
    """Every update is clipped, after it is unscaled; a step that overflows is skipped before."""
    torch = pytest.importorskip("torch")
    from benchmarks.torch_nets import TorchNet
    from benchmarks.torch_training import train_in_torch

    torch.set_num_threads(1)
    task = replace(TASK, **clipped)
    model = task.build_model(digits)
    policy = replace(preset(name, model.layer_names), loss_scale=SCALES[name])
    initial = initial_parameters(model, 0)
    order = batches(digits, task.batch_size, task.steps, np.random.default_rng(0))
    ours = train(task, policy, 0, dataset=digits, initial=initial, batch_indices=order)
    net = partial(TorchNet, model, policy, initial)
    theirs = train_in_torch(net(), task, digits, order)
    noise = np.max(
        [
            np.abs(train_in_torch(net(jitter), task, digits, order).losses - theirs.losses)
            for jitter in range(JITTERS)
        ],
        0,
    )
    assert theirs.clipped[~theirs.skipped].all() and (~theirs.skipped).sum() >= 20
    assert theirs.skipped.any() == (SCALES[name].kind == "dynamic")
    np.testing.assert_array_equal(ours.scales, theirs.scales)
    np.testing.assert_array_equal(ours.skipped, theirs.skipped)
    gap = np.abs(ours.losses - theirs.losses)
    print(f"{name} {clipped}: {gap.max():.1e}, torch's own {noise.max():.1e}")
    assert gap.max() <= max(1e-6, 2 * noise.max())
    free = train(TASK, policy, 0, dataset=digits, initial=initial, batch_indices=order)
    assert np.abs(ours.losses - free.losses).max() > 0.05


OLDER = json.loads(preset("torch.autocast.bfloat16", ("flatten", "fc1", "tanh1", "fc2")).to_json())


def older_file(folder: Path, clip_norm: object) -> Path:
    """Write a policy file as policies were written while they had the field; return its path."""
    path = folder / "older.json"
    path.write_text(json.dumps({**OLDER, "gradient_clip_norm": clip_norm}))
    return path


def test_the_clipping_of_an_older_policy_is_read_apart(tmp_path: Path) -> None:
    policy = from_json(json.dumps(OLDER))
    assert read_policy(older_file(tmp_path, None)) == policy
    path = older_file(tmp_path, 0.5)
    assert read_clipped(path) == (policy, 0.5)
    assert "gradient_clip_norm" not in policy.to_json()
    with pytest.raises(InputError, match=r"older.json: gradient_clip_norm: 0.5; .*_norm = 0.5"):
        read_policy(path)
    for wrong, message in ((-1.0, "from 1e-30 to 1e"), ("1", "expected a finite number")):
        with pytest.raises(InputError, match=rf"older.json.gradient_clip_norm: .*{message}"):
            read_clipped(older_file(tmp_path, wrong))


def test_rules_files_say_nothing_of_clipping(tmp_path: Path) -> None:
    path = tmp_path / "rules.toml"
    path.write_text('base = "bfloat16"\n[policy]\ngradient_clip_norm = 1.0\n')
    with pytest.raises(InputError, match=r"rules.toml: policy.gradient_clip_norm: expected clip_"):
        read_rules(path)


def test_digests_are_those_before_clipping_left_the_policy() -> None:
    """What is stored under them is found again."""
    policy = preset("torch.autocast.bfloat16", ("fc1", "fc2"))
    assert (
        as_before(policy).digest
        == "93ed027cf2640bf0de6dbac7cd623c0197013386e188614e94cfb7f81724abdc"
    )


@pytest.mark.usefixtures("one_process")
def test_commands_move_the_clipping_of_an_older_policy_into_the_recipe(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What `try` trains then is a study of its own, whose file has to say so, too."""
    monkeypatch.chdir(tmp_path)
    study, path = str(write_study(tmp_path)), str(older_file(tmp_path, 0.01))
    said = "older.json: clipping is of the recipe now: clip_norm = 0.01 is added to the task here"
    given = ["--study", study]
    assert main(["try", path, *given, "--processes", "1"]) == 0
    assert capsys.readouterr().err.count(said) == 1
    assert main(["show", study]) == 2
    assert "task.clip_norm: None; expected 0.01" in capsys.readouterr().err
    clipped = write_study(tmp_path, ("steps = 6", "steps = 6\nclip_norm = 0.01"), name="own.toml")
    assert main(["try", path, "--study", str(clipped)]) == 0
    shown = capsys.readouterr()
    assert "already a trial of tiny" in shown.out and "clipping" not in shown.err
    assert main(["explain", path, *given]) == 0
    shown = capsys.readouterr()
    assert " clip " in shown.out and shown.err.count(said) == 1
    assert main(["explain", path, *given, "--diff"]) == main(["profile", path, *given]) == 0
    assert capsys.readouterr().err.count(said) == 2
    assert main(["rules", path, *given]) == 2
    assert "gradient_clip_norm: 0.01; expected null" in capsys.readouterr().err
    other = write_study(tmp_path, ("steps = 6", "steps = 6\nclip_value = 0.5"), name="value.toml")
    assert main(["try", path, "--study", str(other)]) == 2
    assert "gradient_clip_norm: 0.01; expected null, for the task has" in capsys.readouterr().err


def test_a_task_clips_once() -> None:
    with pytest.raises(InputError, match="clip_norm: 1 with clip_value; expected one of them"):
        Task(clip_norm=1.0, clip_value=1.0)
    for clipped in CLIPPED:
        task = replace(TASK, **clipped)
        assert from_plain(Task, to_plain(task), "task") == task
        assert task.fingerprint != TASK.fingerprint
        assert task.with_steps(60).clipping == task.clipping


@pytest.mark.parametrize("clip_norm", [0.5, None])
def test_a_clipped_trial_of_an_older_journal_is_read_and_said(
    clip_norm: float | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was trained by hand under another recipe than float32: that cannot be made good."""
    spec, path = load_spec(write_study(tmp_path)), tmp_path / "older.journal"
    policy = from_json(json.dumps(OLDER))

    def written_before(policy: Policy) -> str:
        return json.dumps({**to_data(policy), "gradient_clip_norm": clip_norm})

    with replaced_training(), monkeypatch.context() as patched:
        patched.setattr(Policy, "to_json", written_before)
        _, number, _ = try_policy(spec, path, policy, processes=0)
    assert "gradient_clip_norm" in path.read_text()
    results = load_results(spec, path)
    trial = results.trial(number)
    assert trial.policy == policy
    said = [line for line in warnings(results) if "TF32" not in line]
    assert len(said) == (clip_norm is not None)
    start = "trained with gradients clipped to 0.5, float32 without"
    assert all(line.startswith(f"warning: trial {number}: {start}") for line in said)
    assert (start in confirmed_table(results)) == (start in trial_page(results, number))
    assert (start in trial_page(results, number)) == (clip_norm is not None)
    assert any(line.startswith(start) for line in exported_notes(results, trial)) == bool(said)


def test_an_exported_file_says_how_the_recipe_clips(tmp_path: Path) -> None:
    spec = load_spec(write_study(tmp_path))
    policy = from_json(json.dumps(OLDER))
    said = {}
    for clipped in ({}, *CLIPPED):
        own = replace(spec, task=replace(spec.task, **clipped))
        export_policy(policy, own, tmp_path)
        lines = (tmp_path / "tiny-torch.py").read_text().splitlines()
        said[str(clipped)] = [line for line in lines if "clip_grad" in line]
    before = "# the recipe clips gradients: torch.nn.utils."
    after = " after scaler.unscale_(optimizer)"
    assert list(said.values()) == [
        [],
        [f"{before}clip_grad_norm_(module.parameters(), 0.2){after}"],
        [f"{before}clip_grad_value_(module.parameters(), 0.01){after}"],
    ]


@pytest.mark.torch
@pytest.mark.parametrize("clipped", CLIPPED, ids=str)
def test_verify_clips_in_torch_too(clipped: dict[str, Any], digits: Dataset) -> None:
    pytest.importorskip("torch")
    from policysearch.verify.verdict import verify

    task = replace(TASK, **clipped)
    policy = preset("torch.autocast.float16", task.build_model(digits).layer_names)
    verdict = verify(policy, task, steps=10)
    free = verify(policy, TASK, steps=10)
    assert not verdict.faults and not verdict.undecided
    assert np.abs(verdict.losses - free.losses).max() > 0.05
