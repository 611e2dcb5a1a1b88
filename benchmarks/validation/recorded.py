"""Published networks as step graphs, priced by the function that prices policies."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from benchmarks.validation.layers.precision import Precision
from policysearch.cost.devices import Device
from policysearch.cost.gemm import is_convolution
from policysearch.cost.price import StepPrice, step_price
from policysearch.cost.stacks import Stack
from policysearch.graph import Graph
from policysearch.importers.record import model_of
from policysearch.importers.torch_model import TorchModel
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.policy import Policy
from policysearch.policy.presets import TF32, preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import trace_step
from policysearch.values import InputError

RECORDS = Path(__file__).parent / "records"
"""Where `python -m benchmarks.validation.record` writes one file per network and length."""

MIXED = {"float16": "torch.autocast.float16", "bfloat16": "torch.autocast.bfloat16"}


def record_path(name: str, length: int = 0) -> Path:
    """Return the file of a network at a sequence length, 0 for one without sequences."""
    spelled = name.replace(" ", "-")
    return RECORDS / (f"{spelled}.{length}.json.gz" if length else f"{spelled}.json.gz")


@lru_cache(maxsize=8)
def recorded_model(name: str, length: int = 0) -> TorchModel:
    """Return a recorded network; InputError where it has no record."""
    path = record_path(name, length)
    if not path.exists():
        there = f" of length {length}" if length else ""
        raise InputError(f"network {name}{there}: no record; expected one of RECORDED")
    return model_of(path.read_bytes())


@lru_cache(maxsize=4)
def recorded_step(name: str, length: int, batch: int, optimizer: Optimizer) -> Graph:
    """Return the float32 step of a recorded network."""
    model = recorded_model(name, length)
    return trace_step(model, model.loss, optimizer, batch)


def policy_of(precision: Precision, step: Graph, layers: tuple[str, ...]) -> Policy:
    """Return the policy under which products, convolutions and activations are in these formats.

    Mixed ones are torch.autocast's; all in half precision is apex's O3.
    """
    if precision.activations != "float32":
        if precision.masters:
            return preset(MIXED[precision.activations], layers)
        return preset("apex.O3", layers)
    narrow = {
        node.layer
        for node in step.nodes
        if node.op.kind == "gemm"
        and "tfloat32" in (precision.convolutions if is_convolution(node) else precision.products)
    }
    strict = {k: row for k, row in preset("float32", layers).layers if k not in narrow}
    return preset(TF32, layers).with_layers(strict)


def recorded_price(
    name: str,
    length: int,
    batch: int,
    optimizer: Optimizer,
    precision: Precision,
    device: Device,
    stack: Stack,
) -> StepPrice:
    """Return the modeled step of a recorded network as one of a user's policies is priced."""
    step = recorded_step(name, length, batch, optimizer)
    policy = policy_of(precision, step, recorded_model(name, length).layer_names)
    return step_price(apply_policy(step, policy), device, stack, policy)


