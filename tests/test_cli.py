"""The command line: every command end to end on a tiny study, one line for every mistake."""

from __future__ import annotations

import csv
import io
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from policysearch.cli import main
from policysearch.formats import FORMATS
from policysearch.nn.models import MODELS
from policysearch.policy.policy import from_json
from policysearch.policy.presets import PRESETS
from tests.studies import write_study


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with tiny.toml, its finished journal and what the run printed and wrote."""
    folder = tmp_path_factory.mktemp("cli")
    study = write_study(folder)
    command = [sys.executable, "-m", "policysearch", "run", str(study)]
    finished = subprocess.run(
        [*command, "--storage", str(folder / "tiny.journal"), "--out", str(folder / "plots")],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    (folder / "out.txt").write_text(finished.stdout)
    (folder / "err.txt").write_text(finished.stderr)
    return folder


def places(folder: Path) -> list[str]:
    return [str(folder / "tiny.toml"), "--storage", str(folder / "tiny.journal")]


def test_run_shows_progress_then_the_front_the_plots_and_what_to_do_next(done: Path) -> None:
    out, progress = (done / "out.txt").read_text(), (done / "err.txt").read_text()
    assert "6/6 trials" in progress and "left" in progress and "front" in progress
    assert "6 policies tried, 0 diverged, 0 failed" in out
    assert "Modeled, not measured: speed and memory of H100-SXM5" in out
    assert f"next: policysearch show {done / 'tiny.toml'} --storage" in out
    for view in ("speedup", "memory"):
        assert (done / "plots" / f"tiny-{view}.png").read_bytes().startswith(b"\x89PNG")


def test_run_again_trains_nothing_more(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = (done / "tiny.journal").read_bytes()
    assert main(["run", *places(done), "--out", str(done / "plots")]) == 0
    assert (done / "tiny.journal").read_bytes() == before
    assert capsys.readouterr().out == (done / "out.txt").read_text()


def test_show_prints_the_front_or_every_policy_as_csv(
    done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", *places(done)]) == 0
    table = capsys.readouterr().out
    assert main(["show", *places(done), "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert len(rows) == 6
    front = [row["trial"] for row in rows if row["on_front"] == "True"]
    lines = table.splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith("trial"))
    shown = [line.split()[0] for line in lines[start + 1 : start + 1 + len(front)]]
    assert shown == front
    assert lines[start + 1 + len(front)] == ""


def test_plot_writes_both_pictures_and_repeats_them(done: Path, tmp_path: Path) -> None:
    assert main(["plot", *places(done), "--out", str(tmp_path)]) == 0
    for view in ("speedup", "memory"):
        name = f"tiny-{view}.png"
        assert (tmp_path / name).read_bytes() == (done / "plots" / name).read_bytes()


@pytest.mark.parametrize(
    "choice",
    [["--pick", "knee"], [], ["--max-gap", "9"], ["--fastest"], ["--trial", "0"]],
)
def test_export_writes_the_policy_its_schema_and_a_torch_file(
    done: Path, tmp_path: Path, choice: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    for _ in range(2):
        assert main(["export", *places(done), *choice, "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("trial ")
    policy = from_json((tmp_path / "tiny-policy.json").read_text())
    if choice == ["--trial", "0"]:
        assert policy.name == "float32"
    schema = json.loads((tmp_path / "policy.schema.json").read_text())
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.validate(json.loads(policy.to_json()), schema)
    compile((tmp_path / "tiny-torch.py").read_text(), "tiny-torch.py", "exec")
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(
        ["tiny-policy.json", "policy.schema.json", "tiny-torch.py"]
    )


def test_explain_takes_a_policy_file_a_preset_a_study_or_a_model(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    main(["export", *places(done), "--trial", "2", "--out", str(tmp_path)])
    capsys.readouterr()
    policy, study = str(tmp_path / "tiny-policy.json"), str(done / "tiny.toml")
    assert main(["explain", policy, "--study", study]) == 0
    from_file = capsys.readouterr().out
    assert main(["explain", "preset:bfloat16", "--study", study]) == 0
    assert capsys.readouterr().out == from_file
    for number in range(1, 8):
        assert f"step {number}:" in from_file
    for model in MODELS:
        assert main(["explain", "preset:mindspore.O2", "--model", model]) == 0
        assert "cast" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("command", "names"),
    [
        ("presets", PRESETS),
        ("formats", FORMATS),
        ("hardware", ("V100-SXM2", "A100-SXM4-80GB", "Ascend-910A", "torch.compile", "memory")),
    ],
)
def test_listings(command: str, names: object, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([command]) == 0
    printed = capsys.readouterr().out
    assert isinstance(names, dict | tuple)
    assert all(name in printed for name in names)


def test_the_numbers_of_a_device_are_listed_with_marks_and_sources(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["hardware", "NVIDIA GeForce RTX 5090"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^peak float4 +1\.676e\+15 +memory +NVIDIA RTX Blackwell", printed, re.M)
    assert re.search(r"^multiprocessors +170 +- +gpumap$", printed, re.M)
    assert "\ngpumap: github:lamonoai/gpumap@" in printed and "\nstas: " not in printed
    assert main(["hardware", "A100"]) == 2
    assert "did you mean 'A100-SXM4-40GB' or 'A100" in capsys.readouterr().err


MISTAKES = (
    (["export", "--trial", "99"], "trial: 99; expected one of 0, "),
    (["export", "--max-gap", "-5"], "max-gap: -5.0; expected at least"),
    (["export", "--max-gap", "1", "--pick", "knee"], "--max-gap: given with --pick"),
    (["export", "--target", "cobol"], "export target: 'cobol'; expected one of"),
    (["run", "--trials", "0"], "--trials: 0; expected at least 1"),
)


@pytest.mark.parametrize(("arguments", "message"), MISTAKES)
def test_a_mistake_is_one_line_and_exit_code_2(
    done: Path, arguments: list[str], message: str, capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:  # fmt: skip
    command, *rest = arguments
    assert main([command, *places(done), *rest, "--out", str(tmp_path / "new")]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("policysearch: ") and message in captured.err
    assert captured.err.count("\n") == 1 and captured.out == ""
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "arguments",
    [[], ["dance"], ["run"], ["run", "a.toml", "--trials", "x"], ["export", "a", "--pick", "best"]],
)
def test_a_wrong_command_line_is_one_line_too(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_version_is_that_of_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert capsys.readouterr().out == f"policysearch {project['version']}\n"


def test_a_near_miss_of_a_command_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["shwo"])
    assert "did you mean 'show'?" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "end"),
    [
        ("run x.toml --trails 5", "--trails 5; did you mean '--trials'?"),
        ("confirm x.toml --step=4x", "--step=4x; did you mean '--steps'?"),  # none is cut short
        ("confirm x.toml --sseeds=4", "--sseeds=4; did you mean '--seeds'?"),
        ("run x.toml --qqq", "--qqq"),
        ("run x.toml y.toml", "y.toml"),
    ],
)
def test_a_near_miss_of_an_option_is_named(
    typed: str, end: str, capsys: pytest.CaptureFixture[str]
) -> None:
    command = typed.split()
    with pytest.raises(SystemExit) as stopped:
        main(command)
    said = f"unrecognized arguments: {end}; see policysearch {command[0]} --help\n"
    assert stopped.value.code == 2
    assert capsys.readouterr().err == f"policysearch {command[0]}: {said}"


@pytest.mark.parametrize("given", ["apex.O2", "apex.o2", "apexO2"])
def test_a_preset_without_its_prefix_is_named_with_it(
    given: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["explain", given]) == 2
    assert capsys.readouterr().err.endswith("did you mean 'preset:apex.O2'?\n")
    assert main(["explain", "nowhere.json"]) == 2
    assert "did you mean" not in capsys.readouterr().err


def test_show_before_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = write_study(tmp_path)
    missing = tmp_path / "none.journal"
    assert main(["show", str(study), "--storage", str(missing)]) == 2
    assert "not there; expected the results of a run" in capsys.readouterr().err
    assert not missing.exists()
