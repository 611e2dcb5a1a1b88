"""Export to PyTorch: one file that applies the policy to a module by layer name, call by call."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from string import Template

from policysearch.export.torch_float8 import DTYPE, FLOAT8
from policysearch.export.torch_losses import losses
from policysearch.export.torch_runs import offers, runs
from policysearch.export.torch_template import TEMPLATE
from policysearch.nn.model import Model
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import Policy
from policysearch.train.loss_scale import first_scale
from policysearch.train.step import trace_forward

__all__ = ["SUFFIX", "export", "losses", "offers", "runs"]

SUFFIX = ".py"


def export(policy: Policy, model: Model, notes: Sequence[str] = ()) -> str:
    """Return a Python file with `apply_policy`, `remove_policy`, `make_grad_scaler` and `check`.

    It needs torch alone, and torchao where a linear is in float8. InputError where the policy does
    not fit the model.
    """
    policy.check_layers(model.layer_names)
    running, lines = runs(policy, model), losses(policy, model)
    rows = {name: _row(running, name) for name in model.layer_names}
    owners = {name: row for name, row in rows.items() if model.parameters_of(name)}
    owners |= _holders(model, rows)
    narrow = any(row[0] == DTYPE for row in rows.values())
    return Template(TEMPLATE + (FLOAT8 if narrow else "")).substitute(
        power_of_two=running.scaling.power_of_two,
        name=_comment(policy.name),
        notes="".join(f"# {_comment(note)}\n" for note in notes),
        digest=policy.digest,
        losses="\n".join(f"#   - {_comment(line)}" for line in lines) or "#   nothing",
        layers=_table(owners),
        functions=_table({name: row for name, row in rows.items() if name not in owners}),
        biases=tuple(_biases(model)),
        low=_lines(running.low_precision_ops),
        wide=_lines((*running.fp32_ops, "loss")),
        **_scaler_values(running.loss_scale),
    )


Row = tuple[str, str, str | None]


def _row(policy: Policy, layer: str) -> Row:
    """Return the formats of operands, results and stored parameters; None for float32 ones."""
    formats = policy.layer(layer)
    stored = None if policy.master_weights or formats.param == "float32" else formats.param
    return formats.compute, formats.output, stored


def _holders(model: Model, rows: Mapping[str, Row]) -> dict[str, Row]:
    """Return the rows of modules that hold parameters of a layer, and compute nothing."""
    held = {spec.name.rpartition(".")[0]: spec.layer for spec in model.parameters()}
    return {name: rows[held[name]] for name in held if name not in rows and held[name] in rows}


def _biases(model: Model) -> Iterator[str]:
    """Yield the layers that add a bias and have no product."""
    nodes = trace_forward(model, 1).nodes
    products = {node.layer for node in nodes if node.op.kind == "gemm"}
    for layer in model.layer_names:
        if layer not in products and any(n.op.name == "bias" and n.layer == layer for n in nodes):
            yield layer


def _scaler_values(scale: LossScale) -> dict[str, object]:
    """Return what the text of the scaler leaves open."""
    return {
        "kind": repr(scale.kind),
        "enabled": scale.kind != "none",
        "init_scale": scale.init_scale,
        "first_scale": first_scale(scale),
        "growth_factor": max(scale.growth_factor, math.nextafter(1.0, 2.0)),
        "backoff_factor": min(scale.backoff_factor, math.nextafter(1.0, 0.0)),
        "growth_interval": scale.growth_interval,
        "schedule": scale.schedule,
        "lowest": 0.0 if scale.min_scale is None else scale.min_scale,
        "highest": 2.0**127 if scale.max_scale is None else scale.max_scale,
        "skips": scale.kind == "dynamic" or scale.skip_on_overflow,
    }


def _comment(text: str) -> str:
    """Return `text` on one line: a name from a policy file must not end the comment."""
    return " ".join(text.split())


def _lines(names: Sequence[str]) -> str:
    return "\n".join(["(", *(f"    {name!a}," for name in names), ")"])


def _table(rows: Mapping[str, object]) -> str:
    return "\n".join(["{", *(f"    {name!a}: {row!a}," for name, row in rows.items()), "}"])
