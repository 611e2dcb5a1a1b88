"""How products read their operands: rules of the policy pass, those that scale before the plain."""

from __future__ import annotations

from collections.abc import Callable

from policysearch.graph import Node
from policysearch.policy.policy import Policy
from policysearch.rewrite.casting import Casting
from policysearch.rewrite.conversion import Conversion
from policysearch.rewrite.patterns import Edge, Pattern, node
from policysearch.rewrite.scaling_pass import Operand, is_narrow

Product = Callable[[Casting, Node, str, bool], int | None]
"""Of the step, a product, the format of its result, and whether its bias is added inside."""


def product_rules(policy: Policy) -> tuple[Conversion, ...]:
    """Return the rules of products in the policy's low precision.

    With a fused bias a product that feeds its bias alone stays in the accumulator, unless the bias
    is added `apart`.
    """
    rules = [*_rules("product", _plain, policy)]
    if policy.scaling.recipe != "none":
        rules = [*_rules("scaled product", _scaled, policy), *rules]
    return tuple(rules)


def _rules(name: str, product: Product, policy: Policy) -> tuple[Conversion, ...]:
    low = policy.low_precision_ops

    def before_bias(at: Casting, gemm: Node, bias: Node) -> int | None:
        return None if bias.attributes.get("apart") else forward(at, gemm, "float32", True)

    def alone(at: Casting, gemm: Node) -> int | None:
        return forward(at, gemm, at.layer(gemm).output, False)

    def forward(at: Casting, gemm: Node, stored: str, fused: bool) -> int | None:
        made = product(at, gemm, stored, fused)
        return None if made is None else at.forward(gemm, made, at.layer(gemm).dgrad)

    def gradient(at: Casting, gemm: Node) -> int | None:
        layer = at.layer(gemm)
        return product(at, gemm, layer.wgrad if gemm.role == "wgrad" else layer.dgrad, False)

    gemm = node("gemm", kind="gemm", role="fprop", source=low, single_user=True)
    bias = node("bias", op="bias", role="fprop", source=low)
    fused = Pattern((gemm, bias), (Edge("gemm", "bias", 0),))
    before = (Conversion(f"{name} with its bias", fused, before_bias),)
    return (
        *(before if policy.bias == "fused" else ()),
        Conversion(name, Pattern((node(kind="gemm", role="fprop", source=low),)), alone),
        Conversion(
            f"{name} of a gradient",
            Pattern((node(kind="gemm", role=("dgrad", "wgrad"), source=low),)),
            gradient,
        ),
    )


def _plain(at: Casting, gemm: Node, stored: str, fused: bool) -> int:
    layer = at.layer(gemm)
    inputs = [at.cast(_read(at, i, gemm), _wanted(at, i, gemm), gemm) for i in gemm.inputs]
    rounding, sums = at.rounding(gemm.role), layer.accumulator
    return at.b.copy(gemm, inputs, format=stored, fused=fused, accumulator=sums, rounding=rounding)


def _scaled(at: Casting, gemm: Node, stored: str, fused: bool) -> int | None:
    if not any(is_narrow(_wanted(at, i, gemm)) for i in gemm.inputs):
        return None
    operands = [_operand(at, gemm, place) for place in range(len(gemm.inputs))]
    return at.scaling.product(
        gemm,
        operands,
        format=stored,
        fused=fused,
        accumulator=at.layer(gemm).accumulator,
        rounding=at.rounding(gemm.role),
    )


def _operand(at: Casting, gemm: Node, place: int) -> Operand:
    """Return an operand in its format, scaled into it where that is narrow."""
    i = gemm.inputs[place]
    made, wanted, old = _read(at, i, gemm), _wanted(at, i, gemm), at.graph.nodes[i]
    if not is_narrow(wanted):
        return Operand(at.cast(made, wanted, gemm))
    side = f"{gemm.layer}.{'grad' if at.is_gradient(i) else 'input'}"
    name = old.name if old.op.name == "parameter" else side
    return at.scaling.operand(made, wanted, gemm, place, name, at.rounding(gemm.role))


def _wanted(at: Casting, i: int, gemm: Node) -> str:
    """Return the format in which a product reads old node `i`."""
    layer = at.layer(gemm)
    return layer.grad if at.is_gradient(i) else layer.compute


def _read(at: Casting, i: int, gemm: Node) -> int:
    """Return old node `i` as it is before a product reads it in its format."""
    layer = at.layer(gemm)
    if at.is_gradient(i):
        return at.operand(i, layer.dgrad, gemm)
    # a copy of a parameter in the product's own narrow format is what is stored of it
    same = at.graph.nodes[i].op.name == "parameter" and layer.param == layer.compute
    return at.new[i] if same and is_narrow(layer.compute) else at.read(i, gemm)
