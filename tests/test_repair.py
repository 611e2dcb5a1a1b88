"""Repair of a journal, line by line: what is kept is kept as it was, and Optuna can read it."""

from __future__ import annotations

import json
from pathlib import Path

import optuna
import pytest
from optuna.study import StudyDirection

from policysearch.study.journal.storage import (
    Direction,
    exclusive,
    open_for_writing,
    read_checked,
    read_journal,
    repair,
)
from policysearch.values import InputError

DIRECTIONS: list[Direction] = ["minimize", "maximize", "minimize"]


@pytest.fixture
def journal(tmp_path: Path) -> Path:
    """A journal of six records of a study."""
    path = tmp_path / "a.journal"
    with exclusive(path):
        opened = open_for_writing(path, "tiny", DIRECTIONS, ["a", "b", "c"])
        for number in range(4):
            opened.study.set_user_attr("fact", number)
    assert not read_journal(path.read_bytes()).damage
    return path


def damage(path: Path, *numbers: int) -> None:
    """Spoil a byte in the middle of these lines, counted from 1."""
    lines = path.read_bytes().splitlines(keepends=True)
    for number in numbers:
        line = lines[number - 1]
        middle = len(line) // 2
        lines[number - 1] = line[:middle] + bytes([line[middle] ^ 1]) + line[middle + 1 :]
    path.write_bytes(b"".join(lines))


def test_lines_before_the_damage_stay_to_the_byte(journal: Path) -> None:
    lines = journal.read_bytes().splitlines()
    damage(journal, 4)
    done = repair(journal, "tiny", DIRECTIONS)
    after = journal.read_bytes().splitlines()
    assert after[:3] == lines[:3]
    # Those behind it move up one place and differ in place and checksum alone.
    assert done.kept == len(after) == len(lines) - 1
    for new, old in zip(after[3:], lines[4:], strict=True):
        theirs, ours = json.loads(old), json.loads(new)
        assert ours["n"] == theirs["n"] - 1 and new.count(b'"n":') == 1
        assert {**ours, "n": 0, "crc": 0} == {**theirs, "n": 0, "crc": 0}


def test_a_lost_head_is_written_again_with_the_directions(journal: Path) -> None:
    damage(journal, 1)
    repair(journal, "tiny", DIRECTIONS)
    assert not read_checked(journal).damage
    backend = optuna.storages.journal.JournalFileBackend(str(journal))
    study = optuna.load_study(study_name="tiny", storage=optuna.storages.JournalStorage(backend))
    assert study.directions == [
        StudyDirection.MINIMIZE,
        StudyDirection.MAXIMIZE,
        StudyDirection.MINIMIZE,
    ]
    assert study.user_attrs["fact"] == 3


def test_every_repair_keeps_the_damaged_file_under_the_next_free_name(journal: Path) -> None:
    for number in (1, 2, 3):
        damage(journal, 3)
        spoiled = journal.read_bytes()
        done = repair(journal, "tiny", DIRECTIONS)
        assert done.copy == journal.with_name(f"a.journal.damaged{number}")
        assert done.copy.read_bytes() == spoiled
        assert not read_checked(journal).damage


def test_a_sound_journal_is_read(journal: Path) -> None:
    assert read_checked(journal) == read_journal(journal.read_bytes())


@pytest.mark.parametrize(("numbers", "more"), [((2,), 1), ((2, 4), 3)])
def test_damage_is_told_by_its_first_line_and_how_much_more(
    journal: Path, numbers: tuple[int, ...], more: int
) -> None:
    """A damaged line leaves a gap of places behind it, which counts too."""
    damage(journal, *numbers)
    with pytest.raises(InputError) as caught:
        read_checked(journal)
    assert f"storage {journal}: line 2 is damaged and {more} more; expected" in str(caught.value)


def test_a_single_damage_has_no_more(journal: Path) -> None:
    lines = journal.read_bytes().splitlines()
    damage(journal, len(lines))
    reading = read_journal(journal.read_bytes())
    assert reading.damage == (f"line {len(lines)} is damaged",)
    with pytest.raises(InputError, match=rf"line {len(lines)} is damaged; expected"):
        read_checked(journal)


@pytest.mark.parametrize("end", [b"\n", b""])
def test_a_missing_line_feed_at_the_end_is_written_before_anything_else(
    journal: Path, end: bytes
) -> None:
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-1] + end)
    with exclusive(journal):
        opened = open_for_writing(journal, "tiny", DIRECTIONS, ["a", "b", "c"])
        assert journal.read_bytes() == whole
        opened.study.set_user_attr("fact", 9)
    assert not read_journal(journal.read_bytes()).damage
    assert len(journal.read_bytes().splitlines()) == len(whole.splitlines()) + 1
