"""Import rules: convolutions along one axis to three, and transposed ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from policysearch.importers.tracer import Rule, Tensor, Tracer
from policysearch.importers.windows import extents, pad, with_batch
from policysearch.ops import conv, conv3d, dense
from policysearch.ops.conv_geometry import many
from policysearch.ops.conv_transpose import conv_transpose2d

FLAT: Mapping[str, int] = MappingProxyType(
    {"stride": 1, "padding": 0, "dilation": 1, "output_padding": 0}
)
"""Attributes along the one row of an image that stands for a line."""


def convolution(
    t: Tracer,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve along as many axes as the weight has behind its channels."""
    axes = len(weight.shape) - 2
    image = with_batch(t, x, axes)
    if isinstance(padding, str):
        image, padding = _named_padding(
            t, image, padding, weight, many(extents(dilation, axes), axes)
        )
    attrs = {"stride": extents(stride, axes), "padding": extents(padding, axes)}
    if extents(dilation, axes) != 1 or groups != 1:
        attrs |= {"dilation": many(extents(dilation, axes), axes), "groups": groups}
    op = conv.conv2d if axes < 3 else conv3d.conv3d
    return _convolution_with_bias(t, op, (x, image, weight, bias), attrs, conv.conv2d.name)


def _convolution_with_bias(
    t: Tracer, op: Any, operands: tuple[Any, ...], attrs: dict[str, Any], listed: str
) -> Tensor:
    """Emit a convolution and its bias, a line as an image of one row; return the shape of x."""
    x, image, weight, bias = operands
    axes = len(weight.shape) - 2
    if axes == 1:
        image, weight = (
            t.view(each, (*each.shape[:2], 1, each.shape[2])) for each in (image, weight)
        )
        attrs = {
            name: (FLAT[name], many(value, 1)[0]) if name in FLAT else value
            for name, value in attrs.items()
        }
    product = t.emit(op, image, weight, source=listed, **attrs)
    if bias is not None:
        product = t.emit_nodes(dense.bias, product.id, t.full(bias))
    channels, *places = product.shape[1:]
    return t.view(product, (*x.shape[: len(x.shape) - axes - 1], channels, *places[-axes:]))


def _named_padding(
    t: Tracer, image: Tensor, name: str, weight: Tensor, dilation: Sequence[int]
) -> tuple[Tensor, Any]:
    """Return the image and the padding of a name; an odd one is put behind, as in torch."""
    if name == "valid":
        return image, 0
    needed = [d * (window - 1) for d, window in zip(dilation, weight.shape[2:], strict=True)]
    odd = [(0, extent % 2) for extent in reversed(needed)]
    return pad(t, image, [n for pair in odd for n in pair]), tuple(n // 2 for n in needed)


def transposed(
    t: Tracer,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Tensor:
    axes = len(weight.shape) - 2
    named = {
        "stride": stride,
        "padding": padding,
        "output_padding": output_padding,
        "dilation": dilation,
    }
    attrs: dict[str, Any] = {n: many(extents(value, axes), axes) for n, value in named.items()}
    op = conv_transpose2d if axes < 3 else conv3d.conv_transpose3d
    operands = (x, with_batch(t, x, axes), weight, bias)
    return _convolution_with_bias(
        t, op, operands, {**attrs, "groups": groups}, conv_transpose2d.name
    )


def either(
    t: Tracer,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Any,
    padding: Any,
    dilation: Any,
    turned: bool,
    output_padding: Any,
    groups: int,
    *_: Any,
) -> Tensor:
    """Convolve as the lowered call says, one way or the other."""
    if turned:
        return transposed(t, x, weight, bias, stride, padding, output_padding, groups, dilation)
    return convolution(t, x, weight, bias, stride, padding, dilation, groups)


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **{f"conv{n}d": convolution for n in (1, 2, 3)},
        **{f"conv_transpose{n}d": transposed for n in (1, 2, 3)},
        **dict.fromkeys(("convolution", "_convolution"), either),
    }
)
