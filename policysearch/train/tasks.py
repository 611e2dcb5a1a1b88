"""A task: the model, data and recipe that every policy of a study is trained on.

Whether they fit each other and the machine is said before anything is trained.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from policysearch.data.datasets import LOADERS, Dataset, load_dataset
from policysearch.nn.model import USUAL_LOSS, WRITTEN, Attention, Input, Model
from policysearch.nn.models import MODELS, narrower
from policysearch.optimizers.optimizer import Decays, Optimizer, OptimizerKind, trained
from policysearch.rewrite.rules import Rule, RuledModel
from policysearch.train.gradients import Clipping
from policysearch.train.groups import Group, by_parameter
from policysearch.train.labels import (
    check_dtype,
    check_labels,
    check_loss,
    check_name,
    labels_of,
    of_one_example,
)
from policysearch.train.schedule import CONSTANT, Schedule
from policysearch.train.step import SMALLEST_BATCH, Tracing, trace_forward, trace_step, tracing_of
from policysearch.train.user_code import (
    Metric,
    check_metric,
    check_metric_name,
    described,
    found_from,
    is_user_code,
    metric_name,
    metric_of,
    own_dataset,
    own_model,
    said_without_folder,
    value_of,
)
from policysearch.values import InputError, brief, number, one_of, to_plain

Array = NDArray[Any]

DEEPEST = 10_000
"""Most hidden layers of a net."""

SMALLEST_RATE = 0.01
"""Share of the largest learning rate below which steps add too little to count what they lose."""


@dataclass(frozen=True)
class Task:
    """What is trained, on what, and how long; the policy is not part of it.

    - `model` is a built-in net, or "file.py:function" of a function that returns one: **that runs
      the file**. `activation` stands between the layers of a built-in one, and `widths` are the
      hidden layers of an mlp. In Python it may be a `Model`.
    - `data` is a built-in data set, or "file.py:function" likewise. In Python it may be a
      `Dataset`. `data_folder` is where the files of a data set lie.
    - `loss`: left out, it is that of the model, or softmax_cross_entropy.
    - `steps` steps are trained, of `batch_size` examples each. The training loss that is reported
      is the mean over the last `tail_steps`.
    - `accumulation_steps`: so many micro-batches of `batch_size` are one step. Their gradients are
      summed in the format that each parameter is stored in; the loss is their mean.
    - `learning_rate` is the rate of the `optimizer`, which `schedule` multiplies. `groups` are
      parameters with a rate or decay of their own, and frozen ones.
    - `clip_norm` clips the global norm of the gradients, as torch's `clip_grad_norm_`;
      `clip_value` each number of them, as `clip_grad_value_`. Both come after unscaling.
    - `attention` is what runs calls of torch's `scaled_dot_product_attention`: products and a
      softmax ("written"), what torch composes in float32 ("math"), or the "flash" kernel.
    - `ema_decay`: each update moves an average of the parameters, as torch's `AveragedModel` with
      `get_ema_multi_avg_fn`. It is kept in the format `ema_storage`. `ema_validates` measures the
      validation part with it, rounded to the format the parameters are stored in.
    - `metric` is a number of your own on the validation part: "file.py:function" of outputs,
      float32 [count, ...], and labels. **That runs the file**; in Python it may be the function.
    - `graph_rules` change the graph of the step, float32's too, in this order: "file.py:name" of
      rules that `policysearch.rewrite.rules.rule` made. **That runs the file**.
    - `script` is "file.py:function" of a function that returns what `policysearch.from_loader`,
      `from_trainer` or `from_lightning` gives: **that runs the file**. Every key that is not given
      is then the script's, `study.baseline` too. In Python `policysearch.study_of` takes one.
    """

    model: str | Model = "lenet5"
    activation: str = "relu"
    widths: tuple[int, ...] = ()
    data: str | Dataset = "digits32"
    data_folder: str | None = None
    loss: str = ""
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
    schedule: Schedule = CONSTANT
    batch_size: int = 64
    steps: int = 200
    tail_steps: int = 50
    graph_rules: tuple[str | Rule, ...] = ()
    attention: Attention = WRITTEN
    clip_norm: float | None = None
    clip_value: float | None = None
    groups: tuple[Group, ...] = ()
    accumulation_steps: int = 1
    ema_decay: float | None = None
    ema_storage: str = "float32"
    ema_validates: bool = False
    metric: str | Metric = ""
    script: str = ""

    def __repr__(self) -> str:
        given = [
            f"{field.name}={getattr(self, field.name)!r}"
            for field in fields(self)
            if field.name == "model" or getattr(self, field.name) != field.default
        ]
        return brief(f"Task({', '.join(given)})")

    def __post_init__(self) -> None:
        if self.script:
            raise InputError(f"script: {self.script!r}; expected it in a study file")
        if isinstance(self.model, str) and not is_user_code(self.model):
            one_of("model", self.model, MODELS)
        if isinstance(self.data, str) and not is_user_code(self.data):
            one_of("data", self.data, LOADERS)
        check_name(self.loss)
        check_metric_name(self.metric)
        one_of("attention", self.attention, get_args(Attention))
        self._check_values()
        one_of("optimizer", self.optimizer, trained())
        number("learning_rate", self.learning_rate, 0.0, 1e6)
        number("batch_size", self.batch_size, 1, 2**20)
        number("accumulation_steps", self.accumulation_steps, 1, 2**16)
        number("steps", self.steps, 1, 2**31)
        number("tail_steps", self.tail_steps, 1, self.steps)
        self.schedule.check_length(self.steps)
        if self.data_folder is not None and "\0" in self.data_folder:
            raise InputError(f"data_folder: {self.data_folder!r}; expected the name of a folder")
        for width in self.widths:
            number("widths", width, 1, 2**40)
        if len(self.widths) > DEEPEST:
            raise InputError(f"widths: {len(self.widths)} of them; expected at most {DEEPEST}")
        self.build_optimizer()
        if self.ema_validates and self.ema_decay is None:
            raise InputError("ema_validates: true without ema_decay; expected it with one")
        _ = self.clipping

    def _check_values(self) -> None:
        """Raise InputError where a model or data set that is there contradicts the loss."""
        if isinstance(self.model, Model):
            check_loss(self.loss, self.model)
            if isinstance(self.data, Dataset):
                check_dtype(self.loss, self.model, self.data)

    @property
    def model_name(self) -> str:
        """What the model is called in a study file, or calls itself."""
        given = self.model
        if isinstance(given, str):
            return said_without_folder(given)
        return given.study_name or given.name

    @property
    def data_name(self) -> str:
        """What the data set is called in a study file, or calls itself."""
        given = self.data
        return said_without_folder(given) if isinstance(given, str) else given.name

    @property
    def said(self) -> str:
        """What is trained on what; batches that a script drew are called after its net."""
        model, data = self.model_name, self.data_name
        return f"{model} on {data if data != model else 'its loader'}"

    def beside(self, folder: Path) -> Task:
        """Return the same task, its files looked for in `folder` where they are not here."""
        model, data = self.model, self.data
        model = found_from(folder, model) if isinstance(model, str) else model
        data = found_from(folder, data) if isinstance(data, str) else data
        rules = tuple(found_from(folder, r) if isinstance(r, str) else r for r in self.graph_rules)
        metric = self.metric
        metric = found_from(folder, metric) if isinstance(metric, str) else metric
        return replace(self, model=model, data=data, graph_rules=rules, metric=metric)

    def check_alike(self, other: Task, where: str) -> None:
        """Raise InputError where `other` trains another kind of net, on other data or another loss.

        Nets and data of the user's own are not compared.
        """
        for key, usual in (("model", ""), ("data", ""), ("loss", USUAL_LOSS)):
            mine, given = (getattr(task, key) or usual for task in (self, other))
            named = all(isinstance(name, str) and not is_user_code(name) for name in (mine, given))
            if named and mine != given:
                raise InputError(f"{where}.{key}: {given!r}; expected {mine!r}, as the small net's")

    def with_steps(self, steps: int) -> Task:
        """Return the same recipe over `steps` steps, its tail and schedule stretched with it."""
        schedule = self.schedule.stretched(steps, self.steps)
        tail_steps = max(1, round(self.tail_steps * (steps / self.steps)))
        return replace(self, steps=steps, tail_steps=tail_steps, schedule=schedule)

    def narrower(self, share: float) -> Task:
        """Return the same recipe for a net of about `share` of the widths, its layers called alike.

        Raises InputError where the model takes no widths.
        """
        if isinstance(self.model, Model) and self.model.study_name:
            return self  # it was narrowed as it ran, and is not trained
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
            ema_decay=self.ema_decay,
            ema_storage=self.ema_storage,
            cycled=bool(self.schedule.momenta),
        )

    @property
    def clipping(self) -> Clipping:
        """What the unscaled gradients are clipped to."""
        return Clipping(self.clip_norm, self.clip_value)

    @property
    def metric_name(self) -> str:
        """What the metric is called; "" where there is none."""
        return metric_name(self.metric)

    def measured(self, outputs: Array, labels: Array) -> float | None:
        """Return the metric of outputs and labels; None without one, and where it is not finite."""
        return metric_of(self.metric, outputs, labels) if self.metric else None

    @property
    def loop_notes(self) -> tuple[str, ...]:
        """What a training loop has to do that an exported file cannot, one line each."""
        lines = [f"parameter group, in the script's optimizer: {g.words}" for g in self.groups]
        if self.accumulation_steps > 1:
            lines.append(
                f"accumulation: a step sums the gradients of loss / {self.accumulation_steps} over "
                f"{self.accumulation_steps} micro-batches, then unscales, clips and updates once"
            )
        return (*lines, *filter(None, [self.clipping.in_torch, self._average_note]))

    @property
    def _average_note(self) -> str:
        if self.ema_decay is None:
            return ""
        swapped = ", and validate with its weights" if self.ema_validates else ""
        made = f"AveragedModel(module, multi_avg_fn=get_ema_multi_avg_fn({self.ema_decay}))"
        kept = f"kept in {self.ema_storage}; update_parameters(module) after each step not skipped"
        return f"average of weights: torch.optim.swa_utils.{made}, {kept}{swapped}"

    def rate_at(self, step: int, factor: float = 1.0) -> float:
        """Return the learning rate of `step`, counted from 0, of a group with that factor."""
        return self.schedule.rate(self.learning_rate * factor, step, self.steps)

    def momentum_at(self, step: int) -> float | None:
        """Return the momentum, or beta1, of `step`; None where the schedule moves none."""
        return self.schedule.momentum(step, self.steps)

    @cached_property
    def smallest_rate(self) -> float:
        """The smallest learning rate after the warm-up, at least SMALLEST_RATE of the largest."""
        rates = [self.rate_at(step) for step in range(self.steps)]
        settled = rates[self.schedule.settled_at(self.steps) :] or rates
        return max(min(settled), SMALLEST_RATE * max(rates))

    def load_dataset(self) -> Dataset:
        """Return the task's data set; InputError where it cannot be had."""
        if isinstance(self.data, Dataset):
            return self.data
        if is_user_code(self.data):
            return own_dataset(self.data)
        folder = None if self.data_folder is None else Path(self.data_folder).expanduser()
        return load_dataset(self.data, folder)

    def build_model(self, dataset: Dataset) -> Model:
        """Return the model for the images and classes of `dataset`.

        Raises InputError where it does not fit them, or its training not the machine's memory.
        """
        model = self.untrained_model(dataset)
        if model.study_name:
            return model
        examples = self.batch_size * self.accumulation_steps
        check_memory("task", needed_bytes(model, self.steps, examples))
        return model

    def untrained_model(self, dataset: Dataset) -> Model:
        """Return the model as `build_model`, however much memory its training would need.

        One that was kept was checked when it was, and is under its rules.
        """
        if isinstance(self.model, Model) and self.model.study_name:
            return self.model
        model = self._model_under_rules(self._model(dataset))
        outputs = trace_forward(model, SMALLEST_BATCH).output("logits").shape
        shape = of_one_example(outputs, SMALLEST_BATCH)
        check_labels(self.loss, model, dataset, shape)
        by_parameter(self.groups, model.parameters())
        if self.metric and (not outputs or outputs[0] % SMALLEST_BATCH):
            given = f"metric: {model.name} gives {list(outputs) or 'its loss alone'}"
            raise InputError(f"{given}; expected a net that gives outputs, examples first")
        check_metric(self.metric, shape, labels_of(shape, dataset.validation[1]))
        return model

    def outputs_of(self, model: Model) -> tuple[int, ...]:
        """Return the shape of what a model gives for one example."""
        outputs = trace_forward(model, SMALLEST_BATCH).output("logits").shape
        return of_one_example(outputs, SMALLEST_BATCH)

    def tracing(self, model: Model, batch_size: int) -> Tracing:
        """Return what traces the training step of `model`, on `batch_size` examples."""
        optimizer, parts = self.build_optimizer(), self.accumulation_steps
        of_step = batch_size, self.clipping, self.groups, parts
        return tracing_of(model, self.loss, optimizer, *of_step)

    def _model(self, dataset: Dataset) -> Model:
        if isinstance(self.model, Model) or is_user_code(self.model):
            given = self.model
            own = given if isinstance(given, Model) else own_model(given, dataset, self.loss)
            check_fits(own, dataset)
            return self._model_with_attention(own)
        shape = dataset.image_shape
        model = MODELS[self.model](shape, dataset.outputs, self.activation, self.widths)
        whole = dataset.images.dtype == np.int64
        if model.whole != whole:
            given, valid = ("tokens", "images") if whole else ("images", "tokens")
            raise InputError(f"model {self.model}: data set of {given}; expected {valid}")
        return self._model_with_attention(replace(model, named=True))

    def _model_with_attention(self, model: Model) -> Model:
        """Return the model with the task's attention; InputError where it has none."""
        return model if self.attention == WRITTEN else model.with_attention(self.attention)

    def _model_under_rules(self, model: Model) -> Model:
        """Return the model under the graph rules, which fit it."""
        if not self.graph_rules:
            return model
        where = f"graph_rules: {', '.join(map(_said, self.graph_rules))}"
        try:
            ruled = RuledModel(model, tuple(map(_rule, self.graph_rules)))
            trace_step(ruled, self.loss, self.build_optimizer(), 2)
            trace_forward(ruled, SMALLEST_BATCH)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        return ruled

    def to_plain(self) -> dict[str, Any]:
        """Return every field that results depend on as plain data.

        The place of the files is left out, and a model and data set have fingerprints of their own.
        """
        named = replace(self, model="lenet5", data="digits32", graph_rules=(), metric="")
        fields: dict[str, Any] = json.loads(json.dumps(to_plain(named)))
        for name in ("data_folder", "graph_rules", "metric", "script"):
            del fields[name]
        fields["loss"] = self.loss or USUAL_LOSS
        fields["schedule"] = self.schedule.to_plain()
        if self.metric:
            fields |= described(self.metric)
        if self.graph_rules:  # left out otherwise, as of older runs; what they do is the model's
            fields["graph_rules"] = [_said(rule) for rule in self.graph_rules]
        if self.attention == WRITTEN:  # so, too, what older runs had no word for
            del fields["attention"]
        for name in ("clip_norm", "clip_value"):
            if fields[name] is None:
                del fields[name]
        for group in fields["groups"]:
            if not group["optimizer"]:
                del group["optimizer"]
        if not self.groups:
            del fields["groups"]
        if self.accumulation_steps == 1:
            del fields["accumulation_steps"]
        if self.ema_decay is None:
            del fields["ema_decay"], fields["ema_storage"], fields["ema_validates"]
        return {**fields, "model": self.model_name, "data": self.data_name}

    @property
    def fingerprint(self) -> str:
        """SHA-256 in hex of every field that results depend on (the data has its own)."""
        return hashlib.sha256(json.dumps(self.to_plain(), sort_keys=True).encode()).hexdigest()


