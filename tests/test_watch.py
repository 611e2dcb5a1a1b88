"""`report --watch`: a page that is written anew while a study runs, by a clock that tests move."""

from __future__ import annotations

import json
import os
import re
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest

from policysearch import files
from policysearch.cli import main
from policysearch.commands import report
from policysearch.study.opening import load_results
from policysearch.study.specification import load_spec
from policysearch.study.study import run_study
from tests.studies import replaced_training, write_study

SECONDS = 3
WRITING = 0.5


def shown(html: str) -> int:
    """Return how many policies a whole page shows; -1 for one that says why there are none."""
    assert html.startswith("<!doctype html>") and html.endswith("</html>\n"), "half a file"
    found = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', html, re.S)
    return len(json.loads(found[1])["rows"]) if found else -1


class Watched:
    """A study that grows while the command sleeps: `pages` is what was shown, `wanted` what is."""

    def __init__(self, folder: Path, study: Path) -> None:
        self.spec, whole = load_spec(study), folder / "whole.journal"
        with replaced_training():
            run_study(self.spec, whole, processes=0)
        self._lines = whole.read_bytes().splitlines(keepends=True)
        self.journal, self.out = folder / "x.journal", folder / "new" / "page.html"
        self.pages: list[int] = []
        self.wanted: list[int] = []
        self.replaced = 0

    def sleep(self, seconds: float) -> None:
        """Look at the page; then let the journal grow."""
        assert seconds == SECONDS - WRITING, "the period holds the time that a page takes"
        html = self.out.read_text(encoding="utf-8")
        self.pages.append(shown(html))
        period = SECONDS if self.pages[-1] >= 0 else "2"  # without results it waits for them
        assert f'<meta http-equiv="refresh" content="{period}">' in html
        share = (0.6, 0.8, 1.0)[len(self.wanted)]
        self.journal.write_bytes(b"".join(self._lines[: int(len(self._lines) * share)]))
        self.wanted.append(len(load_results(self.spec, self.journal).trials))

    def replace(self, made: Path, target: Path) -> None:
        """Look at both files, which are whole, before one takes the name of the other."""
        for file in filter(Path.exists, (made, target)):
            shown(file.read_text(encoding="utf-8"))
        os.replace(made, target)
        self.replaced += 1


def test_a_new_trial_is_on_the_page_after_one_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = write_study(tmp_path)
    told = Watched(tmp_path, study)
    clock = SimpleNamespace(sleep=told.sleep, monotonic=count(0.0, WRITING).__next__)
    monkeypatch.setattr(report, "time", clock)
    monkeypatch.setattr(files, "os", SimpleNamespace(**{**vars(os), "replace": told.replace}))
    command = ["report", str(study), "--storage", str(told.journal), "--out", str(told.out)]
    assert main([*command, "--watch", str(SECONDS)]) == 0
    last = told.out.read_text(encoding="utf-8")
    assert "refresh" not in last, "the search has ended"
    assert [*told.pages[1:], shown(last)] == told.wanted and told.pages[0] == -1
    assert len(set(told.wanted)) == 3 and told.wanted == sorted(told.wanted)
    assert told.replaced == 4
