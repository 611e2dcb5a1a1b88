"""Bad input: one line that says where, what was given and what is valid; nothing is written."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from policysearch.cli import main
from policysearch.data.datasets import Dataset, load_dataset
from policysearch.nn.models import mlp
from policysearch.policy.presets import preset
from policysearch.study.cost_section import CostSection
from policysearch.study.specification import load_spec
from policysearch.study.study import run_study
from policysearch.train import tasks
from policysearch.values import InputError, from_plain
from tests.studies import TINY, write_study

STUDY_MISTAKES = (
    ('trials = 6', 'trials = "six"', "study.trials: 'six'; expected int"),
    ('trials = 6', 'trials = 0', "study.trials: 0; expected a number from 1"),
    ('confirm_share = 0', 'confirm_share = -1', "study.confirm_share: -1.0; expected a number"),
    ('confirm_share = 0', 'confirm_share = 1001', "confirm_share: 1001.0; expected a number"),
    ('confirm_share = 0', 'confirm_factor = 0.9', "confirm_factor: 0.9; expected a number from 1"),
    ('workers = 2', 'workers = 0', "workers: 0; expected a number from 1 to 1024"),
    ('[task]', '[objectives]\nnames = ["speedup", "memory_ratio"]\n[task]',
     "objectives.names: ['speedup', 'memory_ratio']; expected loss_gap"),
    ('[task]', '[objectives]\nnames = ["loss_gap"]\n[task]', "expected loss_gap with speedup"),
    ('trials = 6', 'trails = 6', "study: unknown key 'trails'; expected one of name, seed"),
    ('name = "tiny"', '', "study: missing key 'name'"),
    ('name = "tiny"', 'name = "a/b"', "study.name: 'a/b'; expected letters"),
    ('"random"', '"cmaes"', "study.sampler: 'cmaes'; expected one of gain, random, tpe, nsga2, gp"),
    ('seeds = [0, 1]', 'seeds = []', "study.seeds: []; expected different training seeds"),
    ('seeds = [0, 1]', 'seeds = [0, "1"]', "study.seeds[1]: '1'; expected int"),
    ('"H100-SXM5"', '"H100"', "did you mean 'H100-SXM5'"),
    ('"torch.compile"', '"jax"', "cost.stack: 'jax'; expected one of torch.eager"),
    ('"float8_e4m3fn"]', '"float7"]', "space.formats: unknown format 'float7'; expected one of"),
    ('"float8_e4m3fn"]', '"bfloat16"]', "space.formats: ['float32', 'bfloat16', 'bfloat16']"),
    ('"float8_e4m3fn"]', '"e8m3fn"]', "format e8m3fn: largest number 5.95494e+38 exceeds float32"),
    ('ops = ["tanh"]', 'ops = ["sigmiod"]', "'sigmiod'; did you mean 'sigmoid'? expected one of "),
    ('trials = 6', 'trails = 6', "did you mean 'trials'?"),
    ('"float8_e4m3fn"]', '"float8_e4m3"]', "for your own; did you mean 'float8_e4m3fn'?"),
    ('"float8_e4m3fn"]', '"fp8"]', "did you mean 'float8_e4m3fn' or 'float8_e5m2'?"),
    ('"float8_e4m3fn"]', '"bf16"]', "did you mean 'bfloat16'?"),
    ('"apex.O3"]', '"torch.amp"]', "did you mean 'torch.autocast.float16'?"),
    ('"apex.O3"]', '"fp8"]', "did you mean 'float8'?"),
    ('"H100-SXM5"', '"A100"', "did you mean 'A100-SXM4-40GB' or 'A100-SXM4-80GB'?"),
    ('"H100-SXM5"', '"h100-sxm"', "did you mean 'H100-SXM5'?"),
    ('"torch.compile"', '"Torch.Compile"', "did you mean 'torch.compile'?"),
    ('"apex.O3"]', '"apex.O4"]', "space.ladder: 'apex.O4'; did you mean 'apex.O"),
    ('ops = ["tanh"]', 'groups = [{name = "a", layers = ["fc9"]}]', "'fc9'; expected one of"),
    ('"dynamic"]', '"adaptive"]', "space.loss_scales[2]: 'adaptive'; expected one of none"),
    ('[cost]', '[costs]', "table: 'costs'; expected one of study, task, cost"),
    ('model = "mlp"', 'model = "vgg"', "task.model: 'vgg'; expected one of"),
    ('data = "digits"', 'data = "mnist"', "task.data: 'mnist'; expected one of"),
    ('steps = 6', 'steps = 6.5', "task.steps: 6.5; expected int"),
    ('rate = 0.1', 'rate = nan', "task.learning_rate: nan; expected a finite number"),
    ('least_gain = 0', 'least_gain = 0.1', "least_gain: 0.1 with sampler 'random'; expe"),
    ('batch_size = 32', 'batch_size = 1438', "batch_size: 1438; expected 1 to 1437, the exam"),
    ('[study]', '[study', "expected TOML"),
    ('[study]', '[study]\nseed = 1\nseed = 2', "expected TOML"),
)  # fmt: skip


def refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run the command, which must fail with one line; return that line."""
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = [line for line in captured.err.split("\n") if "trials |" not in line and line]
    assert len(lines) == 1, captured.err
    return lines[0]


