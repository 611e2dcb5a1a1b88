"""README's picture and verdict are those of today's study, drawing and prices."""

from __future__ import annotations

import json
import re

import pytest

from benchmarks.figures import PICTURE, RECORD, ROOT, digests, priced

RECORDED = json.loads(RECORD.read_text(encoding="utf-8"))
AGAIN = "; `python -m benchmarks.figures` makes them anew"


def test_what_the_picture_is_made_from_has_not_changed() -> None:
    assert RECORDED["sources"] == digests(), f"figures of {RECORDED['date']} are stale{AGAIN}"
    assert PICTURE.read_bytes().startswith(b"\x89PNG")


def test_todays_prices_are_those_of_the_verdict() -> None:
    verdict = RECORDED["verdict"]
    recorded = [verdict[key] for key in ("speedup", "speedup_low", "speedup_high")]
    assert priced(RECORDED) == pytest.approx(recorded, rel=1e-9), f"prices have changed{AGAIN}"


def test_readme_says_the_numbers_of_the_verdict() -> None:
    verdict = RECORDED["verdict"]
    text = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    (answer,) = re.findall(r"The answer is to take trial (\d+)", text)
    (speeds,) = re.findall(
        r"modeled at ([\d.]+) times the baseline's speed \(([\d.]+) to ([\d.]+)", text
    )
    recorded = [verdict[key] for key in ("speedup", "speedup_low", "speedup_high")]
    assert verdict["kind"] == "take" and int(answer) == verdict["trial"]
    assert list(speeds) == [f"{number:.2f}" for number in recorded]
    (gap,) = re.findall(r"Its gap \(([\de.-]+) nats\)", text)
    assert float(gap) == pytest.approx(abs(verdict["loss_gap"]), rel=0.5)
    for page in ("questions", "reading"):
        said = (ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8")
        assert "modeled {1} to {2}".format(*speeds) in " ".join(said.replace("\n>", " ").split())
    assert ("may be no faster" in text) == (verdict["speedup_low"] < 1.0)
