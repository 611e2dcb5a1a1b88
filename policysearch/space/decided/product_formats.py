"""What single products of a layer read: the weight gradient wide, the forward pass alone narrow."""

from __future__ import annotations

from dataclasses import dataclass, replace

from policysearch.policy.policy import LayerPolicy, Policy
from policysearch.policy.product_words import parsed, with_words, words_of
from policysearch.policy.products import Products
from policysearch.space.decided.base import (
    SAME,
    Choices,
    Params,
    Setting,
    by_group,
    check_different,
    short_format,
    telling,
)
from policysearch.values import InputError


@dataclass(frozen=True, kw_only=True)
class ProductFormats:
    """`products` are what single products of a layer may read, in words: "same" is as its format
    has it, "wgrad=bfloat16" multiplies for the gradient of weights in bfloat16, "fprop=bfloat16"
    is wide forward alone, and "dgrad=float8_e5m2 wgrad=bfloat16" says two products. With
    "backward=forward" gradient products read the narrow copies of the forward pass, widened
    again. Without it they read the tensors themselves. Layers in float32 stay as they are.
    """

    products: tuple[str, ...] = (SAME,)


class LayerProducts:
    """Decides "products.group"."""

    keys = ProductFormats
    shared = modifying = ()

    def check(self, section: ProductFormats) -> None:
        check_different("products", section.products)
        for words in section.products:
            try:
                parsed(words)
            except InputError as error:
                raise InputError(f"products: {error}") from None

    def choices(self, section: ProductFormats, at: Setting) -> Choices:
        return {f"products.{group.name}": section.products for group in at.open_groups}

    def applied(
        self, policy: Policy, params: Params, section: ProductFormats, at: Setting
    ) -> Policy:
        said = {
            layer: params.get(f"products.{group.name}", section.products[0])
            for group in at.groups
            for layer in group.layers
        }
        if set(said.values()) == {SAME}:
            return policy
        layers = tuple((name, with_words(layer, said[name])) for name, layer in policy.layers)
        return replace(policy, layers=layers)

    def read(self, policy: Policy, section: ProductFormats, at: Setting) -> Params:
        layers = dict(policy.layers)
        return {
            f"products.{g.name}": nearest_words(layers[telling(policy, g)], section.products)
            for g in at.groups
        }

    def words(self, policy: Policy, section: ProductFormats, at: Setting) -> list[str]:
        if section.products == (SAME,):
            return []
        layers = dict(policy.layers)
        said = [_short(words_of(layers[telling(policy, group)])) for group in at.groups]
        if set(said) == {"-"}:
            return []
        return [f"products:{by_group(said, at.groups)}"]


def nearest_words(layer: LayerPolicy, offered: tuple[str, ...]) -> str:
    """Return the words, of those offered, that make the products of the layer, SAME if none do."""
    if layer.products == Products() and layer.backward == "tensor" and SAME in offered:
        return SAME
    bare = replace(layer, products=Products(), backward="tensor")
    return next((words for words in offered if with_words(bare, words) == layer), SAME)


def _short(words: str) -> str:
    if words == SAME:
        return "-"
    pairs = (word.partition("=") for word in words.split())
    return ",".join(
        f"{role}={short_format(name) if role != 'backward' else name}" for role, _, name in pairs
    )
