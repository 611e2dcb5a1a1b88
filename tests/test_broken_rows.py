"""Hundreds of broken files of rows and devices: each a line, or a line for each bad row."""

from __future__ import annotations

import copy
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.validation.narrow.rows import SHIPPED as NARROW
from benchmarks.validation.published_memory import SHIPPED as MEMORY
from policysearch.cost.device_file import device_text, read_device
from policysearch.cost.devices import DEVICES, Device
from policysearch.cost.roofline import FITTED
from policysearch.objective.published.judged import settings_of
from policysearch.objective.published.known import PATH as HELD_OUT
from policysearch.objective.published.row_file import read_file
from policysearch.objective.published.rows import row_of
from policysearch.objective.published.steps import speedups, steps_of
from policysearch.values import InputError
from tests.test_device_file import graphs, timed
from tests.validated import few_known as few_known
from tests.validated import validated

SPEEDUPS = HELD_OUT.with_name("published_speedups.json")
FILES = {
    "--narrow": (NARROW, 60),
    "--memory": (MEMORY, 10),
    "": (SPEEDUPS, 30),
}
HARSH: tuple[Any, ...] = (
    None,
    True,
    0,
    -1,
    -2.5,
    0.5,
    1e-300,
    1e300,
    10**400,
    10**18,
    2**31,
    float("nan"),
    float("inf"),
    "",
    "x",
    "fp8",
    "nvfp4",
    "8" * 5000,
    "\ud800",
    "a\nb\x00c\x1b[2K",
    "A100",
    "missing.toml",
    "TP=0",
    "TP=99999999999999999999",
    "step",
    [],
    [1],
    {},
    {"value": 1},
    [[[[[]]]]],
    {"micro": 10**30, "micro_bf16": -1, "grad_accum_bf16": 10**25},
)


FEW = 3
"""Networks that broken rows are drawn of: what is wrong in a row is no matter of its network."""


def rows_of_few(file: Path, rng: random.Random) -> list[dict[str, Any]]:
    """Return the file's rows of a few of its networks: to record and price each takes a second."""
    rows: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))
    models = sorted({row["model"] for row in rows})
    few = rng.sample(models, min(FEW, len(models)))
    return [row for row in rows if row["model"] in few]


def harsh(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(HARSH))


def broken_rows(rows: list[dict[str, Any]], rng: random.Random) -> str:
    """Return a JSON file of a few of the rows, with one to four things wrong in it."""
    made: list[Any] = [dict(row) for row in rng.sample(rows, rng.randint(1, 3))]
    for _ in range(rng.randint(1, 4)):
        place, how = rng.randrange(len(made)), rng.randrange(10)
        if not isinstance(made[place], dict) or how == 0:
            made[place] = harsh(rng)
        elif how == 1:
            made[place].pop(rng.choice([*made[place], "model"]), None)
        elif how == 2:
            made[place][rng.choice(("speed", "", "\u00e9", "id"))] = harsh(rng)
        elif how == 3:
            made[place] = {"rows": [made[place]]}
        else:
            made[place][rng.choice([*made[place], "model"])] = harsh(rng)
    text = json.dumps(made, ensure_ascii=rng.random() < 0.5)
    return cut(text, rng) if rng.random() < 0.2 else text


def cut(text: str, rng: random.Random) -> str:
    """Return a text with its end, or something in its middle, gone or changed."""
    place = rng.randrange(len(text))
    return rng.choice(
        (text[:place], text[:place] + text[place + 5 :], text[:place] + "\x00" + text[place:])
    )


def broken_device(device: Device, rng: random.Random) -> str:
    """Return the TOML of a device with one to three lines or values of it wrong."""
    text = device_text(device)
    for _ in range(rng.randint(1, 3)):
        lines = text.split("\n")
        place, how = rng.randrange(len(lines)), rng.randrange(5)
        key = lines[place].partition(" = ")[0]
        if how == 0:
            lines.pop(place)
        elif how == 1:
            lines.insert(place, lines[place])
        elif how == 2:
            return cut(text, rng)
        elif how == 3:
            number = rng.choice(
                ("nan", "-1", "inf", "1e400", "1e-9", "9" * 400, "'x'", "true", "[]")
            )
            lines[place] = lines[place].replace("value = ", f"value = {number} #", 1)
        else:
            lines[place] = f"{key} = {rng.choice(('3', 'nan', '[]', '[[1]]', '{}', 'x', '[nan]'))}"
        text = "\n".join(lines)
    return text


def one_line(text: str) -> None:
    assert text and text.isprintable(), repr(text)


@pytest.mark.parametrize("option", ["--narrow", "--memory"])
def test_broken_rows_are_lines_of_the_command(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file, count = FILES[option]
    rng, path, codes = random.Random(f"broken {option}"), tmp_path / "rows.json", set()
    rows = rows_of_few(file, rng)
    for _ in range(count):
        write(path, broken_rows(rows, rng))
        code = validated([option, "--rows", str(path)])
        said = capsys.readouterr()
        codes.add(code)
        if code == 2:
            assert not said.out and said.err.count("\n") == 1
            one_line(said.err[:-1])
            continue
        assert code == 0 and not said.err
        for line in said.out.splitlines():
            assert line == "" or line.isprintable(), repr(line)
    assert codes == {0, 2}


def test_broken_rows_of_speedups_are_lines(tmp_path: Path) -> None:
    """As the command reads and prices them; its fits are left out for their time."""
    file, count = FILES[""]
    rng, path = random.Random("broken speedups"), tmp_path / "rows.json"
    rows = rows_of_few(file, rng)
    priced = refused = 0
    for _ in range(count):
        write(path, broken_rows(rows, rng))
        try:
            read = read_file(path, "", row_of)
        except InputError as error:
            one_line(" ".join(str(error).split()))
            refused += 1
            continue
        built, unbuilt = settings_of(read.rows)
        for line in (*read.refused, *(reason for _, reason in unbuilt)):
            one_line(line)
            refused += 1
        if built:
            modeled = speedups(steps_of(built), FITTED)
            assert all(0 < value < float("inf") for value in modeled)
            priced += len(built)
    assert priced > 15 and refused > 15


def test_broken_devices_are_one_line_or_priced(tmp_path: Path) -> None:
    from policysearch.cost.price import price

    rng, path = random.Random("broken devices"), tmp_path / "mine.toml"
    policy, float32 = graphs()
    whole = [*DEVICES.values(), timed(), replace(timed(), name="a\nb")]
    read = refused = 0
    for _ in range(140):
        write(path, broken_device(rng.choice(whole), rng))
        try:
            device = read_device(path)
            assert 0 < price(policy, float32, device, "torch.eager").speedup < 1e6
            read += 1
        except InputError as error:
            assert str(error).startswith(str(path))
            one_line(str(error))
            refused += 1
    assert read > 10 and refused > 50


def test_the_page_of_speedups_ends_in_the_bad_rows(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rng, path = random.Random("page"), tmp_path / "rows.json"
    rows = rows_of_few(SPEEDUPS, rng)
    for option in ([], ["--ranks"]):
        write(path, broken_rows(rows, rng))
        assert validated([*option, "--rows", str(path)]) in (0, 2)
        assert "Traceback" not in capsys.readouterr().err


def write(path: Path, text: str) -> None:
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
