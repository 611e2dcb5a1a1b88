"""The manual is plain prose: short sentences, no words to be guessed, at most so many words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = (
    "index",
    "start",
    "reading",
    "questions",
    "own-net",
    "rewriting",
    "storage",
    "tutorials",
    "api",
)
MANUAL = ("README.md", *(f"docs/{name}.md" for name in PAGES))
"""Pages that are read from the top; the lab book and what is generated are looked things up in."""

LONGEST, MEAN, WORDS = 35, 18, 16_000

GUESSED = {
    "promise": "expected gain",
    "promises": "expected gain",
    "looks at": "low-fidelity evaluation",
    "worlds": "joint samples",
    "is told": "is known, is measured",
}
"""Words that readers had to guess, and what is meant by them."""


def prose(text: str) -> str:
    """Return the text without code, tables, comments and the targets of links."""
    for pattern in (r"^```.*?^```", r"<!--.*?-->", r"^\|.*$", r"^#.*$", r"!\[[^\]]*\]\([^)]*\)"):
        text = re.sub(pattern, "\n\n", text, flags=re.S | re.M if "```" in pattern else re.M)
    text = re.sub(r"\]\([^)]*\)", "]", text)
    return re.sub(r"`[^`]*`", "code", text)


def sentences(text: str) -> list[str]:
    """Return the sentences of a page: a paragraph or an item of a list ends one."""
    parts = re.split(r"\n\s*\n|^\s*(?:[-*]|\d+\.) ", prose(text), flags=re.M)
    ends = (re.split(r"(?<=[.?!:])\s+", " ".join(part.split())) for part in parts)
    return [sentence for found in ends for sentence in found if re.search(r"\w", sentence)]


def length(sentence: str) -> int:
    return len(re.findall(r"[\w'%.,-]*\w[\w'%]*", sentence))


@pytest.mark.parametrize("page", MANUAL)
def test_sentences_are_short(page: str) -> None:
    found = sentences((ROOT / page).read_text(encoding="utf-8"))
    long = [sentence for sentence in found if length(sentence) > LONGEST]
    assert not long, long
    assert sum(map(length, found)) / len(found) <= MEAN


@pytest.mark.parametrize("page", MANUAL)
def test_no_word_has_to_be_guessed(page: str) -> None:
    text = prose((ROOT / page).read_text(encoding="utf-8")).lower()
    found = [word for word in GUESSED if re.search(rf"\b{word}\b", text)]
    assert not found, [f"{word}: say {GUESSED[word]}" for word in found]


def test_the_manual_is_short() -> None:
    words = sum(len(prose((ROOT / page).read_text(encoding="utf-8")).split()) for page in MANUAL)
    assert words <= WORDS
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 710


def test_the_check_sees_a_long_sentence_and_a_table_is_none() -> None:
    long = " ".join(["word"] * 40) + "."
    assert [length(s) for s in sentences(f"One. Two words.\n\n- {long}\n\n| {long} | x |\n")] == [
        1,
        2,
        40,
    ]
