"""Export to torchao, and to what is built on it: exact-name filters, one config for each triple."""

from __future__ import annotations

import pprint
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import combinations

from policysearch.export.levels import BASE, constants, field_losses, head, plain, why_wide
from policysearch.export.reading import DEFAULT_RULE, About, Given, Reading, policy_of
from policysearch.export.torch_runs import MULTIPLE
from policysearch.formats import format_named
from policysearch.nn.model import Model
from policysearch.policy.normal_forms import shortest
from policysearch.policy.policy import LayerPolicy, Policy, uniform_layer
from policysearch.policy.presets import PRESETS
from policysearch.policy.product_words import ROLES, SAME, with_words
from policysearch.policy.products import Product
from policysearch.policy.scaling import Scaling
from policysearch.values import InputError, one_of

__all__ = ["ABOUT", "SUFFIX", "export", "losses", "offers", "read", "runs"]

SUFFIX = ".py"
ABOUT = About(
    "a module to import: convert(module), and is_low for Accelerate",
    "per linear and product: FP8 or not, by one recipe; bfloat16 for the rest of the run",
    "torchao 0.18 (run, 2026-11)",
    "torchao on a CPU in the tests",
)

TEMPLATE = '''\
$head
#
#     convert(module)                           # before fully_shard and torch.compile
#     with torch.autocast(device, torch.bfloat16): ...
#
# Accelerate: AORecipeKwargs(config=..., module_filter_func=is_low) with pad_inner_dim=False, for
# its own filter leaves out other layers.

import functools

import torch

# linear: what computes its three products; "float8 dgrad wgrad" has two of them in FP8
LAYERS = $layers

RECIPE = $recipe  # of torchao
GW_HP = "rowwise_with_gw_hp"

# The operands of each product among the casts of a config.
CASTS = {
    "fprop": ("cast_config_input", "cast_config_weight"),
    "dgrad": ("cast_config_grad_output", "cast_config_weight_for_grad_input"),
    "wgrad": ("cast_config_input_for_grad_weight", "cast_config_grad_output_for_grad_weight"),
}


def is_float8(kind):
    return kind.startswith("float8") or kind == GW_HP


def config_of(kind, emulate=False):
    """Return torchao's config of a kind: its recipe, without the casts of wide products."""
    import dataclasses

    from torchao.float8 import Float8LinearConfig
    from torchao.float8.config import ScalingGranularity, ScalingType

    config = Float8LinearConfig.from_recipe_name(kind if kind == GW_HP else RECIPE)
    wide = set(CASTS) - set(kind.split()[1:]) if " " in kind else ()
    none = {
        "scaling_type": ScalingType.DISABLED,
        "scaling_granularity": ScalingGranularity.TENSORWISE,
    }
    casts = [cast for product in wide for cast in CASTS[product]]
    off = {cast: dataclasses.replace(getattr(config, cast), **none) for cast in casts}
    # emulate=True in a constructor of torchtitan drops the recipe
    return dataclasses.replace(config, **off, emulate=emulate)


def is_low(module, name):
    """Return whether torchao is to convert this linear: by its whole name, and its size.

    On a GPU products of sizes that are no multiples of 16 are refused; torchao converts them.
    """
    if not is_float8(LAYERS.get(name, "")):
        return False
    if module.in_features % 16 or module.out_features % 16:
        raise ValueError(f"{name}: {module}; expected sizes that are multiples of 16")
    return True


def convert(module, emulate=False):
    """Make these linears Float8Linear, in place, and return the module; one call is enough.

    Raises ValueError where a linear of the policy is missing, or converted already: torchao would
    convert it again, to another recipe.
    """
    from torchao.float8 import convert_to_float8_training

    linears = {n: x for n, x in module.named_modules() if isinstance(x, torch.nn.Linear)}
    low = {name: kind for name, kind in LAYERS.items() if is_float8(kind)}
    missing = [name for name in low if name not in linears]
    again = [name for name, part in linears.items() if type(part) is not torch.nn.Linear]
    if missing or again:
        raise ValueError(f"module: {missing or again}; expected each a torch.nn.Linear once")
    for each in sorted(set(low.values())):
        # a Float8Linear is a Linear: exact names, or another call would convert it again
        def wanted(part, name, each=each):
            return LAYERS.get(name) == each and is_low(part, name)

        convert_to_float8_training(module, module_filter_fn=wanted, config=config_of(each, emulate))
    for name, kind in low.items():
        if " " in kind or kind == GW_HP:
            module.get_submodule(name).__class__ = in_autocast()
    return module


@functools.cache
def in_autocast():
    """Return torchao's linear with its wide products in the dtype of autocast, backward too.

    Its own multiplies a bfloat16 gradient by the float32 weight there, which torch refuses.
    """
    from torchao.float8.float8_linear import Float8Linear
    from torchao.float8.float8_linear import matmul_with_hp_or_float8_args as products

    class Products(products):
        @staticmethod
        def backward(ctx, grad):
            with torch.autocast(grad.device.type, grad.dtype):
                return products.backward(ctx, grad)

    class Linear(Float8Linear):
        def forward(self, x):
            if torch.is_autocast_enabled(x.device.type):
                x = x.to(torch.get_autocast_dtype(x.device.type))
            out = Products.apply(x, self.weight.t(), self.linear_mm_config, self.config)
            return out if self.bias is None else out + self.bias.to(out.dtype)

    return Linear
'''

