"""Every kernel that is registered, beside what its op means: a new one is tested on arrival.

The cases are graphs of an op and its gradients: the op's own example, the variants of
`test_op_variants`, and more sizes here. The reference computes them; then each kernel is given what
the reference gave its node.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import numpy as np
import numpy.typing as npt
import pytest

from policysearch.emulator.kernels.kernel import Kernel
from policysearch.emulator.kernels.pointwise import pointwise_kernel
from policysearch.emulator.kernels.registry import TABLES, offered, offers
from policysearch.emulator.plan import rows_of, runs_in_spans
from policysearch.emulator.reference import Reference
from policysearch.formats import FORMATS
from policysearch.graph import Attrs, FloatArray, Graph, Node, Shape, size
from policysearch.layout import empty, leading_axis, stored_flat
from policysearch.ops.catalogue import OPS
from policysearch.rounding.rounder import rounder
from tests.test_op_variants import VARIANTS, variant_graph

POINTWISE = "pointwise"
SPECIAL = np.array([0.0, -0.0, 1.0, -1.0, 1e-40, 3e38, np.inf, -np.inf, np.nan], np.float32)
SHAPES: tuple[Shape, ...] = (
    *((1, 1), (1, 40), (40, 1), (3, 2), (64, 64), (65, 7), (130, 16), (17, 300), (16, 1000)),
    *((70, 33), (33, 512), (2, 5, 7), (70, 33, 32), (3, 1, 17), (1, 2, 300)),
    *((2, 3, 4, 5), (5, 4, 3, 40), (33, 2, 2, 1), (1, 2, 30, 17), (70, 3, 5, 4), (17, 2, 9, 1)),
    *((2, 3, 4, 5, 6), (1, 2, 1, 2, 40)),
)
POOLS = tuple(
    ((batch, channels, high, wide), {"window": window, "stride": stride})
    for window in (2, 3)
    for stride in (1, 2, 3)
    for channels, high, wide in ((1, window, window), (3, 6, 6), (2, 7, 6), (2, 6, 7), (2, 8, 5))
    for batch in (1, 7, 16, 31, 70)
)
Case = tuple[str, tuple[Shape, ...], Attrs]


def _in_blocks(shape: Shape) -> Iterator[Case]:
    """Yield blocks along every axis, whole and with a shorter one at the end, and squares."""
    yield "amax", (shape,), {}
    for axis, block in ((0, 16), (1, 3), (len(shape) - 1, 32), (len(shape) - 2, 128)):
        cut = tuple(-(-n // block) if i == axis else n for i, n in enumerate(shape))
        yield "amax", (shape,), {"axes": (axis,), "block": block}
        yield "amax", (shape,), {"axes": (axis,)}
        for name in ("block_cast", "dequantise"):
            yield name, (shape, cut), {"axis": axis, "block": block}
            yield name, (shape, cut, ()), {"axis": axis, "block": block}
    square = tuple(-(-n // 16) if i < 2 else n for i, n in enumerate(shape))
    yield "block_cast", (shape, square), {"axis": 1, "block": 16, "across": (0, 16)}
    yield (
        "block_cast",
        (shape, square),
        {"axis": 0, "block": 16, "across": (1, 16), "multiplies": 1},
    )
    if len(shape) in (2, 3):
        *lead, rows, depth = shape
        for flip in (False, True):
            other = (*lead, 9, depth) if flip else (*lead, depth, 9)
            axis, of_other = len(shape) - 1, len(shape) - 1 if flip else len(shape) - 2
            scales = (*lead, rows, -(-depth // 16)), (*lead, 9, -(-depth // 16))
            second = scales[1] if flip else (*lead, -(-depth // 16), 9)
            attrs = {"transpose_b": flip, "blocks": ((0, axis, 16), (1, of_other, 16))}
            yield "matmul_blocks", (shape, other, scales[0], second), attrs


def _more() -> Iterator[Case]:
    for shape in SHAPES:
        owned = (shape[-1:],) * 2
        yield "layer_norm", (shape, (*shape[:-1], 2), *owned), {}
        yield "layer_norm", (shape, (*shape[:-1], 2)), {}
        yield from (("layer_statistics", (shape,), {"epsilon": e}) for e in (1e-5, 1e-3))
        yield from (("softmax", (shape,), {"empty_rows": empty}) for empty in (False, True))
        yield from (("gelu", (shape,), {"form": form}) for form in ("erf", "tanh"))
        yield from ((name, (shape,), {}) for name in ("relu", "silu", "tanh", "sigmoid"))
        yield "add", (shape, shape), {}
        if len(shape) in (2, 4):
            yield "bias", (shape, shape[1:2]), {}
            yield "batch_norm", (shape, *(shape[1:2],) * 4), {"training": True}
            yield "batch_variance", (shape,), {}
        yield from _in_blocks(shape)
    yield from (("max_pool", (shape,), attrs) for shape, attrs in POOLS)
    for batch in (1, 7, 33):
        for image, weight, attrs in (
            ((1, 32, 32), (6, 1, 5, 5), {}),
            ((6, 14, 14), (16, 6, 5, 5), {"padding": 2}),
            ((6, 14, 14), (16, 6, 5, 5), {"stride": 2, "padding": 1}),
        ):
            yield "conv2d", ((batch, *image), weight), attrs


def _cases() -> dict[str, Case]:
    """Return all cases by name; an example stands for itself, its values count."""
    found = dict(VARIANTS)
    found |= {
        f"{name} {shapes} {dict(attrs)}": (name, shapes, attrs) for name, shapes, attrs in _more()
    }
    for op in OPS.values():
        if op.example is not None:
            example = op.example(np.random.default_rng(0))
            found[op.name] = op.name, tuple(x.shape for x in example.inputs), example.attrs
    return found


CASES = _cases()


@cache
def _ops_in(case: str) -> frozenset[str]:
    return frozenset(node.op.name for node in variant_graph(*CASES[case], "float32").nodes)


def _computed(case: str, *, special: bool) -> tuple[Graph, dict[int, FloatArray]]:
    """Return the graph of a case and all its values, from random inputs, `special` ones among them.

    Of an example the inputs are its own.
    """
    name, graph = CASES[case][0], variant_graph(*CASES[case], "float32")
    reference, rng = Reference(graph, 0, {}, None), np.random.default_rng(0)
    for array in reference.arrays.values():
        array[...] = rng.standard_normal(array.shape)
        if special:
            taken = rng.random(array.shape) < 0.02
            array[taken] = rng.choice(SPECIAL, array.shape)[taken]
    example = OPS[name].example
    if case == name and example is not None:
        for place, x in enumerate(example(np.random.default_rng(0)).inputs):
            reference.arrays[f"x{place}"][...] = x
    reference.forward_backward()
    return graph, reference._values


def _bits(array: FloatArray, name: str) -> npt.NDArray[np.uint32]:
    """Return the bits, NaNs made one; those of relu are told apart, as their sign decides."""
    one_nan = not name.startswith("relu")
    same = np.where(np.isnan(array), np.float32(np.nan), array) if one_nan else array
    return np.ascontiguousarray(same).view(np.uint32)


def _run(
    kernel: Kernel, node: Node, inputs: list[FloatArray], out: FloatArray, **more: object
) -> None:
    """Run the kernel, from scratch that held NaNs."""
    attrs = node.attributes | more
    work = np.full(kernel.work([x.shape for x in inputs], out.shape, attrs), np.nan, np.float32)
    with np.errstate(all="ignore"):
        kernel.bind(inputs, out, attrs, work)()


def _assert_bits(kernel: Kernel, graph: Graph, node: Node, values: dict[int, FloatArray]) -> None:
    """The kernel into an array that held something else, in place, in parts, and rounded."""
    name, expected = node.op.name, _bits(values[node.id], node.op.name)
    places = [p for p in node.op.in_place if values[node.inputs[p]].shape == node.shape]
    for place in (None, *places):
        inputs = [np.copy(values[i], order="K") for i in node.inputs]
        out = empty(node.shape) if place is None else inputs[place]
        if place is None:
            out.fill(7.0)
        _run(kernel, node, inputs, out)
        assert np.array_equal(_bits(out, name), expected), place
    inputs = [values[i] for i in node.inputs]
    if runs_in_spans(graph, node):
        out, rows = empty(node.shape), node.shape[leading_axis(node.shape)]
        row = size(node.shape) // rows
        for span in (slice(0, rows // 2 * row), slice(rows // 2 * row, rows * row)):
            part = rows_of(node.shape, span)
            if span.start < span.stop:
                cut = [x[part] if x.shape == node.shape else x for x in inputs]
                cut = [
                    x[part[1:2]] if x.ndim == 1 < len(node.shape) and x.size > 1 else x for x in cut
                ]
                _run(kernel, node, cut, out[part])
        assert np.array_equal(_bits(out, name), expected)
    for fmt in ("float16", "float8_e5m2") if kernel.rounds else ():
        own, out, rounded = rounder(FORMATS[fmt], fast="c"), empty(node.shape), empty(node.shape)
        own(stored_flat(values[node.id]), stored_flat(rounded))
        _run(kernel, node, inputs, out, grid=own.kernel_grid)
        assert np.array_equal(_bits(out, name), _bits(rounded, name)), fmt


def _kernel(table: str, node: Node, shapes: list[Shape]) -> Kernel | None:
    if table == POINTWISE:
        return pointwise_kernel(node.op, shapes, node.shape, node.attributes)
    return offered(table, node.op, shapes, node.shape, node.attributes)


ROWS = [(table, name) for table in TABLES for name in offers()[table]]
ROWS += [(POINTWISE, op.name) for op in OPS.values() if op.kind == "elementwise" and op.pointwise]


@pytest.mark.parametrize("special", [False, True], ids=["gaussian", "special"])
@pytest.mark.parametrize(("table", "name"), ROWS)
def test_kernels_have_the_bits_of_the_op(table: str, name: str, special: bool) -> None:
    served = 0
    for case in CASES:
        if name not in _ops_in(case):
            continue
        graph, values = _computed(case, special=special)
        for node in graph.nodes:
            if node.op.name == name:
                kernel = _kernel(table, node, [values[i].shape for i in node.inputs])
                served += kernel is not None
                if kernel is not None:
                    _assert_bits(kernel, graph, node, values)
    if not served:
        pytest.skip("no extension, or no case that it serves")
