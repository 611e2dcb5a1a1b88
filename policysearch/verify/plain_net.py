"""A net, its recipe and its batches in plain values, which a script without the package trains."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

import numpy as np

from policysearch.data.datasets import Dataset
from policysearch.formats import format_named
from policysearch.nn.chain import Chain
from policysearch.nn.layers import Layer, Residual, Skip
from policysearch.nn.model import Model
from policysearch.policy.normal_forms import in_full
from policysearch.policy.policy import Policy
from policysearch.train.feeding import batch_order, initial_parameters
from policysearch.train.losses import loss_of
from policysearch.train.tasks import Task
from policysearch.values import InputError, one_of

Values = Mapping[str, Any]

LAYERS = ("Linear", "Conv2d", "Activation", "Pool", "Flatten", "Residual", "Skip")
"""The types of layers that are written in another framework as they are here."""

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw")
LOSS = "softmax_cross_entropy"
READ = ("weight_decay", "decays", "momentum", "nesterov", "beta1", "beta2", "epsilon")

USUAL = MappingProxyType({"groups": (), "accumulation_steps": 1, "dampening": 0.0})
"""Keys of a recipe that only torch is given otherwise."""


def plan_of(task: Task, model: Model, target: str) -> dict[str, Any]:
    """Return the net and the recipe of a task; InputError where they are not plain enough."""
    if not isinstance(model, Chain) or model.whole or model.constants:
        given = f"the net {model.name}"
        raise InputError(f"verify in {target}: {given}; expected a built-in chain of layers")
    name, optimizer = loss_of(model, task.loss), task.build_optimizer()
    if name != LOSS:
        raise InputError(f"verify in {target}: loss {name}; expected {LOSS}")
    one_of(f"verify in {target}: optimizer", optimizer.kind, OPTIMIZERS)
    for key, usual in USUAL.items():
        if getattr(task, key) != usual:
            given = f"task.{key}: {getattr(task, key)}"
            raise InputError(f"verify in {target}: {given}; expected {usual!r}")
    if task.schedule.momenta:
        given = "a schedule that moves momentum"
        raise InputError(f"verify in {target}: {given}; expected one of the rate alone")
    return {
        "target": target,
        "chain": [_said(layer, target) for layer in model.layers],
        "input": model.input_shape,
        "optimizer": optimizer.kind,
        **{key: getattr(optimizer, key) for key in READ},
        "clip_norm": task.clip_norm,
        "clip_value": task.clip_value,
        "rates": [task.rate_at(step) for step in range(task.steps)],
    }


def _said(layer: Layer, target: str) -> dict[str, Any]:
    """Return a layer, and those inside it, as plain values."""
    kind = type(layer).__name__
    one_of(f"verify in {target}: layer {layer.name}, type", kind, LAYERS)
    if isinstance(layer, Residual | Skip):
        inner = layer.layers if isinstance(layer, Residual) else layer.inner
        shortcut = () if isinstance(layer, Residual) else layer.shortcut
        parts = {"inner": inner, "shortcut": shortcut}
        told = {key: [_said(each, target) for each in chain] for key, chain in parts.items()}
        return {"type": kind, "name": layer.name, **told}
    return {"type": kind, **asdict(layer)}  # type: ignore[call-overload]


def arrays_of(task: Task, model: Model, dataset: Dataset, seed: int) -> dict[str, Any]:
    """Return the initial values by name, and the batches of all steps as x and y."""
    (x,), y = dataset.train
    order = batch_order(task, dataset, seed)
    values = initial_parameters(model, seed)
    return {**values, "x": np.stack([x[i] for i in order]), "y": np.stack([y[i] for i in order])}


Product = tuple[str, str]
"""The dtypes of what a product reads, and that of its result, "" where a narrow one has another."""


def products_of(
    task: Task, policy: Policy, model: Model, both: bool
) -> Iterator[tuple[str, list[Product]]]:
    """Yield the products of a step: where they are, and their dtypes.

    Those of the forward pass in its order, then of each layer those of the backward pass, in its
    order. `both`: narrow layers have two products backward, whether or not both are read.
    """
    nodes = [n for n in task.tracing(model, task.batch_size).float32.nodes if n.op.kind == "gemm"]
    forward = [n.layer for n in nodes if n.role == "fprop"]
    for layer in forward:
        yield f"{layer}, forward", [_product(policy, layer, "fprop")]
    for layer in reversed(forward):
        roles = [n.role for n in nodes if n.layer == layer and n.role != "fprop"]
        if both and format_named(policy.layer(layer).compute).bits == 8:
            roles = ["dgrad", "wgrad"]
        yield f"{layer}, backward", sorted(_product(policy, layer, role) for role in roles)


def _product(policy: Policy, layer: str, role: str) -> Product:
    read = sorted({operand.format for operand in in_full(policy, layer)[role].operands})
    wide = all(format_named(name).bits > 8 for name in read)
    return "/".join(read), policy.layer(layer).output if wide else ""


def unlike_products(
    found: Sequence[Sequence[str]], expected: Sequence[tuple[str, list[Product]]]
) -> Iterator[str]:
    """Yield a line for each layer whose products, of those a framework has, are not as expected."""
    count = sum(len(rows) for _, rows in expected)
    if len(found) != count:
        yield f"products of a step: {len(found)}; expected {count}"
        return
    rest = iter(found)
    for where, rows in expected:
        made = sorted((read, result) for read, result in (next(rest) for _ in rows))
        pairs = zip(made, rows, strict=True)
        if any(a != b or (into and result != into) for (a, result), (b, into) in pairs):
            yield f"{where}: products of {_shown(made)}; expected {_shown(rows)}"


def _shown(rows: Sequence[Product]) -> str:
    return ", ".join(f"{read} into {result}" if result else read for read, result in rows)
