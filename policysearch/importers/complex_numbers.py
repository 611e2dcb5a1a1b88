"""Import rules: complex numbers by their parts, and Fourier transforms.

torch has no complex numbers of 16 bits, and its autocast leaves those of float32 as they are: what
is computed of them is float32 under every policy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import numpy as np

from policysearch.importers.elementwise import add, divide, multiply, negative, plain, subtract
from policysearch.importers.program import COMPLEX
from policysearch.importers.shapes import expand, moved, select, stack, unsqueeze
from policysearch.importers.tracer import Complex, Rule, Tensor, Tracer, refuse
from policysearch.ops import exponentials, fourier, trigonometry
from policysearch.ops.complex_product import complex_product
from policysearch.ops.composite import FLOAT32_ALONE

MOVES = (
    *("view", "reshape", "_unsafe_view", "flatten", "unflatten", "unsqueeze", "squeeze", "permute"),
    *("transpose", "t", "numpy_T", "mT", "swapaxes", "swapdims", "movedim", "moveaxis", "ravel"),
    *("expand", "expand_as", "broadcast_to", "broadcast_tensors", "repeat", "repeat_interleave"),
    *("tile", "roll", "flip", "slice", "select", "narrow", "index", "index_select", "gather"),
    *("take_along_dim", "cat", "concat", "concatenate", "stack", "hstack", "vstack", "chunk"),
    *("split", "split_with_sizes", "unbind", "tensor_split", "clone", "contiguous", "alias"),
    *("detach", "lift_fresh_copy", "constant_pad_nd", "pad", "unfold", "diagonal", "tril", "triu"),
    *("getitem", "view_as", "reshape_as", "zeros_like", "new_zeros", "empty_like", "new_empty"),
    *("slice_scatter", "select_scatter", "copy", "zero", "type_as", "as_strided"),
)
LINEAR = (*MOVES, "neg", "negative", "positive", "sum", "mean", "cumsum", "where", "index_put")
"""Ops of which the parts of the result are those of the parts."""

NUMBERED = MappingProxyType({"add": 1, "sub": 1, "subtract": 1, "masked_fill": 2, "fill": 1})
"""Such ops with a number, and where it stands: it is added to the real part."""

BILINEAR = ("matmul", "mm", "bmm", "mv", "dot", "einsum", "outer")

SAME = ("resolve_conj", "resolve_neg")


def is_complex(value: Any) -> bool:
    """Return whether an argument is a complex number or tensor, or holds one."""
    if isinstance(value, list | tuple):
        return any(map(is_complex, value))
    return isinstance(value, Complex | complex) or (isinstance(value, str) and value == COMPLEX)


def complex_rule(name: str, rule: Rule | None) -> Rule:
    """Return the rule of an op of complex numbers; `rule` is that of real ones."""
    name = name.removesuffix("_")
    if name in RULES or name in ("mul", "multiply"):
        return RULES.get(name, times)
    if name in OWN:
        return partial(_wide, OWN[name])
    if rule is None or name not in (*LINEAR, *NUMBERED, *BILINEAR):
        raise refuse("complex numbers", "compute it of their real and imag parts")
    if name in BILINEAR:
        return partial(_wide, partial(_products, rule))
    return partial(_wide, partial(_by_parts, rule, NUMBERED.get(name)))


def _wide(rule: Rule, t: Tracer, *arguments: Any, **options: Any) -> Any:
    """Emit what a rule does in float32, whatever the policy."""
    start = len(t.b.nodes)
    result = rule(t, *arguments, **options)
    t.list_under(FLOAT32_ALONE, start)
    return result


def _half(t: Tracer, value: Any, place: int) -> Any:
    """Return the real parts, at place 0, or the imaginary ones of an argument."""
    if isinstance(value, list | tuple):
        return type(value)(_half(t, part, place) for part in value)
    if isinstance(value, Complex):
        return select(t, value.parts, -1, place)
    if isinstance(value, Tensor) and place and not t.is_whole(value):
        return Tensor(t.filled(0.0, value.shape), value.shape)
    return value


def _by_parts(rule: Rule, number: int | None, t: Tracer, *arguments: Any, **options: Any) -> Any:
    halves = []
    for place in range(2):
        given = [_half(t, x, place) for x in arguments]
        if number is not None and number < len(given) and not isinstance(given[number], Tensor):
            given[number] = (given[number].real, given[number].imag)[place]
        halves.append(rule(t, *given, **options))
    if isinstance(halves[0], tuple):
        return tuple(joined(t, *pair) for pair in zip(*halves, strict=True))
    return joined(t, *halves)


def _products(rule: Rule, t: Tracer, *arguments: Any, **options: Any) -> Complex:
    """Emit a product of two operands, linear in each, by products of their parts."""
    nested = isinstance(arguments[1], tuple)
    before, (a, b, *more) = (arguments[:1], arguments[1]) if nested else ((), arguments)
    if more:
        raise refuse("a product of more than two complex operands", "multiply pair by pair")

    def product(*pair: Tensor) -> Tensor:
        result: Tensor = rule(t, *before, pair, **options) if nested else rule(t, *pair, **options)
        return result

    if not (isinstance(a, Complex) and isinstance(b, Complex)):
        halves = ((_half(t, a, 0), _half(t, b, 0)), (_imaginary(t, a), _imaginary(t, b)))
        return joined(t, *(product(*pair) for pair in halves))
    (ar, ai), (br, bi) = ([_half(t, x, place) for place in range(2)] for x in (a, b))
    real = subtract(t, product(ar, br), product(ai, bi))
    return joined(t, real, add(t, product(ar, bi), product(ai, br)))


def _imaginary(t: Tracer, x: Any) -> Tensor:
    """Return the imaginary parts of complex numbers, real ones as they are."""
    half: Tensor = _half(t, x, 1) if isinstance(x, Complex) else x
    return half


def times(t: Tracer, a: Any, b: Any) -> Any:
    """Multiply elements; complex ones by their parts."""
    if isinstance(a, complex) or isinstance(b, complex):
        number, x = (a, b) if isinstance(a, complex) else (b, a)
        return _wide(_complex_multiple, t, x, number)
    if not isinstance(a, Complex):
        return times(t, b, a)
    if not isinstance(b, Complex):
        return Complex(multiply(t, a.parts, _on_parts(t, b)))
    if t.is_trained(b.parts) and not t.is_trained(a.parts):
        a, b = b, a
    lead = tuple(np.broadcast_shapes(a.parts.shape, b.parts.shape))
    return Complex(t.emit(complex_product, expand(t, a.parts, lead), b.parts))


def _complex_multiple(t: Tracer, x: Any, number: complex) -> Complex:
    real = multiply(t, _half(t, x, 0), number.real)
    if not isinstance(x, Complex):
        return joined(t, real, multiply(t, x, number.imag))
    imaginary = _half(t, x, 1)
    real = subtract(t, real, multiply(t, imaginary, number.imag))
    turned = multiply(t, _half(t, x, 0), number.imag)
    return joined(t, real, add(t, multiply(t, imaginary, number.real), turned))


def _on_parts(t: Tracer, x: Any) -> Any:
    return t.view(x, (*x.shape, 1)) if isinstance(x, Tensor) else x


def _quotient(t: Tracer, a: Any, b: Any) -> Complex:
    if not isinstance(b, Complex):
        return Complex(divide(t, a.parts, _on_parts(t, b)))
    over = times(t, _conjugate(t, b), a)
    return Complex(divide(t, over.parts, unsqueeze(t, _square(t, b), -1)))


def _square(t: Tracer, x: Complex) -> Tensor:
    """Return |x|^2."""
    real, imaginary = (multiply(t, part, part) for part in (_half(t, x, 0), _half(t, x, 1)))
    return add(t, real, imaginary)


def _conjugate(t: Tracer, x: Any) -> Any:
    if not isinstance(x, Complex):
        return x
    return joined(t, _half(t, x, 0), negative(t, _half(t, x, 1)))


def _adjoint(t: Tracer, x: Complex) -> Complex:
    return Complex(moved(t, _conjugate(t, x).parts, -2, -3))


def _exponential(t: Tracer, x: Complex) -> Complex:
    return _polar(t, plain(exponentials.exp)(t, _half(t, x, 0)), _half(t, x, 1))


def _polar(t: Tracer, length: Tensor, angle: Tensor) -> Complex:
    turned = (plain(op)(t, angle) for op in (trigonometry.cos, trigonometry.sin))
    return joined(t, *(multiply(t, length, part) for part in turned))


def _power(t: Tracer, x: Complex, exponent: Any) -> Complex:
    if not isinstance(exponent, int) or exponent < 1:
        raise refuse(f"complex numbers to the power {exponent}", "multiply them")
    result = x
    for _ in range(exponent - 1):
        result = times(t, result, x)
    return result


def _length(t: Tracer, x: Complex) -> Tensor:
    """Return |x|, whose gradient is 0 where x is."""
    from policysearch.importers.reductions import RULES as reductions

    length: Tensor = reductions["linalg_vector_norm"](t, x.parts, 2, (-1,))
    return length


def _parts(t: Tracer, x: Any) -> Tensor:
    if not isinstance(x, Complex):
        raise refuse("view_as_real of real numbers", "give it complex ones")
    return x.parts


def joined(t: Tracer, real: Tensor, imaginary: Tensor) -> Complex:
    return Complex(stack(t, (real, imaginary), -1))


def _as_complex(t: Tracer, x: Any, *_: Any, **__: Any) -> Complex:
    return x if isinstance(x, Complex) else joined(t, x, _half(t, x, 1))


def part_of(place: int) -> Rule:
    """Return the rule of the real parts, at place 0, or of the imaginary ones, at 1."""

    def rule(t: Tracer, x: Any) -> Tensor:
        return x if isinstance(x, Tensor) and not place else select(t, _parts(t, x), -1, place)

    return rule


def _factor(normalization: int, count: int) -> float:
    """Return what torch's `normalization` (0: none, 1: by the root, 2: by the count) divides by."""
    return (1.0, 1 / math.sqrt(count), 1 / count)[normalization]


