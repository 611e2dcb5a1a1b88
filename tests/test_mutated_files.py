"""Harsh values in a study file, and a policy of thousands of layers: one line, exit code 2."""

from __future__ import annotations

import contextlib
import io
import json
import re
from pathlib import Path

import pytest

from policysearch.cli import main
from policysearch.nn.models import mlp
from policysearch.policy.presets import preset
from tests.studies import TINY, replaced_training, write_study

POLICY = preset("mindspore.O2", mlp((64, 8, 10), "tanh").layer_names).to_json()

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


def outcome(arguments: list[str]) -> tuple[int, str]:
    """Return the exit code and what was said on standard error."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        try:
            code = main(arguments)
        except SystemExit as left:
            code = int(left.code or 0)
    return code, said.getvalue()


@pytest.mark.usefixtures("one_process")
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
