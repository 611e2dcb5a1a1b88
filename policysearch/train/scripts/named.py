"""A script that a study file names: the function of the user's file that gives it."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from policysearch.train.scripts.script import KEY, Script
from policysearch.train.user_code import found_from, result_of
from policysearch.values import InputError

__all__ = ["Remade", "Script", "script_at", "script_in"]

TRAINER = "transformers.trainer.Trainer"
"""A class whose instances are scripts as they stand."""


def script_in(table: object, folder: Path) -> Script | None:
    """Return the script that a table [task] names; None where it names none."""
    if not isinstance(table, Mapping) or KEY not in table:
        return None
    for name in ("model", "data"):
        if name in table:
            raise InputError(f"{name}: beside {KEY}, which has its own; expected it left out")
    return script_at(table[KEY], folder)


def script_at(name: object, folder: Path) -> Script:
    """Return what the function "file.py:function" gives, its file looked for in `folder` too.

    That runs the file. A Trainer of transformers is read. InputError where it gives something else.
    """
    if not isinstance(name, str) or ".py:" not in name:
        raise InputError(f"{KEY}: {name!r}; expected file.py:function")
    given = result_of(KEY, found_from(folder, name))
    if any(f"{kind.__module__}.{kind.__name__}" == TRAINER for kind in type(given).__mro__):
        from policysearch.train.scripts.hugging_face import from_trainer

        given = from_trainer(given)
    if not isinstance(given, Script):
        valid = "what from_loader, from_trainer or from_lightning returns, or a Trainer"
        raise InputError(f"{KEY}: {name} returned {type(given).__name__}; expected {valid}")
    model: Any = given.model
    if getattr(model, "source", None) is None:
        return given
    return replace(given, model=replace(model, source=Remade(name, folder, model.source)))


@dataclass(frozen=True)
class Remade:
    """Makes the module of a script; in another process the script runs again where it has to.

    That is where `source`, the module or its maker, cannot be sent there: most scripts have their
    loss inside a function.
    """

    name: str
    folder: Path
    source: Any

    def __call__(self) -> Any:
        if self.source is None:
            model: Any = script_at(self.name, self.folder).model
            return model.source()
        is_module = hasattr(self.source, "state_dict") and not isinstance(self.source, type)
        return self.source if is_module else self.source()

    def __getstate__(self) -> dict[str, Any]:
        try:
            pickle.dumps(self.source)
        except Exception:  # pickle raises what it meets: of a user's classes it may be anything
            return {**vars(self), "source": None}
        return dict(vars(self))
