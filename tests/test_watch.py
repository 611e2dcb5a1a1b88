"""`report --watch`: a page that is written anew while a study runs, by a clock that tests move."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
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


def shown(html: str) -> int:
    """Return how many policies a whole page shows; -1 for one that says why there are none."""
    assert html.startswith("<!doctype html>") and html.endswith("</html>\n"), "half a file"
    found = re.search(r'<script type="application/json"[^>]*>(.*?)</script>', html, re.S)
    return len(json.loads(found[1])["rows"]) if found else -1


def test_a_new_trial_is_on_the_page_after_one_period(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The journal grows while the command sleeps; a page is whole whenever its name is there."""
    study, whole = write_study(tmp_path), tmp_path / "whole.journal"
    spec = load_spec(study)
    with replaced_training():
        run_study(spec, whole, processes=0)
    lines = whole.read_bytes().splitlines(keepends=True)
    journal, out = tmp_path / "x.journal", tmp_path / "new" / "page.html"
    pages: list[int] = []
    wanted: list[int] = []
    replaced = 0

    def grown() -> Iterator[None]:
        """Let the journal grow by a third; what it has is what the next page has to show."""
        for share in (0.6, 0.8, 1.0):
            journal.write_bytes(b"".join(lines[: int(len(lines) * share)]))
            wanted.append(len(load_results(spec, journal).trials))
            yield

    growing = grown()

    def sleep(seconds: float) -> None:
        assert seconds == SECONDS
        html = out.read_text(encoding="utf-8")
        pages.append(shown(html))
        period = SECONDS if pages[-1] >= 0 else "2"  # without results the page waits for them
        assert f'<meta http-equiv="refresh" content="{period}">' in html
        next(growing)

    def replace(made: Path, target: Path) -> None:
        nonlocal replaced
        for file in (made, *(each for each in (target,) if each.exists())):
            shown(file.read_text(encoding="utf-8"))
        os.replace(made, target)
        replaced += 1

    monkeypatch.setattr(report, "time", SimpleNamespace(sleep=sleep))
    monkeypatch.setattr(files, "os", SimpleNamespace(**{**vars(os), "replace": replace}))
    command = ["report", str(study), "--storage", str(journal), "--out", str(out)]
    assert main([*command, "--watch", str(SECONDS)]) == 0
    last = out.read_text(encoding="utf-8")
    assert "refresh" not in last, "the search has ended"
    assert [*pages[1:], shown(last)] == wanted and pages[0] == -1
    assert len(set(wanted)) == 3 and wanted == sorted(wanted)
    assert replaced == 4
