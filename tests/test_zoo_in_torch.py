"""The known failures in torch: what was kept of them, the user's lines, exported repairs."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks.failures.kept import kept_net
from benchmarks.failures.zoo import DEVICE, FOLDER, STACK, failure, module_of, names, net_of
from policysearch.cli import main
from policysearch.diagnose.diagnosis import Diagnoser
from policysearch.nn.kept import kept_model
from policysearch.report.diagnosis_page import diagnosis_page

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("name", names())
def test_what_was_kept_is_what_torch_exports(name: str) -> None:
    kept, net = kept_net(name), net_of(name)
    assert kept_model(kept, name) == kept_model(net, name) is not None
    rng = np.random.default_rng(0)
    for ours, theirs in ((kept.init(rng), net.init(rng)), (kept.constants, net.constants)):
        assert set(ours) == set(theirs)
        assert all(np.array_equal(ours[key], theirs[key]) for key in theirs)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("attention_logits", "@ (self.k(h)"),
        ("mask", "-1e9"),
        ("t5_feed_forward", "self.wi1(x)"),
        ("summed_loss", ".sum()"),
        ("timestamps", "-"),
        ("variance", "mean * mean"),
        ("accumulator", "self.count(x)"),
    ],
)
def test_the_users_line_is_named(name: str, text: str) -> None:
    case = failure(name, torch=True)
    found = Diagnoser(case.objective, (0,)).diagnose(case.policy)
    file, _, number = found.cause.line.partition(":")
    assert file == f"{name}.py"
    lines = (FOLDER / file).read_text(encoding="utf-8").splitlines()
    assert text in lines[int(number) - 1]
    assert f"cause: {found.cause.line}: " in diagnosis_page(found, case.policy)


def study_of(name: str, folder: Path) -> Path:
    """Write the study of a case; the file of its net gives the net alone."""
    text = (FOLDER / f"{name}.py").read_text(encoding="utf-8")
    made = "\n\ndef model():\n    torch.manual_seed(0)\n    return net()[0]\n"
    (folder / "net.py").write_text(text + made, encoding="utf-8")
    task = {
        "model": "net.py:model",
        "data": "net.py:data",
        "tail_steps": 10,
        **module_of(name).TASK,
    }
    lines = [f"{key} = {json.dumps(value)}" for key, value in task.items()]
    head = ["[study]", 'name = "case"', "trials = 4", "seeds = [0]", "[task]"]
    end = [
        "[cost]",
        f'device = "{DEVICE}"',
        f'stack = "{STACK}"',
        "[space]",
        'formats = ["float16"]',
    ]
    study = folder / "study.toml"
    study.write_text("\n".join([*head, *lines, *end]), encoding="utf-8")
    return study


@pytest.mark.parametrize(
    "name", ["rms_norm", "exponential", "adam_epsilon", "bfloat16_storage", "static_scale"]
)
def test_an_exported_repair_passes_verify(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = failure(name, torch=True)
    found = Diagnoser(case.objective, (0,)).diagnose(case.policy)
    assert found.repair is not None
    study, out = study_of(name, tmp_path), tmp_path / "exported"
    (tmp_path / "repaired.json").write_text(found.repair.policy.to_json(), encoding="utf-8")
    there = ["--study", str(study), "--trust"]
    export = ["export", str(tmp_path / "repaired.json"), *there, "--out", str(out)]
    assert main([*export, "--strict"]) == 0
    (file,) = out.glob("*.py")
    capsys.readouterr()
    assert main(["verify", str(file), *there, "--steps", "20"]) == 0
    said = capsys.readouterr().out
    assert "skipped steps: 0 here, 0 there" in said and "losses" in said
