"""Export to PyTorch: one file that applies the policy to a module by layer name, with autocast."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from string import Template

from policysearch.export.torch_template import TEMPLATE, UPDATES
from policysearch.formats import Rounding, format_named
from policysearch.graph import Node
from policysearch.nn.model import Model
from policysearch.policy.policy import LayerPolicy, LossScale, Policy, RoleRounding
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import LOSSES, trace_forward

SUFFIX = ".py"
ROOT = ""
"""The layer that is the module itself: functions called, and parameters held, by no submodule."""

DTYPES = ("float32", "float16", "bfloat16")
"""Formats that modules of torch compute and store in."""


def export(policy: Policy, model: Model, notes: Sequence[str] = ()) -> str:
    """Return a Python file with `apply_policy(module, device_type)` and `make_grad_scaler`.

    It needs torch alone. InputError where the policy does not fit the model.
    """
    owned, free = _formats(policy, model)
    layers = {
        layer: (_runs_in(compute, output), output if output in DTYPES else "float32", stored)
        for layer, (compute, output, stored) in owned.items()
    }
    functions = {layer: form if form in DTYPES else "float32" for layer, form in free.items()}
    scale, lines = policy.loss_scale, losses(policy, model)
    first = dict(scale.schedule).get(0, scale.init_scale)
    return Template(TEMPLATE).substitute(
        name=_comment(policy.name),
        notes="".join(f"# {_comment(note)}\n" for note in notes),
        digest=policy.digest,
        losses="\n".join(f"#   - {_comment(line)}" for line in lines) or "#   nothing",
        layers=_table(layers),
        functions=_table(functions),
        enabled=scale.kind != "none",
        init_scale=first,
        growth_factor=max(scale.growth_factor, math.nextafter(1.0, 2.0)),
        backoff_factor=min(scale.backoff_factor, math.nextafter(1.0, 0.0)),
        growth_interval=scale.growth_interval,
        update=_update(scale),
    )


def _comment(text: str) -> str:
    """Return `text` on one line: a name from a policy file must not end the comment."""
    return " ".join(text.split())


def _table(rows: Mapping[str, object]) -> str:
    return "\n".join(["{", *(f"    {name!a}: {row!a}," for name, row in rows.items()), "}"])


def losses(policy: Policy, model: Model) -> tuple[str, ...]:
    """Return what the exported file does not do as the policy says, one line each."""
    owned, free = _formats(policy, model)
    lines: list[str] = []
    for layer, (compute, output, _) in owned.items():
        lines += _layer_losses(policy, layer, compute, output)
        lines += _gradient_losses(policy, model, layer, _runs_in(compute, output))
    lines += _function_losses(policy, model, free)
    return (*lines, *_whole_losses(policy))


def _formats(
    policy: Policy, model: Model
) -> tuple[dict[str, tuple[str, str, str | None]], dict[str, str]]:
    """Return (compute, output, stored) per layer with parameters, and the format of the others.

    They are read off the rewritten graph, so op lists and layers have both been obeyed. `stored`
    is None where the parameters stay float32. What the module itself does is in neither.
    """
    policy.check_layers(model.layer_names)
    graph = apply_policy(trace_forward(model, 1), policy)
    owned: dict[str, tuple[str, str, str | None]] = {}
    free: dict[str, str] = {}
    for layer in model.layer_names:
        nodes = [n for n in graph.nodes if n.layer == layer and n.role == "fprop"]
        made = [n for n in nodes if n.op.name != "cast"]
        if not made or layer == ROOT:
            continue  # nothing is left of it in evaluation, as of dropout; or it is the module
        if not model.parameters_of(layer):
            free[layer] = made[-1].format
            continue
        # A layer computes in its product, or else in the first op that does more than move data.
        products = [n for n in made if n.op.kind == "gemm"]
        product = (products or [n for n in made if n.op.kind != "move"] or made)[0]
        stored = None if policy.master_weights else policy.layer(layer).param
        owned[layer] = (
            graph.inputs_of(product)[0].format,
            made[-1].format,
            stored if stored in DTYPES and stored != "float32" else None,
        )
    return owned, free


def _runs_in(compute: str, output: str) -> str:
    if compute in DTYPES:
        return compute
    return output if output in DTYPES else "float32"


def _layer_losses(policy: Policy, layer: str, compute: str, output: str) -> Iterator[str]:
    formats, runs = policy.layer(layer), _runs_in(compute, output)
    if compute != runs:
        yield f"layer {layer}: plain torch modules do not compute in {compute}; it runs in {runs}"
    if output not in DTYPES:
        yield f"layer {layer}: torch has no {output} result; it returns float32"
    elif output != runs:
        yield f"layer {layer}: its result is rounded to {runs} before it becomes {output}"
    yield from _storage_losses(policy, layer, formats)
    if formats.accumulator != LayerPolicy().accumulator:
        yield f"layer {layer}: the device accumulates in its own way, not as {formats.accumulator}"


def _gradient_losses(policy: Policy, model: Model, layer: str, runs: str) -> Iterator[str]:
    """Gradients have the layer's formats where its ops do, also where the forward is float32."""
    ops = {n.source for n in trace_forward(model, 1).nodes if n.layer == layer}
    formats = policy.layer(layer)
    gradients = (formats.grad, formats.dgrad, formats.wgrad)
    if ops & set(policy.low_precision_ops) and gradients != (runs,) * 3:
        given = f"{formats.grad} (operand), {formats.dgrad} (input), {formats.wgrad} (weight)"
        yield f"layer {layer}: gradients are {runs}, not {given}"