GW_HP = "rowwise_with_gw_hp"
DTYPES = ("bfloat16", "float32")
RECIPES = {"tensorwise": "current", "rowwise": "rowwise"}
"""By torchao's name, the recipe of a policy."""


def _kind(policy: Policy, layer: str, model: Model) -> str:
    """Return which products torchao computes in FP8, as sizes and the policy have it; "" for none.

    It has both operands of a product in FP8, or neither.
    """
    row, shapes = policy.layer(layer), [spec.shape for spec in model.parameters_of(layer)]
    sides = [side for shape in shapes if len(shape) == 2 for side in shape]
    if model.layer_types.get(layer) != "Linear" or any(side % MULTIPLE for side in sides):
        return ""
    low = [role for role in ROLES if _is_eight(row.product(role))]
    weight = row.product("dgrad").second.scaling
    if low == [*ROLES[:2]] and weight is not None and weight.recipe == "current":
        return GW_HP if policy.scaling.recipe == "rowwise" else "float8 fprop dgrad"
    return "float8" if len(low) == len(ROLES) else " ".join(("float8", *low)) if low else ""


def _is_eight(product: Product) -> bool:
    return all(format_named(operand.format).bits == 8 for operand in product.operands)


def _low(recipe: str, kind: str = "float8") -> LayerPolicy:
    """Return the formats of a linear: rowwise has E4M3 for gradients too."""
    if kind == GW_HP:
        return PRESETS[f"torchao.{GW_HP}"].layer
    low = uniform_layer("float8_e4m3fn")
    low = low if recipe == "current" else replace(low, grad="float8_e4m3fn")
    said = kind.split()[1:] or ROLES
    wide = " ".join(f"{role}=bfloat16" for role in ROLES if role not in said)
    return shortest(with_words(low, wide or SAME))


KINDS = (
    "float8",
    *(" ".join(("float8", *some)) for n in (1, 2) for some in combinations(ROLES, n)),
    GW_HP,
)
"""What a file says of a linear in FP8: all combinations of its products."""


