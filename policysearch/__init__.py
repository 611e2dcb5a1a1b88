"""Pareto-optimal mixed-precision training policies, found on a bit-exact numpy emulator."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from policysearch.api import *  # noqa: F403


# The API is imported when first asked for: a training process needs neither Optuna nor plots.
def __getattr__(name: str) -> Any:
    if not name.startswith("_"):
        api = importlib.import_module("policysearch.api")
        if name in api.__all__:
            return getattr(api, name)
    raise AttributeError(f"module 'policysearch' has no attribute {name!r}")
