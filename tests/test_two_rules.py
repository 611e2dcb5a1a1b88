"""The benchmark of a search over two rules: its studies have every run that it knows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import two_rules
from policysearch.objective.objective import Objective
from policysearch.rewrite.format_rules import FormatRule, LayerMatch

FORMATS = ("float32", "bfloat16")


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two blocks, two formats and two steps in the place of what the benchmark searches."""
    rules = tuple(
        FormatRule(f"block {i}", LayerMatch(block=f"block{i}"), formats=FORMATS) for i in (1, 2)
    )
    task = replace(two_rules.TASK, widths=(8, 8, 8), steps=30, tail_steps=5)
    monkeypatch.setattr(two_rules, "FORMATS", FORMATS)
    monkeypatch.setattr(two_rules, "RULES", rules)
    monkeypatch.setattr(two_rules, "SPEC", replace(two_rules.SPEC, task=task, rules=rules))


def test_a_search_comes_to_the_front_of_its_space(capsys: pytest.CaptureFixture[str]) -> None:
    code = two_rules.main(["--samplers", "gain", "--seeds", "1", "--spaces", "1"])
    _, space, found = capsys.readouterr().out.splitlines()
    assert "training seeds (0, 1): 5 policies" in space
    assert "inf" not in found and found.endswith("1 of 1 within 10")
    assert code == 0


def test_a_run_that_fails_is_no_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained = two_rules.Trained()
    space = two_rules.trained_space(trained, (0,))
    monkeypatch.setattr(Objective, "measure", lambda *_: 1 / 0)
    with pytest.raises(RuntimeError, match="ZeroDivisionError"):
        two_rules.searched("gain", 0, space, tmp_path)


def test_only_whole_runs_are_remembered() -> None:
    trained = two_rules.Trained()
    with pytest.raises(ValueError, match="not a whole run"):
        trained.measure(trained.objective, trained.objective.float32, 0, 0.0, 3)
