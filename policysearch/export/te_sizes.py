"""The sides of a weight that Transformer Engine multiplies in 8 or 4 bits; it refuses others.

Sources, d0067d0d: `pytorch/utils.py` (`assert_dim_for_fp8_exec`, which every linear in `autocast`
asks), `common/gemm/cublaslt_gemm.cu` (16 elements along the side that is summed in 8 bits) and
`pytorch/csrc/quantizer.cpp` (MXFP8 and NVFP4 have whole blocks along both sides of a tensor).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from policysearch.nn.model import Model
from policysearch.policy.normal_forms import in_full
from policysearch.policy.policy import LayerPolicy, Policy, uniform_layer
from policysearch.policy.products import Product, is_narrow

Sides = tuple[int, int]
"""Outputs and inputs of a linear, or multiples of them."""

ALWAYS = (8, 16)
SUMMED = {"fprop": (1, 16), "dgrad": (16, 1), "wgrad": (1, 1)}
BLOCKS = {"mx": 32, "mx_rceil": 32, "nvfp4": 16}
TENSORS = {"fprop": ((0, 1), (1, 1)), "dgrad": ((1, 0), (1, 1)), "wgrad": ((1, 0), (0, 1))}
"""By product, whether its first and its second operand have the outputs and the inputs as a side.

The other side of one that has not both is the rows of a batch."""

ROWS = (
    "Rows of a batch, all its dimensions but the last together, are multiples of 16, in MXFP8 of 32"
)


def multiples(products: Mapping[str, Product]) -> Sides:
    """Return what the sides of a linear with these products are multiples of, as of `in_full`."""
    wanted = [ALWAYS]
    for role, row in products.items():
        for operand, sides in zip(row.operands, TENSORS[role], strict=True):
            recipe = operand.scaling.recipe if operand.scaling else ""
            if is_narrow(operand.format):
                block = BLOCKS.get(recipe)
                wanted.append((block * sides[0], block * sides[1]) if block else SUMMED[role])
    return max(out for out, _ in wanted), max(into for _, into in wanted)


def sides_of(model: Model, *parts: str) -> Sides | None:
    """Return the sides of a linear, or of several that are one there; None for what is none."""
    found = []
    for layer in parts:
        shapes = [spec.shape for spec in model.parameters_of(layer) if len(spec.shape) == 2]
        if len(shapes) == 1:
            turned = model.layer_types.get(layer) == "Conv1D"
            found.append(shapes[0][::-1] if turned else shapes[0])
    return (sum(out for out, _ in found), found[0][1]) if found else None


def refusal(sides: Sides | None, products: Mapping[str, Product]) -> str:
    """Return why Transformer Engine refuses a linear of these sides, "" where it does not."""
    wanted = multiples(products)
    if sides is None or not any(side % one for side, one in zip(sides, wanted, strict=True)):
        return ""
    outputs, inputs = wanted
    given = f"its weight is {sides[0]} x {sides[1]}"
    return f"Transformer Engine wants multiples of {outputs} x {inputs}, and {given}"


def fitted(policy: Policy, sides: Mapping[str, Sides | None], wide: LayerPolicy) -> Policy:
    """Return the policy with those linears `wide` whose sides are refused."""
    refused = {n for n, _ in policy.layers if n in sides and refusal(sides[n], in_full(policy, n))}
    return replace(policy, layers=tuple((n, wide if n in refused else x) for n, x in policy.layers))


def size_traps(policy: Policy, sides: Mapping[str, Sides | None]) -> Iterator[str]:
    """Yield a line for each of these linears that is refused when it is called."""
    for layer, each in sides.items():
        if said := refusal(each, in_full(policy, layer)):
            yield f"{layer}: {said}: a linear of Transformer Engine raises in its autocast"


def size_lines(model: Model, linears: Collection[str]) -> Iterator[str]:
    """Yield the lines of a file on sizes: rows of a batch, and linears that stay out of TE."""
    wide = uniform_layer("bfloat16")
    products = {role: wide.product(role) for role in SUMMED}
    sides = {layer: sides_of(model, layer) for layer in linears}
    apart = [layer for layer, each in sides.items() if refusal(each, products)]
    yield f"# {ROWS}."
    if apart:
        yield "# Transformer Engine refuses these in its autocast, wide or not, for their sides:"
        yield f"# {', '.join(apart)}; let each be a torch.nn.Linear."
