"""docs/fp8-or-not.ipynb: its cells run in order, and say what is stored beside them."""

from __future__ import annotations

import contextlib
import io
import json
import runpy
from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[1] / "docs" / "fp8-or-not.ipynb"
CELLS = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
CODE = [cell for cell in CELLS if cell["cell_type"] == "code"]


def printed(cell: dict[str, Any]) -> str:
    return "".join(
        "".join(output["text"]) for output in cell["outputs"] if output["output_type"] == "stream"
    )


def test_every_cell_of_code_was_run_in_order_and_the_story_is_told() -> None:
    assert [cell["execution_count"] for cell in CODE] == list(range(1, len(CODE) + 1))
    assert not [o for cell in CODE for o in cell["outputs"] if o["output_type"] == "error"]
    told = "".join(map(printed, CODE))
    for part in ("FP8 trains", "diverged in step 1", "verdict: repaired by", "gpt-torch.py"):
        assert part in told
    words = "".join("".join(cell["source"]) for cell in CELLS if cell["cell_type"] == "markdown")
    assert all(f"## {head}" in words for head in ("FP8 or not?", "What fails", "What to run"))


def test_the_site_has_a_page_of_its_cells_and_of_what_they_gave() -> None:
    page = [NOTEBOOK.with_suffix(".md").read_text(encoding="utf-8")]
    conf = runpy.run_path(str(NOTEBOOK.with_name("conf.py")))
    conf["_notebook"](None, NOTEBOOK.stem, page)
    head, *rest = ("".join(cell["source"]) for cell in CELLS)
    assert page[0].startswith(head.partition("\n")[0])
    assert all(text in page[0] for text in rest)
    for cell in CODE:
        assert f"```python\n{''.join(cell['source'])}\n```" in page[0]
        assert printed(cell) in page[0]
    assert page[0].count('<div class="policysearch">') == 2
    for other in ("start", "lab/cost"):
        before = ["# Another page"]
        conf["_notebook"](None, other, before)
        assert before == ["# Another page"]


@pytest.mark.slow
def test_the_cells_run_and_say_what_is_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    space: dict[str, Any] = {"__name__": "__main__"}
    for cell in CODE:
        out = io.StringIO()
        with contextlib.redirect_stdout(out):
            exec(compile("".join(cell["source"]), "cell", "exec"), space)
        # prices and last bits of losses move with the cost model and the processor
        assert [line.split(":")[0] for line in out.getvalue().splitlines()[:2]] == [
            line.split(":")[0] for line in printed(cell).splitlines()[:2]
        ]
    assert (tmp_path / "results" / "gpt-policy.json").exists()
