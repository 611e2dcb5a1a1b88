"""Convolutions: the compiled kernels against an exact chain of fused multiply-adds, and BLAS."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policysearch.emulator.kernels import conv as conv_kernels
from policysearch.emulator.kernels.conv import (
    OPERANDS,
    Direction,
    Geometry,
    bind_compiled,
    shape_of,
)
from policysearch.emulator.kernels.kernel import Bind
from policysearch.emulator.kernels.registry import offered
from policysearch.graph import Attrs, FloatArray, Forward, Op
from policysearch.layout import stored_view
from policysearch.ops.conv import conv2d, conv2d_dgrad, conv2d_wgrad
from policysearch.ops.conv_geometry import chunk_of
from tests.speed.fma_chains import backwards, chained, fma

OPS: dict[Direction, Op] = {"fprop": conv2d, "dgrad": conv2d_dgrad, "wgrad": conv2d_wgrad}
DIRECTIONS: tuple[Direction, ...] = ("fprop", "dgrad", "wgrad")
LENET = (Geometry(64, 1, 32, 32, 6, 5, 5, 1, 0), Geometry(64, 6, 14, 14, 16, 5, 5, 1, 0))
SPECIAL = np.array([np.inf, -np.inf, np.nan, -0.0, 0.0, 1e-45, -1e-40, 3e38], np.float32)

built = pytest.mark.skipif(
    not conv_kernels.compiled_available(), reason="the extension _convolution is not built"
)


def tensors(
    g: Geometry, direction: Direction, seed: int, specials: float = 0.0
) -> tuple[list[FloatArray], FloatArray]:
    """Return operands and an output full of NaN, all in storage order."""
    rng = np.random.default_rng(seed)
    made = []
    for name in OPERANDS[direction]:
        n, c, h, w = shape_of(g, name)
        values = rng.standard_normal((h, c, w, n)) * 2.0 ** rng.integers(-3, 4, (h, c, w, n))
        values = np.where(
            rng.random(values.shape) < specials, rng.choice(SPECIAL, values.shape), values
        )
        made.append(values.astype(np.float32).transpose(3, 1, 0, 2))
    made[2].fill(np.nan)
    return made[:2], made[2]


def attrs_of(g: Geometry, out: FloatArray) -> Attrs:
    return {"stride": g.stride, "padding": g.padding, "shape": out.shape}


def bits(values: npt.ArrayLike) -> npt.NDArray[np.uint32]:
    """Return the bits, one for all NaNs."""
    return np.where(np.isnan(values), np.float32(np.nan), values).astype(np.float32).view(np.uint32)


def run(
    bind: Bind, direction: Direction, g: Geometry, inputs: list[FloatArray], out: FloatArray
) -> npt.NDArray[np.uint32]:
    """Return the bits that a compiled kernel writes to the output."""
    work = np.full(conv_kernels.compiled_work(g, direction), np.nan, np.float32)
    out.fill(np.nan)
    with np.errstate(all="ignore"):
        bind(inputs, out, attrs_of(g, out), work)()
    return bits(out)


def meant(
    forward: Forward, g: Geometry, inputs: list[FloatArray], out: FloatArray
) -> npt.NDArray[np.uint32]:
    """Return the bits of a forward for an output of this shape."""
    with np.errstate(all="ignore"):
        return bits(forward(inputs, attrs_of(g, out)))


def reference(direction: Direction, product: Callable[..., None]) -> Forward:
    """Return numpy's convolution with another product in the place of BLAS."""

    def forward(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray | np.float32:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(np, "matmul", product)
            return OPS[direction].forward(inputs, attrs)

    return forward


def compiled_of_width(direction: Direction, width: int, positive_zero: bool = False) -> Bind:
    """Return the compiled convolution with vectors of at most `width` bytes."""
    extension = conv_kernels._convolution

    def bind(
        inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
    ) -> Callable[[], object]:
        shapes = [array.shape for array in inputs]
        g = conv_kernels.geometry_of(direction, shapes, out.shape, attrs)
        flat = [stored_view(array) for array in (*inputs, out)]
        packed = conv_kernels.packed(g, positive_zero=positive_zero)
        return lambda: getattr(extension, direction)(*flat, work, packed, width)

    return bind


def check_chain(direction: Direction, g: Geometry, specials: float = 0.0) -> None:
    extension = conv_kernels._convolution

    inputs, out = tensors(g, direction, 1, specials)
    expected = meant(reference(direction, chained), g, inputs, out)
    for width in (32, 64):
        if width <= extension.vector_bytes():
            got = run(compiled_of_width(direction, width), direction, g, inputs, out)
            np.testing.assert_array_equal(got, expected, err_msg=f"{direction} {g} {width}")


@st.composite
def geometries(draw: st.DrawFn) -> Geometry:
    window_h, window_w = (draw(st.sampled_from((1, 2, 3, 5))) for _ in range(2))
    stride, padding = draw(st.integers(1, 2)), draw(st.integers(0, 2))
    height = draw(st.integers(max(1, window_h - 2 * padding), 8))
    width = draw(st.integers(max(1, window_w - 2 * padding), 8))
    batch, c_in, c_out = (draw(st.integers(1, most)) for most in (70, 20, 20))
    return Geometry(batch, c_in, height, width, c_out, window_h, window_w, stride, padding)


@built
@pytest.mark.parametrize("direction", DIRECTIONS)
@given(g=geometries(), specials=st.sampled_from((0.0, 0.001, 0.05)))
@settings(max_examples=150)
def test_compiled_products_are_chains(direction: Direction, g: Geometry, specials: float) -> None:
    check_chain(direction, g, specials)


@built
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(
    "g",
    [
        Geometry(70, 2, 5, 9, 18, 3, 2, 1, 1),  # rows of 700 positions: two chunks
        Geometry(33, 1, 40, 4, 2, 1, 1, 1, 0),  # more rows than numpy sums in one go
        Geometry(16, 13, 5, 7, 17, 2, 5, 2, 2),
        Geometry(1, 20, 5, 5, 20, 5, 5, 1, 0),
        Geometry(34, 7, 9, 9, 7, 2, 2, 3, 0),  # pixels that no window reads
    ],
)
def test_compiled_products_are_chains_at_the_edges(direction: Direction, g: Geometry) -> None:
    check_chain(direction, g, 0.001)


@pytest.mark.parametrize(
    ("a", "b", "c", "expected"),
    [
        (1 + 2**-12, 1 + 2**-12, -(1 + 2**-11), 2**-24),  # the product is not rounded
        (2**-100, 2**-100, 1 + 2**-23, 1 + 2**-23),
        (2**-24, 1 + 2**-23, 1, 1 + 2**-23),  # just above a tie
        (2**-24, 1, 1, 1),
        (2**-60, -(2**-60), 1 + 2**-24 + 2**-25, 1 + 2**-23),
        (-1e-30, 1e-30, 0, -0.0),
    ],
)
def test_fma_rounds_once(a: float, b: float, c: float, expected: float) -> None:
    got = fma(*(np.array([x], np.float32) for x in (a, b, c)))
    assert got.view(np.uint32) == np.array([expected], np.float32).view(np.uint32)


@built
@pytest.mark.parametrize("positive_zero", [False, True])
def test_a_sum_that_underflows_keeps_its_sign_or_not(positive_zero: bool) -> None:
    g = Geometry(3, 1, 1, 1, 2, 1, 1, 1, 0)
    inputs, out = tensors(g, "fprop", 1)
    inputs[0].fill(1e-30)
    inputs[1].fill(-1e-30)
    run(bind_compiled("fprop", positive_zero=positive_zero), "fprop", g, inputs, out)
    assert (out == 0).all()
    assert (np.signbit(out) == (not positive_zero)).all()


@built
@pytest.mark.parametrize("batch", [1, 16, 64])
@pytest.mark.parametrize("g", LENET)
@pytest.mark.parametrize("direction", DIRECTIONS)
def test_an_offered_window_has_the_zeros_of_blas(
    direction: Direction, batch: int, g: Geometry
) -> None:
    g = replace(g, batch=batch)
    inputs, out = tensors(g, direction, 2)
    for array, scale in zip(inputs, (1e-26, -1e-26), strict=True):
        array[...] = np.abs(array) * np.float32(scale)
    op, shapes = OPS[direction], [array.shape for array in inputs]
    kernel = offered("C_KERNELS", op, shapes, out.shape, {})
    if kernel is not None:
        expected = meant(op.forward, g, inputs, out)
        np.testing.assert_array_equal(run(kernel.bind, direction, g, inputs, out), expected)


@built
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize("batch", [1, 3, 7, 16, 33, 64])
@pytest.mark.parametrize(
    "g", [*LENET, replace(LENET[1], padding=2), replace(LENET[1], stride=2, padding=1)]
)
def test_a_kernel_that_is_offered_has_the_bits_of_blas(
    direction: Direction, batch: int, g: Geometry
) -> None:
    g = replace(g, batch=batch)
    inputs, out = tensors(g, direction, batch, 0.0001)
    op, attrs = OPS[direction], {"stride": g.stride, "padding": g.padding}
    shapes = [array.shape for array in inputs]
    kernel = offered("C_KERNELS", op, shapes, out.shape, attrs)
    if kernel is None:
        pytest.skip("this machine's BLAS sums this product in another order")
    expected = meant(op.forward, g, inputs, out)
    np.testing.assert_array_equal(run(kernel.bind, direction, g, inputs, out), expected)
    plain = offered("NUMPY_KERNELS", op, shapes, out.shape, attrs)
    assert plain is not None
    assert kernel.work(shapes, out.shape, attrs) < plain.work(shapes, out.shape, attrs)


@built
@pytest.mark.parametrize("direction", DIRECTIONS)
@pytest.mark.parametrize(("product", "expected"), [(chained, True), (backwards, False)])
def test_the_check_refuses_another_order(
    direction: Direction, product: Callable[..., None], expected: bool
) -> None:
    g = Geometry(4, 3, 5, 6, 5, 3, 3, 1, 0)
    op = replace(OPS[direction], forward=reference(direction, product))
    shapes = [shape_of(g, name) for name in OPERANDS[direction]]
    kernel = conv_kernels.compiled_kernel(op, direction, shapes[:2], shapes[2], {})
    assert (kernel is not None) == expected


@built
def test_the_check_finds_what_becomes_of_the_sign_of_zero() -> None:
    def positive(left: FloatArray, right: FloatArray, *, out: FloatArray) -> None:
        chained(left, right, out=out)
        out += np.float32(0)

    g = Geometry(4, 3, 5, 6, 5, 3, 3, 1, 0)
    for product, positive_zero in ((chained, False), (positive, True)):
        op = replace(conv2d, forward=reference("fprop", product))
        binds = [bind_compiled("fprop", positive_zero=flag) for flag in (False, True)]
        assert conv_kernels.agreeing(op, binds, "fprop", g) == [binds[positive_zero]]


@built
def test_arrays_that_do_not_fit_the_geometry_are_refused() -> None:
    g = Geometry(4, 3, 5, 6, 5, 3, 3, 1, 0)
    inputs, out = tensors(g, "fprop", 1)
    bind = bind_compiled("fprop", positive_zero=False)
    with pytest.raises(ValueError, match="arrays of its geometry"):
        bind(inputs, tensors(replace(g, batch=3), "fprop", 1)[1], {}, np.empty(0, np.float32))()
    with pytest.raises(ValueError, match="arrays of its geometry"):
        bind(inputs, out, {"padding": 1}, np.empty(0, np.float32))()


def test_another_accumulator_sums_whole_rows_with_the_gradient_on_the_left() -> None:
    g = Geometry(70, 2, 4, 8, 16, 2, 2, 1, 0)
    (grad, image), out = tensors(g, "wgrad", 1)
    attrs, seen = {"shape": out.shape}, []

    def product(left: FloatArray, right: FloatArray, *, out: FloatArray) -> None:
        seen.append(np.array(left))
        np.matmul(left, right, out=out)

    out = np.asarray(conv2d_wgrad.forward([grad, image], {**attrs, "product": product}))
    assert chunk_of(g.plane) < g.plane
    rows = stored_view(grad).reshape(g.out_h, 1, g.c_out, g.plane)
    np.testing.assert_array_equal(seen[0], rows)
    expected = conv2d_wgrad.forward([grad, image], attrs)
    np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-3)


