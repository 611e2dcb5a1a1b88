"""A net in a file of the user's own: what becomes of a study when the file changes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from policysearch.cli import main
from policysearch.nn.models import MODELS
from policysearch.policy.presets import preset
from policysearch.search.executors import ProcessExecutor
from policysearch.search.jobs import Job
from policysearch.search.spec import StudySpec, load_spec, objective_of
from policysearch.search.study import load_results, run_study
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


def test_a_file_that_ends_the_program_is_an_input_error(study: StudySpec) -> None:
    write_net(NET.replace("return", "raise SystemExit(3) if 1 else"))
    with pytest.raises(InputError, match=r"net\.py:model: SystemExit: 3; expected it to run"):
        _ = objective_of(study).model


REGRESSION = """
import numpy as np
import policysearch as ps

def data():
    x = np.random.default_rng(0).standard_normal((200, 1, 8, 8)).astype(np.float32)
    return ps.Dataset("own", x, x[:, 0, :, 0].copy(), 150, 50, 8)
"""


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
    assert "nan" not in capsys.readouterr().out
