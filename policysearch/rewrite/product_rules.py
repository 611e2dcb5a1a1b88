"""The rules of products in low precision: their operands, as the policy has them per product."""

from __future__ import annotations

from collections.abc import Callable

from policysearch.graph import Node
from policysearch.ops.dense import BIAS_UNCAST, UNCAST
from policysearch.policy.policy import Policy
from policysearch.policy.products import Operand, is_narrow
from policysearch.rewrite.casting import Casting
from policysearch.rewrite.patterns import Edge, Pattern, node
from policysearch.rewrite.rules import Conversion
from policysearch.rewrite.scaling_pass import Asked, Scaled

Made = Callable[[Casting, Node, str, bool], int | None]
"""Of the step, a product, the format of its result, and whether its bias is added inside."""


def product_rules(policy: Policy) -> tuple[Conversion, ...]:
    """Return the rules of products in the policy's low precision.

    With a fused bias a product that feeds its bias alone stays in the accumulator, unless the bias
    is added `apart`.
    """
    rules = [*_product_rules("product", _plain, policy)]
    if policy.recipes != ("none",):
        rules = [*_product_rules("scaled product", _scaled_product, policy), *rules]
    return tuple(rules)


def _product_rules(name: str, product: Made, policy: Policy) -> tuple[Conversion, ...]:
    low = policy.low_precision_ops

    def before_bias(at: Casting, gemm: Node, bias: Node) -> int | None:
        if policy.bias == "convolution_rounded" and gemm.op.name.startswith("conv"):
            return None
        apart = bias.attributes.get("apart")
        if apart in (UNCAST, BIAS_UNCAST):
            read = gemm.inputs[0] if apart == UNCAST else bias.inputs[1]
            apart = at.format(at.new[read]) == at.layer(gemm).compute
        return None if apart else forward(at, gemm, "float32", True)

    def alone(at: Casting, gemm: Node) -> int | None:
        return forward(at, gemm, at.layer(gemm).output, False)

    def forward(at: Casting, gemm: Node, stored: str, fused: bool) -> int | None:
        new = product(at, gemm, stored, fused)
        return None if new is None else at.forward(gemm, new, at.layer(gemm).dgrad)

    def gradient(at: Casting, gemm: Node) -> int | None:
        layer = at.layer(gemm)
        return product(at, gemm, layer.wgrad if gemm.role == "wgrad" else layer.dgrad, False)

    gemm = node("gemm", kind="gemm", role="fprop", source=low, single_user=True)
    bias = node("bias", op="bias", role="fprop", source=low)
    fused = Pattern((gemm, bias), (Edge("gemm", "bias", 0),))
    before = (Conversion(f"{name} with its bias", fused, before_bias),)
    return (
        *(before if policy.bias in ("fused", "convolution_rounded") else ()),
        Conversion(name, Pattern((node(kind="gemm", role="fprop", source=low),)), alone),
        Conversion(
            f"{name} of a gradient",
            Pattern((node(kind="gemm", role=("dgrad", "wgrad"), source=low),)),
            gradient,
        ),
    )


def _plain(at: Casting, gemm: Node, stored: str, fused: bool) -> int:
    inputs = [_operand(at, gemm, place).node for place in range(len(gemm.inputs))]
    rounding, sums = at.rounding(gemm.role), _accumulator(at, gemm)
    return at.b.copy(gemm, inputs, format=stored, fused=fused, accumulator=sums, rounding=rounding)


def _scaled_product(at: Casting, gemm: Node, stored: str, fused: bool) -> int | None:
    places = range(len(gemm.inputs))
    if not any(_is_scaled(at, gemm, place) for place in places):
        return None
    return at.scaling.product(
        gemm,
        _shifted_operands(at, gemm) or [_operand(at, gemm, place) for place in places],
        format=stored,
        fused=fused,
        accumulator=_accumulator(at, gemm),
        rounding=at.rounding(gemm.role),
    )


