"""The page of what is registered is what the code says, and has a row of everything."""

from __future__ import annotations

from pathlib import Path

import pytest

from policysearch.optimizers.optimizer import rules
from policysearch.policy.loss_scale import RULES
from policysearch.report.registries import registries_page
from policysearch.study.optuna_samplers import SAMPLERS
from policysearch.train.schedule import KINDS

PAGE = Path(__file__).parents[1] / "docs" / "registries.md"


def test_the_page_is_what_is_generated() -> None:
    assert PAGE.read_text(encoding="utf-8") == registries_page() + "\n", "run `make docs`"


@pytest.mark.parametrize("name", [*rules(), *KINDS, *RULES, *SAMPLERS])
def test_every_row_is_on_the_page_with_all_its_columns(name: str) -> None:
    lines = registries_page().split("\n")
    (at,) = (i for i, line in enumerate(lines) if line.startswith(f"| `{name}` |"))
    titles = next(line for line in reversed(lines[:at]) if line.startswith("| name |"))
    assert lines[at].count(" | ") == titles.count(" | ") and "|  |" not in lines[at]
