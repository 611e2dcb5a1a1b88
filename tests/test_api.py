"""The Python API: the README's example runs, and everything it names is there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import policysearch
from policysearch import api
from policysearch.policy.policy import from_json
from tests.studies import write_study

EXAMPLE = """
import policysearch as ps

if __name__ == "__main__":  # training runs in fresh processes, which import this file
    study = ps.load_study("studies/lenet5-digits.toml")
    results = ps.run_study(study)
    for trial in results.front:
        print(trial.policy.name, trial.loss_gap, trial.cost.speedup, trial.cost.memory_ratio)
    best = ps.pick(results, "fastest", max_gap=0.01)
    mixed = best.policy.with_layers({"fc3": ps.uniform_layer("float32")})  # inner wins
    print(ps.explain(mixed, study.task))
    ps.export_policy(mixed, study, "results")
"""


def test_the_example_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "studies").mkdir()
    widths = ("widths = [8]", "widths = [8, 8]")
    write_study(tmp_path / "studies", widths, name="lenet5-digits.toml")
    monkeypatch.chdir(tmp_path)
    code = EXAMPLE.replace("run_study(study)", "run_study(study, processes=0)")
    code = code.replace("max_gap=0.01", "max_gap=9.0")
    exec(compile(code, "example", "exec"), {"__name__": "__main__"})
    assert "step 7:" in capsys.readouterr().out
    policy = from_json((tmp_path / "results" / "tiny-policy.json").read_text())
    assert policy.layer("fc3") == policysearch.uniform_layer("float32")


def test_everything_the_api_names_is_there() -> None:
    for name in api.__all__:
        assert getattr(policysearch, name) is getattr(api, name)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = policysearch.nothing


@pytest.mark.parametrize(
    ("modules", "heavy"),
    [
        ("policysearch.train.trainer, policysearch.objective", "{'optuna', 'matplotlib'}"),
        ("policysearch.cli", "{'matplotlib', 'pandas', 'torch', 'dask'}"),
    ],
)
def test_what_takes_long_to_import_is_not_waited_for(modules: str, heavy: str) -> None:
    code = f"import sys, {modules}; assert not {heavy} & set(sys.modules), 'heavy'"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parents[1])
