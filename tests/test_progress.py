"""The progress bar, and Ctrl-C before there is one."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from policysearch.__main__ import run
from policysearch.report.progress import Bar

NOTHING: Any = SimpleNamespace(trials=(), failed=(), front=())


@pytest.mark.parametrize(("trained", "total"), [((1.0, 2.0), 2), ((3.0, 3.5, 4.0), 4)])
def test_a_bar_counts_what_comes_on_top_of_the_budget(
    trained: tuple[float, ...], total: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """Presets that were added to a study whose trials were done are trained beside them."""
    with Bar(2) as bar:
        for count in trained:
            bar(count, lambda: NOTHING)
    shown = capsys.readouterr().err
    assert f"{total}/{total} trials |#" in shown and "None" not in shown


def test_ctrl_c_while_the_package_is_imported_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Importing:
        def __getattr__(self, name: str) -> None:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "policysearch.cli", Importing())
    assert run() == 130
    assert capsys.readouterr().err == "policysearch: interrupted\n"
