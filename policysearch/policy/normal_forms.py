"""Policies that say the same in the same words: products and recipes as short as they can be."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

from policysearch.policy.policy import LayerPolicy, Layers, Policy
from policysearch.policy.product_words import ROLES, SOURCES
from policysearch.policy.products import Operand, Product, Products, is_narrow, short_form
from policysearch.policy.scaling import Scaling


def layers_of(policy: Policy) -> Iterator[LayerPolicy]:
    """Yield the formats of every layer, in every phase."""
    for layers in (policy.layers, *(phase.layers for phase in policy.phases)):
        yield from (layer for _, layer in layers)


def shortest(layer: LayerPolicy) -> LayerPolicy:
    """Return the layer with as many products as can be said by `compute`, `grad` and `backward`."""
    if layer.products == Products():
        return layer
    return of_products(layer, {role: layer.product(role) for role in ROLES})


def of_products(layer: LayerPolicy, products: Mapping[str, Product]) -> LayerPolicy:
    """Return the layer with these products, said as shortly as can be; results are as they were."""
    products = {
        role: replace(row, accumulator=None) if row.accumulator == layer.accumulator else row
        for role, row in products.items()
    }
    compute, grad = products["fprop"].second.format, products["dgrad"].first.format
    tried = []
    for source in SOURCES:
        short = {role: short_form(role, compute, grad, source) for role in ROLES}
        left = {role: row if row != short[role] else None for role, row in products.items()}
        made = replace(layer, compute=compute, grad=grad, backward=source)
        tried.append(replace(made, products=Products(**left)))
    best = min(tried, key=lambda made: sum(row is not None for row in _rows(made)))
    return best if best.dgrad == layer.dgrad else layer


def _rows(layer: LayerPolicy) -> tuple[Product | None, ...]:
    return tuple(getattr(layer.products, role) for role in ROLES)


def in_full(policy: Policy, name: str) -> dict[str, Product]:
    """Return the products of a layer with the recipe of every narrow operand said."""

    def full(operand: Operand) -> Operand:
        narrow = is_narrow(operand.format)
        return replace(operand, scaling=policy.scaling_of(name, operand) if narrow else None)

    layer = policy.layer(name)
    rows = {role: layer.product(role) for role in ROLES}
    return {
        role: replace(row, first=full(row.first), second=full(row.second))
        for role, row in rows.items()
    }


def of_full(layer: LayerPolicy, products: Mapping[str, Product]) -> LayerPolicy:
    """Return the layer with products as of `in_full`, the commonest recipe as that of the layer."""
    operands = [operand for row in products.values() for operand in row.operands]
    recipes = [operand.scaling for operand in operands if operand.scaling is not None]
    main = max(recipes, key=recipes.count) if recipes else None

    def bare(operand: Operand) -> Operand:
        return replace(operand, scaling=None) if operand.scaling == main else operand

    short = {
        role: replace(row, first=bare(row.first), second=bare(row.second))
        for role, row in products.items()
    }
    return of_products(replace(layer, scaling=main), short)


def normal(policy: Policy) -> Policy:
    """Return the policy with the products and recipes of its layers in their shortest words."""
    layers = tuple((name, of_full(row, in_full(policy, name))) for name, row in policy.layers)
    return with_own_recipe(replace(policy, layers=layers))


def with_own_recipe(policy: Policy) -> Policy:
    """Return the policy with the one recipe of all narrow operands as its own, if it is one.

    A recipe that no layer takes from it is none, and so is that of a layer without such operands.
    """
    if all(layer.scaling is None for layer in layers_of(policy)):
        return policy
    narrow = {x for x in set(layers_of(policy)) if any(map(is_narrow, x.operand_formats))}
    own = {layer.scaling for layer in narrow}
    taken = policy.scaling
    if None not in own:
        taken = next(iter(own)) or taken if len(own) == 1 else Scaling()

    def brought(layers: Layers) -> Layers:
        return tuple(
            (name, layer if layer in narrow and layer.scaling != taken else bare(layer))
            for name, layer in layers
        )

    def bare(layer: LayerPolicy) -> LayerPolicy:
        return layer if layer.scaling is None else replace(layer, scaling=None)

    phases = tuple(replace(phase, layers=brought(phase.layers)) for phase in policy.phases)
    return replace(policy, layers=brought(policy.layers), scaling=taken, phases=phases)
