"""Study and policy files with anything wrong: one line, exit code 2, nothing left behind."""

from __future__ import annotations

import contextlib
import io
import json
import random
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from policysearch.cli import main
from policysearch.nn.models import mlp
from policysearch.policy.presets import preset
from tests.studies import TINY, replaced_training, write_study

POLICY = preset("mindspore.O2", mlp((64, 8, 10), "tanh").layer_names).to_json()
LONGEST_SECONDS = 20.0

HARSH = (
    "1" * 5000,
    "1" + "0" * 400,
    "-1e999",
    "nan",
    "[" * 3000,
    "[" * 400 + "]" * 400,
    '"\\u0000"',
    '"\\ud800"',
    '"' + "x" * 300 + '"',
    "1000000000",
    "50000000",
    "-1",
    "0",
    "0.5",
    "true",
    "null",
    "{}",
    "[]",
    '""',
    '"../../../etc/passwd"',
    "[1000000000]",
    "[50000000, 50000000]",
    "\x00",
    "\ud800",
    "é",
)


def mutated(text: str, rng: random.Random) -> str:
    """Return `text` with one to three things changed: a byte, a value, a line, a span."""
    for _ in range(rng.randint(1, 3)):
        how = rng.randrange(6)
        place = rng.randrange(len(text) + 1)
        end = min(len(text), place + rng.randrange(1, 30))
        if how == 0:
            text = text[:place] + chr(rng.randrange(1, 0x250)) + text[place + 1 :]
        elif how == 1:
            text = text[:place] + text[end:]
        elif how == 2:
            text = text[:place] + text[place:end] * rng.choice((2, 3, 50)) + text[end:]
        else:
            values = list(re.finditer(r'(?<=[=:] )[^,\n]+|"[a-z_]+"', text))
            if values:
                value = rng.choice(values)
                text = text[: value.start()] + rng.choice(HARSH) + text[value.end() :]
    return text


def outcome(arguments: list[str]) -> tuple[int, str]:
    """Return the exit code and what was said on standard error."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = main(arguments)
        except SystemExit as left:
            code = int(left.code or 0)
    return code, said.getvalue()


def check(folder: Path, count: int, seed: int, write: Callable[[random.Random], list[str]]) -> int:
    """Try `count` files that `write` writes; return how many were refused."""
    rng = random.Random(seed)
    before = {path.name for path in folder.iterdir()}
    refused = 0
    for number in range(count):
        arguments = write(rng)
        start = time.monotonic()
        code, said = outcome(arguments)
        assert time.monotonic() - start < LONGEST_SECONDS, f"file {number}: {arguments}"
        lines = [line for line in said.split("\n") if line and "trials |" not in line]
        assert code in (0, 2), f"file {number}: {said}"
        assert code == 0 or len(lines) == 1, f"file {number}: {said}"
        assert len(said) < 2000 or code == 0
        refused += code == 2
        if code == 2:
            left = {path.name for path in folder.iterdir()} - before
            assert not left, f"file {number} left {left}: {said}"
        for path in folder.glob("out*"):
            path.unlink()
    return refused


def study_files(folder: Path) -> Callable[[random.Random], list[str]]:
    path = folder / "s.toml"
    path.write_text(TINY)

    def write(rng: random.Random) -> list[str]:
        path.write_bytes(mutated(TINY, rng).encode("utf-8", "surrogatepass"))
        return ["explain", "preset:bfloat16", "--study", str(path)]

    return write


def policy_files(folder: Path) -> Callable[[random.Random], list[str]]:
    study, path = write_study(folder), folder / "p.json"
    path.write_text(POLICY)

    def write(rng: random.Random) -> list[str]:
        path.write_bytes(mutated(POLICY, rng).encode("utf-8", "surrogatepass"))
        return ["explain", str(path), "--study", str(study)]

    return write


@pytest.mark.parametrize("kind", [study_files, policy_files])
def test_a_hundred_mutated_files(
    kind: Callable[[Path], Callable[[random.Random], list[str]]], tmp_path: Path
) -> None:
    assert check(tmp_path, 100, 0, kind(tmp_path)) > 50


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 11))
@pytest.mark.parametrize("kind", [study_files, policy_files])
def test_twenty_thousand_mutated_files(
    kind: Callable[[Path], Callable[[random.Random], list[str]]], seed: int, tmp_path: Path
) -> None:
    assert check(tmp_path, 1000, seed, kind(tmp_path)) > 500


@pytest.mark.parametrize("value", HARSH)
@pytest.mark.parametrize("key", ["name", "seeds", "widths", "steps", "learning_rate", "device"])
def test_harsh_values_in_a_study_file(key: str, value: str, tmp_path: Path) -> None:
    text = re.sub(rf"^{key} = .*$", lambda _: f"{key} = {value}", TINY, flags=re.M)
    if key == "learning_rate":
        text = text.replace("[cost]", f"learning_rate = {value}\n[cost]")
    path = tmp_path / "s.toml"
    path.write_bytes(text.encode("utf-8", "surrogatepass"))
    with replaced_training():
        places = ["--storage", str(tmp_path / "x"), "--out", str(tmp_path / "out")]
        code, said = outcome(["run", str(path), *places, "--trials", "1"])
    assert code in (0, 2)
    assert code == 0 or (len(said.splitlines()) == 1 and "expected" in said), said


def test_sixteen_thousand_keys_are_read_at_once(tmp_path: Path) -> None:
    data = json.loads(POLICY)
    layer = next(iter(data["layers"].values()))
    data["layers"] = {f"layer{number}": layer for number in range(16_000)}
    path = tmp_path / "p.json"
    path.write_text(json.dumps(data))
    code, said = outcome(["explain", str(path), "--study", str(write_study(tmp_path))])
    assert code == 2 and "layer0" in said and len(said) < 2000
