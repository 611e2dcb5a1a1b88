"""Import rules: convolutions and pools, with torch's attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from policysearch.importers.shapes import reduced
from policysearch.importers.tracer import Rule, Tensor, Tracer, refuse
from policysearch.ops import conv, dense, pool
from policysearch.ops.conv_transpose import conv_transpose2d
from policysearch.ops.reduce import mean

Pair = tuple[int, int]


def _pair(extents: Any) -> Pair:
    """Return (of the height, of the width) of a number, or of one or two of them."""
    values = tuple(extents) if isinstance(extents, Sequence) else (extents,)
    return (values[0], values[-1])


def _with_bias(t: Tracer, product: Tensor, bias: Tensor | None) -> Tensor:
    return product if bias is None else t.emit_nodes(dense.bias, product.id, t.full(bias))


def conv2d(
    t: Tracer,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    if isinstance(padding, str):
        padding = _named_padding(padding, weight, _pair(stride), _pair(dilation))
    attrs: dict[str, Any] = {"stride": _plain(stride), "padding": _plain(padding)}
    if _pair(dilation) != (1, 1) or groups != 1:
        attrs |= {"dilation": _pair(dilation), "groups": groups}
    return _with_bias(t, t.emit(conv.conv2d, x, weight, **attrs), bias)


def _named_padding(name: str, weight: Tensor, stride: Pair, dilation: Pair) -> Pair:
    if name == "valid":
        return (0, 0)
    # "same" in torch: d (k - 1) in all, of which an odd one would be more on one side
    needed = [d * (window - 1) for d, window in zip(dilation, weight.shape[2:], strict=True)]
    if stride != (1, 1) or any(extent % 2 for extent in needed):
        raise refuse(f"padding {name!r}", "give it as numbers, the same on both sides")
    return (needed[0] // 2, needed[1] // 2)


def conv1d(
    t: Tracer,
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
) -> Tensor:
    """Convolve as images of one row."""
    if isinstance(padding, str):
        raise refuse(f"padding {padding!r}", "give it as a number")
    flat = t.view(x, (*x.shape[:2], 1, x.shape[2]))
    kernel = t.view(weight, (*weight.shape[:2], 1, weight.shape[2]))
    rows = (1, _pair(stride)[0]), (0, _pair(padding)[0]), (1, _pair(dilation)[0])
    image = conv2d(t, flat, kernel, bias, rows[0], rows[1], rows[2], groups)
    return t.view(image, (*image.shape[:2], image.shape[3]))


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
    attrs: dict[str, Any] = {
        "stride": _pair(stride),
        "padding": _pair(padding),
        "output_padding": _pair(output_padding),
        "dilation": _pair(dilation),
        "groups": groups,
    }
    return _with_bias(t, t.emit(conv_transpose2d, x, weight, **attrs), bias)


def max_pool(
    t: Tracer,
    x: Tensor,
    window: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> Tensor:
    if _pair(dilation) != (1, 1):
        raise refuse(f"dilation {_pair(dilation)}", "use 1")
    return t.emit(pool.max_pool, x, **_window(window, stride, padding, ceil_mode))


def average_pool(
    t: Tracer,
    x: Tensor,
    window: Any,
    stride: Any = (),
    padding: Any = 0,
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Tensor:
    if divisor_override is not None:
        raise refuse(f"divisor_override {divisor_override}", "leave it out")
    attrs = _window(window, stride, padding, ceil_mode)
    if not count_include_pad:
        attrs["count_include_pad"] = False
    return t.emit(pool.average_pool, x, **attrs)


def _window(window: Any, stride: Any, padding: Any, ceil_mode: bool) -> dict[str, Any]:
    """Return a pool's attributes; only those that are not the default, which has kernels in C."""
    attrs: dict[str, Any] = {"window": _plain(window), "stride": _plain(stride or window)}
    if _pair(padding) != (0, 0):
        attrs["padding"] = _plain(padding)
    if ceil_mode:
        attrs["ceil_mode"] = True
    return attrs


def _plain(extents: Any) -> int | Pair:
    high, wide = _pair(extents)
    return high if high == wide else (high, wide)


def adaptive_average_pool(t: Tracer, x: Tensor, sizes: Any) -> Tensor:
    """Average over windows that tile the image; torch's overlap where the size does not divide."""
    # torch averages from floor(i n / m) to ceil((i + 1) n / m): plain windows where m divides n
    rows, columns = _pair(sizes)
    height, width = x.shape[-2:]
    if (rows, columns) == (1, 1):
        average: Tensor = reduced(mean)(t, x, (-1, -2), True)
        return average
    if height % rows or width % columns:
        raise refuse(f"{height} x {width} to {rows} x {columns}", "use a size that divides")
    return t.emit(pool.average_pool, x, **_window((height // rows, width // columns), (), 0, False))


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "conv2d": conv2d,
        "conv1d": conv1d,
        "conv_transpose2d": transposed,
        "max_pool2d": max_pool,
        "avg_pool2d": average_pool,
        "adaptive_avg_pool2d": adaptive_average_pool,
    }
)
