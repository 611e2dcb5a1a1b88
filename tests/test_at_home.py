"""At home in Python: what notebooks show, short reprs, methods of results, errors of scripts."""

from __future__ import annotations

import inspect
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import policysearch
from policysearch.report.at_home import html_of
from policysearch.report.page.frame import page
from policysearch.study.results.results import Results
from policysearch.study.specification import load_spec
from policysearch.values import InputError
from tests.made_up import results_of, tiny
from tests.studies import replaced_training, write_study
from tests.test_page import ATTACKS, Tree

API = policysearch.load_results
"""The API is imported when a name of it is first asked for."""


@pytest.fixture(scope="module")
def results() -> Results:
    return results_of(40, [f"{ATTACKS[0]}{i}" for i in range(300)], names=ATTACKS)


def test_notebooks_show_values_without_scripts_in_little_room(results: Results) -> None:
    trial = results.trials[3]
    for value in (results, trial, trial.policy, results.spec):
        shown = value._repr_html_() or ""
        assert shown == html_of(value)
        assert len(shown.encode()) < 20_000
        tree = Tree()
        tree.feed(shown)
        assert not tree.stack
        names = [row[0] for row in tree.shape]
        assert "script" not in names and "img" not in names and "table" in names
    tree = Tree()
    tree.feed(results._repr_html_() or "")
    assert str(results.verdict) in " ".join(tree.texts)


def test_reprs_are_short(results: Results) -> None:
    spec, trial = results.spec, results.trials[3]
    data = spec.task.load_dataset()
    model = spec.task.build_model(data)
    values: list[object] = [results, trial, trial.policy, spec, data, model, spec.task, spec.cost]
    values += [policysearch.LossScale(), trial.policy.layers[0][1], results_of(0)]
    for value in values:
        assert 10 < len(repr(value)) < 300, type(value)
    deep = results_of(5, [f"a rather long name of a layer {i}" for i in range(50)])
    assert len(repr(deep.trials[2].policy)) < 300
    assert f"{len(results.trials)} policies" in repr(results)


def test_results_are_plotted_reported_and_profiled(results: Results, tmp_path: Path) -> None:
    small = results_of()
    path = small.report(tmp_path / "new" / "x.html", study="x.toml")
    assert path.read_text(encoding="utf-8") == page(small, "x.toml")
    small.plot(tmp_path / "x.svg", axis="memory")
    text = (tmp_path / "x.svg").read_text(encoding="utf-8")
    assert text.startswith("<?xml") and "peak memory" in text
    small.plot(tmp_path / "y.svg", axis="memory")
    assert (tmp_path / "y.svg").read_text(encoding="utf-8") == text
    assert small.plot().axes
    with pytest.raises(InputError, match=r"x\.gif; expected a file that ends in \.png"):
        small.plot(tmp_path / "x.gif")
    with pytest.raises(InputError, match="axis: 'up'"):
        small.plot(axis="up")


def test_a_run_study_is_asked_in_python(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spec = load_spec(write_study(tmp_path))
    with replaced_training():
        found = policysearch.run_study(spec, tmp_path / "x.journal", processes=0)
        assert "6/6 trials" in capsys.readouterr().err
        assert policysearch.run_study(
            spec, tmp_path / "x.journal", processes=0, progress=False
        ).storage == (tmp_path / "x.journal")
        assert capsys.readouterr().err == ""
        number = found.front[0].number
        layer = found.front[0].policy.layers[0][0]
        asked = found.why(number, layer, processes=0)
    assert "modeled" in found.profile(number)
    assert layer in asked and len(repr(asked)) < 300
    assert "float32 run of tiny" in found.propose()


def test_a_finished_study_is_shown_without_its_net(tmp_path: Path) -> None:
    """Views read what the journal has; of the user's files neither data nor model are made."""
    from unittest import mock

    from policysearch.objective.objective import Objective

    (tmp_path / "own.py").write_text(
        "from policysearch.data.datasets import load_dataset\n\n\n"
        "def data():\n    digits = load_dataset('digits')\n"
        "    return digits.images, digits.labels\n"
    )
    spec = load_spec(
        write_study(
            tmp_path,
            ('name = "tiny"', 'name = "tiny"\nbaseline = "apex.O3"'),
            ('data = "digits"', 'data = "own.py:data"'),
        )
    )
    with replaced_training():
        policysearch.run_study(spec, tmp_path / "x.journal", processes=0, progress=False)
    with mock.patch.object(type(spec.task), "load_dataset", side_effect=AssertionError("made")):
        with pytest.raises(AssertionError, match="made"):
            _ = Objective(spec.task, spec.cost.device, spec.cost.stack).model
        results = policysearch.load_results(spec, tmp_path / "x.journal")
        assert [name for name, _ in results.references] == ["float32", "torch.tf32", "apex.O3"]
        html = page(results)
    assert results.provenance.versions["policysearch"] == policysearch.__version__
    assert results.provenance.versions["numpy"] in html
    assert page(replace(results, mixed=())) == html
    assert all(trial.cost.parts and trial.cost.live for trial in results.trials)


def test_an_error_in_a_script_is_told_without_the_frames_of_the_package(tmp_path: Path) -> None:
    script = tmp_path / "own.py"
    script.write_text(
        "import policysearch\n\n\ndef mine():\n    policysearch.load_study('no.toml')\n\n\nmine()\n"
    )
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, cwd=tmp_path)
    assert ran.returncode == 1
    assert ran.stderr.count(str(script)) == 2
    assert ran.stderr.count("  File ") == 3  # the third raises it again
    assert ran.stderr.splitlines()[-1].startswith("policysearch.values.InputError: no.toml")
    assert InputError("x: y")._render_traceback_() == ["InputError: x: y"]


def test_importing_the_api_changes_nothing_of_the_interpreter(tmp_path: Path) -> None:
    code = (
        "import sys, policysearch; hooks = sys.excepthook, sys.displayhook; "
        "policysearch.load_study; import policysearch.api; "
        "assert hooks == (sys.excepthook, sys.displayhook) == "
        "(sys.__excepthook__, sys.__displayhook__)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_names_and_signatures_are_there() -> None:
    assert set(policysearch.__all__) <= set(dir(policysearch))
    assert policysearch.__version__[0].isdigit()
    taken = inspect.signature(policysearch.from_torch).parameters
    assert list(taken) == ["module", "example_inputs", "loss", "labels", "name"]
    spec, _ = tiny()
    assert "tiny" in repr(spec)
