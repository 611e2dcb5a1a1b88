"""Export to Megatron-LM: `--te-precision-config-file`, and the flags that belong to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from policysearch.export import transformer_engine
from policysearch.export.levels import bits_of, field_losses, head, one_dtype, plain, why_wide
from policysearch.export.megatron_file import (
    FACTORIES,
    SCALINGS,
    STAGES,
    by_factories,
    flags_of,
    said_in_head,
    yaml_of,
)
from policysearch.export.megatron_names import NOT_ADDRESSED, parts_of, places, sides_there
from policysearch.export.megatron_reading import read
from policysearch.export.reading import About, layer_name
from policysearch.export.te_sizes import ROWS, fitted, refusal
from policysearch.nn.model import Model
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.normal_forms import in_full, normal
from policysearch.policy.policy import AS_FIRST, LayerPolicy, Policy, uniform_layer
from policysearch.policy.scaling import Scaling

__all__ = ["ABOUT", "SUFFIX", "export", "losses", "offers", "read", "runs"]

SUFFIX = ".yaml"


def _beside(policy: Policy, model: Model) -> dict[str, str]:
    """Return the module of factories that the YAML names, by its file; none where it names none."""
    running = runs(policy, model)
    if not by_factories(running, model):
        return {}
    return {f"{FACTORIES}.py": transformer_engine.export(running, model)}


ABOUT = About(
    "YAML of `--te-precision-config-file`, flags in the head, for Megatron-Bridge and NeMo 2 too",
    "per linear of the decoder: bfloat16, a recipe, or any products by a factory; ends; state",
    "megatron-core 0.16.1 (its parser, run), Megatron-LM d98e8a64 (2026-08)",
    "megatron-core's own parser in the tests",
    staged=True,
    beside=_beside,
)
NO_NAME = "no linear of a decoder's block, which is all that its matchers reach"
STATES = ("float32", "float16", "bfloat16")


def losses(policy: Policy, model: Model) -> tuple[str, ...]:
    """Return what a run with the file does not do as the policy says, one line each."""
    policy.check_layers(model.layer_names)
    running = runs(policy, model)
    asked = normal(policy) if by_factories(running, model) else policy
    there, sides = places(model), sides_there(model)
    parts = {x: layers for layers in parts_of(model).values() for x in layers}

    def why(layer: str) -> str:
        if layer not in there:
            return why_wide(layer, model, "Transformer Engine", 1, NO_NAME)
        if refused := refusal(sides[layer], in_full(asked, layer)):
            return refused
        fused = ", ".join(x for x in parts[layer] if x != layer)
        if fused and len({asked.layer(x) for x in parts[layer]}) > 1:
            return f"one linear there with {fused}, of which the widest wins"
        return "no recipe of the run, and no factory, says its products"

    return tuple(field_losses(asked, running, "megatron", why))


def offers(formats: LayerPolicy, layer_type: str) -> bool:
    """Return whether a layer runs in these formats: a linear in 8 or 4 bits, others in 16."""
    if formats in (uniform_layer(name) for name in ("bfloat16", "float16", "float32")):
        return True
    return layer_type in ("", "Linear") and _narrow(formats) == formats


def _narrow(formats: LayerPolicy) -> LayerPolicy | None:
    """Return the quantised formats that Transformer Engine has nearest to these, None for none."""
    if formats.compute == "float4_e2m1fn":
        return uniform_layer("float4_e2m1fn")
    if formats.compute == "float8_e4m3fn" and bits_of(formats.grad) == 8:
        return replace(uniform_layer("float8_e4m3fn"), grad=formats.grad)
    return None


def _by_recipe(policy: Policy, model: Model) -> Policy:
    """Return the policy that a run obeys whose low linears are all of one recipe."""
    dtype, recipe = one_dtype(policy), policy.scaling.recipe
    fp4 = recipe == "nvfp4"
    there = SCALINGS.get("mx_rceil" if recipe == "mx" else recipe, SCALINGS["current"])
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
    asked = replace(plain(policy), layers=tuple(layers.items()), scaling=there)
    run = fitted(asked, sides_there(model), uniform_layer(dtype))
    said = policy.second_moment
    first = _kept(policy.optimizer_state)
    second = first if said == AS_FIRST else _kept(said)
    quantised = any(bits_of(row.compute) < 16 for _, row in run.layers)
    return replace(
        run,
        master_weights=True,
        optimizer_state=first,
        second_moment=second if second != first else AS_FIRST,
        all_reduce="bfloat16" if policy.all_reduce == "bfloat16" else "float32",
        loss_scale=_scale(policy.loss_scale) if dtype == "float16" else LossScale(),
        scaling=there if quantised else Scaling(),
    )


def runs(policy: Policy, model: Model) -> Policy:
    """Return the policy that a run with the file and its flags obeys when given this one.

    q, k and v are one linear there, gate and up another: of parts that differ the widest wins.
    Factories say the products where more linears are as asked with them than by one recipe.
    """
    by_recipe = _by_recipe(policy, model)
    if not set(map(one_dtype, (policy, by_recipe))) <= {"bfloat16"}:
        return by_recipe
    there = transformer_engine.by_factory(policy, model)
    layers = dict.fromkeys(model.layer_names, uniform_layer("bfloat16"))
    for parts in parts_of(model).values():
        if all(_said(there, part) for part in parts):
            widest = max(parts, key=lambda part: _bits(there, part))
            layers |= dict.fromkeys(parts, there.layer(widest))
    named = tuple((name, layers[name]) for name, _ in policy.layers)
    own = replace(by_recipe, layers=named, scaling=there.scaling)
    own = normal(fitted(own, sides_there(model), uniform_layer("bfloat16")))
    kept = [sum(_alike(policy, run, x) for x in places(model)) for run in (by_recipe, own)]
    return own if kept[1] > kept[0] else by_recipe


def _said(policy: Policy, layer: str) -> bool:
    """Whether a linear is low and in recipes that Megatron-LM lets a module have."""
    scalings = [o.scaling for row in in_full(policy, layer).values() for o in row.operands]
    recipes = {x.recipe for x in scalings if x is not None}
    return bool(recipes) and "delayed" not in recipes


def _bits(policy: Policy, layer: str) -> int:
    products = in_full(policy, layer).values()
    return sum(bits_of(operand.format) for row in products for operand in row.operands)


def _alike(policy: Policy, running: Policy, layer: str) -> bool:
    """Whether a linear multiplies as asked, in products and results."""
    asked, made = policy.layer(layer), running.layer(layer)
    results = (asked.output, asked.wgrad) == (made.output, made.wgrad)
    return results and in_full(policy, layer) == in_full(running, layer)


def _kept(state: str) -> str:
    return state if state in STATES else "float32"


def _scale(asked: LossScale) -> LossScale:
    if asked.kind == "dynamic":
        lowest = 1.0 if asked.min_scale is None else asked.min_scale
        first = max(asked.init_scale, lowest)
        return LossScale("dynamic", first, 2.0, 0.5, asked.growth_interval, lowest)
    if asked.kind == "fixed" and asked.init_scale != 1.0:
        return LossScale("fixed", asked.init_scale, skip_on_overflow=True)
    return LossScale()


def export(policy: Policy, model: Model, notes: Sequence[str] = (), pipeline: int = 1) -> str:
    """Return the YAML; its head has the flags, the losses, and what each layer gets.

    InputError where the policy does not fit the model, or a name means two formats on the stages of
    a `pipeline`.
    """
    lines, running, where = losses(policy, model), runs(policy, model), places(model)
    table = [
        f"#   {layer_name(name)}: {where[name].name if name in where else NOT_ADDRESSED}: "
        f"{row.compute}"
        for name, row in running.layers
    ]
    stages = [f"{STAGES} {pipeline}"] if pipeline > 1 else []
    flags = " ".join((*flags_of(running, model), *stages))
    said = ["# The file alone is not the policy: these flags are part of it.", f"# flags: {flags}"]
    said += [f"# {ROWS}.", *said_in_head(running, model)]
    text = [head(policy, notes, lines, "megatron"), *said, "# layer: module: computes in", *table]
    return "\n".join([*text, *yaml_of(running, model, pipeline), ""])
