"""The failures of `studies/failures/`: a file each with net, data, a policy that fails, and why."""

from __future__ import annotations

import ast
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.failures.kept import kept_net
from policysearch.nn.model import Model
from policysearch.objective.objective import Objective
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.train.tasks import Task
from policysearch.train.user_code import dataset_of

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


def module_of(name: str, torch: bool = False) -> ModuleType:
    """Return the file of the case of this name, as it runs; what needs `torch` only with it."""
    path = FOLDER / f"{name}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    if not torch:
        tree.body = [statement for statement in tree.body if not _needs_torch(statement)]
    module = ModuleType(f"failure_{name}")
    exec(compile(tree, str(path), "exec", dont_inherit=True), vars(module))
    return module


def _needs_torch(statement: ast.stmt) -> bool:
    if isinstance(statement, ast.Import | ast.ImportFrom):
        return "torch" in ast.unparse(statement)
    named = (node.id for node in ast.walk(statement) if isinstance(node, ast.Name))
    return not {"torch", "nn", "Net"}.isdisjoint(named)


def failure(name: str, torch: bool = False) -> Failure:
    """Return the case of this name: its net as it was kept, or as `torch` exports it now."""
    module = module_of(name)
    net = net_of(name) if torch else kept_net(name)
    fields: dict[str, Any] = {"tail_steps": 10, **module.TASK}
    data = dataset_of(f"{FOLDER / name}.py:data", module.data())
    objective = Objective(Task(model=net, data=data, **fields), DEVICE, STACK)
    policy = policy_of(module, objective)
    return Failure(name, objective, policy, module.KIND, module.OPS, module.LAYERS)


def net_of(name: str) -> Model:
    """Return the net of a case as torch exports it."""
    import torch

    from policysearch.importers.torch_export import from_torch

    module = module_of(name, torch=True)
    torch.manual_seed(0)
    net, examples = module.net()
    given_names = {"loss": "LOSS", "labels": "LABELS"}
    options = {k: getattr(module, name) for k, name in given_names.items() if hasattr(module, name)}
    return from_torch(net, examples, **options)


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
