"""Files of published rows that a user gives: a mistake in one is a line that names the place."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.validation.narrow.rows import SHIPPED as NARROW
from benchmarks.validation.narrow.rows import narrow_row_of, read_narrow_rows
from benchmarks.validation.published_memory import SHIPPED as MEMORY
from benchmarks.validation.published_memory import memory_row_of, read_memory_rows
from policysearch.objective.published.known import PATH as HELD_OUT
from policysearch.objective.published.row_file import Fields, read_file
from policysearch.objective.published.rows import read_rows, row_of
from tests.turns import case
from tests.validated import few_known as few_known
from tests.validated import validated

SHIPPED: dict[str, dict[str, Any]] = {
    option: json.loads(path.read_text(encoding="utf-8"))[0]
    for option, path in (
        ("", HELD_OUT.with_name("published_speedups.json")),
        ("--narrow", NARROW),
        ("--memory", MEMORY),
    )
}

BUILD: dict[str, Callable[[Fields], Any]] = {
    "": row_of,
    "--narrow": narrow_row_of,
    "--memory": memory_row_of,
}

TEXTS = {
    "": ("model", "framework", "hardware", "dtype_baseline", "dtype_mixed"),
    "--narrow": ("kind", "model", "hardware", "dtype_baseline", "dtype_mixed"),
    "--memory": ("model", "hardware"),
}

POSITIVE = {
    "": ("throughput_baseline", "throughput_mixed", "speedup"),
    "--narrow": ("speedup",),
    "--memory": ("memory_baseline_gib", "memory_mixed_gib"),
}

BATCHES = {
    "": ("batch_per_gpu_baseline", "batch_per_gpu_mixed"),
    "--narrow": (),
    "--memory": ("batch_baseline", "batch_mixed"),
}

WRONG: list[tuple[str, str, object]] = [
    *((o, key, given) for o, keys in TEXTS.items() for key in keys for given in (None, 3, ["x"])),
    *(
        (o, key, given)
        for o, keys in POSITIVE.items()
        for key in keys
        for given in ("fast", 0, -1.5, float("nan"), float("inf"), 10**400, True, [2])
    ),
    *(
        (o, key, given)
        for o, keys in BATCHES.items()
        for key in keys
        for given in (None, 1.5, "64", 10**400)
    ),
    *((o, "seq_len", given) for o in SHIPPED for given in ("long", -1, 0.5)),
    *((o, "n_gpu", given) for o in ("", "--narrow") for given in (0, "all")),
    *((o, "confounders", given) for o in ("", "--narrow") for given in ("x", [3])),
    ("--narrow", "batch_per_gpu", [16]),
    ("--narrow", "parallelism", 8),
    ("--memory", "optimizer", ["adam"]),
]


def refused(option: str, text: str, path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Return the one line that the command answers a file with."""
    path.write_text(text, encoding="utf-8")
    assert validated([*option.split(), "--rows", str(path)]) == 2
    said = capsys.readouterr()
    assert not said.out and said.err.count("\n") == 1 and str(path) in said.err
    return said.err


@pytest.mark.parametrize("option", SHIPPED)
def test_a_wrong_field_is_one_line(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for own, key, given in WRONG:
        if own == option:
            with case(key, given):
                assert_one_line(option, key, given, tmp_path / "rows.json", capsys)


def assert_one_line(
    option: str, key: str, given: object, path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = SHIPPED[option]
    said = refused(option, json.dumps([{**good, key: given}]), path, capsys)
    assert "row 0: " in said and key in said and "; expected " in said
    path.write_text(json.dumps([good, {**good, key: given}, good]), encoding="utf-8")
    read = read_file(path, "", BUILD[option])
    assert len(read.rows) == 2 and len(read.refused) == 1
    reason = said.partition("row 0: ")[2].rstrip("\n")
    assert read.refused[0] == f"{path}: row 1: {reason}"


@pytest.mark.parametrize("option", SHIPPED)
def test_good_rows_are_priced_beside_bad_ones(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page is that of the good rows alone, and ends in a line for each bad one."""
    good, path = SHIPPED[option], tmp_path / "rows.json"
    bad = [3, {**good, "hardware": ["x"]}, {**good, "model": None}]
    command = [*option.split(), "--rows", str(path)]
    path.write_text(json.dumps([good]), encoding="utf-8")
    assert validated(command) == 0
    alone = capsys.readouterr().out
    path.write_text(json.dumps([good, *bad]), encoding="utf-8")
    assert validated(command) == 0
    said = capsys.readouterr().out
    assert said.startswith(alone) and "\nnot read, 3:\n" in said
    lines = said[len(alone) :].splitlines()[2:]
    assert [line.partition(": row ")[2][0] for line in lines] == ["1", "2", "3"]


@pytest.mark.parametrize("option", SHIPPED)
@pytest.mark.parametrize("text", ["", "{", "3", "{}", "[]", "[3]", "[null]", "[[]]", "[" * 5000])
def test_what_is_no_list_of_rows_is_one_line(
    option: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "expected " in refused(option, text, tmp_path / "rows.json", capsys)


@pytest.mark.parametrize("option", SHIPPED)
@pytest.mark.parametrize("key", ["model", "hardware"])
def test_a_file_of_which_no_row_can_be_built_is_one_line(
    option: str, key: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = json.dumps([{**SHIPPED[option], key: "Abacus"}])
    said = refused(option, text, tmp_path / "rows.json", capsys)
    assert "no row could be built: " in said
    assert ("unknown device 'Abacus'" in said) == (key == "hardware")


def test_rows_of_several_devices_are_refused_alike(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.json"
    assert "row 0: 3; " in refused("--ranks", "[3]", path, capsys)
    assert "no row could be built" in refused("--ranks", json.dumps([SHIPPED[""]]), path, capsys)


def test_fields_that_may_be_missing_are(tmp_path: Path) -> None:
    path, needed = tmp_path / "rows.json", {o: (*TEXTS[o], *BATCHES[o]) for o in SHIPPED}
    for option, read in (
        ("", read_rows),
        ("--narrow", read_narrow_rows),
        ("--memory", read_memory_rows),
    ):
        keys = (*needed[option], *(POSITIVE[option] if option != "--memory" else ()))
        path.write_text(json.dumps([{k: SHIPPED[option][k] for k in keys}]), encoding="utf-8")
        (row,) = read(path)
        assert row.id == "0" and row.model == SHIPPED[option]["model"]
    path.write_text(json.dumps([{**SHIPPED[""], "batch_per_gpu_mixed": 64.0}]), encoding="utf-8")
    assert read_rows(path)[0].batches[1] == 64


def test_sizes_in_words_are_no_sizes(tmp_path: Path) -> None:
    path, good = tmp_path / "rows.json", SHIPPED["--narrow"]
    wordy = {"M": "4096..16384", "N": -3, "K": 64, "batch_per_gpu": {"micro": "1 or 10"}}
    path.write_text(json.dumps([{**good, **wordy, "parallelism": "TP=0"}]), encoding="utf-8")
    (row,) = read_narrow_rows(path)
    assert row.sizes == (0, 0, 64, 0) and row.batches == (1, 1) and row.parallel.tensor == 1
