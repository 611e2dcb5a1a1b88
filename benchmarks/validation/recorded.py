"""Published networks as step graphs, priced by the function that prices policies."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path

from benchmarks.validation.layers.precision import Precision
from benchmarks.validation.recorded_table import RECORDED, Recorded
from policysearch.cost.devices import Device
from policysearch.cost.gemm import is_convolution
from policysearch.cost.price import StepPrice, step_price
from policysearch.cost.roofline import Work, joined_seconds
from policysearch.cost.stacks import Stack
from policysearch.cost.time import parts_of
from policysearch.graph import Graph
from policysearch.importers.record import model_of
from policysearch.importers.torch_model import TorchModel
from policysearch.optimizers.optimizer import Optimizer, rules, trained
from policysearch.policy.policy import Policy
from policysearch.policy.presets import TF32, preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import trace_step
from policysearch.values import InputError

RECORDS = Path(__file__).parent / "records"
"""Where `python -m benchmarks.validation.record` writes one file per network and length."""

AUTOCAST = {"float16": "torch.autocast.float16", "bfloat16": "torch.autocast.bfloat16"}
"""Presets of stacks that compute norms and softmax in float32."""

STORED_NARROW = {"float16": "apex.O2", "bfloat16": "torch.autocast.bfloat16"}
"""Presets of stacks that store all between layers in the narrow format."""

BY_ADAM = "adam"
"""What emits the update of an optimizer that the step graph lacks, scaled by the bytes it moves."""


def record_path(name: str, length: int = 0) -> Path:
    """Return the file of a network at a sequence length, 0 for one without sequences."""
    return RECORDS / (f"{name}.{length}.json.gz" if length else f"{name}.json.gz")


@dataclass(frozen=True)
class Run:
    """One run of a published row: a recorded network at a batch, in a precision, on a stack."""

    name: str
    length: int
    batch: int
    precision: Precision
    device: Device
    stack: Stack

    @property
    def row(self) -> Recorded:
        if self.name not in RECORDED:
            raise InputError(f"network {self.name}: no record")
        return RECORDED[self.name]

    @property
    def is_recorded(self) -> bool:
        """Whether there is a record of the network at this length."""
        return self.name in RECORDED and record_path(self.name, self.recorded_length).exists()

    @property
    def recorded_length(self) -> int:
        """The length it is recorded at, its first where none is asked for."""
        return self.length if self.row.lengths != (0,) and self.length else self.row.lengths[0]

    @property
    def update_share(self) -> float:
        """The share of an update of BY_ADAM that a micro-batch costs."""
        if not self.precision.update:
            return 0.0
        kind, share = self.row.optimizer, 1 / self.row.micro_batches
        if kind in trained():
            return share
        return share * rules()[kind].fused_tensors / rules()[BY_ADAM].fused_tensors


@lru_cache(maxsize=64)
def recorded_model(name: str, length: int = 0) -> TorchModel:
    """Return a recorded network; InputError where it has no record of that length."""
    path = record_path(name, length)
    if not path.exists():
        there = f" of length {length}" if length else ""
        raise InputError(f"network {name}{there}: no record")
    return model_of(path.read_bytes())


@lru_cache(maxsize=4)
def recorded_step(name: str, length: int, batch: int) -> Graph:
    """Return the float32 step of a recorded network."""
    model = recorded_model(name, length)
    kind = RECORDED[name].optimizer
    return trace_step(model, model.loss, Optimizer(kind if kind in trained() else BY_ADAM), batch)


def policy_of(precision: Precision, stack: Stack, step: Graph, layers: tuple[str, ...]) -> Policy:
    """Return the policy under which products, convolutions and activations are in these formats.

    Where all is in half precision it is apex's O3.
    """
    if precision.activations != "float32":
        if not precision.masters:
            return preset("apex.O3", layers)
        if stack.float32_norms:
            return preset(AUTOCAST[precision.activations], layers)
        return _stored_narrow(preset(STORED_NARROW[precision.activations], layers))
    narrow = {
        node.layer
        for node in step.nodes
        if node.op.kind == "gemm"
        and (precision.convolutions if is_convolution(node) else precision.products) == "tfloat32"
    }
    strict = {k: row for k, row in preset("float32", layers).layers if k not in narrow}
    return preset(TF32, layers).with_layers(strict)


def _stored_narrow(policy: Policy) -> Policy:
    """Return the policy with batch norm on narrow tensors, as libraries' kernels take them.

    Their statistics and weights are float32 within the kernel; no cast passes the memory.
    """
    return replace(
        policy,
        low_precision_ops=(*policy.low_precision_ops, "batch_norm"),
        fp32_ops=tuple(op for op in policy.fp32_ops if op != "batch_norm"),
        promote_ops=tuple(op for op in policy.promote_ops if op != "batch_norm"),
    )


@lru_cache(maxsize=4096)
def recorded_price(run: Run) -> StepPrice:
    """Return the modeled step of a recorded network as one of a user's policies is priced."""
    length = run.recorded_length
    step = recorded_step(run.name, length, run.batch)
    layers = recorded_model(run.name, length).layer_names
    policy = policy_of(run.precision, run.stack, step, layers)
    return step_price(apply_policy(step, policy), run.device, run.stack, policy)


@lru_cache(maxsize=4096)
def recorded_works(run: Run) -> tuple[Work, ...]:
    """Return what one micro-batch asks of the device, its share of the update included.

    Works that differ in their count alone are one; the last is what the device waits for its host
    in all examples, where it does.
    """
    length = run.recorded_length
    step = recorded_step(run.name, length, run.batch)
    layers = recorded_model(run.name, length).layer_names
    policy = policy_of(run.precision, run.stack, step, layers)
    counts: dict[Work, float] = {}
    for part in parts_of(apply_policy(step, policy), run.device, run.stack):
        share = run.update_share if part.kernel.lead.role == "update" else 1.0
        if share:
            counts[part.work] = counts.get(part.work, 0.0) + share
    works = [replace(work, count=count) for work, count in counts.items()]
    if waited := run.row.host_seconds * run.batch:
        works.append(Work(0, launches=0, host_seconds=waited))
    return tuple(works)


def micro_batch_seconds(run: Run) -> float:
    """Return the seconds of one micro-batch, of which each has its share of the update.

    What the device waits for its host in every example is among them.
    """
    time, row = recorded_price(run).time, run.row
    share = run.update_share
    parts = [share if kernel.role == "update" else 1.0 for kernel in time.kernels]
    kernels = sum(part * k.seconds for part, k in zip(parts, time.kernels, strict=True))
    kernels += row.host_seconds * run.batch
    counted = sum(part * k.launches for part, k in zip(parts, time.kernels, strict=True))
    launched = counted / sum(kernel.launches for kernel in time.kernels)
    return float(joined_seconds(kernels, time.launch_seconds * launched, run.device))
