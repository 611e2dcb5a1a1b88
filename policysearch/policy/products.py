"""What the products of a layer read, and the short form that says the usual.

Sources: Transformer Engine `common/recipe/__init__.py` (`backward_override`),
`pytorch/custom_recipes/quantizer_factory_zoo.py` (`columnwise_source`); torchao
`float8/config.py` (`Float8LinearConfig`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from policysearch.accumulators import accumulator_named
from policysearch.formats import RoundingMode, format_named
from policysearch.policy.scaling import Scaling
from policysearch.values import InputError

Source = Literal["tensor", "forward"]

NARROW_BITS = 16
"""Operands in formats of fewer bits are scaled."""

HYBRID = ("float8_e5m2", "float8_e4m3fn")
"""Gradients in the first are multiplied by other tensors in the second."""


@dataclass(frozen=True)
class Operand:
    """One operand of a product: its `format`, and how it gets there.

    `source`: "tensor" is the tensor as it flows, in high precision; "forward" is what the copy
    that the forward product read stands for, dequantised (`columnwise_source =
    "rowwise_dequantized"` of Transformer Engine). `scaling` and `mode` of rounding are those of
    the layer and of the role where they are null.
    """

    format: str
    source: Source = "tensor"
    scaling: Scaling | None = None
    mode: RoundingMode | None = None

    def __post_init__(self) -> None:
        try:
            format_named(self.format)
        except InputError as error:
            raise InputError(f"format: {error}") from None


@dataclass(frozen=True)
class Product:
    """One product of a layer.

    `first` is the input (fprop) or the gradient (dgrad, wgrad), `second` the weight (fprop,
    dgrad) or the input (wgrad); of two tensors without a weight, as in attention, the one and the
    other. `accumulator` is the layer's where it is null.
    """

    first: Operand
    second: Operand
    accumulator: str | None = None

    def __post_init__(self) -> None:
        if self.first.source == "forward":
            raise InputError(
                "first.source: 'forward'; expected 'tensor': an input is what the forward copy is "
                "made from, and a gradient has none"
            )
        if self.accumulator is not None:
            try:
                accumulator_named(self.accumulator)
            except InputError as error:
                raise InputError(f"accumulator: {error}") from None

    @property
    def operands(self) -> tuple[Operand, Operand]:
        return self.first, self.second


@dataclass(frozen=True)
class Products:
    """The products of a layer, `fprop`, `dgrad` and `wgrad`; left out is what its format says."""

    fprop: Product | None = None
    dgrad: Product | None = None
    wgrad: Product | None = None

    def __post_init__(self) -> None:
        if self.fprop is not None and self.fprop.second.source == "forward":
            raise InputError("fprop.second.source: 'forward'; expected 'tensor'")


def short_form(role: str, compute: str, grad: str, backward: Source) -> Product:
    """Return the product of a role that `compute`, `grad` and `backward` of a layer say.

    Of a gradient product either both operands are narrow or none is: beside a gradient in high
    precision the other operand has that format too, beside a narrow gradient one in high
    precision is quantised to it (to float8_e4m3fn beside float8_e5m2).
    """
    if role == "fprop":
        return Product(Operand(compute), Operand(compute))
    beside = compute
    if is_narrow(compute) != is_narrow(grad):
        beside = HYBRID[1] if grad == HYBRID[0] else grad
    return Product(Operand(grad), Operand(beside, backward))


def is_narrow(format: str) -> bool:
    """Return whether operands of this format are scaled where the policy has a recipe."""
    return format_named(format).bits < NARROW_BITS