def runs(policy: Policy, model: Model) -> Policy:
    """Return the policy that a converted module obeys under autocast in bfloat16."""
    recipe = "rowwise" if policy.scaling.recipe == "rowwise" else "current"
    kinds = {name: _kind(policy, name, model) for name, _ in policy.layers}
    low = any(kinds.values())
    computed = {row.compute for _, row in policy.layers} - {"tfloat32"}
    rest = uniform_layer("float32" if computed <= {"float32"} else "bfloat16")
    power = recipe == "rowwise"  # torchao rounds the scales of rows to powers of two
    return replace(
        plain(policy),
        layers=tuple((n, _low(recipe, kind) if kind else rest) for n, kind in kinds.items()),
        master_weights=True,
        optimizer_state="float32",
        loss_scale=type(policy.loss_scale)(),
        bias="rounded" if low else "fused",  # what it converts adds a bias to rounded results
        scaling=Scaling(recipe, power_of_two=power) if low else Scaling(),  # type: ignore[arg-type]
    )


def losses(policy: Policy, model: Model) -> tuple[str, ...]:
    """Return what a converted module does not do as the policy says, one line each."""
    policy.check_layers(model.layer_names)
    other = "torchao has both operands of a product in 8 bits, or neither"
    why = partial(why_wide, model=model, target="torchao", multiple=MULTIPLE, other=other)
    return tuple(field_losses(policy, runs(policy, model), "torchao", why))


def offers(formats: LayerPolicy, layer_type: str) -> bool:
    """Return whether a layer runs in these formats: a linear in FP8, others in bfloat16."""
    if formats in (uniform_layer("float32"), uniform_layer("bfloat16")):
        return True
    return layer_type in ("", "Linear") and formats in [
        _low(recipe, kind) for recipe in RECIPES.values() for kind in KINDS
    ]


def export(policy: Policy, model: Model, notes: Sequence[str] = ()) -> str:
    """Return a Python file with `convert` and `is_low`."""
    from string import Template

    running, lines = runs(policy, model), losses(policy, model)
    kinds = {n: _kind(running, n, model) or row.compute for n, row in running.layers}
    recipe = "rowwise" if running.scaling.recipe == "rowwise" else "tensorwise"
    return Template(TEMPLATE).substitute(
        head=head(policy, notes, lines, "torchao"),
        layers=pprint.pformat(kinds, sort_dicts=False, width=96),
        recipe=repr(recipe),
    )


def read(text: str, model: Model, where: str) -> Reading:
    """Return what the tables of such a file give the layers of `model`."""
    tables = constants(text, where, ("LAYERS",))
    rows, name = tables["LAYERS"], one_of(f"{where}: RECIPE", tables.get("RECIPE"), RECIPES)
    traps, given = [], []
    for layer in model.layer_names:
        kind = rows.get(layer, "bfloat16")
        rule = f"LAYERS[{layer!r}]" if layer in rows else DEFAULT_RULE
        one_of(f"{where}: LAYERS[{layer!r}]", kind, (*KINDS, *DTYPES))
        is_low = kind in KINDS
        formats = _low(RECIPES[name], kind) if is_low else uniform_layer(kind)
        given.append(Given(layer, layer, rule, formats))
        if is_low and model.layer_types.get(layer) not in ("Linear", None):
            raise InputError(f"{where}: LAYERS[{layer!r}]: no linear; torchao converts linears")
        shapes = [spec.shape for spec in model.parameters_of(layer)]
        if is_low and any(side % MULTIPLE for shape in shapes for side in shape):
            traps.append(f"{layer}: sizes that are no multiples of {MULTIPLE} fail on a GPU")
    low = any(format_named(x).bits == 8 for row in given for x in row.formats.operand_formats)
    scaling = Scaling(RECIPES[name], power_of_two=name == "rowwise")  # type: ignore[arg-type]
    policy = policy_of(
        given,
        model,
        f"imported from {where}",
        BASE,
        bias="rounded" if low else "fused",
        scaling=scaling if low else Scaling(),
    )
    strangers = (name for name in rows if name not in model.layer_names)
    unused = tuple(f"{name}: never matches: no layer of the model" for name in strangers)
    return Reading(policy, tuple(given), unused, tuple(traps))
