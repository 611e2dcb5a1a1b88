"""The manual is plain prose: short sentences, no words to be guessed, at most so many words."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
GENERATED = {"commands", "registries", "study-file", "supported-ops"}
PAGES = tuple(
    page.stem
    for page in sorted((ROOT / "docs").glob("*.md"))
    if page.stem not in GENERATED and not page.stem.startswith("target-")
)
MANUAL = ("README.md", *(f"docs/{name}.md" for name in PAGES))
"""Pages written by hand; the lab book is in a folder of its own, and the others are generated."""

LAB = tuple(f"docs/lab/{page.name}" for page in sorted((ROOT / "docs" / "lab").glob("*.md")))
REFERENCE = tuple(f"docs/{name}.md" for name in sorted(GENERATED))
"""Pages that are made of docstrings and of help."""

HOW = (
    "graph",
    "exactness",
    "accumulators",
    "cost-model",
    "searcher",
    "decisions",
    "noise",
    "horizon",
)
"""Pages that say how it works: at most 900 words each, tables and all, with something to see."""

LONGEST, MEAN, WORDS = 35, 18, 16_000

GUESSED = {
    "promise": "expected gain",
    "promises": "expected gain",
    "looks at": "low-fidelity evaluation",
    "worlds": "joint samples",
    "is told": "is known, is measured",
    "are told": "are known, are measured",
    "promises most": "has the largest expected gain",
    "rows in view": "known when the model was made",
}
"""Words that readers had to guess, and what is meant by them."""


def prose(text: str) -> str:
    """Return the text without code, tables, comments and the targets of links."""
    listed = r"^- `\w+`: `.*$"  # of a key of studies: its values
    for pattern in (
        *(r"^```.*?^```", r"<!--.*?-->", r"^\|.*$", r"^#.*$", r"!\[[^\]]*\]\([^)]*\)"),
        listed,
    ):
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


@pytest.mark.parametrize("page", (*LAB, *REFERENCE))
def test_no_sentence_of_the_lab_book_and_the_reference_is_long(page: str) -> None:
    found = sentences((ROOT / page).read_text(encoding="utf-8"))
    long = [sentence for sentence in found if length(sentence) > LONGEST]
    assert not long, long


@pytest.mark.parametrize("page", (*MANUAL, *REFERENCE))
def test_no_word_has_to_be_guessed(page: str) -> None:
    text = prose((ROOT / page).read_text(encoding="utf-8")).lower()
    found = [word for word in GUESSED if re.search(rf"\b{word}\b", text)]
    assert not found, [f"{word}: say {GUESSED[word]}" for word in found]


def written(text: str) -> int:
    """Return the words of a page, those of tables and headings too, without code and links."""
    text = re.sub(r"^```.*?^```|<!--.*?-->", "", text, flags=re.S | re.M)
    return len(re.findall(r"\S*\w\S*", re.sub(r"\]\([^)]*\)", "]", text)))


def test_the_manual_is_short() -> None:
    assert sum(counts().values()) <= WORDS
    assert len((ROOT / "README.md").read_text(encoding="utf-8").split()) <= 710


@pytest.mark.parametrize("name", HOW)
def test_how_it_works_is_short_and_shown(name: str) -> None:
    text = (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 900
    assert "\n|---|" in text or "```text" in text
    assert f"\n{name}\n" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")


def counts() -> dict[str, int]:
    """Return the words of every page written by hand."""
    return {page: written((ROOT / page).read_text(encoding="utf-8")) for page in MANUAL}


def test_the_check_sees_a_long_sentence_and_a_table_is_none() -> None:
    long = " ".join(["word"] * 40) + "."
    assert [length(s) for s in sentences(f"One. Two words.\n\n- {long}\n\n| {long} | x |\n")] == [
        1,
        2,
        40,
    ]


if __name__ == "__main__":
    for page, count in counts().items():
        print(f"{count:6} {page}")
    print(f"{sum(counts().values()):6} of at most {WORDS}")
