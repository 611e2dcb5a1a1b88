"""The site of the manual: `make site` builds it with Sphinx into build/site."""

from __future__ import annotations

import inspect
from typing import Any

import policysearch

project = "policysearch"
author = copyright = "the policysearch developers"
release = version = policysearch.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
exclude_patterns = ["results"]

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "undoc-members": False}
# docstrings are plain text with single backticks for code
default_role = "code"

html_theme = "furo"
html_title = "policysearch"
html_static_path: list[str] = []
# Files beside the pages that a page links to, which are no pages: the repository's own.
suppress_warnings = ["myst.xref_missing"]


def _names(app: Any, page: str, source: list[str]) -> None:
    """Put every name of `policysearch.__all__` on the page of the API."""
    if page != "api":
        return
    for name in policysearch.__all__:
        kind = "class" if inspect.isclass(getattr(policysearch, name)) else "function"
        source[0] += f"\n```{{eval-rst}}\n.. auto{kind}:: policysearch.{name}\n```\n"


def setup(app: Any) -> None:
    """Have Sphinx fill the page of the API."""
    app.connect("source-read", _names)
