"""Max pooling in the C extension: the bits of numpy, and the gradient of torch where values tie."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pytest

from policysearch.emulator.compile import compile_graph
from policysearch.emulator.kernels.kernel import Kernel
from policysearch.emulator.kernels.registry import offered
from policysearch.graph import Attrs, FloatArray, Graph, Op, Shape, size
from policysearch.layout import stored
from policysearch.ops.builder import Builder, backward
from policysearch.ops.elementwise import add
from policysearch.ops.pool import max_pool
from policysearch.ops.source import data
from policysearch.rounding.rounder import Fast
from tests.rounding_oracle import FASTS

BATCHES = (*range(1, 35), 47, 48, 63, 64, 65, 70)
SPECIAL = (0.0, -0.0, 1.0, -1.0, np.inf, -np.inf, np.nan)

# (channels, height, width, window, stride): overlapping or apart; exact, or with a rest of rows,
# of columns, of both.
GEOMETRIES = tuple(
    (channels, high, wide, window, stride)
    for window in (2, 3)
    for stride in (1, 2, 3)
    for channels, high, wide in ((1, window, window), (3, 6, 6), (2, 7, 6), (2, 6, 7), (2, 8, 5))
)


def _image(values: npt.NDArray[np.generic]) -> FloatArray:
    """Return `values` [n, c, h, w] as an image in storage order."""
    image = stored(np.empty(values.size, np.float32), values.shape)
    image[...] = values
    return image


def _bits(image: FloatArray) -> npt.NDArray[np.uint32]:
    """Return the bits; any two NaNs count as equal."""
    canonical = np.where(np.isnan(image), np.float32(np.nan), image)
    return np.ascontiguousarray(canonical).view(np.uint32)


def _run(kernel: Kernel, inputs: Sequence[FloatArray], shape: Shape, attrs: Attrs) -> FloatArray:
    """Run the kernel into an array that held something else before."""
    out = stored(np.full(size(shape), 7.0, np.float32), shape)
    work = np.empty(kernel.work([image.shape for image in inputs], shape, attrs), np.float32)
    with np.errstate(all="ignore"):
        kernel.bind(inputs, out, attrs, work)()
    return out


def _in_c(op: Op, inputs: Sequence[FloatArray], shape: Shape, attrs: Attrs) -> Kernel:
    pytest.importorskip("policysearch.emulator.kernels._pooling")
    kernel = offered("C_KERNELS", op, [image.shape for image in inputs], shape, attrs)
    if kernel is None:
        pytest.skip("the extension does not serve this here")
    return kernel


def test_zeros_of_both_signs_are_told_apart() -> None:
    """Every order of zeros in a window, in every lane of numpy's loops.

    The compiled maximum rests on the claim that numpy gives the last of equal values there.
    """
    signs = np.array([[i >> bit & 1 for bit in range(4)] for i in range(16)], bool)
    zeros = np.where(signs, np.float32(-0.0), np.float32(0.0)).reshape(16, 1, 2, 2)
    for batch in BATCHES:
        x = _image(np.repeat(zeros, batch, axis=0).reshape(16, batch, 2, 2).transpose(1, 0, 2, 3))
        shape, attrs = (batch, 16, 1, 1), {"window": 2}
        y = _run(_in_c(max_pool, [x], shape, attrs), [x], shape, attrs)
        assert np.array_equal(_bits(y), _bits(np.asarray(max_pool.forward([x], attrs))))
        assert np.array_equal(np.signbit(y[:, :, 0, 0]), np.tile(signs[:, 3], (batch, 1)))


def _traced(shape: Shape, attrs: Attrs) -> Graph:
    b = Builder()
    x = b.emit(data, attrs={"shape": shape}, role="input", name="x")
    y = b.emit(max_pool, x, attrs=attrs)
    seed = b.emit(data, attrs={"shape": b.shape(y)}, role="input", name="seed")
    return b.graph({"y": y, "dx": backward(b, y, seed, [x], add)[x]})


@pytest.mark.parametrize(("window", "stride"), [(1, 1), (2, 2), (3, 2), (4, 4)])
def test_a_step_has_the_same_bits_with_and_without_the_extension(window: int, stride: int) -> None:
    graph = _traced((5, 3, 9, 8), {"window": window, "stride": stride})
    values: list[dict[str, FloatArray]] = []
    for fast in ("numpy", "c"):
        executable, rng = compile_graph(graph, fast=fast), np.random.default_rng(2)
        for image in executable.arrays.values():
            image[...] = rng.integers(-2, 3, image.shape)
        executable.forward_backward()
        values.append({name: executable.value(name).copy() for name in ("y", "dx")})
    for name, expected in values[0].items():
        assert np.array_equal(_bits(values[1][name]), _bits(expected))


def test_the_extension_serves_what_it_has_loops_for() -> None:
    pytest.importorskip("policysearch.emulator.kernels._pooling")
    for window, stride, served in ((1, 2, False), (2, 2, True), (3, 2, False), (4, 4, False)):
        graph = _traced((2, 1, 9, 9), {"window": window, "stride": stride})
        node = graph.output("dx")
        shapes = [graph.nodes[i].shape for i in node.inputs]
        kernel = offered("C_KERNELS", node.op, shapes, node.shape, node.attributes)
        assert (kernel is not None) == served


def test_the_extension_refuses_arrays_that_do_not_fit() -> None:
    extension = pytest.importorskip("policysearch.emulator.kernels._pooling")
    x, y = np.zeros((4, 3, 6, 8), np.float32), np.zeros((2, 3, 3, 8), np.float32)
    grads = extension.max_pool_grad
    grads(y, x, y, x.copy(), 2, 2)
    for wrong in (
        (y, x, y, x.copy(), 2, 1),
        (y, x, y, x.copy(), 3, 3),
        (y, x, y, x.copy(), 2, 0),
        (y, x, y, y.copy(), 2, 2),
        (x, x, y, x.copy(), 2, 2),
        (y, x.astype(np.float64), y, x.copy(), 2, 2),
        (y, x.reshape(-1), y, x.copy(), 2, 2),
        (y, x.transpose(2, 1, 0, 3), y, x.copy(), 2, 2),
    ):
        with pytest.raises((ValueError, BufferError)):
            grads(*wrong)
    with pytest.raises(TypeError):
        grads(y, x, y, x.copy(), 2)
    with pytest.raises(TypeError):
        grads(y, x, y, x.copy(), 2, "2")


@pytest.mark.torch
@pytest.mark.parametrize("fast", FASTS)
@pytest.mark.parametrize("geometry", GEOMETRIES, ids=str)
def test_gradient_on_ties_is_that_of_torch(geometry: tuple[int, ...], fast: Fast) -> None:
    torch = pytest.importorskip("torch")
    channels, high, wide, window, stride = geometry
    graph = _traced((19, channels, high, wide), {"window": window, "stride": stride})
    executable, rng = compile_graph(graph, fast=fast), np.random.default_rng(3)
    for image in executable.arrays.values():
        image[...] = rng.integers(-2, 3, image.shape)
    executable.forward_backward()
    x, seed = (torch.tensor(executable.arrays[name]) for name in ("x", "seed"))
    y = torch.nn.functional.max_pool2d(x.requires_grad_(), window, stride)
    y.backward(seed)
    assert np.array_equal(executable.value("y"), y.detach().numpy())
    assert np.array_equal(executable.value("dx"), x.grad.numpy())
