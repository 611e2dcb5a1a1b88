"""How products below float32 are summed, and how narrow operands are scaled."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from policysearch.accumulators import accumulator_named
from policysearch.formats import format_named
from policysearch.policy.policy import LayerPolicy, Policy, with_accumulator
from policysearch.policy.product_words import ROLES
from policysearch.policy.products import Operand, is_narrow
from policysearch.policy.scaling import RECIPES, SCALES, Recipe, Scaling
from policysearch.products.product import check_scaled, product
from policysearch.space.decided.base import Choices, Params, Setting, check_different
from policysearch.space.decided.op_lists import Rules
from policysearch.values import InputError, one_of

USUAL_SCALING: Recipe = "delayed"
"""How operands below 16 bits are scaled where neither the study nor its base says so.

Of the recipes with one scale per tensor it takes the fewest passes over the operands.
"""


@dataclass(frozen=True, kw_only=True)
class Products:
    """`accumulators` sum the products of every layer below float32; the ladder takes the first.
    `scalings` are recipes for operands below 16 bits; none given, that of `base` holds, or
    "delayed" where `base` has none. Unscaled operands, "none", must be asked for.
    """

    accumulators: tuple[str, ...] = ("float32",)
    scalings: tuple[Recipe, ...] = ()


class Accumulators:
    """Decides "accumulator"."""

    keys = Products
    shared = ("accumulator",)
    modifying = ()

    def check(self, section: Products) -> None:
        for accumulator in section.accumulators:
            try:
                accumulator_named(accumulator)
            except InputError as error:
                raise InputError(f"accumulators: {error}") from None
        exact = [name for name in section.accumulators if name.startswith("tensor_core")]
        if exact and {"mx", "mx_rceil", "nvfp4"} & set(section.scalings):
            raise InputError(
                f"scalings: {list(section.scalings)} with accumulator {exact[0]!r}, which takes no "
                "block scales; expected none, current, delayed or rowwise"
            )
        check_different("accumulators", section.accumulators)

    def choices(self, section: Products, at: Setting) -> Choices:
        return {"accumulator": section.accumulators}

    def applied(self, policy: Policy, params: Params, section: Products, at: Setting) -> Policy:
        accumulator = params.get("accumulator", section.accumulators[0])
        # Rules say which layers are below float32.
        return with_accumulator(Rules().applied(policy, params, section, at), accumulator)

    def read(self, policy: Policy, section: Products, at: Setting) -> Params:
        low = [layer.accumulator for _, layer in policy.layers if layer.compute != "float32"]
        return {"accumulator": (*low, "")[0]}

    def words(self, policy: Policy, section: Products, at: Setting) -> list[str]:
        if len(section.accumulators) == 1:
            return []
        return sorted({layer.accumulator for _, layer in policy.layers} - {"float32"})


class Scalings:
    """Decides "scaling"; a policy without narrow operands has none."""

    keys = Products
    shared = ("scaling",)
    modifying = ()

    def check(self, section: Products) -> None:
        for recipe in section.scalings:
            one_of("scalings", recipe, RECIPES)
        if section.scalings:
            check_different("scalings", section.scalings)

    def choices(self, section: Products, at: Setting) -> Choices:
        return {"scaling": section.scalings}

    def applied(self, policy: Policy, params: Params, section: Products, at: Setting) -> Policy:
        base = at.base.scaling
        usual = base.recipe if base.recipe != "none" else USUAL_SCALING
        recipe = params.get("scaling", (*section.scalings, usual)[0])
        scaling = base if recipe == base.recipe else Scaling(recipe)
        # Rules may narrow or widen a layer.
        layers = Rules().applied(policy, params, section, at).layers
        narrow = any(map(is_narrow, _operands({layer for _, layer in layers})))
        return replace(policy, scaling=scaling if narrow else Scaling())

    def read(self, policy: Policy, section: Products, at: Setting) -> Params:
        return {"scaling": policy.scaling.recipe}

    def words(self, policy: Policy, section: Products, at: Setting) -> list[str]:
        return [policy.scaling.recipe] if len(section.scalings) > 1 else []


def _operands(layers: Iterable[LayerPolicy]) -> Iterator[str]:
    """Yield the formats of operands whose recipe is the policy's."""
    for layer in layers:
        if layer.scaling is None:
            yield from layer.operand_formats


def takes_operands(policy: Policy) -> bool:
    """Whether every layer's accumulator can take its operands' formats."""
    try:
        check_accumulators(policy)
    except InputError:
        return False
    return True


def check_accumulators(policy: Policy) -> None:
    """Raise InputError where a layer's accumulator cannot take its operands' formats."""
    for layer in {layer for _, layer in policy.layers}:
        try:
            for role in ROLES:
                said = layer.product(role)
                first, second = (format_named(operand.format) for operand in said.operands)
                name = said.accumulator or layer.accumulator
                product(accumulator_named(name), (first, second))
                scales = [_scale(operand, layer, policy) for operand in said.operands]
                if any(scales):
                    check_scaled(name, (first, second), scales)
        except InputError as error:
            raise InputError(f"space.accumulators: {policy.name}: {error}") from None


def _scale(operand: Operand, layer: LayerPolicy, policy: Policy) -> str | None:
    """Return the format of the scales of an operand's blocks, None where it has none."""
    row = operand.scaling or layer.scaling or policy.scaling
    return SCALES.get(row.recipe) if is_narrow(operand.format) else None
