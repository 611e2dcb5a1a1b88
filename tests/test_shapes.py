"""Journal records with a valid checksum and another shape: one line, and repair drops them."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from benchmarks.faults.common import finished
from benchmarks.faults.records import FOREIGN, mutated
from policysearch.cli import main
from policysearch.study.journal.records import FORMAT, NewerFormatError, Records, unreadable
from policysearch.study.journal.storage import read_journal, read_line, sealed
from tests.studies import replaced_training


def test_what_repair_keeps_of_a_mutated_journal_is_read(tmp_path: Path) -> None:
    _, lines = finished(tmp_path)
    rng, dropped = random.Random(41), 0
    for _ in range(60):
        held = read_journal(b"".join(mutated(lines, rng)))
        bad = unreadable(held.lines)
        dropped += len(bad)
        kept = [line for place, line in enumerate(held.lines) if place not in bad]
        if len(kept) == len(held.lines):
            Records(held.lines)
    assert dropped > 5
    assert unreadable(read_journal(b"".join(lines)).lines) == []


@pytest.mark.usefixtures("one_process")
@pytest.mark.parametrize("foreign", FOREIGN[:1], ids=str)
def test_a_foreign_line_that_optuna_cannot_replay_is_refused_by_run_and_dropped_by_repair(
    foreign: object, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, lines = finished(tmp_path)
    journal = tmp_path / "results" / "tiny.journal"
    journal.write_bytes(b"".join(lines) + json.dumps(foreign).encode() + b"\n")
    at = ["--storage", str(journal)]
    assert main(["run", str(study), "--processes", "1", *at]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert f"record {len(lines) + 1} has another shape" in said and "repair" in said
    assert main(["repair", str(study), *at]) == 0
    assert journal.read_bytes() == b"".join(lines)
    with replaced_training():
        assert main(["run", str(study), "--processes", "1", *at]) == 0


def test_a_newer_format_is_named_and_never_repaired(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study, lines = finished(tmp_path)
    own = next(place for place, line in enumerate(lines) if b"policysearch:format" in line)
    line = read_line(lines[own].rstrip(b"\n"))
    assert line is not None and line.place is not None
    record = {key: value for key, value in line.record.items() if key not in ("n", "crc")}
    record["system_attr"] = {"policysearch:format": FORMAT + 1}
    lines[own] = sealed(record, line.place)
    journal = tmp_path / "results" / "tiny.journal"
    journal.write_bytes(b"".join(lines))
    for command in ("show", "run", "repair"):
        assert main([command, str(study), "--storage", str(journal)]) == 2
        (said,) = capsys.readouterr().err.splitlines()
        assert "made by a newer version" in said
    assert journal.read_bytes() == b"".join(lines)
    with pytest.raises(NewerFormatError):
        unreadable(read_journal(journal.read_bytes()).lines)


def test_a_file_without_an_end_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "/dev/zero"]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "/dev/zero: no end in 16 MiB; expected" in said
