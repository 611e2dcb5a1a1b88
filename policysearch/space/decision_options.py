"""What is decided, as options: of a layer its format, roles, products and storage; of the rest."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from typing import Any

from policysearch.formats import format_named
from policysearch.policy.policy import AS_STORED, LayerPolicy, Policy, uniform_layer
from policysearch.policy.presets import layer_named
from policysearch.policy.product_words import ROLES as PRODUCT_ROLES
from policysearch.policy.product_words import SAME, words_of
from policysearch.policy.products import Products, is_narrow
from policysearch.rewrite.format_rules import OFF
from policysearch.rewrite.kept_state import HALVED
from policysearch.space.decided.layer_formats import ROLES
from policysearch.space.options import Option

LOW = "bfloat16"
"""What an operation or a rule without a format of its own is taken to round to."""


def layer_options(policy: Policy, name: str, apart: Set[str], recipe: str) -> dict[str, Option]:
    """Return the options of layer `name`, that of its format among them and those decided `apart`.

    `recipe` says how narrow operands are scaled, "" where that is not decided.
    """
    layer = policy.layer(name)
    stored = "" if policy.master_weights or layer.param == "float32" else layer.param
    roles = apart & {*ROLES}
    options = {role: _role_option(role, layer, recipe) for role in roles}
    mode = policy.rounding.update.mode if policy.compensation == "none" else policy.compensation
    if "param" in apart:
        options["param"] = stored_option(stored, mode)
        stored = ""
    if "products" in apart:
        options["products"] = _products_option(layer, recipe)
        layer = replace(layer, products=Products(), backward="tensor")
    later = [(phase.first_step, dict(phase.layers)[name]) for phase in policy.phases]
    kept = stored_option(stored, mode)
    options["format"] = _main_option(layer, later, kept, recipe, roles)
    return options


def _main_option(
    layer: LayerPolicy,
    phases: list[tuple[int, LayerPolicy]],
    kept: Option,
    recipe: str,
    apart: Set[str],
) -> Option:
    """Return what the format of a layer decides, in every phase; with that, where it is `kept`."""
    names = [layer.compute, *(row.compute for _, row in phases)]
    stored = kept.name.removeprefix("param/")
    if set(names) == {"float32"} and not stored:
        return Option("float32")
    later = (f"{'/'.join((row.compute, *_unusual(row, apart)))}@{step}" for step, row in phases)
    summed = layer.accumulator if layer.compute != "float32" else ""
    scaled = recipe if any(map(is_narrow, layer.operand_formats)) else ""
    parts = (layer.compute, *_unusual(layer, apart), stored, summed, scaled, *later)
    # What a layer costs that is widened later lies between the first and the last of its formats.
    first, last = (_epsilon(name) for name in (names[0], names[-1]))
    epsilon = first if len(names) == 1 else (first * max(last, _epsilon("float32"))) ** 0.5
    epsilon = math.hypot(epsilon, kept.operand_epsilon)
    return Option("/".join(filter(None, parts)), epsilon, kept.storage_epsilon)


def _unusual(layer: LayerPolicy, apart: Set[str]) -> Iterator[str]:
    """Yield what a preset says of a layer that its format alone does not."""
    usual = uniform_layer(layer.compute)
    for role in ROLES:
        if role not in apart and getattr(layer, role) != getattr(usual, role):
            yield f"{role}={getattr(layer, role)}"
    if (layer.products, layer.backward) != (Products(), "tensor"):
        yield words_of(layer)


def _products_option(layer: LayerPolicy, recipe: str) -> Option:
    """Return what products decide: nothing as the layer's format has them, which costs it there."""
    words = words_of(layer)
    if words == SAME:
        return Option("products=usual")
    formats = [
        operand.format
        for role in PRODUCT_ROLES
        if getattr(layer.products, role) is not None
        for operand in layer.product(role).operands
    ]
    said = "/".join(filter(None, ("products", words, _scaling_recipe(layer.compute, recipe))))
    return Option(said, max(map(_epsilon, formats), default=0.0))


def stored_option(stored: str, mode: str) -> Option:
    """Return what the storage of parameters decides: "" where it is float32.

    Rounded by chance, no update is lost: what remains is noise, which a loss feels to second order.
    """
    if not stored:
        return Option("param/")
    epsilon = _epsilon(stored)
    if mode == "kahan":
        return Option(f"param/{stored}+", 0.0, epsilon**2)
    if mode == "remainder" and stored == HALVED:
        return Option(f"param/{stored}++", epsilon)
    if mode == "stochastic":
        return Option(f"param/{stored}~", epsilon)
    return Option(f"param/{stored}", 0.0, epsilon)


def _role_option(role: str, layer: LayerPolicy, recipe: str) -> Option:
    """Return what a role decides: nothing as the layer's format has it, which costs it there."""
    name = getattr(layer, role)
    if name == getattr(uniform_layer(layer.compute), role):
        return Option(f"{role}=usual")
    said = "/".join(filter(None, (role, name, _scaling_recipe(name, recipe))))
    return Option(said, _epsilon(name) if name != "float32" else 0.0)


def _epsilon(name: str) -> float:
    return format_named(name).epsilon


def _scaling_recipe(name: str, recipe: str) -> str:
    """Return how operands of this format are scaled: that matters below 16 bits alone."""
    return recipe if format_named(name).bits < 16 else ""


def acting(name: str, decided: Mapping[str, Any]) -> Any:
    """Return what is decided for `name`, the usual where it acts on nothing (`equivalence`)."""
    value, state, second = (decided[x] for x in (name, "optimizer_state", "second_moment"))
    if name == "second_moment" and value == state:
        return SAME
    narrow = any(x not in (SAME, AS_STORED) and is_narrow(x) for x in (state, second))
    return value if name != "state_block" or narrow else 0


def idle_option(name: str) -> Option:
    """Return what an op decides that no layer below float32 uses."""
    return Option(f"{name}=fp32")


def other_option(name: str, value: Any, mode: str = "nearest_even") -> Option:
    """Return what an op, a rule, or a form of the optimizer's state decides."""
    said = f"{name}={value}"
    if value in ("fp32", "float32", OFF):
        return Option(said)
    if name == "state_block" or value == SAME:
        return Option(said)
    if name in ("optimizer_state", "second_moment"):
        kept = stored_option(value, mode)
        said += "~" * (mode == "stochastic")
        return Option(said, kept.operand_epsilon, kept.storage_epsilon)
    known = name.startswith("rule.") and value != "on"
    return Option(said, format_named(layer_named(value).compute if known else LOW).epsilon)
