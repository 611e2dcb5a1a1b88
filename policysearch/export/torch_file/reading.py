"""An exported torch file read back: its tables, and the loss scale that it makes."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from typing import Any

from policysearch.export.reading import (
    DEFAULT_RULE,
    About,
    Given,
    Reading,
    literal,
    policy_of,
)
from policysearch.files import syntax_of
from policysearch.formats import Rounding
from policysearch.nn.model import Model
from policysearch.ops.catalogue import FORWARD_OPS, LOSS_OPS
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import AS_STORED, LayerPolicy, RoleRounding, uniform_layer
from policysearch.policy.scaling import Scaling
from policysearch.values import one_of

ABOUT = About(
    "a module to import: apply_policy, make_grad_scaler, adapters of training loops",
    "per layer and op: float32, tfloat32, float16, bfloat16, FP8 linears; storage; loss scale",
    "torch 2.13, torchao 0.18 (run, 2026-11)",
    "policysearch verify",
)

TABLES = ("LAYERS", "FUNCTIONS", "LOW", "FLOAT32")
NARROW = "float8_e4m3fn"


def read(text: str, model: Model, where: str) -> Reading:
    """Return what the tables of an exported file give the layers of `model`.

    Nothing in the file is run. The order of the optimizer's operations is the training loop's:
    it is read as torch's own.
    """
    said = _constants(text, where)
    rows = {**said["FUNCTIONS"], **said["LAYERS"]}
    given = tuple(_given(name, rows, said) for name in model.layer_names)
    stored = {row[2] for row in rows.values() if row[2] is not None}
    narrow = any(row[0] == NARROW for row in rows.values())
    low = tuple(said["LOW"])
    wide = tuple(op for op in said["FLOAT32"] if op != "loss")
    others = tuple(op for op in (*FORWARD_OPS, *LOSS_OPS) if op not in {*low, *wide})
    scaling = Scaling("current", power_of_two=said["POWER_OF_TWO"]) if narrow else Scaling()
    policy = policy_of(
        given,
        model,
        f"imported from {where}",
        low_precision_ops=low,
        fp32_ops=wide,
        promote_ops=others,
        master_weights=not stored,
        **_updates(said, bool(stored)),
        loss_scale=_loss_scale(said),
        scaling=scaling,
    )
    unused = tuple(
        f"{name}: never matches: no layer of the model"
        for name in rows
        if name not in model.layer_names
    )
    return Reading(policy, given, unused, tuple(_traps(given, policy.loss_scale)))


def _given(name: str, rows: Mapping[str, Any], said: Mapping[str, Any]) -> Given:
    if name not in rows:
        return Given(name, name, DEFAULT_RULE, LayerPolicy())
    compute, output, stored = rows[name]
    table = "LAYERS" if name in said["LAYERS"] else "FUNCTIONS"
    return Given(name, name, f"{table}[{name!r}]", _formats(compute, output, stored))


def _formats(compute: str, output: str, stored: str | None) -> LayerPolicy:
    kept = stored or "float32"
    if compute == NARROW:
        return LayerPolicy(NARROW, output, uniform_layer(NARROW).grad, output, kept)
    wgrad = "float32" if compute == "tfloat32" else compute
    return LayerPolicy(compute, output, compute, wgrad, kept)


def _updates(said: Mapping[str, Any], stored_low: bool) -> dict[str, Any]:
    """Return what the policy says of updates: a file with STATE rounds them by chance."""
    if said.get("STATE") is None:
        state, order = (AS_STORED, "eager") if stored_low else ("float32", "fused")
        return {"optimizer_state": state, "optimizer_order": order}
    rounding = RoleRounding(update=Rounding("stochastic"))
    return {
        "optimizer_state": said["STATE"],
        "gradient_storage": "param",
        "rounding": rounding,
    }


def _traps(given: tuple[Given, ...], scale: LossScale) -> Iterator[str]:
    low = [row.layer for row in given if "float16" in (row.formats.compute, row.formats.output)]
    if low and scale.kind == "none":
        yield f"{low[0]}: float16 ({len(low)} such layers) and no loss scale: gradients underflow"


def _loss_scale(said: Mapping[str, Any]) -> LossScale:
    kind = said["kind"]
    if kind == "none" or not said["enabled"]:
        return LossScale()
    if kind != "dynamic":
        return LossScale(
            kind,
            said["init_scale"],
            said["growth_factor"],
            said["backoff_factor"],
            said["growth_interval"],
            skip_on_overflow=said["skips"],
            schedule=tuple(said["schedule"]),
        )
    return LossScale(
        kind,
        said["init_scale"],
        said["growth_factor"],
        said["backoff_factor"],
        said["growth_interval"],
        min_scale=said["lowest"] or None,
        max_scale=None if said["highest"] == 2.0**127 else said["highest"],
    )


def _constants(text: str, where: str) -> dict[str, Any]:
    """Return the constants of the file by name, those of its scaler among them."""
    found: dict[str, Any] = {"POWER_OF_TWO": False}
    for node in ast.walk(syntax_of(text, where, "an exported torch file")):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name | ast.Tuple):
            found.update(_assignments(node))
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "PolicyScaler":
            found.update((x.arg, literal(x.value)) for x in node.keywords if x.arg)
    for name in (*TABLES, "kind", "init_scale", "growth_factor"):
        one_of(f"{where}: expected an exported torch file, which has", name, found)
    return found


def _assignments(node: ast.Assign) -> Iterator[tuple[str, Any]]:
    target = node.targets[0]
    if isinstance(target, ast.Name):
        yield target.id, literal(node.value)
        return
    assert isinstance(target, ast.Tuple)
    parts = node.value.elts if isinstance(node.value, ast.Tuple) else []
    for name, value in zip(target.elts, parts, strict=False):
        if isinstance(name, ast.Name):
            yield name.id, literal(value)
