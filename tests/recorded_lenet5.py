"""LeNet-5 as it was recorded (see tests/data/oracle/README.md): data, batches, initial arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policysearch.data.datasets import Dataset
from policysearch.graph import FloatArray
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy
from policysearch.policy.presets import preset
from policysearch.train.run import Run
from policysearch.train.tasks import Task
from policysearch.train.training import train

FOLDER = Path(__file__).parent / "data" / "oracle"


@dataclass(frozen=True)
class Setup:
    task: Task
    dataset: Dataset
    initial: dict[str, FloatArray]
    batches: NDArray[np.int64]

    @property
    def layers(self) -> tuple[str, ...]:
        return self.task.build_model(self.dataset).layer_names

    def policy(self, name: str, loss_scale: LossScale) -> Policy:
        return replace(preset(name, self.layers), loss_scale=loss_scale)

    def replay(self, policy: Policy, steps: int) -> Run:
        return train(
            replace(self.task, steps=steps),
            policy,
            seed=0,
            dataset=self.dataset,
            initial=self.initial,
            batch_indices=self.batches,
        )


def recorded(name: str) -> dict[str, NDArray[Any]]:
    with np.load(FOLDER / f"{name}.npz", allow_pickle=False) as arrays:
        return dict(arrays)


def recorded_setup() -> Setup:
    common = recorded("common")
    with files("policysearch.data").joinpath("digits.npz").open("rb") as file, np.load(file) as d:
        pixels, labels = d["images"].astype(np.float32), d["labels"].astype(np.int64)
    large = np.kron(pixels / 16, np.ones((1, 4, 4), np.float32))
    images = (large - np.float32(0.3053)) / np.float32(0.3760)
    order = np.concatenate([common["train_idx"], common["test_idx"]]).astype(np.int64)
    place = np.argsort(order)
    counts = (len(common["train_idx"]), len(common["test_idx"]))
    dataset = Dataset("digits32", (images[order][:, np.newaxis],), labels[order], *counts, 10)
    initial = {k.removeprefix("init/"): v for k, v in common.items() if k.startswith("init/")}
    task = Task(
        learning_rate=float(common["lr"]), momentum=float(common["momentum"]), tail_steps=10
    )
    return Setup(task, dataset, initial, place[common["batches"].astype(np.int64)])
