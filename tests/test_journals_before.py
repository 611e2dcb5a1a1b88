"""Journals that earlier versions wrote are read by every view, with the values that they printed.

Each folder of `tests/data/journals` is named after the commit that made it: a study file, its
journal, and what `show --csv` printed of it then.
"""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest

from policysearch.cli import main
from policysearch.study.journal.records import FORMAT
from policysearch.study.journal.storage import read_line, sealed
from policysearch.study.specification import load_spec
from policysearch.study.study import run_study
from tests.studies import replaced_training, write_study

JOURNALS = Path(__file__).parent / "data" / "journals"
VIEWS = (
    "show before.toml",
    "show before.toml --trial 3",
    "noise before.toml",
    "plot before.toml",
    "profile preset:apex.O2 --study before.toml",
    "explain preset:apex.O2 --study before.toml",
)

ALL_GAPS_MATTER = "\n[objectives]\nmatters = 0.0\n"
"""Fronts were so when these were printed: any gap that can be told counted, however small."""


@pytest.fixture(params=sorted(path.name for path in JOURNALS.iterdir()))
def recorded(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> str:
    """The CSV that was printed; the current folder has the study and its journal."""
    made = JOURNALS / str(request.param)
    study = (made / "before.toml").read_text(encoding="utf-8")
    (tmp_path / "before.toml").write_text(study + ALL_GAPS_MATTER, encoding="utf-8")
    (tmp_path / "results").mkdir()
    text = gzip.decompress((made / "before.journal.gz").read_bytes())
    (tmp_path / "results" / "before.journal").write_bytes(text)
    monkeypatch.chdir(tmp_path)
    return (made / "show.csv").read_text(encoding="utf-8")


def test_the_values_are_those_that_were_printed(
    recorded: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "before.toml", "--csv"]) == 0
    now, then = (
        list(csv.DictReader(text.splitlines())) for text in (capsys.readouterr().out, recorded)
    )
    assert len(now) == len(then) > 5
    for row, before in zip(now, then, strict=True):
        assert {name: as_number(row[name]) for name in before} == {
            name: as_number(text) for name, text in before.items()
        }


def as_number(text: str) -> object:
    """A number that equals another up to what a kernel of BLAS sums otherwise, or the text."""
    try:
        return pytest.approx(float(text), rel=1e-12, abs=0.0, nan_ok=True)
    except ValueError:
        return text


@pytest.mark.parametrize("view", VIEWS)
def test_every_view_reads_them(
    view: str, recorded: str, capsys: pytest.CaptureFixture[str]
) -> None:
    journal = Path("results/before.journal").read_bytes()
    assert main(view.split()) == 0
    assert capsys.readouterr().out
    assert Path("results/before.journal").read_bytes().startswith(journal)


def test_going_on_asks_for_nothing_but_accepted_changes(
    recorded: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = ["run", "before.toml", "--processes", "1"]
    if main(run) == 2:  # where code that trains has changed since
        (line,) = capsys.readouterr().err.splitlines()
        assert "--accept-changes" in line
        assert main([*run, "--accept-changes"]) == 0
    assert main(run) == 0


@pytest.mark.usefixtures("recorded")
def test_the_verdict_of_an_old_journal_guesses_nothing_of_learning(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It has no record of what a constant predictor gets: that is said, and the rest as ever."""
    assert main(["show", "before.toml", "--json"]) == 0
    verdict = json.loads(capsys.readouterr().out)["verdict"]
    assert verdict["kind"] in ("take", "keep", "at a cost") and not verdict["learning_checked"]
    assert verdict["text"].endswith("that float32 learned is not checked: its records are older")
    assert main(["show", "before.toml"]) == 0
    assert capsys.readouterr().out.startswith(f"verdict: {verdict['text']}\n")


def test_a_journal_begins_with_its_format_and_a_newer_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    spec, journal = load_spec(write_study(tmp_path)), tmp_path / "results" / "tiny.journal"
    journal.parent.mkdir()
    with replaced_training():
        run_study(spec, journal, processes=0)
    lines = journal.read_bytes().splitlines(keepends=True)
    own = next(place for place, line in enumerate(lines) if b"policysearch:" in line)
    assert b"policysearch:format" in lines[own]
    read = read_line(lines[own].rstrip(b"\n"))
    assert read is not None and read.place is not None
    newer = {**read.record, "system_attr": {"policysearch:format": FORMAT + 1}}
    lines[own] = sealed(newer, read.place)
    journal.write_bytes(b"".join(lines))
    for command in ("show", "run"):
        assert main([command, "tiny.toml"]) == 2
        said = capsys.readouterr().err
        assert f"a journal of format {FORMAT + 1}; expected 1 to {FORMAT}" in said
        assert said.count("\n") == 1
