"""Export to Transformer Engine: a `CustomRecipe` factory, one for each way to multiply.

Sources, d0067d0d: `common/recipe/__init__.py` (CustomRecipe), `pytorch/tensor/hybrid_tensor.py`
(`columnwise_source`), `pytorch/custom_recipes/quantizer_factories.py` and
`quantizer_factory_zoo.py`, whose lines 121 to 125 say which product reads which representation:
fprop the rowwise ones of input and weight, dgrad the columnwise one of the weight and the rowwise
one of the gradient, wgrad the columnwise ones of input and gradient.
"""

from __future__ import annotations

import pprint
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from string import Template
from typing import Any

from policysearch.export.levels import constants, field_losses, head, plain, why_wide
from policysearch.export.reading import BASE, DEFAULT_RULE, About, Given, Reading, policy_of
from policysearch.export.te_sizes import fitted, refusal, sides_of, size_lines, size_traps
from policysearch.formats import format_named
from policysearch.nn.model import Model
from policysearch.policy.normal_forms import in_full, normal, of_full
from policysearch.policy.policy import LayerPolicy, Policy, uniform_layer
from policysearch.policy.products import Operand, Product, is_narrow
from policysearch.policy.scaling import Scaling
from policysearch.values import InputError, from_plain, to_plain

__all__ = ["ABOUT", "SUFFIX", "export", "losses", "offers", "read", "runs"]

SUFFIX = ".py"
ABOUT = About(
    "a module to import: CustomRecipe(qfactory=...), one factory for each distinct triple",
    "per linear and product: format, recipe and source of both operands; bfloat16 for the rest",
    "Transformer Engine d0067d0d (read, 2026-08)",
    "stub quantizers in the tests: which is asked for, for every role and direction",
)

READS: Mapping[str, tuple[tuple[str, str], tuple[str, str]]] = {
    "input": (("fprop", "first"), ("wgrad", "second")),
    "weight": (("fprop", "second"), ("dgrad", "second")),
    "grad_output": (("dgrad", "first"), ("wgrad", "first")),
}
"""By tensor type, the operand that is its rowwise representation, and its columnwise one."""

TEMPLATE = '''\
$head
#
#     recipe = CustomRecipe(qfactory=qfactory)     # plain Transformer Engine; give modules name=
#     with autocast(recipe=recipe): ...
#
# Megatron-LM gives its modules no name: name one of recipe_1, recipe_2, ... as
# custom_recipe_factory in a config of --te-precision-config-file, with "custom" as its
# fp8_quantization_recipe. Transformer Engine is loaded when a factory is called.
$sizes

# tensor type: its rowwise and its columnwise representation
RECIPES = $recipes

# linear: its recipe; all others multiply in the dtype of the run
LAYERS = $layers


def qfactory(role):
    """Return the quantizer of a role by the name of its module."""
    if not is_linear(role):
        return identity()
    if not role.name:
        raise ValueError("role: a linear without a name; expected name= where it is made")
    return made(LAYERS.get(role.name), role)


def is_linear(role):
    return role is not None and role.module_type in ("linear", "grouped_linear")


def identity():
    from transformer_engine.pytorch.tensor.identity_tensor import IdentityQuantizer

    return IdentityQuantizer()


def made(recipe, role):
    """Return the quantizer of a recipe for a role: both representations of the tensor."""
    if recipe is None or not is_linear(role) or role.tensor_type not in RECIPES[recipe]:
        return identity()
    row, column = RECIPES[recipe][role.tensor_type]
    if row["recipe"] == "delayed":
        return delayed(row, RECIPES[recipe])
    if row == column and not (row.get("hadamard") and role.tensor_type != "weight"):
        return quantizer(row, role.tensor_type, "rowwise")
    from transformer_engine.pytorch.tensor.hybrid_tensor import HybridQuantizer

    copied = column.get("source") == "forward"
    return HybridQuantizer(
        rowwise_quantizer=quantizer(row, role.tensor_type, "rowwise"),
        columnwise_quantizer=quantizer(column, role.tensor_type, "columnwise"),
        columnwise_source="rowwise_dequantized" if copied else "original",
    )


def quantizer(said, tensor, direction):
    """Return the quantizer of one representation."""
    recipe = said["recipe"]
    if recipe == "none":
        return identity()
    from transformer_engine.pytorch.constants import DType

    if recipe == "nvfp4":
        from transformer_engine.pytorch.tensor.nvfp4_tensor import NVFP4Quantizer

        turned = said.get("hadamard", False) and direction == "columnwise" and tensor != "weight"
        return NVFP4Quantizer(
            fp4_dtype=DType.kFloat4E2M1,
            with_rht=turned,
            with_post_rht_amax=turned,
            with_2d_quantization=said.get("weights") == "squares" and tensor == "weight",
            stochastic_rounding=tensor == "grad_output",
            row_scaled_nvfp4=said.get("tensor") == "rows" and tensor == "input",
        )
    dtype = DType.kFloat8E5M2 if said["format"] == "float8_e5m2" else DType.kFloat8E4M3
    if recipe == "mx_rceil":
        from transformer_engine.pytorch.tensor.mxfp8_tensor import MXFP8Quantizer

        return MXFP8Quantizer(fp8_dtype=dtype)
    powers = said.get("power_of_two", False)
    if recipe == "blocks":
        from transformer_engine.pytorch.tensor.float8_blockwise_tensor import Float8BlockQuantizer

        return Float8BlockQuantizer(
            fp8_dtype=dtype,
            rowwise=True,
            columnwise=True,
            amax_epsilon=0.0,
            force_pow_2_scales=powers,
            block_scaling_dim=2 if said.get("weights") == "squares" and tensor == "weight" else 1,
        )
    from transformer_engine.pytorch.tensor.float8_tensor import Float8CurrentScalingQuantizer

    return Float8CurrentScalingQuantizer(
        fp8_dtype=dtype, device="cuda", force_pow_2_scales=powers, amax_epsilon=0.0
    )


def delayed(said, tensors):
    from transformer_engine.common.recipe import Format
    from transformer_engine.pytorch.quantization import DelayedScalingRequest

    hybrid = tensors["grad_output"][0]["format"] == "float8_e5m2"
    return DelayedScalingRequest(
        fp8_format=Format.HYBRID if hybrid else Format.E4M3,
        margin=said.get("margin", 0),
        amax_history_len=said.get("history", 1024),
        amax_compute_algo=said.get("amax", "max"),
    )


$factories
'''

