"""What a command runs of somebody else's: nothing before it is trusted."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from policysearch.cli import main
from policysearch.commands.registry import Command, commands
from policysearch.commands.trust import STORE, VARIABLE, state_folder
from policysearch.objective.published.known import PATH
from policysearch.train import user_code
from tests.studies import write_study
from tests.test_kept import NET, OWN

PUBLISHED = PATH.with_name("published_speedups.json")
MARK = 'open("it-ran", "a").close()\n'
COMMANDS = (
    "run tiny.toml",
    "estimate tiny.toml",
    "confirm tiny.toml",
    "show tiny.toml",
    "show tiny.toml --json",
    "noise tiny.toml",
    "plot tiny.toml",
    "report tiny.toml",
    "report tiny.toml --json",
    "repair tiny.toml",
    "try preset:bfloat16 --study tiny.toml",
    "why 1 --study tiny.toml",
    "why 1 dense1 --study tiny.toml",
    "propose tiny.toml",
    "diagnose preset:bfloat16 --study tiny.toml",
    "export tiny.toml",
    "export preset:bfloat16 --study tiny.toml",
    "verify preset:bfloat16 --study tiny.toml",
    "verify made.py --study tiny.toml",
    "inspect made.py --study tiny.toml",
    "import made.py --study tiny.toml",
    "explain preset:bfloat16 --study tiny.toml",
    "profile preset:bfloat16 --study tiny.toml",
    "rules preset:bfloat16 --study tiny.toml",
    "apply rules.toml --study tiny.toml",
    "mismatch preset:bfloat16 preset:float16 --study tiny.toml",
    "carry tiny.toml --to tiny.toml",
    "validate-cost --rows rows.json",
)
PLACES = {
    "net": OWN,
    "metric": (("tail_steps = 3", 'tail_steps = 3\nmetric = "net.py:right"'),),
    "rule": (("tail_steps = 3", 'tail_steps = 3\ngraph_rules = ["net.py:rule"]'),),
    "data": (('data = "digits"\n', 'data = "net.py:data"\n'),),
    "priced": (('"torch.compile"\n', '"torch.compile"\nnet.model = "net.py:model"\n'),),
    "script": (
        ('model = "mlp"\nactivation = "tanh"\nwidths = [8]\n', 'script = "net.py:script"\n'),
        ('data = "digits"\n', ""),
    ),
}
WITHOUT_A_PRICE = (
    *("propose", "verify preset", "explain", "rules", "inspect", "import", "apply", "mismatch"),
)
"""Commands that have no use for the net that is priced, and train: they run none of its code."""


def help_of(row: Command) -> str:
    parser = argparse.ArgumentParser()
    row.arguments(parser)
    return parser.format_help()


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_process: None) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(VARIABLE, "0")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "net.py").write_text(MARK + NET)
    (tmp_path / "made.py").write_text(MARK)
    (tmp_path / "rules.toml").write_text('base = "bfloat16"\n')
    row = json.loads(PUBLISHED.read_text(encoding="utf-8"))[0] | {"model": "net.py:model"}
    (tmp_path / "rows.json").write_text(json.dumps([row]))
    user_code._module.cache_clear()
    return tmp_path


def test_every_command_that_takes_a_study_is_tried() -> None:
    """Those that only list, time or write about nets of the package take none."""
    takes = {row.name for row in commands() if "--trust" in help_of(row)}
    assert takes == {line.split()[0] for line in COMMANDS}


@pytest.mark.parametrize("place", PLACES)
def test_no_command_runs_a_file_that_is_not_trusted(
    folder: Path, place: str, capsys: pytest.CaptureFixture[str]
) -> None:
    write_study(folder, *PLACES[place])
    asked = 0
    for line in COMMANDS:
        if place == "priced" and line.startswith(WITHOUT_A_PRICE):
            continue
        code = main(line.split())
        said = capsys.readouterr().err
        assert code == 2, line
        assert said.count("\n") <= 1, said
        asked += "--trust" in said
        assert not (folder / "it-ran").exists(), line
        assert not list(folder.glob("results/*.journal")), line
    assert asked >= (10 if place != "priced" else 5)  # the others find no results, or no such file


def test_trust_is_asked_for_once_and_again_when_the_file_is_another(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_study(folder, *OWN)
    assert main(["estimate", "tiny.toml", "--trust"]) == 0
    assert "is trusted as it is now, and remembered" in capsys.readouterr().err
    assert (state_folder() / STORE).read_text().startswith("digest ")
    user_code._module.cache_clear()
    assert main(["estimate", "tiny.toml"]) == 0
    assert "trusted" not in capsys.readouterr().err
    (folder / "copy.py").write_text(MARK + NET)
    text = (folder / "tiny.toml").read_text().replace("net.py:", "copy.py:")
    (folder / "copy.toml").write_text(text)
    assert main(["estimate", "copy.toml"]) == 0
    (folder / "net.py").write_text(MARK + NET + "\n# another\n")
    user_code._module.cache_clear()
    assert main(["estimate", "tiny.toml"]) == 2
    assert "net.py: this command runs the file" in capsys.readouterr().err


def test_a_script_says_it_by_the_environment_and_without_a_home(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_study(folder, *OWN)
    monkeypatch.setenv(VARIABLE, "1")
    assert main(["estimate", "tiny.toml"]) == 0
    assert not (folder / "state").exists()
    monkeypatch.setenv(VARIABLE, "0")
    (folder / "state").write_text("no folder")
    user_code._module.cache_clear()
    assert main(["estimate", "tiny.toml"]) == 2
    assert main(["estimate", "tiny.toml", "--trust"]) == 0


@pytest.mark.torch
def test_what_init_was_given_or_wrote_is_its_authors(folder: Path) -> None:
    pytest.importorskip("torch")
    assert main(["init", "net.py"]) == 0
    assert main(["estimate", "net.toml"]) == 0
    (folder / "net.py").write_text(NET + "\n# its author goes on\n")
    user_code._module.cache_clear()
    assert main(["estimate", "net.toml"]) == 0
    assert main(["init", "--example"]) == 0
    own = folder / "own_net.py"
    own.write_text(own.read_text() + "\n# mine now\n")
    assert main(["explain", "preset:bfloat16", "--study", "own-net.toml"]) == 0


def test_shipped_files_are_trusted_wherever_they_lie(folder: Path) -> None:
    shipped = Path(__file__).parents[1] / "studies" / "own_net.py"
    (folder / "mine.py").write_bytes(shipped.read_bytes())
    text = shipped.with_name("own-net.toml").read_text().replace("own_net.py:", "mine.py:")
    (folder / "mine.toml").write_text(text)
    pytest.importorskip("torch")
    assert main(["explain", "preset:bfloat16", "--study", "mine.toml"]) == 0
