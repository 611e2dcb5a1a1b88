"""The reference of the study file is complete, and the page in docs/ is what the code says."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path
from typing import Any

import pytest

from policysearch.cli import main
from policysearch.commands.keys import meaning, registries, study_file_page, tables
from tests.studies import TINY

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "study-file.md"
TABLES = dict(tables())


def test_the_page_is_what_is_generated(capsys: pytest.CaptureFixture[str]) -> None:
    assert PAGE.read_text(encoding="utf-8") == study_file_page() + "\n", "run `make docs`"
    assert main(["keys"]) == 0
    assert capsys.readouterr().out == study_file_page() + "\n"


@pytest.mark.parametrize("table", TABLES)
def test_every_key_has_a_row_and_a_word_on_what_it_means(table: str) -> None:
    section = study_file_page().split(f"## [{table}]\n")[1].split("\n## ")[0]
    said = "\n".join(meaning(TABLES[table]))
    for field in dataclasses.fields(TABLES[table]):
        assert f"\n| `{field.name}` |" in section
        assert f"`{field.name}`" in said, f"no docstring says what {table}.{field.name} is"
        if f"{table}.{field.name}" in registries():
            assert all(f"`{name}`" in section for name in registries()[f"{table}.{field.name}"])


def test_the_keys_of_optimizer_and_schedule_are_there() -> None:
    assert {"task.schedule", "space.groups", "objectives"} <= TABLES.keys()
    page = study_file_page()
    for key in ("nesterov", "beta2", "weight_decay_for", "warmup_steps", "final_factor"):
        assert f"\n| `{key}` |" in page


def keys_of(data: dict[str, Any], table: str = "") -> set[tuple[str, str]]:
    found = set()
    for key, value in data.items():
        if isinstance(value, dict):
            found |= keys_of(value, f"{table}.{key}".strip("."))
        if table:
            found.add((table, key))
    return found


def test_every_key_of_the_shipped_studies_is_listed() -> None:
    texts = [TINY, *(path.read_text() for path in (ROOT / "studies").rglob("*.toml"))]
    listed = {(table, f.name) for table, kind in TABLES.items() for f in dataclasses.fields(kind)}
    for text in texts:
        assert keys_of(tomllib.loads(text)) <= listed
