"""Samples of `make faults`: damaged journals, random studies, and text that a terminal acts on."""

from __future__ import annotations

import contextlib
import io
import json
import random
import warnings
from pathlib import Path
from unittest import mock

import pytest
from optuna.storages import JournalStorage

from benchmarks.faults.common import ATTACK, RAW, SOUND, finished, said_raw
from benchmarks.faults.disk import disks
from benchmarks.faults.files import fuzzed
from benchmarks.faults.records import cuts, flips, tracebacks
from benchmarks.faults.studies import drawn_study, studies
from policysearch.api import load_results, repair_study, run_study
from policysearch.cli import main
from policysearch.export.levels import head
from policysearch.policy.presets import preset
from policysearch.report.page.element import tag
from policysearch.study.journal.records import AGAIN, PREFIX, Records
from policysearch.study.journal.storage import not_replayed, read_checked, read_line, sealed
from policysearch.study.specification import load_spec
from policysearch.values import InputError, printable
from tests.studies import TINY, replaced_training, write_study


def test_a_bit_turned_over_costs_one_record_and_never_the_identity(tmp_path: Path) -> None:
    assert flips(tmp_path, 40, 1) == {"intact": 40}


def records_of(lines: list[bytes]) -> list[dict[str, object]]:
    read = [read_line(line.rstrip(b"\n")) for line in lines]
    return [line.record for line in read if line is not None]


def places_of(lines: list[bytes], kind: str) -> list[int]:
    return [
        i for i, record in enumerate(records_of(lines)) if f'"{PREFIX}{kind}:' in json.dumps(record)
    ]


def test_either_record_of_the_identity_is_enough_to_go_on(tmp_path: Path) -> None:
    study, lines = finished(tmp_path)
    journal = tmp_path / "results" / "tiny.journal"
    first, second = places_of(lines, "identity"), places_of(lines, AGAIN)
    assert len(first) == len(second) == 1
    for lost in (*first, *second):
        damaged = [*lines[:lost], lines[lost][:40] + b"?" + lines[lost][41:], *lines[lost + 1 :]]
        journal.write_bytes(b"".join(damaged))
        assert repair_study(load_spec(study), journal).kept == len(lines) - 1
        with replaced_training() as trained:
            run_study(load_spec(study), journal, processes=0, progress=False)
        assert not trained


def test_a_journal_is_replayed_in_one_pass_that_goes_on_behind_what_cannot_be(
    tmp_path: Path,
) -> None:
    """What Optuna has read is copied once, not with every record: journals grow long."""
    sound = records_of(finished(tmp_path)[1])
    replayed = JournalStorage.get_study_name_from_id
    with mock.patch.object(JournalStorage, "get_study_name_from_id", autospec=True) as replay:
        replay.side_effect = replayed
        assert not_replayed(sound) == [] and replay.call_count == 1
    bad = {"op_code": 4, "study_id": 0}, {"op_code": 99}, {"op_code": 2, "study_id": 7}
    assert not_replayed([*sound[:5], bad[0], *sound[5:9], *bad[1:], *sound[9:]]) == [5, 10, 11]
    assert not_replayed([*sound, bad[0]]) == [len(sound)]
    deep: list[object] = []
    for _ in range(600):  # as deep as JSON is read, and too deep for the copies that Optuna makes
        deep = [deep]
    attribute = {"op_code": 2, "study_id": 0, "user_attr": {"deep": deep}}
    assert not_replayed([*sound[:5], attribute, *sound[5:]]) == [5]


def test_two_records_of_the_identity_that_differ_are_refused_and_repaired(tmp_path: Path) -> None:
    study, lines = finished(tmp_path)
    journal = tmp_path / "results" / "tiny.journal"
    (place,) = places_of(lines, AGAIN)
    line = read_line(lines[place].rstrip(b"\n"))
    assert line is not None and line.place is not None
    record = json.loads(json.dumps(line.record).replace("H100", "H100"))
    for value in record["system_attr"].values():
        value["data"] = "another"
    bare = {key: value for key, value in record.items() if key not in ("n", "crc")}
    journal.write_bytes(b"".join([*lines[:place], sealed(bare, line.place), *lines[place + 1 :]]))
    with pytest.raises(InputError, match="expected the same of what made it, twice"):
        load_results(load_spec(study), journal)
    assert repair_study(load_spec(study), journal).kept == len(lines) - 1
    assert Records(read_checked(journal).lines).identities[0]["data"] != "another"
    assert load_results(load_spec(study), journal).trials


def test_random_studies_are_refused_before_anything_is_made(tmp_path: Path) -> None:
    said: list[str] = []
    ends = studies(tmp_path, 30, 3, said.append)
    assert set(ends) == {"ran", "refused"}, said
    assert not list(tmp_path.iterdir())
    drawn = {drawn_study(random.Random(seed)) for seed in range(30)}
    assert len(drawn) > 25


