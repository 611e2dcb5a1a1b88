"""What every view says of a few studies, whole, beside what it said when it was last looked at.

Where it is meant to say something else: `python -m tests.kept_texts`, and read the diff. Functions
have four cases each, for `benchmarks.mutants` asks no more of one before all others.
"""

from __future__ import annotations

import pytest

from tests.kept_texts import FOLDER, file_of, texts

TEXTS = texts()
SEARCHED = ("told", "narrow", "longer", "deep")
RANKED = ("failed", "squares", "one seed", "crowded")
UNRANKED = ("cannot rank", "all diverged", "empty")
SAID = ("running", "diagnoses")
DECIDED = ("parallel", "phases", "spread", "norms")
ASKED = ("whole", "asked", "before", "no study")


def compare(name: str) -> None:
    said, kept = TEXTS[name](), file_of(name).read_text(encoding="utf-8")
    assert said.splitlines() == kept.splitlines()


@pytest.mark.parametrize("name", SEARCHED)
def test_what_a_search_knows(name: str) -> None:
    compare(name)


@pytest.mark.parametrize("name", RANKED)
def test_policies_that_are_ranked(name: str) -> None:
    compare(name)


@pytest.mark.parametrize("name", UNRANKED)
def test_what_does_not_train_or_learn(name: str) -> None:
    compare(name)


@pytest.mark.parametrize("name", SAID)
def test_what_is_not_at_its_end(name: str) -> None:
    compare(name)


@pytest.mark.parametrize("name", DECIDED)
def test_policies_that_decide_more_than_formats(name: str) -> None:
    compare(name)


@pytest.mark.parametrize("name", ASKED)
def test_what_commands_print(name: str) -> None:
    compare(name)


def test_every_text_is_kept_and_compared() -> None:
    assert sorted(FOLDER.iterdir()) == sorted(map(file_of, TEXTS))
    assert sorted(TEXTS) == sorted((*SEARCHED, *RANKED, *UNRANKED, *SAID, *DECIDED, *ASKED))
