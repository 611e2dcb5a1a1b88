"""A net in a file of the user's own: what becomes of a study when the file changes."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from policysearch.cli import main
from policysearch.nn.models import MODELS
from policysearch.policy.presets import preset
from policysearch.study.opening import load_results
from policysearch.study.specification import StudySpec, load_spec, objective_of
from policysearch.study.study import run_study
from policysearch.study.workers.executors import Job, ProcessExecutor
from policysearch.train import user_code
from policysearch.values import InputError
from tests.studies import replaced_training, write_study

NET = """
from policysearch.nn.models import MODELS

def model():
    return MODELS["mlp"]((1, 8, 8), 10, "tanh", (8,))
"""
CHANGES = (
    ('model = "mlp"\nactivation = "tanh"\nwidths = [8]', 'model = "net.py:model"'),
    ("trials = 6", "trials = 3"),
)


def write_net(text: str) -> None:
    Path("net.py").write_text(text)
    user_code._module.cache_clear()  # as in the next command


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[StudySpec]:
    monkeypatch.chdir(tmp_path)
    write_net(NET)
    yield load_spec(write_study(tmp_path, *CHANGES))
    user_code._module.cache_clear()


@pytest.mark.parametrize(
    "change", [("(8,)", "(9,)"), ('"tanh"', '"relu"'), ("8,))", "8, 8))")], ids=str
)
def test_a_changed_net_is_never_added_to_the_results_of_the_old(
    study: StudySpec, change: tuple[str, str]
) -> None:
    storage = Path("x.journal")
    with replaced_training():
        before = run_study(study, storage, processes=0)
        write_net(NET.replace(*change))
        kept = storage.read_bytes()
        with pytest.raises(InputError, match=r"storage x\.journal: model differs: .*; expected"):
            run_study(study.with_trials(5), storage, processes=0, accept_changes=True)
        assert storage.read_bytes() == kept
        assert load_results(study, storage) == before
        elsewhere = load_spec(write_study(Path(), *CHANGES, ("H100-SXM5", "V100-SXM2")))
        with pytest.raises(InputError, match="model differs"):
            load_results(elsewhere, storage)
        write_net("# the same, said otherwise\n" + NET)
        assert len(run_study(study.with_trials(5), storage, processes=0).trials) == 5


def test_what_a_task_says_of_a_model_is_not_said_again() -> None:
    spec = load_spec(Path(__file__).parents[1] / "studies" / "mlp-digits.toml")
    assert objective_of(spec).model.fingerprint == ""
    made = [MODELS["mlp"]((1, 8, 8), 10, "tanh", widths) for widths in ((8,), (8,), (9,))]
    first, same, other = (model.fingerprint for model in made)
    assert first and first == same != other


def test_a_file_that_changes_while_the_command_runs_ends_it(study: StudySpec) -> None:
    objective = objective_of(study)
    job = Job(preset("float32", objective.model.layer_names), 0)
    for text, said in (
        (NET.replace("(8,)", "(9,)"), "its model is another; expected the file to stay"),
        (NET + "\nhalf a lin", "net.py: SyntaxError"),
    ):
        Path("net.py").write_text(text)
        refused = pytest.raises(InputError, match=rf"training processes: .*{said}")
        with refused, ProcessExecutor(objective, 1) as executor:
            list(executor.run([job]))


def test_a_file_is_run_as_it_stands_however_soon_it_changed(
    study: StudySpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As large and as old by the clock of files as before; annotations are the file's own."""
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    net = NET.replace("model():", "model(x: int = 3):")
    for text in (net, net.replace("(8,)", "(9,)")):
        write_net(text)
        os.utime("net.py", (0, 0))
        found = user_code.function_of("task.model", "net.py", "model")
        assert found.__annotations__ == {"x": int}
    assert found().init(np.random.default_rng(0))["fc1.weight"].shape[0] == 9


