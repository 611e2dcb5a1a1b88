"""Trainings that are recorded from torch: what each of them is, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from policysearch.data.datasets import Dataset, load_dataset
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.train.schedule import Schedule
from policysearch.train.tasks import Task

FILE = Path(__file__).parent / "data" / "oracle" / "mixes.npz"
STEPS, BATCH = 50, 64
FLOAT32, FLOAT16, BFLOAT16 = "float32", "float16", "bfloat16"

MLP = Task(
    model="mlp",
    widths=(24, 24, 24),
    activation="tanh",
    data="digits",
    learning_rate=0.02,
    steps=STEPS,
    tail_steps=10,
)
LENET = replace(
    MLP, model="lenet5", widths=(), data="digits32", optimizer="adam", learning_rate=1e-3
)
TRANSFORMER = replace(
    MLP,
    model="transformer",
    widths=(16, 32),
    activation="gelu",
    optimizer="adamw",
    weight_decay=0.05,
    weight_decay_for="matrices",
    learning_rate=3e-3,
    schedule=Schedule("cosine", warmup_steps=5),
)
PURE = replace(MLP, widths=(32, 32, 32), learning_rate=0.05, nesterov=True, weight_decay=0.001)


@dataclass(frozen=True)
class Case:
    """One recorded training; layers take the `formats` in turn."""

    task: Task
    base: str
    formats: tuple[str, ...]
    loss_scale: LossScale = LossScale()
    outlier: int | None = None
    """The step whose batch has an image that is multiplied by 1e5."""
    slack: float = 2.0
    """How many times torch's noise a gap may be.

    Without masters torch's CPU kernels update what is left over of a tensor, here the bias of the
    ten classes, with the product rounded before the sum; the noise does not know of that.
    """

    @property
    def model(self) -> str:
        """The nets that share initial parameters: a key of the file."""
        return "-".join((self.task.model_name, *map(str, self.task.widths)))

    def dataset(self, order: NDArray[np.int64]) -> Dataset:
        """Return the data of the task, with the outlier in it."""
        plain = load_dataset(self.task.data_name)
        if self.outlier is None:
            return plain
        images = np.array(plain.images)
        images[order[self.outlier][0]] *= np.float32(1e5)
        return replace(plain, inputs=(images,))

    def policy(self, dataset: Dataset) -> Policy:
        names = self.task.build_model(dataset).layer_names
        masters = self.base != "apex.O3"
        layers = {}
        for number, name in enumerate(names):
            row = self.formats[number % len(self.formats)]
            layers[name] = uniform_layer(row, param=FLOAT32 if masters else row)
        policy = replace(preset(self.base, names), loss_scale=self.loss_scale)
        if not masters:
            policy = replace(policy, optimizer_state=self.formats[0], optimizer_scalars="storage")
        return policy.with_layers(layers)


CASES: Mapping[str, Case] = {
    "tanh mix": Case(MLP, "torch.autocast.float16", (BFLOAT16, FLOAT32, FLOAT32, FLOAT16, FLOAT32)),
    "gelu mix": Case(
        replace(MLP, activation="gelu"), "float16", (FLOAT16, FLOAT32, BFLOAT16, BFLOAT16)
    ),
    "adam": Case(LENET, "float16", (FLOAT16,)),
    "adam mix": Case(
        replace(LENET, activation="gelu_tanh"), "torch.autocast.float16", (FLOAT32, BFLOAT16)
    ),
    "adamw, cosine, transformer": Case(TRANSFORMER, "torch.autocast.bfloat16", (BFLOAT16,)),
    "transformer mix": Case(TRANSFORMER, "float16", (FLOAT16, BFLOAT16, FLOAT32)),
    "dynamic scale, outlier": Case(
        MLP,
        "torch.autocast.float16",
        (FLOAT16,),
        LossScale("dynamic", 2.0**10, growth_interval=15),
        outlier=7,
    ),
    "masters off, bfloat16": Case(PURE, "apex.O3", (BFLOAT16,), slack=8.0),
    "masters off, float16": Case(PURE, "apex.O3", (FLOAT16,), slack=8.0),
}
