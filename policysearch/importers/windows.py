"""Import rules: pools, borders, other sizes, and windows as columns, along one axis to three."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from policysearch.graph import Shape, size
from policysearch.importers.reductions import over
from policysearch.importers.shapes import permute
from policysearch.importers.tracer import Rule, Tensor, Tracer, refuse
from policysearch.ops import adaptive_max, pool, resample
from policysearch.ops.conv_geometry import many
from policysearch.ops.pad import pad as pad_op
from policysearch.ops.reduce import mean
from policysearch.ops.strided import strided
from policysearch.ops.windows import fold, unfold


def extents(value: Any, axes: int) -> int | tuple[int, ...]:
    """Return one number where all axes have the same, else one for each."""
    values = tuple(value) if isinstance(value, Sequence) else (value,)
    values = many(values[0], axes) if len(values) == 1 else values
    return values[0] if len(set(values)) == 1 else values


def with_batch(t: Tracer, x: Tensor, axes: int) -> Tensor:
    """Return x with a batch of one where it has none."""
    return t.view(x, (1, *x.shape)) if len(x.shape) == axes + 1 else x


def _window(axes: int, window: Any, stride: Any, padding: Any, ceil_mode: bool) -> dict[str, Any]:
    """Return a pool's attributes; only those that are not the default, which has kernels in C."""
    sides = extents(stride or window, axes)
    attrs: dict[str, Any] = {"window": extents(window, axes), "stride": sides}
    if any(many(extents(padding, axes), axes)):
        attrs["padding"] = extents(padding, axes)
    if ceil_mode:
        attrs["ceil_mode"] = True
    return attrs


def max_pool(axes: int, *, places: bool = False) -> Rule:
    """Return the rule of a max pool along so many axes; with `places`, where the values were."""

    def rule(
        t: Tracer,
        x: Tensor,
        window: Any,
        stride: Any = (),
        padding: Any = 0,
        dilation: Any = 1,
        ceil_mode: bool = False,
    ) -> Any:
        attrs = _window(axes, window, stride, padding, ceil_mode)
        if extents(dilation, axes) != 1:
            attrs["dilation"] = extents(dilation, axes)
        image = with_batch(t, x, axes)
        values = t.emit(pool.max_pool, image, **attrs)
        lead = x.shape[: len(x.shape) - axes]
        shape = (*lead, *values.shape[2:])
        if not places:
            return t.view(values, shape)
        return t.view(values, shape), t.view(_places(t, pool.max_pool_places, image, attrs), shape)

    return rule


def _places(t: Tracer, op: Any, image: Tensor, attrs: Mapping[str, Any]) -> Tensor:
    node = t.b.emit(op, t.full(image), attrs=attrs, source=op.name, role="input")
    return Tensor(node, t.b.shape(node))