def _said(rule: str | Rule) -> str:
    return said_without_folder(rule) if isinstance(rule, str) else rule.name


def _rule(given: str | Rule) -> Rule:
    if isinstance(given, Rule):
        return given
    if not is_user_code(given):
        raise InputError(f"{given!r}; expected file.py:rule")
    return value_of("rule", given, Rule)


def check_fits(model: Model, dataset: Dataset) -> None:
    """Raise InputError where inputs or labels of the data set are not those the model takes."""
    where = f"data set {dataset.name}"
    taken = [item for item in model.inputs if item.name != model.labels]
    if len(taken) != len(dataset.inputs):
        names = ", ".join(item.name for item in taken)
        given = f"{len(dataset.inputs)} inputs"
        raise InputError(f"{where}: {given}; model {model.name} expected {len(taken)}: {names}")
    for place, (item, array) in enumerate(zip(taken, dataset.inputs, strict=True)):
        named = f"{item.name} of model {model.name}"
        ends = dataset.extremes(place) if item.below else (0.0, 0.0)
        _check_input(f"{where}, inputs[{place}]", named, item, array, ends)
    for item in model.inputs:
        if item.name == model.labels:
            _check_shape(f"{where}, labels", item, dataset.labels)


def _check_shape(where: str, item: Input, array: Array) -> None:
    if array.shape[1:] != item.shape:
        given, expected = (
            f"[count, {', '.join(map(str, s))}]" for s in (array.shape[1:], item.shape)
        )
        raise InputError(f"{where}: {given}; expected {expected}")


