"""What torch makes of a policy: the nearest one that an exported file obeys."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from policysearch.export.torch_float8 import DTYPE, is_float8, why_not
from policysearch.nn.model import Model
from policysearch.ops.catalogue import FORWARD_OPS, OPS
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import AS_STORED, LayerPolicy, Policy, RoleRounding
from policysearch.policy.scaling import Scaling
from policysearch.rewrite.placed_rules import LISTS
from policysearch.train.loss_scale import first_scale, highest, lowest, skips_update
from policysearch.train.step import LOSSES

DTYPES = ("float32", "float16", "bfloat16")
"""Formats that modules of torch compute and store in."""

MOVES = tuple(name for name in FORWARD_OPS if OPS[name].kind == "move")
"""Ops that only move values: in torch they keep the dtype of what they move."""


def runs(policy: Policy, model: Model) -> Policy:
    """Return the policy that the exported file obeys in a module of `model`.

    Products of a layer torch has no dtype for take that of their result, but for the linears that
    torchao computes in float8 (`why_not`); gradients follow the operands; values are moved in the
    format they have, biases added by the product before its one rounding; every op casts what it
    reads, norms have float32 inside, losses are float32. Optimizers round every operation on
    parameters stored low, as torch's do unless made with `fused=True`, and keep their state as the
    parameter is stored; beside `refused` gradients there is no loss scale. It is its own:
    `runs(runs(p)) == runs(p)`.
    """
    layers = tuple((name, _layer(name, policy, model)) for name, _ in policy.layers)
    narrow = any(formats.compute == DTYPE for _, formats in layers)
    power_of_two = policy.scaling.power_of_two
    lists = dict.fromkeys(LOSSES, LISTS["fp32"])
    if "bias" in _placed(policy):
        lists["bias"] = _placed(policy).get("matmul", _placed(policy)["bias"])
    return replace(
        _moved(with_free_moves(policy), lists),
        layers=layers,
        bias="fused",
        optimizer_order="fused" if is_stored_wide(policy) else "eager",
        casts="op",
        norm_inner="float32",
        optimizer_state="float32" if is_stored_wide(policy) else AS_STORED,
        all_reduce="float32",
        loss_scale=LossScale() if refused(policy, model) else _loss_scale(policy.loss_scale),
        scaling=Scaling("current", power_of_two=power_of_two) if narrow else Scaling(),
        rounding=RoleRounding(),
        phases=(),
    )


def is_stored_wide(policy: Policy) -> bool:
    """Return whether updates read and write float32 alone: then their order rounds nothing."""
    return policy.master_weights or {row.param for _, row in policy.layers} == {"float32"}


def refused(policy: Policy, model: Model) -> tuple[str, ...]:
    """Return the layers with gradients that torch.amp.GradScaler raises on: float16 ones.

    A gradient has the dtype that its parameter is stored in; one is enough for the whole step.
    """
    stored = [name for name, row in policy.layers if row.param == "float16"]
    if policy.master_weights or not stored:
        return ()
    trained = {name for spec in model.parameters() if spec.trained for name in spec.owners}
    return tuple(name for name in stored if name in trained)


def offers(formats: LayerPolicy, layer_type: str) -> bool:
    """Return whether torch, or torchao in a linear, computes and returns in these formats."""
    if formats.output not in DTYPES:
        return False
    return formats.compute in DTYPES or (layer_type == "Linear" and is_float8(formats))


def runs_in(formats: LayerPolicy) -> str:
    """Return the format that the products of a layer run in."""
    if formats.compute in DTYPES:
        return formats.compute
    return formats.output if formats.output in DTYPES else "float32"


def _layer(name: str, policy: Policy, model: Model) -> LayerPolicy:
    formats = policy.layer(name)
    if offers(formats, "Linear") and not why_not(policy, name, model):
        return formats
    compute = runs_in(formats)
    stored = formats.param if formats.param in DTYPES and not policy.master_weights else "float32"
    return LayerPolicy(
        compute=compute,
        output=formats.output if formats.output in DTYPES else "float32",
        grad=compute,
        wgrad=compute,
        param=stored,
    )


def with_free_moves(policy: Policy) -> Policy:
    """Return the policy whose moves keep the format of what they move."""
    return _moved(policy, dict.fromkeys(MOVES, LISTS["promote"]))


def _placed(policy: Policy) -> dict[str, str]:
    """Return {op: name of its list}."""
    return {op: name for name in LISTS.values() for op in getattr(policy, name)}


def _moved(policy: Policy, to: Mapping[str, str]) -> Policy:
    """Return the policy with those of its ops in other lists."""
    of = _placed(policy)
    of |= {op: name for op, name in to.items() if op in of}
    low, wide, promoted = (tuple(op for op in of if of[op] == name) for name in LISTS.values())
    return replace(policy, low_precision_ops=low, fp32_ops=wide, promote_ops=promoted)


def _loss_scale(scale: LossScale) -> LossScale:
    """Return the same scale under the rule of GradScaler, with the bounds its own rule has."""
    if scale.kind == "none":
        return LossScale()
    if scale.kind != "dynamic":
        skips = skips_update(scale, finite=False)
        return replace(scale, rule="torch.GradScaler", skip_on_overflow=skips)
    return replace(
        scale,
        init_scale=first_scale(scale),
        min_scale=lowest(scale),
        max_scale=highest(scale),
        rule="torch.GradScaler",
    )
