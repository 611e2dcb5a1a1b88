"""A training script that was read: its model, batches and recipe, and what was taken of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from policysearch.data.datasets import Dataset
from policysearch.nn.model import Model
from policysearch.policy.loss_scale import LossScale
from policysearch.train.groups import Group, by_parameter
from policysearch.train.tasks import Task
from policysearch.train.user_code import metric_in_file
from policysearch.values import one_of

KEY = "script"
"""Of the table [task] of a study file: "file.py:function" of a function that gives a Script."""

SAID = (
    *("learning_rate", "weight_decay", "momentum", "dampening", "nesterov"),
    *("beta1", "beta2", "epsilon"),
)
"""Settings of an optimizer, as they are listed."""


@dataclass(frozen=True)
class Script:
    """What `from_loader`, `from_trainer` and `from_lightning` give.

    `recipe` are keys of [task] by name. `baseline` is the preset of the precision that the script
    runs at, `loss_scale` what its scaler does. `taken` says what was read and what was left out,
    one line each.
    """

    model: Model
    data: Dataset
    recipe: Mapping[str, Any]
    baseline: str = "float32"
    taken: tuple[str, ...] = ()
    loss_scale: LossScale | None = None

    def taking(
        self, recipe: Mapping[str, Any], baseline: str, loss_scale: LossScale | None = None
    ) -> Script:
        """Return the script with these, and lines of `taken` that say them before the others."""
        if "metric" in recipe:
            recipe = {**recipe, "metric": metric_in_file(recipe["metric"])}
        made = replace(self, recipe=recipe, baseline=baseline, loss_scale=loss_scale)
        by_parameter(made.task.groups, made.model.parameters())
        return replace(made, taken=(*made._recipe_lines(), *self.taken))

    def _recipe_lines(self) -> Iterator[str]:
        """Say the optimizer, its settings and groups, schedule, clipping, precision and scaler."""
        task, given = self.task, "optimizer" in self.recipe
        said = [f"{n} {self.recipe[n]:g}" for n in SAID if given and n in self.recipe]
        assumed = [] if given else ["assumed: the script says none"]
        yield f"optimizer: {', '.join([task.optimizer, *said, *assumed])}"
        yield from (f"group: {len(group.match)} parameters, {group.said}" for group in task.groups)
        each = f"of {task.accumulation_steps} batches, " if task.accumulation_steps > 1 else ""
        yield f"steps: {task.steps}, {each}the loss of the last {task.tail_steps} is reported"
        schedule = self.recipe.get("schedule")
        if schedule is None:
            yield f"schedule: none, {task.learning_rate:g} at every step"
        elif schedule.shares:
            rates, held = [task.rate_at(step) for step in range(task.steps)], schedule.momenta
            most = max(rates)
            up = f" over {most:g} in step {rates.index(most) + 1}" if rates[0] < most else ""
            momenta = f", momentum from {min(held):g} to {max(held):g}" if held else ""
            yield f"schedule: {task.steps} rates, from {rates[0]:g}{up} to {rates[-1]:g}{momenta}"
        else:
            yield f"schedule: {schedule.kind}"
        for name in ("clip_norm", "clip_value", "ema_decay"):
            if name in self.recipe:
                yield f"{name}: {self.recipe[name]:g}"
        yield f"precision: {self.baseline}, the baseline unless another is given"
        if self.loss_scale is not None:
            yield f"loss scale: {_scale_words(self.loss_scale)}; that of dynamic scales in [space]"

    @property
    def task(self) -> Task:
        """The task: what the script trains."""
        return Task(model=self.model, data=self.data, **self.recipe)

    def in_tables(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the tables of a study file with what they do not say of the script's."""
        given = {name: value for name, value in data["task"].items() if name != KEY}
        recipe = {
            name: _plain(value)
            for name, value in self.recipe.items()
            if name != "schedule" and not callable(value) and name not in given
        }
        steps = given.get("steps")
        if isinstance(steps, int) and "tail_steps" not in given:
            recipe["tail_steps"] = max(1, min(self.recipe["tail_steps"], steps))
        study = data.get("study")
        if isinstance(study, Mapping):
            data = {**data, "study": {"baseline": self.baseline, **study}}
        return {**data, "task": {**recipe, **given}}

    def task_of(self, task: Task, given: Any) -> Task:
        """Return a `task` that was read of a table, with the values that no file can say."""
        schedule = task.schedule
        if "schedule" not in given and "schedule" in self.recipe:
            schedule = self.recipe["schedule"].stretched(task.steps, self.recipe["steps"])
        metric = task.metric if "metric" in given else self.recipe.get("metric", "")
        return replace(task, model=self.model, data=self.data, schedule=schedule, metric=metric)


OWN_KEYS = ("model", "data", "data_folder", "loss", "script", "batch_size", "steps")
"""Of [task]: a script says them itself."""


def check_recipe(recipe: Mapping[str, Any], others: Sequence[str]) -> None:
    """Raise InputError for a name that is neither a key of [task] nor one of `others`."""
    known = [f.name for f in fields(Task) if f.name not in OWN_KEYS]
    for name in recipe:
        one_of("option", name, (*others, *known))


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


def _scale_words(scale: LossScale) -> str:
    return (
        f"begins at {scale.init_scale:g}, {scale.growth_factor:g} times as large after "
        f"{scale.growth_interval} clean steps, {scale.backoff_factor:g} times after an overflow"
    )