def average_pool(axes: int) -> Rule:
    def rule(
        t: Tracer,
        x: Tensor,
        window: Any,
        stride: Any = (),
        padding: Any = 0,
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Tensor:
        attrs = _window(axes, window, stride, padding, ceil_mode)
        if not count_include_pad:
            attrs["count_include_pad"] = False
        if divisor_override is not None:
            attrs["divisor"] = divisor_override
        values = t.emit(pool.average_pool, with_batch(t, x, axes), **attrs)
        return t.view(values, (*x.shape[: len(x.shape) - axes], *values.shape[2:]))

    return rule


def _tiles(image: Shape, sizes: Shape) -> dict[str, Any] | None:
    """Return the attributes of a pool whose windows tile the image, None where they overlap."""
    if any(extent % count for extent, count in zip(image, sizes, strict=True)):
        return None
    windows = tuple(extent // count for extent, count in zip(image, sizes, strict=True))
    return _window(len(sizes), windows, (), 0, False)


def adaptive_average_pool(axes: int) -> Rule:
    """Return the rule of averages over windows that tile the image; torch's overlap at times."""

    def rule(t: Tracer, x: Tensor, sizes: Any) -> Tensor:
        counts = many(extents(sizes, axes), axes)
        lead, image = x.shape[: len(x.shape) - axes], x.shape[-axes:]
        if size(counts) == 1:
            return over(t, mean, x, tuple(range(-axes, 0)), True)
        attrs = _tiles(image, counts)
        if attrs is None:
            source = pool.average_pool.name
            values = t.emit(resample.adaptive_average, x, source=source, sizes=counts)
        else:
            values = t.emit(pool.average_pool, with_batch(t, x, axes), **attrs)
        return t.view(values, (*lead, *counts))

    return rule


def adaptive_max_pool(axes: int) -> Rule:
    def rule(t: Tracer, x: Tensor, sizes: Any) -> tuple[Tensor, Tensor]:
        counts = many(extents(sizes, axes), axes)
        image, shape = with_batch(t, x, axes), (*x.shape[: len(x.shape) - axes], *counts)
        attrs = _tiles(x.shape[-axes:], counts)
        values, places = pool.max_pool, pool.max_pool_places
        if attrs is None:
            attrs = {"sizes": counts}
            values, places = adaptive_max.adaptive_max, adaptive_max.adaptive_max_places
        result = t.emit(values, image, source=pool.max_pool.name, **attrs)
        return t.view(result, shape), t.view(_places(t, places, image, attrs), shape)

    return rule


def pad(
    t: Tracer, x: Tensor, widths: Sequence[int], mode: str = "constant", value: float | None = None
) -> Tensor:
    """Put borders around x; `widths` are two for each axis, from the last one on."""
    pairs = [(widths[i], widths[i + 1]) for i in range(0, len(widths), 2)]
    every = (*((0, 0),) * (len(x.shape) - len(pairs)), *reversed(pairs))
    attrs: dict[str, Any] = {"mode": mode, "widths": every}
    if value:
        attrs["value"] = float(value)
    return x if not any(widths) else t.emit(pad_op, x, **attrs)


def pad_by(mode: str) -> Rule:
    return lambda t, x, widths, value=None: pad(t, x, widths, mode, value)


def interpolated(method: str, axes: int) -> Rule:
    """Return the rule of an interpolation; torch gives nearest ones no `align_corners`."""

    def rule(t: Tracer, x: Tensor, sizes: Any, *rest: Any) -> Tensor:
        aligned, *scales = rest if not method.startswith("nearest") else (False, *rest)
        factors = scales[0] if scales and isinstance(scales[0], tuple) else tuple(scales)
        image = x.shape[-axes:]
        attrs: dict[str, Any] = {"method": method}
        if sizes is None:
            sizes = tuple(int(n * factor) for n, factor in zip(image, factors, strict=True))
        if any(factors):
            attrs["scales"] = tuple(factors)
        if aligned:
            attrs["align_corners"] = True
        return t.emit(resample.interpolate, x, sizes=tuple(sizes), **attrs)

    return rule


def columns(t: Tracer, x: Tensor, window: Any, dilation: Any, padding: Any, stride: Any) -> Tensor:
    attrs = {"window": window, "dilation": dilation, "padding": padding, "stride": stride}
    image = with_batch(t, x, 2)
    result = t.emit(unfold, image, **attrs)
    return t.view(result, (*x.shape[: len(x.shape) - 3], *result.shape[1:]))


def folded(
    t: Tracer, x: Tensor, sizes: Any, window: Any, dilation: Any, padding: Any, stride: Any
) -> Tensor:
    rows = with_batch(t, x, 1)
    if len(x.shape) < 2:
        raise refuse("columns of one axis", "give [batch, rows, places]")
    batch, height, _ = rows.shape
    shape = (batch, height // size(tuple(window)), *sizes)
    attrs = {"window": window, "dilation": dilation, "padding": padding, "stride": stride}
    result = t.emit(fold, rows, shape=shape, **attrs)
    return t.view(result, (*x.shape[: len(x.shape) - 2], *shape[1:]))


METHODS = (
    ("linear", {1: "upsample_linear1d", 2: "upsample_bilinear2d", 3: "upsample_trilinear3d"}),
    ("cubic", {2: "upsample_bicubic2d"}),
    ("nearest", {n: f"upsample_nearest{n}d" for n in (1, 2, 3)}),
    ("nearest-exact", {n: f"_upsample_nearest_exact{n}d" for n in (1, 2, 3)}),
)


def as_strided(
    t: Tracer,
    x: Tensor,
    sizes: Sequence[int],
    strides: Sequence[int],
    offset: int | None = None,
    order: Sequence[int] = (),
) -> Tensor:
    """Return what torch.as_strided does of x, whose axes lie in memory in `order`."""
    stored = permute(t, x, order) if order else x
    return t.emit(strided, stored, shape=tuple(sizes), strides=tuple(strides), offset=offset or 0)


RULES: Mapping[str, Rule] = MappingProxyType(
    {
        **{f"max_pool{n}d": max_pool(n) for n in (1, 2, 3)},
        **{f"max_pool{n}d_with_indices": max_pool(n, places=True) for n in (1, 2, 3)},
        **{f"avg_pool{n}d": average_pool(n) for n in (1, 2, 3)},
        **{f"adaptive_avg_pool{n}d": adaptive_average_pool(n) for n in (1, 2, 3)},
        **{f"adaptive_max_pool{n}d": adaptive_max_pool(n) for n in (1, 2, 3)},
        **{name: interpolated(how, n) for how, names in METHODS for n, name in names.items()},
        "as_strided": as_strided,
        "pad": pad,
        "constant_pad_nd": pad_by("constant"),
        **{f"reflection_pad{n}d": pad_by("reflect") for n in (1, 2, 3)},
        **{f"replication_pad{n}d": pad_by("replicate") for n in (1, 2, 3)},
        "_pad_circular": pad_by("circular"),
        "im2col": columns,
        "col2im": folded,
    }
)
