"""The failures of `studies/failures/`: a file each with net, data, a policy that fails, and why."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from policysearch.data.datasets import Dataset
from policysearch.importers.torch_export import from_torch
from policysearch.objective.objective import Objective
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.train.tasks import Task
from policysearch.train.user_code import own_dataset

FOLDER = Path(__file__).parents[2] / "studies" / "failures"
DEVICE, STACK = "H100-SXM5", "torch.eager"


@dataclass(frozen=True)
class Failure:
    """A case: its `objective`, the `policy` that fails there, and what is known of the cause.

    The cause has the kind `kind` and lies in one of `ops` of one of `layers`; () where any will do.
    """

    name: str
    objective: Objective
    policy: Policy
    kind: str
    ops: tuple[str, ...]
    layers: tuple[str, ...]

    def is_right(self, kind: str, op: str, layer: str) -> tuple[bool, bool]:
        """Return whether a diagnosis has the kind right, and the place."""
        place = (not self.ops or op in self.ops) and (not self.layers or layer in self.layers)
        return kind == self.kind, place


def names() -> list[str]:
    """Return the names of all cases."""
    return sorted(path.stem for path in FOLDER.glob("*.py"))


def module_of(name: str) -> ModuleType:
    """Return the file of the case of this name, as it runs."""
    path = FOLDER / f"{name}.py"
    spec = importlib.util.spec_from_file_location(f"failure_{name}", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def failure(name: str) -> Failure:
    """Return the case of this name."""
    module = module_of(name)
    objective = Objective(task_of(module, FOLDER / f"{name}.py"), DEVICE, STACK)
    policy = policy_of(module, objective)
    return Failure(name, objective, policy, module.KIND, module.OPS, module.LAYERS)


def task_of(module: ModuleType, path: Path) -> Task:
    """Return the task of a case."""
    import torch

    torch.manual_seed(0)
    net, examples = module.net()
    given_names = {"loss": "LOSS", "labels": "LABELS"}
    options = {k: getattr(module, name) for k, name in given_names.items() if hasattr(module, name)}
    model = from_torch(net, examples, **options)
    given: Dataset = own_dataset(f"{path}:data")
    fields: dict[str, Any] = {"tail_steps": 10, **module.TASK}
    return Task(model=model, data=given, **fields)


def policy_of(module: ModuleType, objective: Objective) -> Policy:
    """Return the policy of a case that fails."""
    policy = preset(module.POLICY, objective.model.layer_names)
    changes = dict(getattr(module, "CHANGES", {}))
    if "format" in changes:
        layers = tuple((n, uniform_layer(changes["format"])) for n, _ in policy.layers)
        policy = replace(policy, layers=layers)
        changes.pop("format")
    fields = {key: changes.pop(key) for key in ("param", "grad", "accumulator") if key in changes}
    layers = tuple((n, replace(layer, **fields)) for n, layer in policy.layers)
    policy = replace(policy, layers=layers)
    for kind, names in changes.pop("ops", {}).items():
        lists = {key: [op for op in getattr(policy, key) if op not in names] for key in LISTS}
        lists[kind] += names
        named = {key: tuple(ops) for key, ops in lists.items()}
        policy = replace(policy, **named)  # type: ignore[arg-type]
    if "loss_scale" in changes:
        changes["loss_scale"] = LossScale(**changes["loss_scale"])
    return replace(policy, name=f"{module.POLICY} that fails", **changes)


LISTS = ("low_precision_ops", "fp32_ops", "promote_ops")
