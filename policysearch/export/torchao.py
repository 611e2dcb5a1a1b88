"""Export to torchao, and to what is built on it: exact-name filters, one config for each triple."""

from __future__ import annotations

import pprint
from collections.abc import Sequence
from dataclasses import replace

from policysearch.export.levels import BASE, LISTS, constants, field_losses, head, plain
from policysearch.export.reading import DEFAULT_RULE, About, Given, Reading, policy_of
from policysearch.export.torch_runs import MULTIPLE
from policysearch.formats import format_named
from policysearch.nn.model import Model
from policysearch.policy.policy import LayerPolicy, Policy, uniform_layer
from policysearch.policy.presets import preset
from policysearch.policy.scaling import Scaling
from policysearch.values import InputError, one_of

__all__ = ["ABOUT", "SUFFIX", "UNSAID", "export", "losses", "offers", "read", "runs"]

SUFFIX = ".py"
UNSAID: frozenset[str] = frozenset()
ABOUT = About(
    "a module to import: convert(module); lists for torchtitan and Accelerate in it",
    "per linear: FP8 in all three products by one recipe, bfloat16 for the rest of the run",
    "torchao 0.18 (run, 2026-11), torchtitan b5bcd76c6 (2026-08)",
    "torchao on a CPU in the tests",
)

TEMPLATE = '''\
$head
#
#     convert(module)                           # before fully_shard and torch.compile
#     with torch.autocast(device, torch.bfloat16): ...
#
# torchtitan: Float8LinearConverter.Config(recipe_name=RECIPE, filter_fqns=SKIPPED) skips what has
# one of these texts in its name. Accelerate: AORecipeKwargs(config=..., module_filter_func=is_low)
# with pad_inner_dim=False, for its own filter leaves out other layers.

import torch

# linear: what computes its three products
LAYERS = $layers

RECIPE = $recipe  # of torchao

# What torchtitan is to leave alone: names of the other linears, with a dot behind numbers.
SKIPPED = $skipped


def is_low(module, name):
    """Return whether torchao is to convert this linear: by its whole name, and its size.

    On a GPU products of sizes that are no multiples of 16 are refused; torchao converts them.
    """
    if LAYERS.get(name) != "float8":
        return False
    if module.in_features % 16 or module.out_features % 16:
        raise ValueError(f"{name}: {module}; expected sizes that are multiples of 16")
    return True


def convert(module, emulate=False):
    """Make these linears Float8Linear, in place, and return the module; one call is enough.

    Raises ValueError where a linear of the policy is missing, or converted already: torchao would
    convert it again, to another recipe.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    linears = {n: x for n, x in module.named_modules() if isinstance(x, torch.nn.Linear)}
    missing = [name for name in LAYERS if LAYERS[name] == "float8" and name not in linears]
    again = [name for name, part in linears.items() if type(part) is not torch.nn.Linear]
    if missing or again:
        raise ValueError(f"module: {missing or again}; expected each a torch.nn.Linear once")
    if not any(kind == "float8" for kind in LAYERS.values()):
        return module
    config = Float8LinearConfig.from_recipe_name(RECIPE)
    if emulate:  # emulate=True in a constructor of torchtitan drops the recipe
        import dataclasses

        config = dataclasses.replace(config, emulate=True)
    return convert_to_float8_training(module, module_filter_fn=is_low, config=config)
'''

RECIPES = {"tensorwise": "current", "rowwise": "rowwise"}
"""By torchao's name, the recipe of a policy."""


def _is_low(policy: Policy, layer: str, model: Model) -> bool:
    """Return whether torchao can compute the layer in FP8, as its sizes and the policy have it."""
    row, shapes = policy.layer(layer), [spec.shape for spec in model.parameters_of(layer)]
    return (
        model.layer_types.get(layer) == "Linear"
        and row.compute == "float8_e4m3fn"
        and format_named(row.grad).bits == 8
        and all(side % MULTIPLE == 0 for shape in shapes if len(shape) == 2 for side in shape)
    )


def _low(recipe: str) -> LayerPolicy:
    """Return the formats of a linear: rowwise has E4M3 for gradients too."""
    low = uniform_layer("float8_e4m3fn")
    return low if recipe == "current" else replace(low, grad="float8_e4m3fn")


