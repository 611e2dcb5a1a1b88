"""The site of the manual: `make site` builds it with Sphinx into build/site."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import policysearch

project = "policysearch"
author = copyright = "the policysearch developers"
release = version = policysearch.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
exclude_patterns = ["results", "static"]

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "undoc-members": False}
# docstrings are plain text with single backticks for code
default_role = "code"

html_theme = "furo"
html_title = "policysearch"
html_static_path = ["static"]
html_css_files = ["site.css"]
# Files beside the pages that a page links to, which are no pages: the repository's own.
suppress_warnings = ["myst.xref_missing"]


def _names(app: Any, page: str, source: list[str]) -> None:
    """Put every name of `policysearch.__all__` on the page of the API, what is called first."""
    if page != "api":
        return
    named = {name: getattr(policysearch, name) for name in policysearch.__all__}
    for title, kind in (("Functions", "function"), ("Classes", "class")):
        source[0] += f"\n## {title}\n"
        for name, value in named.items():
            if inspect.isclass(value) == (kind == "class"):
                source[0] += f"\n```{{eval-rst}}\n.. auto{kind}:: policysearch.{name}\n```\n"


def _notebook(app: Any, page: str, source: list[str]) -> None:
    """Put the cells of the notebook of the same name on its page, with what they printed."""
    file = Path(__file__).parent / f"{page}.ipynb"
    if not file.exists():
        return
    cells = json.loads(file.read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    title, _, first = texts[0].partition("\n")
    source[0] += f"\n{first}\n"
    assert source[0].startswith(title), f"{page}: another title than {title}"
    for cell, text in zip(cells[1:], texts[1:], strict=True):
        code = cell["cell_type"] == "code"
        source[0] += f"\n```python\n{text}\n```\n" if code else f"\n{text}\n"
        source[0] += "".join(map(_output, cell.get("outputs", ())))


def _output(output: dict[str, Any]) -> str:
    """Return what a cell gave: the HTML that it shows itself as, or text."""
    html = output.get("data", {}).get("text/html")
    if html is not None:
        return f"\n````{{raw}} html\n{''.join(html)}\n````\n"
    return f"\n````{{code-block}} text\n:class: printed\n\n{''.join(output['text'])}\n````\n"


def setup(app: Any) -> None:
    """Have Sphinx fill the page of the API and those of notebooks."""
    app.connect("source-read", _names)
    app.connect("source-read", _notebook)
