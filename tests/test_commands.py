"""Every command of the registry, as it arrives: its help, its mistakes, what it loads, its page."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import pytest

from policysearch.cli import CommandParser, main, parser
from policysearch.commands import registry
from policysearch.commands.registry import Command, commands, commands_page
from policysearch.commands.shared import source

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "commands.md"
ROWS = {row.name: row for row in commands()}

HEAVY = {"optuna", "scipy", "pandas", "matplotlib", "torch", "distributed", "sklearn"}
"""What takes so long to import that no `--help` and no mistake in typing waits for it."""

PARSING = """
import json, sys
from policysearch.cli import main

heavy, loaded = set(json.loads(sys.argv[1])), {}
for command in json.loads(sys.argv[2]):
    try:
        main([*command, "--help"])
    except SystemExit:
        pass
    loaded[" ".join(command)] = sorted(heavy & set(sys.modules))
    for name in loaded[" ".join(command)]:
        del sys.modules[name]
print(json.dumps(loaded), file=sys.stderr)
"""


def arguments_of(row: Command) -> list[argparse.Action]:
    """Return the arguments of a command, `--help` left out."""
    known = CommandParser(row, prog=row.name).with_arguments()._actions
    return [action for action in known if action.dest != "help"]


def reads(action: argparse.Action) -> bool:
    """Return whether the argument names a file that the command reads."""
    return action.type is source or action.dest == "policy"


def required(row: Command, file: Path) -> list[str]:
    """Return the shortest command line of a command, with `file` wherever it takes one."""
    line = [row.name]
    for action in arguments_of(row):
        if action.required:
            line += [*action.option_strings[:1], str(file)]
    return line


@pytest.fixture(scope="module")
def loaded() -> dict[str, list[str]]:
    """What of HEAVY the help of everything and of each command loads."""
    lines = [[], *([name] for name in ROWS)]
    command = [sys.executable, "-c", PARSING, json.dumps(sorted(HEAVY)), json.dumps(lines)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found: dict[str, list[str]] = json.loads(done.stderr)
    return found


def test_the_registry_has_every_command_once_each_in_a_place_of_its_own() -> None:
    assert len(ROWS) == len(commands()) == len({row.place for row in commands()}) >= 20
    assert parser().format_help().index("run  ") < parser().format_help().index("keys  ")


def test_help_as_a_whole_loads_nothing_heavy(loaded: dict[str, list[str]]) -> None:
    assert loaded[""] == []


@pytest.mark.parametrize("name", ROWS)
def test_a_command_loads_nothing_heavy_before_it_runs(
    name: str, loaded: dict[str, list[str]]
) -> None:
    assert loaded[name] == []


def test_the_listing_of_formats_loads_nothing_heavy() -> None:
    code = "import sys; from policysearch.cli import main; main(['formats'])"
    code += f"; assert not {HEAVY} & set(sys.modules), 'heavy'"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, check=True)


@pytest.mark.parametrize("name", ROWS)
def test_a_command_says_what_it_does_and_takes(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    row = ROWS[name]
    assert row.help[0].islower() and not row.help.endswith(".") and "\n" not in row.help
    with pytest.raises(SystemExit) as stopped:
        main([name, "--help"])
    printed = capsys.readouterr()
    assert stopped.value.code == 0 and not printed.err
    for action in arguments_of(row):
        assert (action.option_strings or [str(action.metavar)])[0] in printed.out


@pytest.mark.parametrize("name", ROWS)
def test_an_option_that_is_not_there_is_one_line(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main([*required(ROWS[name], tmp_path / "missing"), "--no-such-option"])
    printed = capsys.readouterr()
    assert stopped.value.code == 2 and not printed.out
    assert "--no-such-option" in printed.err and printed.err.count("\n") == 1


READING = [
    (name, action.dest) for name, row in ROWS.items() for action in arguments_of(row)
    if reads(action)
]  # fmt: skip


@pytest.mark.parametrize(("name", "argument"), READING)
def test_a_missing_file_is_one_line(
    name: str, argument: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing.toml"
    (action,) = (action for action in arguments_of(ROWS[name]) if action.dest == argument)
    line = required(ROWS[name], missing)
    if not action.required:
        line += [*action.option_strings[:1], str(missing)]
    assert main(line) == 2
    printed = capsys.readouterr()
    assert printed.err.startswith("policysearch: ") and str(tmp_path) in printed.err
    assert printed.err.count("\n") == 1 and not printed.out and not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ROWS)
def test_ctrl_c_is_one_line(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(options: argparse.Namespace) -> NoReturn:
        raise KeyboardInterrupt

    line = parser([replace(ROWS[name], run=interrupted)])
    assert main(required(ROWS[name], tmp_path / "missing"), line) == 130
    printed = capsys.readouterr()
    assert (printed.out, printed.err) == ("", "policysearch: interrupted\n")


@pytest.mark.parametrize("name", ROWS)
def test_the_example_of_a_command_parses_and_says_which_it_is(name: str) -> None:
    words = ROWS[name].typed.split()[1:]
    assert words[0] == name
    assert parser().parse_args(words).run is ROWS[name].run
    # the name alone is an example where nothing is demanded
    assert len(words) > 1 or not any(action.required for action in arguments_of(ROWS[name]))


def test_help_lists_every_command_once_in_its_group(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    blocks = capsys.readouterr().out.split("\n\n")
    named = {name for _, name in registry.GROUPS}
    grouped = {
        block.partition(":")[0]: block for block in blocks if block.partition(":")[0] in named
    }
    assert set(grouped) == named
    for row in ROWS.values():
        found = [name for name, block in grouped.items() if f"\n  {row.name} " in block]
        assert found == [row.group], row.name
        assert row.help in grouped[row.group]


@pytest.mark.parametrize(
    ("line", "meant"),
    [
        ("net.py", "policysearch init net.py"),
        ("mine.toml", "policysearch run mine.toml"),
        ("status", "'show'"),
        ("rnu", "'run'"),
        ("run net.py", "`policysearch init net.py`"),
        ("show results/a.journal", "--storage"),
        ("show mlp-digits", "'studies:mlp-digits'"),
        ("show studies/mlp-digit.toml", ""),
    ],
)
def test_a_common_mistake_gets_a_hint(
    line: str,
    meant: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    code: str | int | None
    try:
        code = main(line.split())
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    said = capsys.readouterr().err
    assert code == 2 and said.count("\n") == 1
    assert meant in said
    assert meant or "did you mean" not in said


def test_the_page_is_what_is_generated() -> None:
    assert PAGE.read_text(encoding="utf-8") == commands_page() + "\n", "run `make docs`"


@pytest.mark.parametrize("name", ROWS)
def test_every_command_and_argument_is_on_the_page(name: str) -> None:
    section = commands_page().split(f"### {name}\n")[1].split("\n##")[0]
    for action in arguments_of(ROWS[name]):
        assert (action.option_strings or [str(action.metavar)])[0] in section


def test_a_file_put_in_the_folder_is_a_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = """from policysearch.commands.registry import Command

COMMANDS = (Command(55, "greet", "say hello", lambda options: print("hello")),)
"""
    (tmp_path / "greet.py").write_text(text, encoding="utf-8")
    (tmp_path / "other.py").write_text("", encoding="utf-8")
    monkeypatch.setattr(registry, "__file__", str(tmp_path / "registry.py"))
    monkeypatch.setattr(registry, "__package__", "greetings")
    package = type(sys)("greetings")
    package.__path__ = [str(tmp_path)]
    monkeypatch.setitem(sys.modules, "greetings", package)
    rows = commands.__wrapped__()
    assert [row.name for row in rows] == ["greet"]
    assert main(["greet"], parser(rows)) == 0
    assert capsys.readouterr().out == "hello\n"
    for name in ("greetings.greet", "greetings.other"):
        sys.modules.pop(name, None)
