"""A task: the model, data and recipe that every policy of a study is trained on."""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from policysearch.data.datasets import LOADERS, Dataset, load_dataset
from policysearch.nn.model import Model
from policysearch.nn.models import MODELS, narrower
from policysearch.optimizers.optimizer import Decays, Optimizer, OptimizerKind, trained
from policysearch.rewrite.ruled_model import RuledModel
from policysearch.rewrite.rules import Rule
from policysearch.train.fitting import check_fits
from policysearch.train.schedule import Schedule
from policysearch.train.size import check_memory, needed_bytes
from policysearch.train.step import LOSSES, trace_forward, trace_step
from policysearch.train.user_code import called, is_user_code, value_of
from policysearch.values import InputError, number, one_of, to_plain

DEEPEST = 10_000
"""Most hidden layers of a net."""

SMALLEST_RATE = 0.01
"""Share of the largest learning rate below which steps add too little to count what they lose."""


@dataclass(frozen=True)
class Task:
    """What is trained, on what, and how long; the policy is not part of it.

    `model` has `activation` between its layers and, if it is an mlp, the hidden `widths`; or it is
    "file.py:function", a function of your own that returns a `Model`, as `data` may be one that
    returns a `Dataset`: **that runs the file**. Both may be such values in Python. The model
    learns the data by `loss`, unless it has its own, over `steps` steps of `batch_size` examples.
    `data_folder` is where the files of a data set lie, if it has files; it is no part of the
    fingerprint. `tail_steps` is how many of the last steps the reported training loss is averaged
    over. `graph_rules` change the model's graph, as "file.py:name" of a rule that
    `policysearch.rewrite.rules.rule` made, or such rules in Python: **that runs the file**. They
    are applied in order, in float32 too. `learning_rate` is the rate of the `optimizer`, over the
    steps what `schedule` makes of it; the optimizer's own fields are those of `Optimizer`.
    `weight_decay_for` "matrices" leaves out biases and the weights of norms.
    """

    model: str | Model = "lenet5"
    activation: str = "relu"
    widths: tuple[int, ...] = ()
    data: str | Dataset = "digits32"
    data_folder: str | None = None
    loss: str = "softmax_cross_entropy"
    optimizer: OptimizerKind = "momentum"
    learning_rate: float = 0.01
    momentum: float = 0.9
    dampening: float = 0.0
    nesterov: bool = False
    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    weight_decay: float = 0.0
    weight_decay_for: Decays = "all"
    schedule: Schedule = Schedule()
    batch_size: int = 64
    steps: int = 200
    tail_steps: int = 50
    graph_rules: tuple[str | Rule, ...] = ()

    def __post_init__(self) -> None:
        if isinstance(self.model, str) and not is_user_code(self.model):
            one_of("model", self.model, MODELS)
        if isinstance(self.data, str) and not is_user_code(self.data):
            one_of("data", self.data, LOADERS)
        one_of("loss", self.loss, LOSSES)
        one_of("optimizer", self.optimizer, trained())
        number("learning_rate", self.learning_rate, 0.0, 1e6)
        number("batch_size", self.batch_size, 1, 2**20)
        number("steps", self.steps, 1, 2**31)
        number("tail_steps", self.tail_steps, 1, self.steps)
        if self.data_folder is not None and "\0" in self.data_folder:
            raise InputError(f"data_folder: {self.data_folder!r}; expected the name of a folder")
        for width in self.widths:
            number("widths", width, 1, 2**40)
        if len(self.widths) > DEEPEST:
            raise InputError(f"widths: {len(self.widths)} of them; expected at most {DEEPEST}")
        self.build_optimizer()

    @property
    def model_name(self) -> str:
        """What the model is called in a study file, or calls itself."""
        return self.model if isinstance(self.model, str) else self.model.name

    @property
    def data_name(self) -> str:
        """What the data set is called in a study file, or calls itself."""
        return self.data if isinstance(self.data, str) else self.data.name

    def with_steps(self, steps: int) -> Task:
        """Return the same recipe over `steps` steps, its tail and schedule stretched with it."""
        factor = steps / self.steps
        schedule = replace(
            self.schedule,
            period_steps=math.ceil(self.schedule.period_steps * factor),
            warmup_steps=round(self.schedule.warmup_steps * factor),
        )
        tail_steps = max(1, round(self.tail_steps * factor))
        return replace(self, steps=steps, tail_steps=tail_steps, schedule=schedule)

    def narrower(self, share: float) -> Task:
        """Return the same recipe for a net of about `share` of the widths, its layers called alike.

        Raises InputError where the model takes no widths.
        """
        model = self.model if isinstance(self.model, str) else f"{self.model.name}, a value"
        return replace(self, widths=narrower(model, self.widths, share))

    def build_optimizer(self) -> Optimizer:
        """Return the optimizer without its learning rate."""
        return Optimizer(
            kind=self.optimizer,
            momentum=self.momentum,
            weight_decay=self.weight_decay,
            beta1=self.beta1,
            beta2=self.beta2,
            epsilon=self.epsilon,
            dampening=self.dampening,
            nesterov=self.nesterov,
            decays=self.weight_decay_for,
        )

    def rate_at(self, step: int) -> float:
        """Return the learning rate of `step`, counted from 0."""
        return self.schedule.rate(self.learning_rate, step, self.steps)

    @cached_property
    def smallest_rate(self) -> float:
        """The smallest learning rate after the warm-up, at least SMALLEST_RATE of the largest."""
        rates = [self.rate_at(step) for step in range(self.steps)]
        settled = rates[self.schedule.warmup_steps :] or rates
        return max(min(settled), SMALLEST_RATE * max(rates))

    def load_dataset(self) -> Dataset:
        """Return the task's data set; InputError where it cannot be had."""
        if isinstance(self.data, Dataset):
            return self.data
        if is_user_code(self.data):
            own: Dataset = called("data", self.data, Dataset)
            return own
        folder = None if self.data_folder is None else Path(self.data_folder).expanduser()
        return load_dataset(self.data, folder)

    def build_model(self, dataset: Dataset) -> Model:
        """Return the model for the images and classes of `dataset`.

        Raises InputError where it does not fit them, or its training not the machine's memory.
        """
        model = self._ruled(self._model(dataset))
        check_memory("task", needed_bytes(model, self.steps, self.batch_size))
        return model

    def _model(self, dataset: Dataset) -> Model:
        if isinstance(self.model, Model) or is_user_code(self.model):
            given = self.model
            own: Model = given if isinstance(given, Model) else called("model", given, Model)
            check_fits(own, dataset)
            return own
        shape = dataset.image_shape
        model = MODELS[self.model](shape, dataset.classes, self.activation, self.widths)
        whole = dataset.images.dtype == np.int64
        if model.whole != whole:
            given, valid = ("tokens", "images") if whole else ("images", "tokens")
            raise InputError(f"model {self.model}: data set of {given}; expected {valid}")
        return replace(model, named=True)

    def _ruled(self, model: Model) -> Model:
        """Return the model under the graph rules, which fit it."""
        if not self.graph_rules:
            return model
        where = f"graph_rules: {', '.join(map(_said, self.graph_rules))}"
        try:
            ruled = RuledModel(model, tuple(map(_rule, self.graph_rules)))
            trace_step(ruled, self.loss, self.build_optimizer(), 2)
            trace_forward(ruled, 2)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        return ruled

    def to_plain(self) -> dict[str, Any]:
        """Return every field that results depend on as plain data.

        The place of the files is left out, and a model and data set have fingerprints of their own.
        """
        named = replace(self, model="lenet5", data="digits32", graph_rules=())
        fields: dict[str, Any] = json.loads(json.dumps(to_plain(named)))
        del fields["data_folder"], fields["graph_rules"]
        if self.graph_rules:  # left out otherwise, as of older runs; what they do is the model's
            fields["graph_rules"] = [_said(rule) for rule in self.graph_rules]
        return {**fields, "model": self.model_name, "data": self.data_name}

    @property
    def fingerprint(self) -> str:
        """SHA-256 in hex of every field that results depend on (the data has its own)."""
        return hashlib.sha256(json.dumps(self.to_plain(), sort_keys=True).encode()).hexdigest()


def _said(rule: str | Rule) -> str:
    return rule if isinstance(rule, str) else rule.name


def _rule(given: str | Rule) -> Rule:
    if isinstance(given, Rule):
        return given
    if not is_user_code(given):
        raise InputError(f"{given!r}; expected file.py:rule")
    return value_of("rule", given, Rule)
