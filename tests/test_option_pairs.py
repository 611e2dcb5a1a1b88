"""Options that say nothing to each other are refused: none is left unread without a word."""

from __future__ import annotations

import pytest

from benchmarks.validation.__main__ import validation
from policysearch.cli import main

VALIDATE, CALIBRATE = ["validation"], ["calibrate", "own.toml"]
PAIRS = {
    "rounds without measured": (
        [*VALIDATE, "--memory", "--rounds", "3"],
        "--rounds: 3 without --measured",
    ),
    "seed 0 without measured": (
        [*VALIDATE, "--memory", "--seed", "0"],
        "--seed: 0 without --measured",
    ),
    "device without measured": (
        [*VALIDATE, "--memory", "--device", "own.toml"],
        "--device: own.toml without --measured; expected both",
    ),
    "place without measured": (
        [*VALIDATE, "--memory", "--place", "cpu"],
        "--place: cpu without --measured",
    ),
    "rows with measured": ([*VALIDATE, "--measured", "--rows", "x.json"], "--rows: x.json with"),
    "narrow and measured": ([*VALIDATE, "--narrow", "--measured"], "not allowed with"),
    "memory and ranks": ([*VALIDATE, "--memory", "--ranks"], "not allowed with"),
    "memory without csv": ([*CALIBRATE, "--memory-gib", "8"], "--memory-gib: 8.0 without --csv"),
    "cache without csv": ([*CALIBRATE, "--cache-bytes", "0"], "--cache-bytes: 0 without --csv"),
    "host without csv": ([*CALIBRATE, "--host", "adds"], "--host: adds without --csv"),
    "place with csv": ([*CALIBRATE, "--csv", "k.csv", "--place", "cuda"], "--place: cuda with"),
    "rounds with csv": ([*CALIBRATE, "--csv", "k.csv", "--rounds", "3"], "--rounds: 3 with --csv"),
    "formats with csv": (
        [*CALIBRATE, "--csv", "k.csv", "--formats", "float16"],
        "--formats: float16 with --csv",
    ),
}


@pytest.mark.parametrize(("line", "error"), PAIRS.values(), ids=PAIRS)
def test_an_option_that_would_be_left_unread_is_refused(
    line: list[str], error: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        assert (validation(line[1:]) if line[:1] == VALIDATE else main(line)) == 2
    except SystemExit as ended:
        assert ended.code == 2
    printed = capsys.readouterr()
    assert not printed.out and error in printed.err and printed.err.count("\n") == 1
