"""Elementwise ops, sums, parts and masks against torch, on random shapes and attributes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from policysearch.graph import Attrs
from policysearch.ops.builder import Builder
from policysearch.ops.catalogue import OPS
from tests.torch_cases import Case, assert_as_torch, normal, one

pytestmark = pytest.mark.torch

DRAWS = 4


def shape_of(rng: np.random.Generator) -> tuple[int, ...]:
    return tuple(int(n) for n in rng.integers(2, 7, rng.integers(2, 5)))


UNARY: dict[str, tuple[Attrs, Callable[..., Any]]] = {
    "exp": ({}, lambda t, x: x.exp()),
    "silu": ({}, lambda t, x: t.nn.functional.silu(x)),
    "sigmoid": ({}, lambda t, x: t.sigmoid(x)),
    "hardswish": ({}, lambda t, x: t.nn.functional.hardswish(x)),
    "hardtanh": (
        {"minimum": -0.5, "maximum": 1.5},
        lambda t, x: t.nn.functional.hardtanh(x, -0.5, 1.5),
    ),
    "leaky_relu": ({"negative_slope": 0.01}, lambda t, x: t.nn.functional.leaky_relu(x, 0.01)),
    "shift": ({"amount": -0.3}, lambda t, x: x - 0.3),
    "scale": ({"factor": -1.7}, lambda t, x: x * -1.7),
    "pow": ({"exponent": 3.0}, lambda t, x: x.pow(3)),
    "power_of_number": ({"base": 2.5}, lambda t, x: 2.5**x),
    "hardsigmoid": ({}, lambda t, x: t.nn.functional.hardsigmoid(x)),
    "softplus": (
        {"beta": 2.0, "threshold": 3.0},
        lambda t, x: t.nn.functional.softplus(x, 2.0, 3.0),
    ),
    "elu": ({"below": 1.5, "above": 1.0, "inner": 1.0}, lambda t, x: t.nn.functional.elu(x, 1.5)),
    "mish": ({}, lambda t, x: t.nn.functional.mish(x)),
    "log_sigmoid": ({}, lambda t, x: t.nn.functional.logsigmoid(x)),
    "threshold": (
        {"threshold": -0.5, "value": 2.0},
        lambda t, x: t.nn.functional.threshold(x, -0.5, 2.0),
    ),
    "hardshrink": ({"width": 1.0}, lambda t, x: t.nn.functional.hardshrink(x, 1.0)),
    "softshrink": ({"width": 1.0}, lambda t, x: t.nn.functional.softshrink(x, 1.0)),
    "clamp": ({"minimum": -0.5, "maximum": 1.5}, lambda t, x: x.clamp(-0.5, 1.5)),
    "abs": ({}, lambda t, x: x.abs()),
    "expm1": ({}, lambda t, x: x.expm1()),
    "exp2": ({}, lambda t, x: x.exp2()),
    "sin": ({}, lambda t, x: x.sin()),
    "cos": ({}, lambda t, x: x.cos()),
    "atan": ({}, lambda t, x: x.atan()),
    "erf": ({}, lambda t, x: x.erf()),
    "lgamma": ({}, lambda t, x: x.lgamma()),
    "digamma": ({}, lambda t, x: x.digamma()),
    "glu": ({"axis": -1}, lambda t, x: t.nn.functional.glu(x)),
    **{
        f"{op} {axis}": (
            {"axis": axis},
            lambda t, x, op=op, axis=axis: getattr(t.nn.functional, op)(x, axis),
        )
        for op in ("softmax", "log_softmax")
        for axis in (0, 1)
    },
    "log_softmax": ({}, lambda t, x: t.nn.functional.log_softmax(x, -1)),
}
POSITIVE: dict[str, tuple[Attrs, Callable[..., Any]]] = {
    "sqrt": ({}, lambda t, x: x.sqrt()),
    "rsqrt": ({}, lambda t, x: x.rsqrt()),
    "log": ({}, lambda t, x: x.log()),
    "log2": ({}, lambda t, x: x.log2()),
    "log10": ({}, lambda t, x: x.log10()),
    "log1p": ({}, lambda t, x: x.log1p()),
    **{
        f"pow {e}": ({"exponent": e}, lambda t, x, e=e: x.pow(e))
        for e in (2.0, 0.5, -0.5, -1.0, -2.0, 1.3, 4.0, 0.75)
    },
}


@pytest.mark.parametrize("name", [*UNARY, *POSITIVE])
def test_functions_of_one_tensor(name: str) -> None:
    attrs, expected = {**UNARY, **POSITIVE}[name]
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        x = 3.0 * normal(rng, *shape_of(rng)[:-1], 2 * int(rng.integers(1, 4)))
        if name in POSITIVE:
            x = np.abs(x) + np.float32(0.1)
        assert_as_torch(Case((x.astype(np.float32),), one(name.split()[0], attrs), expected), seed)


AT_AN_END = (
    *("hardswish", "hardtanh", "leaky_relu", "silu", "pow", "hardsigmoid", "softplus", "elu"),
    *("threshold", "hardshrink", "softshrink", "clamp", "abs", "log_sigmoid"),
)
AT_THEIR_ENDS: dict[str, tuple[Attrs, Callable[..., Any]]] = {
    **{name: UNARY[name] for name in AT_AN_END},
    "hardtanh, relu6": ({"minimum": 0.0, "maximum": 6.0}, lambda t, x: t.nn.functional.relu6(x)),
    "relu": ({}, lambda t, x: x.relu()),
}
ENDS = np.array([-6, -3, -1.5, -1, -0.5, -0.0, 0, 0.5, 1, 1.5, 3, 6], np.float32)


@pytest.mark.parametrize("name", AT_THEIR_ENDS)
def test_slopes_where_pieces_meet(name: str) -> None:
    """Values of a coarse format often lie exactly there."""
    attrs, expected = AT_THEIR_ENDS[name]
    assert_as_torch(Case((ENDS,), one(name.split(",")[0], attrs), expected), 0)


def test_the_power_of_0_has_no_slope_even_at_0() -> None:
    def trace(b: Builder, ids: Sequence[int]) -> int:
        return b.emit(OPS["add"], b.emit(OPS["pow"], *ids, attrs={"exponent": 0.0}), *ids)

    assert_as_torch(Case((ENDS,), trace, lambda t, x: x.pow(0) + x), 0)


PAIRS: dict[str, tuple[Attrs, Callable[..., Any]]] = {
    "add": ({}, lambda t, a, b: a + b),
    "subtract": ({}, lambda t, a, b: a - b),
    "multiply": ({}, lambda t, a, b: a * b),
    "divide": ({}, lambda t, a, b: a / b),
    "maximum": ({}, lambda t, a, b: t.maximum(a, b)),
    "minimum": ({}, lambda t, a, b: t.minimum(a, b)),
    "maximum of the first": ({"first": True}, lambda t, a, b: t.clamp(a, min=b)),
    "minimum of the first": ({"first": True}, lambda t, a, b: t.clamp(a, max=b)),
    "remainder": ({"to": "floor"}, lambda t, a, b: t.remainder(a, b)),
    "remainder, fmod": ({"to": "trunc"}, lambda t, a, b: t.fmod(a, b)),
    "power": ({}, lambda t, a, b: a.abs() ** b),
}


@pytest.mark.parametrize("name", PAIRS)
@pytest.mark.parametrize("seed", range(8))
def test_arithmetic_broadcasts(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    whole = shape_of(rng)
    shapes = []
    for _ in range(2):
        kept = [n if rng.random() < 0.6 else 1 for n in whole]
        shapes.append(tuple(kept[rng.integers(0, len(kept)) :]))
    shapes[seed % 2] = whole
    first, second = (normal(rng, *shape) for shape in shapes)
    second = (second + np.copysign(np.float32(0.5), second)).astype(np.float32)
    first = np.abs(first) if name == "power" else 4.0 * first
    attrs, expected = PAIRS[name]
    trace = one(name.split()[0].strip(","), attrs)
    assert_as_torch(Case((first.astype(np.float32), second), trace, expected), seed)


@pytest.mark.parametrize("name", [name for name in PAIRS if "m" in name[:2]])
def test_equal_values_share_the_gradient_as_in_torch(name: str) -> None:
    rng = np.random.default_rng(0)
    first, second = rng.integers(-1, 2, (2, 6, 7)).astype(np.float32)
    assert 10 < (first == second).sum() < 32
    attrs, expected = PAIRS[name]
    assert_as_torch(Case((first, second), one(name.split()[0], attrs), expected), 0)


TRIPLES: dict[str, tuple[Attrs, Callable[..., Any]]] = {
    "addcmul": ({"value": 0.7}, lambda t, x, a, b: t.addcmul(x, a, b, value=0.7)),
    "addcdiv": ({"value": 0.7}, lambda t, x, a, b: t.addcdiv(x, a, b, value=0.7)),
    "lerp": ({}, lambda t, x, a, b: t.lerp(x, a, b)),
}


@pytest.mark.parametrize("name", TRIPLES)
@pytest.mark.parametrize("seed", range(4))
def test_ops_of_three_broadcast(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    whole = shape_of(rng)
    shapes = [whole, whole[1:], (1, *whole[1:])]
    arrays = [normal(rng, *shapes[place]) for place in rng.permutation(3)]
    arrays[2] = (arrays[2] + np.copysign(np.float32(0.5), arrays[2])).astype(np.float32)
    attrs, expected = TRIPLES[name]
    assert_as_torch(Case(tuple(arrays), one(name, attrs), expected), seed)


@pytest.mark.parametrize("name", ["sum", "mean"])
@pytest.mark.parametrize("keepdim", [False, True])
def test_reductions(name: str, keepdim: bool) -> None:
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        shape = shape_of(rng)
        count = int(rng.integers(1, len(shape) + 1))
        axes = tuple(int(a) - len(shape) * (seed % 2) for a in rng.permutation(len(shape))[:count])
        attrs = {"axes": axes, "keepdim": keepdim}

        def expected(t: Any, x: Any, axes: tuple[int, ...] = axes) -> Any:
            return getattr(t, name)(x, axes, keepdim)

        assert_as_torch(Case((normal(rng, *shape),), one(name, attrs), expected), seed)


def test_broadcasting_to_a_shape() -> None:
    for shape, wanted in (((3, 1), (4, 3, 2)), ((1, 5), (6, 5)), ((4,), (2, 3, 5, 4))):
        x = normal(np.random.default_rng(0), *shape)
        case = Case(
            (x,), one("broadcast_to", {"shape": wanted}), lambda t, x, w=wanted: x.expand(w)
        )
        assert_as_torch(case, 0)


def test_slices_and_joins() -> None:
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        shape = tuple(int(n) for n in rng.integers(5, 9, rng.integers(2, 5)))
        axis, step = int(rng.integers(0, len(shape))), int(rng.integers(1, 3))
        attrs = {"axis": axis, "start": 1, "stop": shape[axis] - 1, "step": step}

        def cut(t: Any, x: Any, at: Attrs = attrs) -> Any:
            places = [slice(None)] * x.ndim
            places[at["axis"]] = slice(at["start"], at["stop"], at["step"])
            return x[tuple(places)]

        assert_as_torch(Case((normal(rng, *shape),), one("slice", attrs), cut), seed)
        parts = [normal(rng, *shape[:axis], int(n), *shape[axis + 1 :]) for n in (2, 1, 3)]
        join = one("concatenate", {"axis": axis - len(shape)})
        assert_as_torch(Case(tuple(parts), join, lambda t, *x, a=axis: t.cat(x, a)), seed)


@pytest.mark.parametrize("padding", [None, 2])
def test_embedding(padding: int | None) -> None:
    """Numbers repeat, and some rows are not used."""
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        table = normal(rng, 9, int(rng.integers(2, 6)))
        numbers = rng.integers(0, 7, tuple(rng.integers(2, 7, rng.integers(1, 4)))).astype(
            np.float32
        )

        def expected(t: Any, table: Any, numbers: Any) -> Any:
            return t.nn.functional.embedding(numbers.long(), table, padding_idx=padding)

        attrs = {} if padding is None else {"padding_index": padding}
        assert_as_torch(Case((table, numbers), one("embedding", attrs), expected, fixed=(1,)), seed)


def test_masks() -> None:
    for seed in range(DRAWS):
        rng = np.random.default_rng(seed)
        x, y = normal(rng, 2, 3, 4, 5), normal(rng, 3, 1, 5)
        mask = (rng.random((4, 5)) < 0.5).astype(np.float32)
        drop = one("dropout", {"p": 0.5})
        assert_as_torch(Case((x, mask * 2), drop, lambda t, x, m: x * m, fixed=(1,)), seed)
        fill = one("masked_fill", {"value": -7.0})
        case = Case((x, mask), fill, lambda t, x, m: x.masked_fill(m != 0, -7.0), fixed=(1,))
        assert_as_torch(case, seed)
        case = Case(
            (mask, x, y), one("where"), lambda t, m, a, b: t.where(m != 0, a, b), fixed=(0,)
        )
        assert_as_torch(case, seed)