def _along(
    t: Tracer, x: Complex, axes: Sequence[int], normalization: int, inverse: bool
) -> Complex:
    parts = x.parts
    for axis in axes:
        factor = _factor(normalization, parts.shape[axis])
        parts = t.emit(fourier.fourier, parts, axis=axis, inverse=inverse, factor=factor)
    return Complex(parts)


def _axes(axes: Sequence[int], rank: int) -> list[int]:
    return [axis % rank for axis in axes]


def transform(t: Tracer, x: Any, dim: Sequence[int], normalization: int, forward: bool) -> Complex:
    x = _as_complex(t, x)
    return _along(t, x, _axes(dim, len(x.shape)), normalization, not forward)


def spectrum(
    t: Tracer, x: Tensor, dim: Sequence[int], normalization: int, onesided: bool
) -> Complex:
    """The last axis as real numbers, the others as complex ones, as torch transforms them."""
    if not onesided:
        return transform(t, x, dim, normalization, True)
    *others, last = _axes(dim, len(x.shape))
    extent = x.shape[last]
    attrs: dict[str, Any] = {"axis": last, "extent": extent, "doubled": False}
    parts = t.emit(fourier.real_fourier, x, factor=_factor(normalization, extent), **attrs)
    return _along(t, Complex(parts), others, normalization, False)


