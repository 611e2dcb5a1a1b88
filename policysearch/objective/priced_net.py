"""A net that is priced in the place of the one that is trained, larger and of the same kind."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from glob import escape
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from policysearch.data.datasets import Dataset
from policysearch.nn.model import Model
from policysearch.nn.stacks import counterparts
from policysearch.policy.policy import Policy
from policysearch.train.groups import Group, by_parameter
from policysearch.train.tasks import Task
from policysearch.train.user_code import found_from, is_user_code, said_without_folder
from policysearch.values import InputError, number, to_plain

DEPTH_OF_EXAMPLES = 4
"""Most axes of one example."""


@dataclass(frozen=True)
class PricedNet:
    """What differs from the net that is trained, in the net whose step is priced.

    `model` is that of a task: the name of a builder, or "file.py:function" of your own, by default
    the task's; `widths` are its widths. `inputs` is the shape of one example where a net takes a
    single input: [channels, rows, columns], or [time] of tokens. `classes` is how many classes or
    words there are. Its layers are matched with those that are trained by name and by place in
    their stack: the first block with the first, the last with the last.
    """

    model: str = ""
    widths: tuple[int, ...] = ()
    inputs: tuple[int, ...] = ()
    classes: int = 0

    def __post_init__(self) -> None:
        for side in self.inputs:
            number("inputs", side, 1, 2**24)
        if len(self.inputs) > DEPTH_OF_EXAMPLES:
            given = f"{len(self.inputs)} axes"
            raise InputError(f"inputs: {given}; expected at most {DEPTH_OF_EXAMPLES}")
        number("classes", self.classes, 0, 2**31)
        if self.widths and is_user_code(self.model):
            raise InputError(f"widths: given with {self.model}; expected none, they are its own")
        if not (self.model or self.widths or self.inputs or self.classes):
            raise InputError("model, widths, inputs, classes: none given; expected what differs")

    @property
    def words(self) -> str:
        """What it is, in words."""
        said = [f"widths {_width_words(self.widths)}"] if self.widths else []
        said += [f"inputs {' x '.join(map(str, self.inputs))}"] if self.inputs else []
        said += [f"{self.classes} classes"] if self.classes else []
        name = said_without_folder(self.model) or "the same net"
        return ", ".join([name, *said])

    @property
    def plain(self) -> dict[str, Any]:
        """What prices depend on, as plain data: of a function of one's own the file's text."""
        fields: dict[str, Any] = {**to_plain(self), "model": said_without_folder(self.model)}
        if is_user_code(self.model):
            text = Path(self.model.rpartition(":")[0]).read_bytes()
            fields["source"] = hashlib.sha256(text).hexdigest()
        return fields

    def beside(self, folder: Path) -> PricedNet:
        """Return the same net, its file looked for in `folder` where it is not here."""
        return replace(self, model=found_from(folder, self.model))

    def task(self, task: Task, dataset: Dataset) -> Task:
        """Return the task with this net, on examples of its shapes that say nothing.

        Its parameter groups are left out, as they name parameters of the net that is trained.
        """
        widths = () if is_user_code(self.model) else self.widths or task.widths
        data = self._examples(dataset)
        return replace(task, model=self.model or task.model, widths=widths, data=data, groups=())

    def _examples(self, dataset: Dataset) -> Dataset:
        shapes = [array.shape[1:] for array in dataset.inputs]
        if self.inputs and len(shapes) != 1:
            given = f"inputs: {list(self.inputs)} with {len(shapes)} arrays of data"
            raise InputError(f"cost.net.{given}; expected data with one array")
        of_labels = dataset.labels.shape[1:]
        if self.inputs:
            if of_labels and of_labels == shapes[0]:  # a label for each token
                of_labels = self.inputs
            shapes = [self.inputs]
        inputs = tuple(
            np.zeros((2, *shape), array.dtype)
            for shape, array in zip(shapes, dataset.inputs, strict=True)
        )
        labels = np.zeros((2, *of_labels), dataset.labels.dtype)
        classes = self.classes or dataset.classes
        return Dataset(f"{dataset.name}, to be priced", inputs, labels, 1, 1, classes)


def _width_words(widths: tuple[int, ...]) -> str:
    """Return widths in words, repeated ones counted: "768, 12 x 3072"."""
    runs = ((width, len(list(same))) for width, same in groupby(widths))
    return ", ".join(f"{count} x {width}" if count > 1 else f"{width}" for width, count in runs)


def stand_ins(priced: Model, trained: Model) -> dict[str, str]:
    """Return the layer that is trained for every layer that is priced.

    A layer without parameters that has no counterpart follows the one before it. InputError where
    one with parameters has none, or is nobody's.
    """
    found, there = counterparts(_kinds(priced), _kinds(trained)), _owners(trained)
    alone = [name for name in _owners(priced) if name not in found]
    if alone:
        raise InputError(
            f"cost.net: layer {alone[0]!r} has no counterpart; expected layers called as those "
            f"that are trained, {', '.join(there)}"
        )
    unused = [name for name in there if name not in set(found.values())]
    if unused:
        raise InputError(
            f"cost.net: nothing stands for layer {unused[0]!r}, which is trained; expected a net "
            "of the same kind, at least as deep"
        )
    before, every = next(iter(found.values())), {}
    for name in priced.layer_names:
        before = every[name] = found.get(name, before)
    return every


def priced_groups(
    groups: tuple[Group, ...], priced: Model, trained: Model, stand_ins: Mapping[str, str]
) -> tuple[Group, ...]:
    """Return the parameter groups of the priced net: each parameter's is that of its counterpart.

    That is the parameter at the same place of the layer that stands for its own.
    """
    grouped = by_parameter(groups, trained.parameters())
    names: dict[Group, list[str]] = {group: [] for group in groups}
    for spec in priced.parameters():
        place = priced.parameters_of(spec.layer).index(spec)
        there = trained.parameters_of(stand_ins[spec.layer])
        if place < len(there) and (group := grouped.get(there[place].name)):
            names[group].append(escape(spec.name))
    return tuple(replace(g, match=tuple(match)) for g, match in names.items() if match)


def _owners(model: Model) -> list[str]:
    return [name for name in model.layer_names if model.parameters_of(name)]


def _kinds(model: Model) -> dict[str, str]:
    return {name: model.layer_types.get(name, "") for name in model.layer_names}


def for_priced(policy: Policy, stand_ins: dict[str, str]) -> Policy:
    """Return the policy of one phase with the layers of the priced net."""
    layers = tuple((name, policy.layer(trained)) for name, trained in stand_ins.items())
    return replace(policy, layers=layers)