FACTORY = """\
def {name}(role):
    return made("{name}", role)"""

RECIPES = ("current", "delayed", "mx_rceil", "nvfp4", "blocks")
EIGHT = ("float8_e4m3fn", "float8_e5m2")


def _is_said(operand: Operand) -> bool:
    """Return whether Transformer Engine has a quantizer for an operand, its recipe said."""
    row = operand.scaling
    if not is_narrow(operand.format):
        return operand.format == "bfloat16" and operand.mode is None
    if row is None or row.recipe not in RECIPES or row.top or operand.mode is not None:
        return False
    if row.four_over_six:  # no field of the factories here
        return False
    four = row.recipe == "nvfp4"
    fits = operand.format == "float4_e2m1fn" if four else operand.format in EIGHT
    plain_mx = row.recipe != "mx_rceil" or row == Scaling("mx_rceil")
    current = row.recipe != "current" or not row.margin
    return fits and plain_mx and current and (row.recipe != "delayed" or not row.power_of_two)


def _runs(products: Mapping[str, Product]) -> bool:
    """Return whether a factory can say these products, as of `in_full`."""
    operands = [operand for row in products.values() for operand in row.operands]
    delayed = [o for o in operands if o.scaling is not None and o.scaling.recipe == "delayed"]
    if delayed:
        same = len(delayed) == len(operands) and len({o.scaling for o in delayed}) == 1
        forward = [*products["fprop"].operands, products["dgrad"].second, products["wgrad"].second]
        grads = {products["dgrad"].first.format, products["wgrad"].first.format}
        same = same and {o.format for o in forward} == {EIGHT[0]} and len(grads) == 1
        if not same or any(operand.source == "forward" for operand in operands):
            return False
    return all(map(_is_said, operands)) and any(is_narrow(o.format) for o in operands)


def runs(policy: Policy, model: Model) -> Policy:
    """Return the policy that linears with the factory obey, all else in bfloat16."""
    sides = {layer: sides_of(model, layer) for layer in linears(model)}
    return normal(fitted(by_factory(policy, model), sides, uniform_layer("bfloat16")))


def linears(model: Model) -> list[str]:
    """Return the layers that are linears of Transformer Engine."""
    return [layer for layer in model.layer_names if model.layer_types.get(layer) == "Linear"]


def by_factory(policy: Policy, model: Model) -> Policy:
    """Return the policy that linears of any sides would obey with the factory."""
    layers, rest = [], uniform_layer("bfloat16")
    for name, row in policy.layers:
        products = in_full(policy, name)
        products = {role: replace(each, accumulator=None) for role, each in products.items()}
        low = model.layer_types.get(name) == "Linear" and _runs(products)
        results = LayerPolicy(output="bfloat16", wgrad="bfloat16", grad=row.grad)
        layers.append((name, of_full(results, products) if low else rest))
    return replace(
        plain(policy, BASE),
        layers=tuple(layers),
        master_weights=True,
        optimizer_state="float32",
        loss_scale=type(policy.loss_scale)(),
        scaling=Scaling(),
    )


def losses(policy: Policy, model: Model) -> tuple[str, ...]:
    """Return what linears with the factory do not do as the policy says, one line each."""
    policy.check_layers(model.layer_names)
    asked, running = normal(policy), runs(policy, model)

    def why(layer: str) -> str:
        products = in_full(asked, layer)
        other = refusal(sides_of(model, layer), products) or _unsaid(products)
        return why_wide(layer, model, "Transformer Engine", 1, other)

    return tuple(field_losses(asked, running, "transformer_engine", why))