def runs(policy: Policy, model: Model) -> Policy:
    """Return the policy that a converted module obeys under autocast in bfloat16."""
    recipe = "rowwise" if policy.scaling.recipe == "rowwise" else "current"
    low = [name for name, _ in policy.layers if _is_low(policy, name, model)]
    computed = {row.compute for _, row in policy.layers} - {"tfloat32"}
    rest = uniform_layer("float32" if computed <= {"float32"} else "bfloat16")
    base = preset(BASE, ())
    power = recipe == "rowwise"  # torchao rounds the scales of rows to powers of two
    return replace(
        plain(policy),
        layers=tuple((n, _low(recipe) if n in low else rest) for n, _ in policy.layers),
        **{name: getattr(base, name) for name in LISTS},
        master_weights=True,
        optimizer_state="float32",
        loss_scale=type(policy.loss_scale)(),
        scaling=Scaling(recipe, power_of_two=power) if low else Scaling(),  # type: ignore[arg-type]
    )


def losses(policy: Policy, model: Model) -> tuple[str, ...]:
    """Return what a converted module does not do as the policy says, one line each."""
    policy.check_layers(model.layer_names)
    return tuple(field_losses(policy, runs(policy, model), "torchao"))


def offers(formats: LayerPolicy, layer_type: str) -> bool:
    """Return whether a layer runs in these formats: a linear in FP8, others in bfloat16."""
    if formats in (uniform_layer("float32"), uniform_layer("bfloat16")):
        return True
    return layer_type in ("", "Linear") and formats in (_low("current"), _low("rowwise"))


def export(policy: Policy, model: Model, notes: Sequence[str] = ()) -> str:
    """Return a Python file with `convert`, `is_low` and the list that torchtitan skips."""
    from string import Template

    running, lines = runs(policy, model), losses(policy, model)
    kinds = {
        name: "float8" if format_named(row.compute).bits < 16 else row.compute
        for name, row in running.layers
    }
    skipped = [n for n in kinds if kinds[n] != "float8" and model.layer_types.get(n) == "Linear"]
    recipe = "rowwise" if running.scaling.recipe == "rowwise" else "tensorwise"
    return Template(TEMPLATE).substitute(
        head=head(policy, notes, lines, "torchao"),
        layers=pprint.pformat(kinds, sort_dicts=False, width=96),
        recipe=repr(recipe),
        skipped=pprint.pformat(skipped, width=96),
    )


def read(text: str, model: Model, where: str) -> Reading:
    """Return what the tables of such a file give the layers of `model`."""
    tables = constants(text, where, ("LAYERS",))
    rows, name = tables["LAYERS"], one_of(f"{where}: RECIPE", tables.get("RECIPE"), RECIPES)
    traps, given = [], []
    for layer in model.layer_names:
        kind = rows.get(layer, "bfloat16")
        rule = f"LAYERS[{layer!r}]" if layer in rows else DEFAULT_RULE
        one_of(f"{where}: LAYERS[{layer!r}]", kind, ("float8", "bfloat16", "float32"))
        formats = _low(RECIPES[name]) if kind == "float8" else uniform_layer(kind)
        given.append(Given(layer, layer, rule, formats))
        if kind == "float8" and model.layer_types.get(layer) not in ("Linear", None):
            raise InputError(f"{where}: LAYERS[{layer!r}]: no linear; torchao converts linears")
        shapes = [spec.shape for spec in model.parameters_of(layer)]
        if kind == "float8" and any(side % MULTIPLE for shape in shapes for side in shape):
            traps.append(f"{layer}: sizes that are no multiples of {MULTIPLE} fail on a GPU")
    low = any(row.formats.compute == "float8_e4m3fn" for row in given)
    scaling = Scaling(RECIPES[name], power_of_two=name == "rowwise")  # type: ignore[arg-type]
    policy = policy_of(
        given, model, f"imported from {where}", BASE, scaling=scaling if low else Scaling()
    )
    strangers = (name for name in rows if name not in model.layer_names)
    unused = tuple(f"{name}: never matches: no layer of the model" for name in strangers)
    return Reading(policy, tuple(given), unused, tuple(traps))
