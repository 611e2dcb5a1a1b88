"""The nets and policies that are exported."""

from __future__ import annotations

import importlib.util
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from benchmarks.exported.drawn import SCALES, drawn
from policysearch.data.datasets import Dataset
from policysearch.export.torch import export
from policysearch.importers.torch_export import from_torch
from policysearch.nn.model import Model
from policysearch.policy.policy import Policy
from policysearch.policy.presets import preset
from policysearch.train.tasks import Task

DRAW = 18


@dataclass(frozen=True)
class Case:
    """A net by its name in TASKS, and a policy: a preset, or the number of a drawn one."""

    net: str
    policy: str | int

    def task(self) -> Task:
        """Return what is trained."""
        return TASKS[self.net]()

    def made(self, layers: tuple[str, ...]) -> Policy:
        """Return the policy; presets that scale the loss begin where gradients overflow."""
        if isinstance(self.policy, int):
            return drawn(layers, self.policy, DRAW)
        policy = preset(self.policy, layers)
        return policy if policy.loss_scale.kind == "none" else replace(policy, loss_scale=SCALES[2])


def _imported(name: str) -> Task:
    """Return the task of a net written in torch: sums of tokens, or classes of noise."""
    import torch

    from tests.image_nets_of_torch import CLASSES
    from tests.nets_of_torch import NETS, TOKENS

    make, inputs = NETS[name]
    rng = np.random.default_rng(0)
    (data,) = inputs(rng, 600)
    if name == "vit":
        labels, classes, loss = rng.integers(0, CLASSES, 600), CLASSES, "softmax_cross_entropy"
    else:
        labels = (data + np.roll(data, 1, axis=1)) % TOKENS
        classes, loss = TOKENS, "token_cross_entropy"
    dataset = Dataset(name, (data,), labels, 400, 200, classes=classes)
    torch.manual_seed(0)
    model = from_torch(make, torch.tensor(data[:2]), name=name)
    return Task(model=model, data=dataset, batch_size=16, loss=loss)


TASKS: Mapping[str, Callable[[], Task]] = MappingProxyType(
    {
        "lenet5": lambda: Task(),
        "mlp": lambda: Task(model="mlp", data="digits", widths=(128, 128), batch_size=64),
        "resnet": lambda: Task(model="resnet", data="digits", widths=(4, 8), batch_size=16),
        "gpt": lambda: Task(
            model="gpt",
            activation="gelu",
            widths=(16, 32),
            data="sums",
            loss="token_cross_entropy",
            batch_size=16,
        ),
        "nanogpt": lambda: _imported("nanogpt"),
        "vit": lambda: _imported("vit"),
    }
)

CASES = tuple(
    Case(net, policy)
    for net, policies in {
        "lenet5": ("torch.autocast.float16", "apex.O2", "bfloat16", 0, 1, 2),
        "mlp": ("mindspore.O2", 3, 4),
        "resnet": ("torch.autocast.bfloat16", 5),
        "gpt": ("torch.autocast.float16", 6),
        "nanogpt": ("torch.autocast.bfloat16", 7),
        "vit": ("torch.autocast.float16", 8),
    }.items()
    for policy in policies
)


def exported(policy: Policy, model: Model) -> Any:
    """Return the exported file as a module."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "exported.py"
        path.write_text(export(policy, model))
        spec = importlib.util.spec_from_file_location("exported", path)
        assert spec is not None and spec.loader is not None
        made = importlib.util.module_from_spec(spec)
        sys.modules["exported"] = made
        spec.loader.exec_module(made)
    return made