def test_records_of_another_shape_end_in_one_line_without_raw_text(tmp_path: Path) -> None:
    said: list[str] = []
    ends = tracebacks(tmp_path, 40, 4, said.append)
    assert not said
    assert {end.rpartition(": ")[2] for end in ends} == {"taken", "refused"}


def test_a_journal_cut_anywhere_goes_on_to_the_same_end(tmp_path: Path) -> None:
    said: list[str] = []
    assert cuts(tmp_path, 6, 5, said.append) == {"same": 6}, said


def test_a_full_disk_is_one_line_and_goes_on_with_room(tmp_path: Path) -> None:
    said: list[str] = []
    ends = disks(tmp_path, 5, 7, said.append)
    assert not said and len(ends) == 5
    assert {end.rpartition(": ")[2] for end in ends} == {"same"}


@pytest.mark.torch
def test_changed_files_of_every_kind_end_in_one_line(tmp_path: Path) -> None:
    said: list[str] = []
    ends = fuzzed(tmp_path, 17, 6, said.append)
    assert not said and sum(ends.values()) == 17
    assert {end.rpartition(": ")[2] for end in ends} <= SOUND


@pytest.mark.parametrize("target", ["torch", "fsdp2", "mindspore"])
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1if 0 else 2\ny = '\\d\n", "line 2"),  # which Python warns of too
        (f"x = {'-' * 20_000}1\n", "nested too deep"),
        (f"x = {'1+' * 5_000}1\n", ""),
        ("LAYERS = {[]: 1}\nFORMATS = {{}}\n", "has"),
    ],
)
def test_python_that_is_read_and_not_run_ends_in_one_line(
    text: str, said: str, target: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_study(tmp_path)
    (tmp_path / "made.py").write_text(text)
    with contextlib.chdir(tmp_path), warnings.catch_warnings(record=True) as odd:
        warnings.simplefilter("always")
        assert main(f"inspect made.py --target {target} --study tiny.toml".split()) == 2
    line = capsys.readouterr().err
    assert line.startswith("policysearch: made.py: ") and line.count("\n") == 1 and said in line
    assert not odd


def _raw(folder: Path, *streams: io.StringIO) -> bool:
    return said_raw(folder.rglob("*"), *(stream.getvalue() for stream in streams))


TEXTS = [line.partition(" =")[0] for line in TINY.splitlines() if '= "' in line]


@pytest.mark.parametrize("key", [*TEXTS, "metric", "loss", "baseline", "target", "goal"])
def test_no_text_of_a_study_reaches_a_terminal_raw(
    key: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, one_process: None
) -> None:
    monkeypatch.chdir(tmp_path)
    toml = json.dumps(ATTACK)
    lines = [
        f"{key} = {toml}" if text.startswith(f"{key} = ") else text for text in TINY.splitlines()
    ]
    if key not in TEXTS:
        table = "[task]" if key in ("metric", "loss") else "[study]"
        lines.insert(lines.index(table) + 1, f"{key} = {toml}")
    (tmp_path / "tiny.toml").write_text("\n".join(lines))
    for command in ("run", "show", "explain preset:bfloat16 --study", "report", "repair"):
        streams = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
            code = main([*command.split(), "tiny.toml"])
        assert code == 2 and not _raw(tmp_path, *streams), command
        assert len(streams[1].getvalue().splitlines()) == 1
        assert streams[1].getvalue().isascii()


def test_what_the_users_own_code_says_is_filtered_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "net.py").write_text(f"def model():\n    raise ValueError({ATTACK!a})\n")
    own = ('model = "mlp"\nactivation = "tanh"\nwidths = [8]', 'model = "net.py:model"')
    write_study(tmp_path, own)
    streams = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(streams[0]), contextlib.redirect_stderr(streams[1]):
        assert main(["estimate", "tiny.toml"]) == 2
        assert main(["estimate", f"tiny{ATTACK}.toml"]) == 2
    said = streams[1].getvalue()
    assert "\\x1b[2Jb\\x07c\\u202ed" in said and len(said.splitlines()) == 2
    assert not _raw(tmp_path, *streams)


def test_pages_and_comments_go_through_the_filter() -> None:
    attack = ATTACK.partition("\n")[0]
    policy = preset("bfloat16", ("fc",))
    comments = head(policy, [f"{attack}\nimport os"], [], "torch").splitlines()
    assert all(line.startswith("# ") for line in comments)
    for text in (str(tag("p", attack, title=attack)), " ".join(comments)):
        assert not any(raw in text for raw in RAW)
        assert "\\x1b[2J" in text and "\\u202e" in text
    assert printable("größer 大, ok") == "größer 大, ok"
    assert printable("a\tb\nc\rd", "\n\t") == "a\tb\nc\\rd"
