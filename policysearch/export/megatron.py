"""Export to Megatron-LM: `--te-precision-config-file`, and the flags that belong to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from policysearch.export.levels import BASE, LISTS, field_losses, head, plain
from policysearch.export.megatron_file import flags_of, read, yaml_of
from policysearch.export.megatron_names import NOT_ADDRESSED, parts_of, places
from policysearch.export.reading import About
from policysearch.formats import format_named
from policysearch.nn.model import Model
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import AS_FIRST, LayerPolicy, Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.policy.scaling import Recipe, Scaling

__all__ = ["ABOUT", "SUFFIX", "UNSAID", "export", "losses", "offers", "read", "runs"]

SUFFIX = ".yaml"
UNSAID: frozenset[str] = frozenset()
ABOUT = About(
    "YAML of --te-precision-config-file, its flags in the head",
    "per linear of the decoder: bfloat16, or FP8 or FP4 by one recipe; ends by flags; state",
    "megatron-core 0.16.1 (its parser, run), Megatron-LM d98e8a64 (2026-08)",
    "megatron-core's own parser in the tests",
)
STATES = ("float32", "float16", "bfloat16")


def losses(policy: Policy, model: Model) -> tuple[str, ...]:
    """Return what a run with the file does not do as the policy says, one line each."""
    policy.check_layers(model.layer_names)
    return tuple(field_losses(policy, runs(policy, model), "megatron"))


def offers(formats: LayerPolicy, layer_type: str) -> bool:
    """Return whether a layer runs in these formats: a linear in 8 or 4 bits, others in 16."""
    if formats in (uniform_layer(name) for name in ("bfloat16", "float16", "float32")):
        return True
    return layer_type in ("", "Linear") and _narrow(formats) == formats


def _narrow(formats: LayerPolicy) -> LayerPolicy | None:
    """Return the quantised formats that Transformer Engine has nearest to these, None for none."""
    if formats.compute == "float4_e2m1fn":
        return uniform_layer("float4_e2m1fn")
    if formats.compute == "float8_e4m3fn" and format_named(formats.grad).bits == 8:
        return replace(uniform_layer("float8_e4m3fn"), grad=formats.grad)
    return None


def _dtype(policy: Policy) -> str:
    """Return the one dtype of a run: float32 or float16 where no layer asks for another low one."""
    computed = {row.compute for _, row in policy.layers} - {"tfloat32"}
    if computed <= {"float32"}:
        return "float32"
    return "float16" if computed <= {"float32", "float16"} else "bfloat16"


def runs(policy: Policy, model: Model) -> Policy:
    """Return the policy that a run with the file and its flags obeys when given this one.

    q, k and v are one linear there, gate and up another: of parts that differ the widest wins.
    """
    dtype, recipe = _dtype(policy), policy.scaling.recipe
    fp4 = recipe == "nvfp4"
    there: Recipe = "mx_rceil" if recipe in ("mx", "mx_rceil") else "current"
    layers = {name: uniform_layer(dtype) for name, _ in policy.layers}
    grads = [row.grad for _, row in policy.layers if (_narrow(row) or row).compute[:6] == "float8"]
    hybrid = "float8_e5m2" in grads
    for parts in parts_of(model).values():
        wanted = [_narrow(policy.layer(part)) for part in parts]
        kinds = {row.compute for row in wanted if row is not None}
        if None in wanted or kinds != {"float4_e2m1fn" if fp4 else "float8_e4m3fn"}:
            continue
        made = uniform_layer(kinds.pop())
        if not fp4 and not hybrid:
            made = replace(made, grad="float8_e4m3fn")
        layers |= dict.fromkeys(parts, made)
    said = policy.second_moment
    first = _kept(policy.optimizer_state)
    second = first if said == AS_FIRST else _kept(said)
    quantised = any(format_named(row.compute).bits < 16 for row in layers.values())
    base = preset(BASE, ())
    return replace(
        plain(policy),
        layers=tuple(layers.items()),
        **{name: getattr(base, name) for name in LISTS},
        master_weights=True,
        optimizer_state=first,
        second_moment=second if second != first else AS_FIRST,
        all_reduce="bfloat16" if policy.all_reduce == "bfloat16" else "float32",
        loss_scale=_scale(policy.loss_scale) if dtype == "float16" else LossScale(),
        scaling=Scaling("nvfp4" if fp4 else there) if quantised else Scaling(),
    )


def _kept(state: str) -> str:
    return state if state in STATES else "float32"


def _scale(asked: LossScale) -> LossScale:
    if asked.kind == "dynamic":
        lowest = 1.0 if asked.min_scale is None else asked.min_scale
        first = max(asked.init_scale, lowest)
        return LossScale("dynamic", first, 2.0, 0.5, asked.growth_interval, lowest)
    if asked.kind == "fixed":
        return LossScale("fixed", asked.init_scale, skip_on_overflow=True)
    return LossScale()


def export(policy: Policy, model: Model, notes: Sequence[str] = ()) -> str:
    """Return the YAML; its head has the flags, the losses, and what each layer gets.

    InputError where the policy does not fit the model.
    """
    running, lines = runs(policy, model), losses(policy, model)
    where = places(model)
    table = [
        f"#   {name or '(the module)'}: {where[name].name if name in where else NOT_ADDRESSED}: "
        f"{row.compute}"
        for name, row in running.layers
    ]
    flags = " ".join(flags_of(running, model))
    said = ["# The file alone is not the policy: these flags are part of it.", f"# flags: {flags}"]
    text = [head(policy, notes, lines, "megatron"), *said, "# layer: module: computes in", *table]
    return "\n".join([*text, *yaml_of(running, model), ""])