def test_a_file_that_ends_the_program_is_an_input_error(study: StudySpec) -> None:
    write_net(NET.replace("return", "raise SystemExit(3) if 1 else"))
    with pytest.raises(InputError, match=r"net\.py:model: SystemExit: 3; expected it to run"):
        _ = objective_of(study).model


def test_what_is_not_there_is_told_what_is(study: StudySpec) -> None:
    write_net("import os\nwidth = 3\ndef b(): return 1\ndef _c(): return 2\ndef __d(): return 3\n")
    for name in ("a", "width"):
        said = rf"^x: net\.py: no function '{name}'; expected one of b$"
        with pytest.raises(InputError, match=said):
            user_code.result_of("x", f"net.py:{name}")
    with pytest.raises(InputError, match=r"no int 'b'; expected one of width$"):
        user_code.value_of("x", "net.py:b", int)
    assert user_code.value_of("x", "net.py:width", int) == 3
    with pytest.raises(InputError, match=r"^x: 'no\.py': no such file; expected a Python file$"):
        user_code.result_of("x", "no.py:b")


def test_what_a_file_makes_can_be_sent(study: StudySpec) -> None:
    write_net("class Own:\n    size = 3\ndef own(): return Own()\n")
    made = user_code.result_of("x", "net.py:own")
    assert pickle.loads(pickle.dumps(made)).size == 3


@pytest.mark.torch
def test_a_file_that_is_the_first_to_import_torch_draws_what_it_draws_later(
    study: StudySpec,
) -> None:
    """One that does not name it does not wait for it."""
    pytest.importorskip("torch")
    write_net("import torch\nnumber = float(torch.rand(1))\n")
    Path("plain.py").write_text("number = 0.5\n")
    here = user_code.value_of("x", "net.py:number", float)
    code = (
        "from policysearch.train.user_code import value_of; import sys; "
        "value_of('x', 'plain.py:number', float); assert 'torch' not in sys.modules; "
        "print(value_of('x', 'net.py:number', float))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(ran.stdout) == here


REGRESSION = """
import numpy as np
import policysearch as ps

def data():
    x = np.random.default_rng(0).standard_normal((200, 1, 8, 8)).astype(np.float32)
    return ps.Dataset("own", x, x[:, 0, :, 0].copy(), 150, 50, 8)
"""


MODULE = """
import torch

def model():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 10))
"""


@pytest.mark.torch
def test_a_module_is_imported_once_in_a_command_and_anew_with_another_file(
    study: StudySpec,
) -> None:
    pytest.importorskip("torch")
    write_net(MODULE)
    first, same = (objective_of(study).model for _ in range(2))
    assert first is same
    other = replace(study, task=replace(study.task, loss="mean_squared_error"))
    assert objective_of(other).model.fingerprint != first.fingerprint
    write_net(MODULE.replace("10)", "10, bias=False)"))
    assert objective_of(study).model.fingerprint != first.fingerprint


def test_labels_that_are_no_classes_are_recorded_and_shown_without_accuracy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    write_net(REGRESSION)
    changes = ('data = "digits"', 'data = "net.py:data"\nloss = "mean_squared_error"'), CHANGES[1]
    study = load_spec(write_study(tmp_path, *changes))
    Path("results").mkdir()
    results = run_study(study, Path("results/tiny.journal"), processes=0)
    assert results == load_results(study, Path("results/tiny.journal"))
    assert len(results.trials) >= 3
    assert all(trial.validation_accuracy is None for trial in results.trials)
    number = results.front[0].number
    for command in (["show"], ["show", "--csv"], ["show", "--trial", str(number)]):
        assert main([command[0], "tiny.toml", *command[1:]]) == 0
    out = capsys.readouterr().out
    assert "nan" not in out and "nats" not in out
    assert "val loss" in out and "val acc" not in out
    assert " MSE, counted from" in out and "validation loss: " in out
    row = results.rows()[0]
    assert row.loss_unit == "MSE" and row.validation_loss is not None
