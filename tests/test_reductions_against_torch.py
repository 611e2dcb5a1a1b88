"""Reductions, running sums, resampled images and windows against torch, on random shapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policysearch.graph import Attrs, FloatArray, Shape
from tests.torch_cases import Case, assert_as_torch, normal, one

pytestmark = pytest.mark.torch

EXAMPLES = 25
Torch = Callable[..., Any]


def distinct(seed: int, shape: Shape) -> FloatArray:
    """Return values off zero, a tenth apart, so that no extreme is near another."""
    count = int(np.prod(shape))
    order = np.random.default_rng(seed).permutation(count).astype(np.float32)
    return ((order - count // 2 + 0.5) / 10).astype(np.float32).reshape(shape)


@st.composite
def reductions(draw: st.DrawFn) -> tuple[Shape, tuple[int, ...], bool]:
    shape = tuple(draw(st.lists(st.integers(2, 5), min_size=1, max_size=5)))
    axes = draw(st.sets(st.integers(0, len(shape) - 1), min_size=1))
    return shape, tuple(sorted(axes)), draw(st.booleans())


REDUCTIONS: dict[str, tuple[Attrs, Torch]] = {
    "max": ({}, lambda t, x, axes, keep: x.amax(axes, keep)),
    "min": ({}, lambda t, x, axes, keep: x.amin(axes, keep)),
    "var": ({"correction": 0}, lambda t, x, axes, keep: x.var(axes, correction=0, keepdim=keep)),
    "std": ({}, lambda t, x, axes, keep: x.std(axes, keepdim=keep)),
    "logsumexp": ({}, lambda t, x, axes, keep: x.logsumexp(axes, keep)),
    **{
        f"vector_norm {ord}": (
            {"ord": ord},
            lambda t, x, axes, keep, ord=ord: t.linalg.vector_norm(x, ord, axes, keep),
        )
        for ord in (1.0, 1.5, 2.0, 3.0, np.inf, -np.inf)
    },
}


@pytest.mark.parametrize("name", REDUCTIONS)
@settings(max_examples=EXAMPLES)
@given(of=reductions(), seed=st.integers(0, 99))
def test_reductions(name: str, of: tuple[Shape, tuple[int, ...], bool], seed: int) -> None:
    (shape, axes, keepdim), (attrs, expected) = of, REDUCTIONS[name]
    own = {**attrs, "axes": axes, "keepdim": keepdim}
    trace = one(name.split()[0], own)
    case = Case((distinct(seed, shape),), trace, lambda t, x: expected(t, x, axes, keepdim))
    assert_as_torch(case, seed)


@pytest.mark.parametrize("first", [False, True])
def test_equal_values_share_the_gradient_or_the_first_has_it(first: bool) -> None:
    x = np.random.default_rng(0).integers(0, 2, (5, 6)).astype(np.float32)

    def expected(t: Any, x: Any) -> Any:
        return x.max(1).values if first else x.amax(1)

    attrs = {"axes": (1,), "first": first}
    assert_as_torch(Case((x,), one("max", attrs), expected), 0)


@pytest.mark.parametrize("name", ["cumsum", "cumprod", "prod"])
@pytest.mark.parametrize("zeros", [0, 1, 2])
def test_running_sums_and_products(name: str, zeros: int) -> None:
    for axis in (0, 1, -1):
        x = np.random.default_rng(axis + 1).uniform(0.5, 1.5, (4, 5, 3)).astype(np.float32)
        for place in range(zeros):  # along every axis
            x[2 * place, place, 0] = x[0, place, place] = 0.0
        attrs: Attrs = {"axes": (axis,)} if name == "prod" else {"axis": axis % 3}

        def expected(t: Any, x: Any, axis: int = axis) -> Any:
            return getattr(t, name)(x, axis)

        assert_as_torch(Case((x,), one(name, attrs), expected), 0)


@settings(max_examples=EXAMPLES)
@given(
    sizes=st.tuples(*[st.integers(1, 9)] * 2),
    image=st.tuples(*[st.integers(1, 7)] * 2),
    method=st.sampled_from(["nearest", "nearest-exact", "linear", "cubic"]),
    aligned=st.booleans(),
)
def test_interpolations(
    sizes: tuple[int, int], image: tuple[int, int], method: str, aligned: bool
) -> None:
    attrs: dict[str, Any] = {"method": method, "sizes": sizes}
    mode = {"linear": "bilinear", "cubic": "bicubic"}.get(method, method)
    options: dict[str, Any] = {}
    if mode != method:
        attrs["align_corners"] = options["align_corners"] = aligned

    def expected(t: Any, x: Any) -> Any:
        return t.nn.functional.interpolate(x, sizes, mode=mode, **options)

    x = normal(np.random.default_rng(0), 2, 3, *image)
    assert_as_torch(Case((x,), one("interpolate", attrs), expected), 0)


@settings(max_examples=EXAMPLES)
@given(
    sizes=st.lists(st.integers(1, 7), min_size=1, max_size=3),
    image=st.tuples(*[st.integers(1, 7)] * 3),
    name=st.sampled_from(["adaptive_average", "adaptive_max"]),
)
def test_adaptive_pools(sizes: list[int], image: tuple[int, ...], name: str) -> None:
    axes = len(sizes)
    kind = "avg" if name == "adaptive_average" else "max"

    def expected(t: Any, x: Any) -> Any:
        return getattr(t.nn.functional, f"adaptive_{kind}_pool{axes}d")(x, tuple(sizes))

    x = normal(np.random.default_rng(0), 2, 3, *image[:axes])
    assert_as_torch(Case((x,), one(name, {"sizes": tuple(sizes)}), expected), 0)


@settings(max_examples=EXAMPLES)
@given(
    widths=st.lists(st.tuples(st.integers(-1, 3), st.integers(-1, 3)), min_size=1, max_size=3),
    mode=st.sampled_from(["constant", "reflect", "replicate", "circular"]),
)
def test_borders(widths: list[tuple[int, int]], mode: str) -> None:
    if mode != "constant":
        widths = [(max(0, a), max(0, b)) for a, b in widths]
    axes = len(widths)
    attrs = {"mode": mode, "widths": ((0, 0), (0, 0), *widths)}
    flat = [n for pair in reversed(widths) for n in pair]

    def expected(t: Any, x: Any) -> Any:
        return t.nn.functional.pad(x, flat, mode=mode) * 1.0

    x = normal(np.random.default_rng(0), 2, 3, *(4, 5, 6)[:axes])
    assert_as_torch(Case((x,), one("pad", attrs), expected), 0)


@settings(max_examples=EXAMPLES)
@given(
    groups=st.sampled_from([1, 2]),
    window=st.tuples(*[st.integers(1, 3)] * 3),
    stride=st.tuples(*[st.integers(1, 2)] * 3),
    padding=st.tuples(*[st.integers(0, 1)] * 3),
    dilation=st.tuples(*[st.integers(1, 2)] * 3),
    turned=st.booleans(),
)
def test_convolutions_of_three_axes(
    groups: int,
    window: tuple[int, ...],
    stride: tuple[int, ...],
    padding: tuple[int, ...],
    dilation: tuple[int, ...],
    turned: bool,
) -> None:
    attrs = {"stride": stride, "padding": padding, "dilation": dilation, "groups": groups}
    rng = np.random.default_rng(0)
    name = "conv_transpose3d" if turned else "conv3d"
    image = normal(rng, 2, 4, 5, 6, 5)
    weight = normal(rng, 4, 4 // groups, *window)

    def expected(t: Any, x: Any, w: Any) -> Any:
        return getattr(t.nn.functional, name)(x, w, **attrs)

    assert_as_torch(Case((image, weight), one(name, attrs), expected), 0)


POOLS: dict[str, Attrs] = {
    "overlapping": {"window": 3, "stride": 2, "padding": 1},
    "rounded up": {"window": 2, "stride": 2, "ceil_mode": True},
}


@pytest.mark.parametrize("kind", POOLS)
@pytest.mark.parametrize("axes", [1, 3])
@pytest.mark.parametrize("name", ["max_pool", "average_pool"])
def test_pools_of_other_axes(name: str, axes: int, kind: str) -> None:
    attrs = POOLS[kind]
    image = normal(np.random.default_rng(0), 2, 3, *(5, 6, 7)[:axes])

    def expected(t: Any, x: Any) -> Any:
        pool = getattr(t.nn.functional, f"{'max' if name == 'max_pool' else 'avg'}_pool{axes}d")
        return pool(x, **{"kernel_size" if k == "window" else k: v for k, v in attrs.items()})

    assert_as_torch(Case((image,), one(name, attrs), expected), 0)


def test_windows_as_columns_and_back() -> None:
    attrs = {"window": (2, 3), "stride": (2, 1), "padding": 1, "dilation": (1, 2)}
    options = {**attrs, "kernel_size": attrs["window"]}
    del options["window"]
    image = normal(np.random.default_rng(0), 2, 3, 5, 6)

    def unfolded(t: Any, x: Any) -> Any:
        return t.nn.functional.unfold(x, **options)

    assert_as_torch(Case((image,), one("unfold", attrs), unfolded), 0)
    columns = normal(np.random.default_rng(0), 2, 18, 12)

    def folded(t: Any, x: Any) -> Any:
        return t.nn.functional.fold(x, (5, 6), **options)

    trace = one("fold", {**attrs, "shape": (2, 3, 5, 6)})
    assert_as_torch(Case((columns,), trace, folded), 0)
