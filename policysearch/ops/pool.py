"""Max and average pooling over windows of [batch, channels, height, width]."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np

from policysearch.graph import (
    Attrs,
    Builder,
    Example,
    FloatArray,
    Node,
    Op,
    Shape,
    size,
)


def _shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    n, c, h, w = inputs[0]
    k, s = attrs["window"], attrs.get("stride", attrs["window"])
    return (n, c, (h - k) // s + 1, (w - k) // s + 1)


def _windows(image: FloatArray, out: FloatArray, attrs: Attrs) -> Iterator[FloatArray]:
    """Yield, for each place in the window, the image values there: views shaped as `out`."""
    k, s = attrs["window"], attrs.get("stride", attrs["window"])
    high, wide = out.shape[2], out.shape[3]
    for i in range(k):
        for j in range(k):
            yield image[:, :, i : i + (high - 1) * s + 1 : s, j : j + (wide - 1) * s + 1 : s]


def _like(array: FloatArray, work: FloatArray, part: int = 0) -> FloatArray:
    start = part * array.size
    return np.ndarray(array.shape, np.float32, work[start:], strides=array.strides)


def _bind_max(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    first, *rest = _windows(inputs[0], out, attrs)

    def run() -> None:
        if not rest:
            np.copyto(out, first)
            return
        np.maximum(first, rest[0], out=out)
        for window in rest[1:]:
            np.maximum(out, window, out=out)

    return run


def _bind_max_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    """The first maximum of a window, in row order, takes the whole gradient, as in torch.

    Ties are common on coarse formats. `left` is what no earlier place has taken.
    """
    grad, image, y = inputs
    places = list(zip(_windows(image, y, attrs), _windows(out, y, attrs), strict=True))
    apart = attrs.get("stride", attrs["window"]) >= attrs["window"]
    left, taken, hit = _like(grad, work, 0), _like(grad, work, 1), np.empty_like(grad, np.bool_)

    def run() -> None:
        if not covered:
            out.fill(0.0)
        np.copyto(left, grad)
        for window, target in places:
            np.equal(window, y, out=hit)
            if apart:
                np.multiply(left, hit, out=target)
                np.subtract(left, target, out=left)
            else:
                np.multiply(left, hit, out=taken)
                np.add(target, taken, out=target)
                np.subtract(left, taken, out=left)

    covered = apart and out.size == len(places) * y.size
    return run


def _emit_max_grad(b: Builder, node: Node, grad: int) -> int:
    return b.emit(max_pool_grad, grad, node.inputs[0], node.id, attrs=node.attributes)


max_pool_grad = Op(
    "max_pool_grad",
    shape=lambda inputs, attrs: inputs[1],
    bind=_bind_max_grad,
    flops=lambda inputs, out, attrs: 3 * size(out),
    keeps_format=True,
    work=lambda inputs, out, attrs: 2 * size(inputs[0]),
)


def _example(rng: np.random.Generator) -> Example:
    """Distinct values 0.1 apart, so that no maximum changes under a small difference."""
    order = rng.permutation(2 * 3 * 6 * 6).reshape(2, 3, 6, 6)
    return Example(((order * 0.1).astype(np.float32),), {"window": 2, "stride": 2})


max_pool = Op(
    "max_pool",
    _shape,
    _bind_max,
    gradients=(_emit_max_grad,),
    flops=lambda inputs, out, attrs: attrs["window"] ** 2 * size(out),
    example=_example,
    keeps_format=True,
)


def _bind_average(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    windows = list(_windows(inputs[0], out, attrs))
    share = np.float32(1.0 / len(windows))

    def run() -> None:
        np.copyto(out, windows[0])
        for window in windows[1:]:
            np.add(out, window, out=out)
        np.multiply(out, share, out=out)

    return run


def _bind_average_grad(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Callable[[], object]:
    grad = inputs[0]
    windows = list(_windows(out, grad, attrs))
    share, part = np.float32(1.0 / len(windows)), _like(grad, work)

    def run() -> None:
        out.fill(0.0)
        np.multiply(grad, share, out=part)
        for window in windows:
            np.add(window, part, out=window)

    return run


def _emit_average_grad(b: Builder, node: Node, grad: int) -> int:
    attrs = {**node.attributes, "shape": b.shape(node.inputs[0])}
    return b.emit(average_pool_grad, grad, attrs=attrs)


average_pool_grad = Op(
    "average_pool_grad",
    shape=lambda inputs, attrs: tuple(attrs["shape"]),
    bind=_bind_average_grad,
    work=lambda inputs, out, attrs: size(inputs[0]),
)
average_pool = Op(
    "average_pool",
    _shape,
    _bind_average,
    gradients=(_emit_average_grad,),
    flops=lambda inputs, out, attrs: attrs["window"] ** 2 * size(out),
    example=lambda rng: Example(
        (rng.standard_normal((2, 3, 6, 6)).astype(np.float32),), {"window": 3, "stride": 2}
    ),
)
