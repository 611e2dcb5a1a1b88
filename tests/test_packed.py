"""Logs of a recorded training: rows come out as they went in, old logs are read, others refused."""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from policysearch.diagnose.log import findings, log_steps
from policysearch.diagnose.packed import LEVELS, LONGEST, Packer, Unpacker
from policysearch.values import InputError

ROWS: list[list[Any]] = [
    ["fprop", "a.b", "addmm", -12, [1, 0, 3, 8, 200, 41], {}],
    ["pole", "a.b", "div", -30, [1, 90_000], {"-200": 7}],
    ["fprop", "", "exp", 16, [], {"-201": 5, "-200": 70_000}],
    ["update", "a.b", "weight", -20, [5, 3000, 9], {"-201": 1}],
]
LOG = Path("run.jsonl")


def line(rows: dict[str, Any], step: int = 0) -> str:
    return json.dumps({"step": step, "scale": 1.0, "norm": 1.0, "norm_at_step": 1.0, **rows})


def packed(text: str) -> str:
    return base64.b85encode(zlib.compress(text.encode())).decode()


def test_rows_come_out_in_their_order_with_names_given_once() -> None:
    packer, unpacker = Packer(), Unpacker()
    turns = [ROWS, ROWS[::-1], [ROWS[2], ["dgrad", "new", "Linear", -3, [4], {}], ROWS[0]]]
    lines = [packer.packed(rows) for rows in turns]
    assert ["names" in each for each in lines] == [True, False, True]
    for rows, each in zip(turns, lines, strict=True):
        found = [*unpacker.rows(each)]
        assert [row[:3] for row in found] == [row[:3] for row in rows]
        assert [row[5] for row in found] == [
            {"-201": row[5].get("-201", 0), "-200": row[5].get("-200", 0)} if row[5] else {}
            for row in rows
        ]


@pytest.mark.parametrize("largest", [1, 8, 1000, 10**6, 10**12])
def test_counts_are_right_to_a_tenth_and_small_ones_to_the_value(largest: int) -> None:
    rng = np.random.default_rng(largest)
    for _ in range(50):
        counts = [int(n) for n in largest ** rng.random(12)]
        key = ["pole", "a", "log"]
        (row,) = Unpacker().rows(Packer().packed([[*key, -7, counts, {}]]))
        assert row[:4] == [*key, -7]
        by = max(1.0, max(counts) / LEVELS[-1])  # beyond the largest level only shares are kept
        for ours, exact in zip(row[4], counts, strict=True):
            assert ours > 0 and abs(ours * by - exact) <= 0.1 * exact + by
            assert exact > 8 or by > 1.0 or ours == exact


def test_a_thousandth_at_the_lower_end_counts_as_the_next_but_what_is_divided_by() -> None:
    counts = [1, 2, 7, 3000, 6000]
    for direction, first, least in (("fprop", -13, 10), ("update", -13, 10), ("pole", -15, 1)):
        (row,) = Unpacker().rows(Packer().packed([[direction, "a", "b", -15, counts, {}]]))
        assert (row[3], row[4][0]) == (first, least)
    (row,) = Unpacker().rows(Packer().packed([["wgrad", "a", "b", -3, [0, 0], {}]]))
    assert row[3:5] == [-3, [0, 0]]


def test_a_log_of_before_says_the_same() -> None:
    """The rows that policysearch 0.2 wrote as they are."""
    rows = [
        ["fprop", "fc", "addmm", 10, [100, 50, 3, 0, 0, 0, 0, 8], {"-201": 2}],
        ["dgrad", "fc", "Linear", -40, [300, 20], {"-200": 9}],
        ["pole", "", "div", -31, [4, 900], {}],
        ["update", "fc", "weight", -20, [800, 1], {}],
    ]
    old, new = (
        findings(log_steps(line(each), LOG), "float16")
        for each in ({"exponents": rows}, Packer().packed(rows))
    )
    assert [row[:3] for row in map(_place, old)] == [row[:3] for row in map(_place, new)]
    assert {row.kind for row in new} == {"overflow", "underflow", "swamped updates", "born"}


def _place(found: Any) -> tuple[str, str, str, str]:
    return found.kind, found.direction, found.op, found.words


@pytest.mark.parametrize(
    "rows",
    [
        {"rows": 3},
        {"rows": "\x00"},
        {"rows": "abcde"},
        {"rows": packed("0 -3 $$")[:-3]},
        {"rows": packed("0 -3 $$")},
        {"rows": packed("0 -3 \\"), "names": packed('[["fprop","a","b"]]')},
        {"rows": packed("x $$"), "names": packed('[["fprop","a","b"]]')},
        {"rows": packed("-1 3 $$"), "names": packed('[["fprop","a","b"]]')},
        {"rows": packed("3 $$"), "names": packed("7")},
        {"rows": packed("3 $$"), "names": packed("[[1]]")},
        {"rows": packed("3 $$"), "names": packed('["abc"]')},
        {"rows": packed("999 $$"), "names": packed('[["fprop","a","b"]]')},
        {"rows": packed(" " * (LONGEST + 1))},
    ],
)
def test_what_is_no_row_is_refused_in_one_line(rows: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=r"run.jsonl: line 1") as refused:
        log_steps(line(rows), LOG)
    assert "\n" not in str(refused.value)


def test_a_log_without_its_beginning_is_refused() -> None:
    packer = Packer()
    lines = [line(packer.packed(ROWS), step) for step in range(3)]
    assert len(log_steps("\n".join(lines), LOG)) == 3
    with pytest.raises(InputError, match=r"line 1.rows: row 0 of 0 names; .*, from its start"):
        log_steps("\n".join(lines[1:]), LOG)
