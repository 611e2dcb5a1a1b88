"""The files of this folder that are sections of the page, or pictures of one policy."""

from __future__ import annotations

import importlib
import pkgutil
from functools import cache
from pathlib import Path
from types import ModuleType

PACKAGE = __package__ or ""


@cache
def found(kind: str) -> tuple[ModuleType, ...]:
    """Return the files that have a row called `kind` (SECTION or PICTURE), by their places."""
    names = [module.name for module in pkgutil.iter_modules([str(Path(__file__).parent)])]
    modules = [importlib.import_module(f"{PACKAGE}.{name}") for name in names]
    rows = [module for module in modules if hasattr(module, kind)]
    return tuple(sorted(rows, key=lambda module: getattr(module, kind).place))
