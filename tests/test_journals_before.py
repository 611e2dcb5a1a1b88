"""Journals that earlier versions wrote are read by every view, with the values that they printed.

What was trained is shown as it was then. Prices are of the version that shows them, for a changed
cost model prices every policy anew; those of then stay in the journal.

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
from policysearch.cost.price import speedup_over
from policysearch.policy.policy import from_json
from policysearch.policy.presets import TF32, preset
from policysearch.study.journal.records import FORMAT, Records
from policysearch.study.journal.storage import read_checked, read_line, sealed
from policysearch.study.specification import load_spec, objective_of
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

MODELED = (
    *("modeled_speedup", "modeled_speedup_low", "modeled_speedup_high"),
    *("speedup_over_tf32", "speedup_over_baseline"),
)
"""Columns of prices. Those of memory are as they were: that part of the model has not changed."""

JOURNAL = Path("results/before.journal")

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


def rows_of(text: str) -> dict[str, dict[str, str]]:
    """The rows of a CSV by trial: their order is that of prices."""
    return {row["trial"]: row for row in csv.DictReader(text.splitlines())}


def test_the_values_are_those_that_were_printed(
    recorded: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["show", "before.toml", "--csv"]) == 0
    now, then = rows_of(capsys.readouterr().out), rows_of(recorded)
    assert now.keys() == then.keys() and len(then) > 5
    for trial, before in then.items():
        told = [name for name in before if name not in MODELED]
        assert len(told) == len(before) - len(MODELED)
        assert {name: as_number(now[trial][name]) for name in told} == {
            name: as_number(before[name]) for name in told
        }


def test_prices_are_those_of_today_and_the_old_ones_are_kept(
    recorded: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Today's without a journal, of policies alone; the old ones as they were printed."""
    spec, records = load_spec(Path("before.toml")), Records(read_checked(JOURNAL).lines)
    assert main(["show", "before.toml", "--csv"]) == 0
    now, then = rows_of(capsys.readouterr().out), rows_of(recorded)
    objective = objective_of(spec)
    layers = objective.model.layer_names
    tf32 = objective.price(preset(TF32, layers))
    assert len(records.trials) == len(then)
    for trial in records.trials:
        row, before = now[str(trial.number)], then[str(trial.number)]
        cost = objective.price(from_json(trial.text))
        told = [cost.speedup, cost.speedup_low, cost.speedup_high]
        told.append(speedup_over(cost, tf32, TF32).value)
        assert [as_number(row[name]) for name in MODELED[:4]] == told
        (old,) = (c for (_, digest), c in records.prices.items() if digest == trial.digest)
        assert old.speedup == as_number(before["modeled_speedup"])


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
    journal = JOURNAL.read_bytes()
    assert main(view.split()) == 0
    assert capsys.readouterr().out
    assert JOURNAL.read_bytes().startswith(journal)


@pytest.mark.usefixtures("one_process")
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
    assert verdict["kind"] != "not learned" and not verdict["learning_checked"]
    said = "that float32 beats a constant is not checked: its records are older" in verdict["text"]
    assert said == (verdict["kind"] != "undecided")  # where nothing is advised, nothing rests on it
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