def _unsaid(products: Mapping[str, Product]) -> str:
    """Return which operand has no quantizer there, "" where each has one."""
    for role, row in products.items():
        for operand in row.operands:
            if is_narrow(operand.format) and not _is_said(operand):
                recipe = operand.scaling.recipe if operand.scaling else "none"
                given = f"{operand.format} of {role} with recipe {recipe!r}"
                return f"no quantizer of a factory makes {given} and its settings"
    return ""


def offers(formats: LayerPolicy, layer_type: str) -> bool:
    """Return whether a layer can run in these formats, in a recipe that has them."""
    if formats == uniform_layer("bfloat16"):
        return True
    narrow = set(filter(is_narrow, formats.operand_formats))
    low = format_named(formats.output).name == "bfloat16" and narrow <= {*EIGHT, "float4_e2m1fn"}
    return layer_type in ("", "Linear") and bool(narrow) and low


def tables_of(policy: Policy) -> tuple[dict[str, dict[str, list[Any]]], dict[str, str]]:
    """Return the recipes by name, and the recipe of each layer that has one."""
    recipes: dict[str, dict[str, list[Any]]] = {}
    layers: dict[str, str] = {}
    for name, _ in policy.layers:
        products = in_full(policy, name)
        if not _runs({role: replace(row, accumulator=None) for role, row in products.items()}):
            continue
        table = {
            tensor: [_said(getattr(products[role], place)) for role, place in places]
            for tensor, places in READS.items()
        }
        known = next((key for key, other in recipes.items() if other == table), "")
        layers[name] = known or f"recipe_{len(recipes) + 1}"
        recipes[layers[name]] = table
    return recipes, layers


def _said(operand: Operand) -> dict[str, Any]:
    """Return an operand as a table: what is usual is left out."""
    row = operand.scaling or Scaling()
    plain_row, usual = to_plain(row), to_plain(Scaling(row.recipe))
    said = {key: value for key, value in plain_row.items() if value != usual[key]}
    copied = {"source": "forward"} if operand.source == "forward" else {}
    return {"recipe": row.recipe, "format": operand.format, **copied, **said}


def export(policy: Policy, model: Model, notes: Sequence[str] = ()) -> str:
    """Return a Python file with a factory for each distinct triple of products, and one by name."""
    running, lines = runs(policy, model), losses(policy, model)
    recipes, layers = tables_of(running)
    return (
        Template(TEMPLATE)
        .substitute(
            head=head(policy, notes, lines, "transformer_engine"),
            sizes="\n".join(size_lines(model, linears(model) if layers else ())),
            recipes=pprint.pformat(recipes, sort_dicts=False, width=96),
            layers=pprint.pformat(layers, sort_dicts=False, width=96),
            factories="\n\n\n".join(FACTORY.format(name=name) for name in recipes),
        )
        .rstrip()
        + "\n"
    )


def read(text: str, model: Model, where: str) -> Reading:
    """Return what the tables of such a file give the layers of `model`."""
    tables = constants(text, where, ("RECIPES", "LAYERS"))
    made = {name: layer_of(row, f"{where}: RECIPES[{name!r}]") for name, row in _rows(tables)}
    given = []
    for layer in model.layer_names:
        recipe = tables["LAYERS"].get(layer)
        if recipe is not None and recipe not in made:
            known = ", ".join(made)
            raise InputError(f"{where}: LAYERS[{layer!r}]: {recipe!r}; expected one of {known}")
        rule = DEFAULT_RULE if recipe is None else f"LAYERS[{layer!r}]"
        formats = uniform_layer("bfloat16") if recipe is None else made[recipe]
        given.append(Given(layer, layer, rule, formats))
    policy = policy_of(given, model, f"imported from {where}", BASE)
    strangers = (name for name in tables["LAYERS"] if name not in model.layer_names)
    unused = tuple(f"{name}: never matches: no layer of the model" for name in strangers)
    called = linears(model) if tables["LAYERS"] else ()
    sides = {layer: sides_of(model, layer) for layer in called}
    return Reading(normal(policy), tuple(given), unused, tuple(size_traps(policy, sides)))


def _rows(tables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield from tables["RECIPES"].items()


def layer_of(row: Any, where: str) -> LayerPolicy:
    """Return the layer that a table of representations gives."""
    places: dict[str, dict[str, Operand]] = {"fprop": {}, "dgrad": {}, "wgrad": {}}
    try:
        for tensor, read_by in READS.items():
            for (role, place), said in zip(read_by, row[tensor], strict=True):
                places[role][place] = _operand(dict(said), where)
    except (KeyError, TypeError, ValueError) as error:
        raise InputError(f"{where}: {error!r}; expected rows of operands by tensor type") from None
    products = {role: Product(both["first"], both["second"]) for role, both in places.items()}
    grad = products["dgrad"].first.format
    return of_full(LayerPolicy(output="bfloat16", grad=grad, wgrad="bfloat16"), products)


def _operand(said: dict[str, Any], where: str) -> Operand:
    name, source = said.pop("format"), said.pop("source", "tensor")
    scaling = from_plain(Scaling, said, where)
    return Operand(name, source, scaling if is_narrow(name) else None)
