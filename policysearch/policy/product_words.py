"""What single products of a layer read, in words: "wgrad=bfloat16 backward=forward"."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from policysearch.formats import format_named
from policysearch.policy.policy import LayerPolicy
from policysearch.policy.products import (
    HYBRID,
    Operand,
    Product,
    Products,
    Source,
    is_narrow,
    short_form,
)
from policysearch.values import InputError

SAME = "same"
"""The words for products as the layer's format has them."""

ROLES = ("fprop", "dgrad", "wgrad")
SOURCES: tuple[Source, ...] = ("tensor", "forward")


def parsed(words: str) -> Mapping[str, str]:
    """Return what the words say: the format of a role's operands, and the source of backward's.

    InputError for other words than "role=format" with one of ROLES, and "backward=source".
    """
    said: dict[str, str] = {}
    for word in words.split() if words != SAME else ():
        role, equals, name = word.partition("=")
        if role not in (*ROLES, "backward") or not equals or role in said:
            valid = f"{SAME}, or role=format once for some of {', '.join(ROLES)}"
            raise InputError(f"{words!r}: {word!r}; expected {valid}, or backward=forward")
        if role == "backward" and name not in SOURCES:
            raise InputError(f"{words!r}: {name!r}; expected one of {', '.join(SOURCES)}")
        if role != "backward":
            format_named(name)
        said[role] = name
    if not said and words != SAME:
        raise InputError(f"{words!r}; expected {SAME}, or words like wgrad=bfloat16")
    return said


def product_in(role: str, name: str, source: Source = "tensor") -> Product:
    """Return the product of operands in one format; of float8_e5m2 the other is float8_e4m3fn."""
    if role == "fprop":
        return Product(Operand(name), Operand(name))
    return Product(Operand(name), Operand(HYBRID[1] if name == HYBRID[0] else name, source))


def with_words(layer: LayerPolicy, words: str) -> LayerPolicy:
    """Return the layer with its products as the words say; a float32 layer as it is.

    What says no other than the short form stays short, so that equal layers are equal.
    """
    if words == SAME or layer.compute == "float32":
        return layer
    said = dict(parsed(words))
    source: Any = said.pop("backward", layer.backward)
    products = {role: getattr(layer.products, role) for role in ROLES}
    products |= {role: product_in(role, name, source) for role, name in said.items()}
    forward: Product | None = products["fprop"]
    if not is_narrow(forward.second.format if forward else layer.compute):
        source = "tensor"  # what such a product reads is the tensor itself
        products = {role: row and _of_tensors(row) for role, row in products.items()}
    short = {role: short_form(role, layer.compute, layer.grad, source) for role in ROLES}
    left = {role: row if row != short[role] else None for role, row in products.items()}
    made = replace(layer, backward=source, products=Products(**left))
    narrow = any(map(is_narrow, made.operand_formats))
    return made if narrow else replace(made, scaling=None)


def _of_tensors(product: Product) -> Product:
    return replace(product, second=replace(product.second, source="tensor"))


def words_of(layer: LayerPolicy) -> str:
    """Return the words that say what of the layer's products is not short; SAME where all is.

    Operands with more to say than a format (a recipe, a rounding, a source) have a star.
    """
    said = []
    for role in ROLES:
        product: Product | None = getattr(layer.products, role)
        if product is not None:
            plain = replace(product_in(role, product.first.format, product.second.source))
            star = "" if plain == replace(product, accumulator=None) else "*"
            said.append(f"{role}={product.first.format}{star}")
    if layer.backward != "tensor":
        said.append(f"backward={layer.backward}")
    return " ".join(said) or SAME
