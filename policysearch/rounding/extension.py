"""Extensions in C: what is there without a compiler is the same, slower."""

from __future__ import annotations

import importlib
from typing import Any


def extension(name: str) -> Any:
    """Return the compiled module of this name inside the package; None where it is missing."""
    try:
        return importlib.import_module(f"policysearch.{name}")
    except ImportError:
        return None