def _shifted_operands(at: Casting, gemm: Node) -> list[Scaled]:
    """Return the operands of a backward product whose gradient takes the scale of the other.

    None of them where no scale is to be shifted.
    """
    gradients = [at.is_gradient(i) for i in gemm.inputs]
    if gemm.role == "fprop" or sum(gradients) != 1:
        return []
    place = gradients.index(True)
    other = _forward_copy(at, gemm, 1 - place) if _is_scaled(at, gemm, 1 - place) else None
    if other is None or other.shift is None:
        return []
    grad = _operand(at, gemm, place, other.shift)
    operands = [grad, Scaled(other.node)]
    return operands if place == 0 else operands[::-1]


def _accumulator(at: Casting, gemm: Node) -> str:
    return at.layer(gemm).product(gemm.role).accumulator or "float32"


def _said(at: Casting, gemm: Node, place: int) -> Operand:
    """Return what the policy says of an operand: gradients and inputs first, weights second."""
    first = place == 0
    if gemm.role != "fprop":
        first = at.is_gradient(gemm.inputs[place])
    elif _is_weight(at, gemm.inputs[0]) and not _is_weight(at, gemm.inputs[1]):
        first = place == 1
    product = at.layer(gemm).product(gemm.role)
    return product.first if first else product.second


def _is_weight(at: Casting, i: int) -> bool:
    value = at.graph.nodes[i]
    while value.op.kind == "move" and len(value.inputs) == 1:
        value = at.graph.nodes[value.inputs[0]]
    return value.op.name == "parameter"


def _is_scaled(at: Casting, gemm: Node, place: int) -> bool:
    said = _said(at, gemm, place)
    return is_narrow(said.format) and at.policy.scaling_of(gemm.layer, said).recipe != "none"


def _forward_copy(at: Casting, gemm: Node, place: int) -> Scaled:
    """Return the copy of an operand that the forward product has read, where that is read again."""
    if _said(at, gemm, place).source != "forward":
        return _operand(at, gemm, place)
    forward = at.graph.nodes[gemm.of]
    return _operand(at, forward, forward.inputs.index(gemm.inputs[place]))


def _operand(at: Casting, gemm: Node, place: int, shift: int | None = None) -> Scaled:
    """Return an operand in its format, scaled into it where that is narrow.

    A gradient is multiplied by what is shifted onto it before.
    """
    i, said = gemm.inputs[place], _said(at, gemm, place)
    gradient, old = at.is_gradient(i), at.graph.nodes[i]
    if said.source == "forward" and not gradient:
        new = _dequantised_copy(at, gemm, place, said.format)
    else:
        new = _before_cast(at, i, gemm, said.format)
    new = new if shift is None else at.scaling.shifted(new, shift, gemm)
    if not _is_scaled(at, gemm, place):
        return Scaled(at.cast(new, said.format, gemm))
    side = f"{gemm.layer}.{'grad' if gradient else 'input'}"
    asked = Asked(
        said.format,
        at.policy.scaling_of(gemm.layer, said),
        name=old.name if old.op.name == "parameter" else side,
        rounding=at.rounding(gemm.role),
        mode=said.mode,
        weight=_is_weight(at, i),
        gradient=gradient,
    )
    return at.scaling.operand(new, asked, gemm, place)


def _dequantised_copy(at: Casting, gemm: Node, place: int, wanted: str) -> int:
    """Return what the copy of an operand that the forward product has read stands for.

    It is a tensor in the format wanted, or that of the layer's results on the way to a narrow one.
    """
    copy = _forward_copy(at, gemm, place)
    high = at.layer(gemm).output if is_narrow(wanted) else wanted
    scales = (copy.scale, copy.block_scales)
    return (
        at.cast(copy.node, high, gemm)
        if scales == (None, None)
        else at.scaling.values(copy, high, gemm)
    )


def _before_cast(at: Casting, i: int, gemm: Node, wanted: str) -> int:
    """Return old node `i` as it is before a product reads it in a format."""
    layer = at.layer(gemm)
    if at.is_gradient(i):
        # The gradient is rounded to the format it flows in before it is narrowed to an operand:
        # autograd hands it over as a tensor, and what scales it reads that.
        return at.operand(i, layer.dgrad, gemm)
    # a copy of a parameter in the product's own narrow format is what is stored of it
    same = at.graph.nodes[i].op.name == "parameter" and layer.param == wanted
    return at.new[i] if same and is_narrow(wanted) else at.read(i, gemm)