@pytest.mark.parametrize(("good", "bad", "message"), STUDY_MISTAKES)
def test_a_mistake_in_a_study_file(
    good: str, bad: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(tmp_path, (good, bad))
    storage = tmp_path / "x.journal"
    line = refused(["run", str(study), "--storage", str(storage)], capsys)
    assert message in line
    assert not storage.exists()


@pytest.mark.parametrize("content", [None, b"\xff\xfe\x00", b""])
def test_a_study_file_that_cannot_be_read(
    content: bytes | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "s.toml"
    if content is not None:
        path.write_bytes(content)
    assert f"policysearch: {path}: " in refused(["show", str(path)], capsys)


def test_a_folder_given_as_study(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "expected a study file" in refused(["run", str(tmp_path)], capsys)


def test_storage_in_a_folder_that_cannot_be_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(tmp_path)
    (tmp_path / "file").write_text("no folder")
    arguments = ["run", str(study), "--storage", str(tmp_path / "file" / "x.journal")]
    assert "expected a folder that can be made" in refused(arguments, capsys)


LAYERS = mlp((64, 8, 10), "tanh").layer_names


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"compute": "bfloat16"', '"compute": "float17"', "unknown format 'float17'"),
        ('"fc1"', '"fc7"', "'fc7'"),
        ('"master_weights"', '"master_weight"', "unknown key 'master_weight'"),
        ('{', '{{', "expected JSON"),
        ('"kind": "none"', '"kind": "magic"', "loss_scale.kind: 'magic'; expected one of none"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_policy_file(
    old: str, new: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(tmp_path)
    text = preset("bfloat16", LAYERS).to_json()
    assert old in text
    path = tmp_path / "p.json"
    path.write_text(text.replace(old, new, 1))
    assert message in refused(["explain", str(path), "--study", str(study)], capsys)


def test_an_unknown_preset_or_model(capsys: pytest.CaptureFixture[str]) -> None:
    line = refused(["explain", "preset:O7"], capsys)
    assert "'O7'; expected one of float32" in line
    line = refused(["explain", "preset:bfloat16", "--model", "vgg"], capsys)
    assert "model: 'vgg'; expected one of" in line
    assert "no.json" in refused(["explain", "no.json"], capsys)


def test_missing_and_corrupt_idx_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "idx"
    folder.mkdir()
    change = ('data = "digits"', f'data = "fashion_mnist"\ndata_folder = "{folder}"')
    study = write_study(tmp_path, change)
    arguments = ["run", str(study), "--storage", str(tmp_path / "x.journal")]
    assert str(folder) in refused(arguments, capsys)
    for name in ("train-images", "train-labels", "t10k-images", "t10k-labels"):
        kind = "idx3" if "images" in name else "idx1"
        (folder / f"{name}-{kind}-ubyte").write_bytes(b"\0\0\x08\x03 not quite")
    assert str(folder) in refused(arguments, capsys)
    assert not (tmp_path / "x.journal").exists()


def test_nan_in_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def with_nan(*_: object) -> Dataset:
        good = load_dataset("digits")
        images = np.array(good.images)
        images[3, 0, 2, 1] = np.nan
        return dataclasses.replace(good, inputs=(images,))

    monkeypatch.setattr(tasks, "load_dataset", with_nan)
    study = write_study(tmp_path)
    storage = tmp_path / "x.journal"
    line = refused(["run", str(study), "--storage", str(storage)], capsys)
    assert "inputs[0][3, 0, 2, 1]: nan; expected finite numbers" in line
    assert not storage.exists()


def test_every_key_of_a_study_is_checked_for_its_type(tmp_path: Path) -> None:
    """Whatever value is replaced by a table, the answer is an error line, not a traceback."""
    for line in TINY.splitlines():
        if "=" in line:
            key = line.partition(" =")[0]
            study = write_study(tmp_path, (line, f"{key} = {{a = 1}}"))
            assert main(["show", str(study)]) == 2


HIDDEN = ["\x1b[31m", "\a", "\n", "\u202e", "\x9b", "\u2028", "\ud800"]
COST = {"device": "L4", "stack": "torch.eager"}


@pytest.mark.parametrize("hidden", HIDDEN)
def test_text_that_acts_on_a_terminal_is_refused_without_being_printed(hidden: str) -> None:
    with pytest.raises(InputError, match="without control characters") as refusal:
        from_plain(CostSection, {**COST, "batch_size_reason": f"a{hidden}b"}, "file")
    assert hidden not in str(refusal.value)
    assert from_plain(CostSection, {**COST, "batch_size_reason": "größer, 大"}, "file")


def test_a_mistake_of_the_study_leaves_no_journal(tmp_path: Path) -> None:
    path = write_study(tmp_path, ("[cost]", '[cost]\nrecompute = ["Linear"]'))
    journal = tmp_path / "a.journal"
    with pytest.raises(InputError, match="recompute: 'Linear'"):
        run_study(load_spec(path), journal, processes=0)
    assert not journal.exists()
