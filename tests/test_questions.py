"""Every promise of the README and of docs/questions.md is a command, and the command keeps it."""

from __future__ import annotations

import re
import shlex
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.validation.__main__ import validation
from benchmarks.validation.validate_memory import validate_memory
from policysearch.cli import main
from tests.studies import write_study
from tests.validated import few_known as few_known

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
OWN_NET = (ROOT / "docs" / "own-net.md").read_text(encoding="utf-8")
PAGE = (ROOT / "docs" / "questions.md").read_text(encoding="utf-8")

ANSWERS = {
    "What is there to choose from?": ("loss gap", "modeled speedup", "tie", "on the front"),
    "What does the study come to?": ('"verdict"', '"kind"', '"text"'),
    "Is it faster than what I run today?": ("over TF32", "over baseline", "priced at batch 4096"),
    "How near is the modeled speed to published ones?": (
        "always 2x",
        "80% interval holds",
        "mean error 11.7 %",
        "mean absolute error 0.098, recipes held out 0.102",
    ),
    "Does the speedup hold on eight devices?": (
        "8 devices: 6 rows, mean error 38.2%, at most 219.8%, 5 within 5%",
    ),
    "Will my own net go in?": ("0.weight", "relu", "cast", "step 7:"),
    "Does FP8 train this network?": ("te.current (by hand)", "loss gap", "overflows", "the front"),
    "Does what a small net says hold for a large one?": (
        "verdict: ",
        "rank correlation",
        "modeled on the large net",
    ),
    "Why is this layer in this format?": ("one step away", "as it is", "narrower", "more gap"),
    "Does that still hold in a longer training?": ("short gap", "long gap", "verdict", "12 steps"),
    "Which layer overflows?": ("layer", "overflows", "underflows", "fc1", "skipped steps"),
    "Why does this policy fail, and what repairs it?": ("verdict: ",),
    "Which loss scale holds?": ("loss scale: dynamic from", "skipped steps", "of 6"),
    "Why is it not faster?": ("step's time is set by", "casts", "one narrower", "->"),
    "Does it fit into memory?": ("modeled memory: peak", "reserved", "fits on H100-SXM5"),
    "Can I look at all of it?": ("wrote", ".html"),
    "What is the front worth?": ("Noise under jitter", "seeds 0, 1", "wrote", ".png"),
    "Can this recipe rank policies, and would more seeds tell more?": (
        "noise floor",
        "a drop of",
        "between halves of the seeds",
        "recipe",
    ),
    "Which policy do I take, and how do I use it?": ("loss gap", "12 steps", "-torch.py"),
    "Does the exported file train as it was trained here?": ("emulator", "fc1: ", "pass"),
    "What can I write into a study file?": ("`learning_rate`", "apex.O3", "hifloat8", "H100-SXM5"),
}


VALIDATION = ["python", "-m", "benchmarks.validation"]


def commands_of(text: str) -> list[list[str]]:
    """Return every command of the project in the text's sh blocks: "validation" for that module."""
    blocks = re.findall(r"```sh\n(.*?)```", text, re.S)
    lines = (shlex.split(line, comments=True) for block in blocks for line in block.splitlines())
    named = [words for words in lines if words]
    return [
        ["validation", *words[3:]] if words[:3] == VALIDATION else words[1:]
        for words in named
        if words[:3] == VALIDATION or words[0].endswith("policysearch")
    ]


def run(command: list[str]) -> int:
    """Run one of `commands_of` and return its exit code."""
    return validation(command[1:]) if command[0] == "validation" else main(command)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder where studies/mlp-digits.toml is a tiny study."""
    (tmp_path / "studies").mkdir()
    name = ('name = "tiny"', 'name = "mlp-digits"\nbaseline = "torch.autocast.bfloat16"')
    write_study(tmp_path / "studies", name, name="mlp-digits.toml")
    large = ('name = "tiny"', 'name = "large"'), ("widths = [8]", "widths = [16]")
    write_study(tmp_path, *large, name="large.toml")
    own = ('model = "mlp"', 'model = "net.py:model"'), ('data = "digits"', 'data = "net.py:data"')
    write_study(tmp_path / "studies", *own, name="own-net.toml")
    (tmp_path / "net.py").write_text(re.findall(r"```python\n(.*?)```", OWN_NET, re.S)[0])
    monkeypatch.chdir(tmp_path)
    # Of every ninth network: all take half a minute, in `test_validate_memory`.
    place = "benchmarks.validation.__main__.validate_memory"
    monkeypatch.setattr(place, lambda rows: validate_memory(rows[1::9]))
    return tmp_path


@pytest.mark.usefixtures("one_process")
def test_every_question_is_answered_by_its_commands(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sections = re.split(r"^## (.*)\n", PAGE, flags=re.M)[1:]
    questions = dict(zip(sections[::2], sections[1::2], strict=True))
    assert list(questions) == list(ANSWERS)
    for question, text in questions.items():
        commands = commands_of(text)
        assert commands
        needs_torch = "own-net" in text or "policysearch verify" in text
        if needs_torch and find_spec("torch") is None:
            continue
        for command in commands:
            assert run(command) == 0, (command, capsys.readouterr().err)
        printed = capsys.readouterr().out
        for word in ANSWERS[question]:
            assert word in printed, (question, word)


@pytest.mark.usefixtures("one_process")
def test_the_commands_of_the_readme_run(folder: Path) -> None:
    commands = commands_of(README)
    assert len(commands) >= 8
    no_torch = find_spec("torch") is None
    for command in commands:
        if no_torch and any("net." in word for word in command):
            continue
        assert main(command) == 0, command


@pytest.mark.usefixtures("one_process")
def test_the_commands_in_the_sentences_of_the_readme_run(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Those between backticks, STUDY and the like filled in."""
    text = " ".join(re.sub(r"```.*?```", "", README, flags=re.S).split())
    found = dict.fromkeys(re.findall(r"`policysearch ([^`]*)`", text))
    given = {"STUDY": "studies/mlp-digits.toml", "N": "1", "preset:NAME": "preset:apex.O2"}
    verbs = (
        "init",
        "try",
        "show",
        "noise",
        "confirm",
        "profile",
        "repair",
        "keys",
        "validate-cost",
    )
    commands = [[given.get(word, word) for word in command.split()] for command in found]
    assert {words[0] for words in commands} == set(verbs)
    assert main(["run", "studies/mlp-digits.toml"]) == 0
    for words in sorted(commands, key=lambda words: verbs.index(words[0])):
        assert main(words) == 0, (words, capsys.readouterr().err)
        assert capsys.readouterr().out


def test_every_part_of_what_is_real_and_what_is_modeled_names_what_shows_it() -> None:
    part = README.partition("## What is real and what is modeled")[2].partition("\n## ")[0]
    parts = re.split(r"^- ", part, flags=re.M)[1:]
    assert len(parts) >= 5
    for text in parts:
        assert re.search(r"`(policysearch|python -m|tests/)[^`]*`", " ".join(text.split())), text


def test_what_the_readme_promises_names_a_command_of_the_page() -> None:
    promises = README.partition("So it answers")[2].partition("```")[0]
    named = re.findall(r"`policysearch (\w+)[^`]*`", promises)
    assert promises.count("?") == len(named) >= 4
    assert set(named) <= {command[0] for command in commands_of(PAGE)}
