"""The progress bar."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

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