def _storage_losses(policy: Policy, layer: str, formats: LayerPolicy) -> Iterator[str]:
    if policy.master_weights and formats.param not in ("float32", formats.compute):
        yield f"layer {layer}: parameters are read as float32, without a {formats.param} copy"
    if not policy.master_weights and formats.param not in DTYPES:
        yield f"layer {layer}: parameters are stored in float32, not {formats.param}"


def _function_losses(policy: Policy, model: Model, free: dict[str, str]) -> Iterator[str]:
    """A function called in `forward` runs in the dtype of its input, whatever the policy says."""
    graph = apply_policy(trace_forward(model, 1), policy)
    for layer, wanted in free.items():
        first = next(n for n in graph.nodes if n.layer == layer and n.role == "fprop")
        given = graph.inputs_of(first)[0] if first.inputs else first
        if given.format != wanted:
            yield (
                f"layer {layer}: runs in {wanted} only if the module has a submodule of this "
                f"name; a function there runs in {given.format}, the dtype of its input"
            )
    if ROOT in model.layer_names:
        yield "the module itself: what it does outside its submodules runs as torch promotes dtypes"
    yield from _bias_losses(policy, list(graph.nodes))


def _bias_losses(policy: Policy, nodes: list[Node]) -> Iterator[str]:
    has_low_bias = any(
        n.op.name == "bias" and format_named(policy.layer(n.layer).compute).bits < 32 for n in nodes
    )
    if has_low_bias and policy.bias != "fused":
        yield f"bias: torch adds it before the one rounding of the result, not {policy.bias!r}"
    if policy.casts != "op":
        yield f"casts: autocast casts what every op reads, not what enters a {policy.casts}"
    if policy.norm_inner != "float32":
        yield "norm_inner: torch's norms sum in float32, not in their format"


def _whole_losses(policy: Policy) -> Iterator[str]:
    for op in LOSSES:
        if op in policy.low_precision_ops:
            yield f"{op}: the module returns float32, so the loss is float32, not low precision"
    if policy.rounding != RoleRounding():
        yield f"rounding: torch rounds as {Rounding()}"
    if policy.master_weights and policy.optimizer_state != "float32":
        yield f"optimizer_state: torch keeps float32, not {policy.optimizer_state}"
    yield from _order_losses(policy)
    if policy.all_reduce != "float32":
        yield f"all_reduce: gradients are reduced as float32, not {policy.all_reduce}"
    if policy.scaling.recipe != "none":
        yield f"scaling: no tensor is scaled ({policy.scaling.recipe!r} asked)"
    if policy.phases:
        yield "phases: the formats of step 0 stay in force"
    if policy.gradient_clip_norm is not None:
        yield (
            f"gradient_clip_norm: the training loop has to clip to {policy.gradient_clip_norm} "
            "after scaler.unscale_"
        )
    yield from _scale_losses(policy)


def _order_losses(policy: Policy) -> Iterator[str]:
    """Both orders are torch's own; they differ where the parameters are stored low."""
    stored = {policy.layer(name).param for name, _ in policy.layers} - {"float32"}
    if policy.master_weights or not stored:
        return
    fused = policy.optimizer_order == "fused"
    yield f"optimizer_order: the training loop has to make its optimizer with fused={fused}"
    if not fused:
        given = policy.optimizer_scalars
        device = "CUDA" if given == "float32" else "a CPU"
        yield f"optimizer_scalars: {given!r} is what torch does on {device} alone"


def _scale_losses(policy: Policy) -> Iterator[str]:
    scale = policy.loss_scale
    if scale.kind == "none":
        return
    stored = {policy.layer(name).param for name, _ in policy.layers}
    if not policy.master_weights and "float16" in stored:
        yield "loss_scale: GradScaler refuses to unscale the gradients of float16 parameters"
    # Apex never skips under a static scale.
    if scale.kind != "dynamic" and (not scale.skip_on_overflow or scale.rule == "apex"):
        yield "loss_scale: GradScaler skips steps with non-finite gradients; the policy does not"
    if scale.rule != "torch.GradScaler":
        yield (
            f"loss_scale: events follow the order of GradScaler, not of {scale.rule}; no floor "
            "and no cap but those the policy gives"
        )


def _update(scale: LossScale) -> str:
    if scale.kind == "fixed":
        return Template(UPDATES["fixed"]).substitute(scale=scale.init_scale)
    if scale.kind == "schedule":
        return Template(UPDATES["schedule"]).substitute(
            init_scale=scale.init_scale, schedule=scale.schedule
        )
    if scale.min_scale is None and scale.max_scale is None:
        return UPDATES["plain"]
    lowest = 0.0 if scale.min_scale is None else scale.min_scale
    highest = 2.0**127 if scale.max_scale is None else scale.max_scale
    return Template(UPDATES["bounded"]).substitute(lowest=lowest, highest=highest)