def _check_input(
    where: str, named: str, item: Input, array: Array, extremes: tuple[float, float]
) -> None:
    _check_shape(where, item, array)
    if item.whole != (array.dtype == np.int64):
        expected = "int64" if item.whole else "float32"
        raise InputError(f"{where}: {array.dtype}; expected {expected} for {named}")
    least, most = extremes
    if item.below and (least < 0 or most >= item.below):
        worst = int(least if least < 0 else most)
        raise InputError(f"{where}: {worst}; expected 0 to {item.below - 1} for {named}")


COPIES_PER_PARAMETER = 8
"""Parameter, gradient, two moments, their low-precision copies and scratch; float32 each."""

BYTES_PER_STEP = 128
"""Loss, scale and skip flag of a step, as Python and numpy keep them."""


def needed_bytes(model: Model, steps: int, batch_size: int) -> int:
    """Return about how many bytes a training holds at least: parameters, batches, records."""
    parameters = sum(math.prod(spec.shape) for spec in model.parameters())
    indices = steps * batch_size * 8
    return parameters * 4 * COPIES_PER_PARAMETER + 2 * indices + steps * BYTES_PER_STEP


def machine_bytes() -> int | None:
    """Return the machine's memory in bytes; None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def check_memory(where: str, needed: int) -> None:
    """Raise InputError if `needed` bytes are more than the machine has."""
    there = machine_bytes()
    if there is not None and needed > there:
        raise InputError(
            f"{where}: needs about {needed / 2**30:.3g} GiB of memory; "
            f"expected at most the {there / 2**30:.3g} GiB of this machine"
        )