def signal(t: Tracer, x: Complex, dim: Sequence[int], normalization: int, extent: int) -> Tensor:
    *others, last = _axes(dim, len(x.shape))
    x = _along(t, x, others, normalization, True)
    attrs: dict[str, Any] = {"axis": last, "extent": extent, "doubled": True}
    factor = _factor(normalization, extent)
    return t.emit(fourier.inverse_real_fourier, x.parts, factor=factor, **attrs)


OWN: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        **dict.fromkeys(("div", "true_divide"), _quotient),
        **dict.fromkeys(("_conj", "conj", "conj_physical", "_conj_physical"), _conjugate),
        **dict.fromkeys(("adjoint", "mH"), _adjoint),
        **dict.fromkeys(("abs", "absolute"), _length),
        "exp": _exponential,
        "pow": _power,
        "square": lambda t, x: _power(t, x, 2),
        **dict.fromkeys(("to", "_to_copy"), _as_complex),
    }
)
"""Rules of complex numbers that are not those of their parts."""

RULES: Mapping[str, Rule] = MappingProxyType(
    {
        "view_as_complex": lambda t, x: Complex(x),
        "view_as_real": _parts,
        "complex": joined,
        "polar": lambda t, length, angle: _wide(_polar, t, length, angle),
        "real": part_of(0),
        "imag": part_of(1),
        **dict.fromkeys(SAME, lambda t, x: x),
        "_fft_c2c": transform,
        "_fft_r2c": spectrum,
        "_fft_c2r": signal,
    }
)
