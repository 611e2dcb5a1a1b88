"""docs/own-script.md: its code runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import policysearch as ps
from policysearch.train import user_code

PAGE = (Path(__file__).parents[1] / "docs" / "own-script.md").read_text(encoding="utf-8")
LONGEST_WORDS = 700


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.S)


def test_the_page_is_short_and_its_scripts_take_ten_lines() -> None:
    assert len(PAGE.split()) <= LONGEST_WORDS
    assert all(len(code.splitlines()) <= 10 for code in blocks("python")[1:])


@pytest.mark.torch
def test_the_loop_and_the_study_file_of_the_page_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    user_code._module.cache_clear()
    calm = blocks("python")[0].replace('own.journal")', 'own.journal", processes=0)')
    assert calm.count("processes=0") == 1
    space: dict[str, object] = {"__name__": "__main__"}
    exec(compile(calm, "train", "exec"), space)
    results = space["results"]
    assert isinstance(results, ps.Results) and len(results.trials) == 4
    Path("train.py").write_text(blocks("python")[0])
    Path("own.toml").write_text(blocks("toml")[0])
    spec = ps.load_study("own.toml")
    user_code._module.cache_clear()
    task = spec.task
    assert (task.steps, task.accumulation_steps, task.clip_norm) == (50, 2, 1.0)
    assert len(ps.run_study(spec, "toml.journal", trials=1, processes=0).trials) == 1
