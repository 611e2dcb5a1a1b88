"""The pages of the export targets are what is generated, short, and there for every target."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from policysearch.export.targets import targets
from policysearch.report.target_pages import TRAPS, pages

DOCS = Path(__file__).parents[1] / "docs"
MOST_WORDS = 250


@pytest.mark.parametrize("name", targets())
def test_a_page_is_what_is_generated(name: str) -> None:
    text = pages()[f"target-{name}.md"]
    assert (DOCS / f"target-{name}.md").read_text(encoding="utf-8") == text
    prose = re.sub(r"```.*?```", "", text, flags=re.DOTALL)
    assert len(prose.split()) <= MOST_WORDS
    assert "\n- " in prose and TRAPS[name]
    assert targets()[name].SUFFIX in (".py", ".yaml", ".json")


def test_there_is_no_page_without_a_target() -> None:
    assert {path.name for path in DOCS.glob("target-*.md")} == {*pages()}
