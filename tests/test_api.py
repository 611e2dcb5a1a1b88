"""The Python API: the README's example runs, and everything it names is there."""

from __future__ import annotations

import importlib
import inspect
import pydoc
import re
import runpy
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import policysearch
from policysearch import api
from policysearch.policy.policy import from_json
from tests.studies import write_study

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_example_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "studies").mkdir()
    widths = ("widths = [8]", "widths = [8, 8]")
    write_study(tmp_path / "studies", widths, name="lenet5-digits.toml")
    monkeypatch.chdir(tmp_path)
    (code,) = re.findall(r"```python\n(.*?)```", README, re.S)
    for old, new in (("run_study(study)", "run_study(study, processes=0)"), ("=0.01", "=9.0")):
        assert code.count(old) == 1
        code = code.replace(old, new)
    exec(compile(code, "example", "exec"), {"__name__": "__main__"})
    assert "step 7:" in capsys.readouterr().out
    policy = from_json((tmp_path / "results" / "tiny-policy.json").read_text())
    assert policy.layer("fc3") == policysearch.uniform_layer("float32")


def test_a_study_makes_the_folder_of_its_journal(tmp_path: Path) -> None:
    study = policysearch.load_study(write_study(tmp_path, ("seeds = [0, 1]", "seeds = [0]")))
    journal = tmp_path / "made" / "here" / "a.journal"
    assert len(policysearch.run_study(study, journal, trials=1, processes=0).trials) == 1
    assert len(policysearch.load_results(study, journal).trials) == 1


def test_everything_the_api_names_is_there() -> None:
    for name in policysearch.__all__:
        assert getattr(policysearch, name) is getattr(api, name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = policysearch.nothing


def test_completion_offers_the_api_and_nothing_else() -> None:
    assert set(dir(policysearch)) == {*policysearch.__all__, "__version__"}
    assert policysearch.__version__ == metadata.version("policysearch")


def test_help_completion_and_the_pages_of_the_api_agree() -> None:
    """`help(policysearch)` lists what `dir` offers, and so does the page that Sphinx makes."""
    shown = pydoc.plain(pydoc.render_doc(policysearch))
    conf = runpy.run_path(str(ROOT / "docs" / "conf.py"))
    page = ["# Python API\n"]
    conf["_names"](None, "api", page)
    documented = re.findall(r"auto(class|function):: policysearch\.(\w+)", page[0])
    assert sorted(name for _, name in documented) == sorted(policysearch.__all__)
    kinds = [kind for kind, _ in documented]
    assert kinds == sorted(kinds, reverse=True), "what is called comes first"
    for kind, name in documented:
        value = getattr(policysearch, name)
        assert (kind == "class") == inspect.isclass(value)
        assert inspect.getdoc(value), f"{name} has no docstring"
        assert re.search(rf"^ +(class )?{name}\(", shown, re.M), f"help lacks {name}"
    assert set(policysearch.__all__) < set(dir(policysearch))


@pytest.mark.torch
def test_readers_of_scripts_show_their_options() -> None:
    pytest.importorskip("torch")
    for name, file in (("from_loader", "loader"), ("from_lightning", "lightning")):
        reader = importlib.import_module(f"policysearch.train.scripts.{file}")
        shown, real = (inspect.signature(getattr(of, name)) for of in (policysearch, reader))
        assert shown == real


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("policysearch.train.trainer, policysearch.objective", "{'optuna', 'matplotlib'}"),
        ("policysearch.cli", "{'matplotlib', 'pandas', 'torch', 'dask'}"),
        ("policysearch.report.page.frame", "{'matplotlib', 'pandas', 'scipy.stats'}"),
    ],
)
def test_what_takes_long_to_import_is_not_waited_for(modules: str, heavy: str) -> None:
    code = f"import sys, {modules}; assert not {heavy} & set(sys.modules), 'heavy'"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])