def test_without_the_extension_there_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conv_kernels, "_convolution", None)
    assert offered("C_KERNELS", conv2d, [(1, 3, 5, 6), (5, 3, 3, 3)], (1, 5, 3, 4), {}) is None


@pytest.mark.parametrize(
    "g",
    [
        Geometry(3, 2, 9, 8, 4, 3, 2, 1, 0),
        Geometry(3, 2, 9, 8, 17, 3, 3, 2, 1),
        Geometry(70, 2, 4, 8, 16, 2, 2, 1, 0),
        Geometry(70, 2, 4, 8, 5, 1, 2, 1, 0),
    ],
)
def test_gradients_are_those_of_the_sum_over_windows(g: Geometry) -> None:
    (grad, image), d_weight = tensors(g, "wgrad", 5)
    (_, weight), d_image = tensors(g, "dgrad", 6)
    d_weight = np.asarray(conv2d_wgrad.forward([grad, image], attrs_of(g, d_weight)))
    d_image = np.asarray(conv2d_dgrad.forward([grad, weight], attrs_of(g, d_image)))
    p, s = g.padding, g.stride
    padded = np.pad(image.astype(np.float64), ((0, 0), (0, 0), (p, p), (p, p)))
    to_image, to_weight = np.zeros_like(padded), np.zeros(weight.shape)
    for y in range(g.out_h):
        for x in range(g.out_w):
            window = np.s_[:, :, y * s : y * s + g.window_h, x * s : x * s + g.window_w]
            to_image[window] += np.einsum("no,ocij->ncij", grad[:, :, y, x], weight)
            to_weight += np.einsum("no,ncij->ocij", grad[:, :, y, x], padded[window])
    inner = to_image[:, :, p : p + g.height, p : p + g.width]
    np.testing.assert_allclose(d_image, inner, rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(d_weight, to_weight, rtol=1e-4, atol=1e-2)
