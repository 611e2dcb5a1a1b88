"""A training script that was read: its model, batches and recipe, and what was taken of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from policysearch.data.datasets import Dataset
from policysearch.nn.model import Model
from policysearch.train.groups import Group
from policysearch.train.schedule import Schedule
from policysearch.train.tasks import Task
from policysearch.train.user_code import found_from, result_of
from policysearch.values import InputError, one_of

KEY = "script"
"""Of the table [task] of a study file: "file.py:function" of a function that gives a Script."""


@dataclass(frozen=True)
class Script:
    """What `from_loader`, `from_trainer` and `from_lightning` give.

    `recipe` are keys of [task] by name. `baseline` is the preset of the precision that the script
    runs at. `taken` says what was read and what was left out, one line each.
    """

    model: Model
    data: Dataset
    recipe: Mapping[str, Any]
    baseline: str = "float32"
    taken: tuple[str, ...] = ()

    @property
    def task(self) -> Task:
        """The task: what the script trains."""
        return Task(model=self.model, data=self.data, **self.recipe)

    def changed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the recipe as plain keys of [task] with those that are `given` in their place."""
        plain = {
            name: _plain(value)
            for name, value in self.recipe.items()
            if name not in given and not isinstance(value, Schedule)
        }
        return {**plain, **given}

    def task_of(self, task: Task, given: Mapping[str, Any]) -> Task:
        """Return a `task` that was read of `given` keys, with what is no key of a file."""
        schedule = task.schedule if "schedule" in given else self.recipe.get("schedule")
        if "schedule" not in given and "steps" in given and schedule is not None:
            schedule = schedule.stretched(task.steps, self.recipe["steps"])
        return replace(task, model=self.model, data=self.data, schedule=schedule or task.schedule)


def script_at(name: object, folder: Path) -> Script:
    """Return what the function "file.py:function" gives, its file looked for in `folder` too.

    That runs the file. InputError where it gives something else.
    """
    if not isinstance(name, str) or ".py:" not in name:
        raise InputError(f"{KEY}: {name!r}; expected file.py:function")
    given = result_of(KEY, found_from(folder, name))
    if not isinstance(given, Script):
        valid = "what from_loader, from_trainer or from_lightning returns"
        raise InputError(f"{KEY}: {name} returned {type(given).__name__}; expected {valid}")
    return given


def check_recipe(recipe: Mapping[str, Any]) -> None:
    """Raise InputError for a name that is no key of [task]."""
    known = [f.name for f in fields(Task) if f.name not in ("model", "data", "data_folder")]
    for name in recipe:
        one_of("recipe", name, known)


def _plain(value: Any) -> Any:
    if isinstance(value, tuple) and value and isinstance(value[0], Group):
        return [
            {
                key: list(held) if isinstance(held, tuple) else held
                for key, held in vars(group).items()
                if held is not None
            }
            for group in value
        ]
    return value
