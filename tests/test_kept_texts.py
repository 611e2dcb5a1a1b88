"""What every view says of a few studies, whole, beside what it said when it was last looked at."""

from __future__ import annotations

import pytest

from tests.kept_texts import FOLDER, file_of, texts

TEXTS = texts()


@pytest.mark.parametrize("name", TEXTS)
def test_every_view_says_what_is_kept(name: str) -> None:
    """Where it is meant to say something else: `python -m tests.kept_texts`, and read the diff."""
    said, kept = TEXTS[name](), file_of(name).read_text(encoding="utf-8")
    assert said.splitlines() == kept.splitlines()


def test_no_text_is_kept_for_nobody() -> None:
    assert sorted(FOLDER.iterdir()) == sorted(map(file_of, TEXTS))
