"""Discrete Fourier transforms along one axis; complex numbers have a last axis of two parts.

They are computed in float64 and rounded once: torch's kernels for float32 are within a few of its
last bits. torch has none for bfloat16, so every preset has them in float32, as autocast has.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from policysearch.graph import Attrs, Example, FloatArray, Node, Op, Shape, size
from policysearch.ops.builder import Builder

Wide = NDArray[np.float64]


def _transform_parts(parts: Any, axis: int, extent: int, *, inverse: bool) -> tuple[Wide, Wide]:
    """Return the real and the imaginary parts of a transform, of real numbers twice."""
    wide = parts.astype(np.float64)
    if inverse:
        a, b = (np.fft.ifft(wide[..., i], extent, axis, "forward") for i in range(2))
    else:
        a, b = (np.fft.fft(wide[..., i], extent, axis) for i in range(2))
    return a.real - b.imag, a.imag + b.real


def _parts(real: Wide, imaginary: Wide, factor: Any) -> FloatArray:
    return np.stack((real * factor, imaginary * factor), -1).astype(np.float32)


def _flops(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> int:
    """5 n log2 n for each transform of n complex numbers, the usual count."""
    longer = max((inputs[0], out), key=size)
    return int(5 * size(longer) * max(1.0, np.log2(max(2, longer[attrs["axis"]]))))


def _weights(attrs: Attrs, extent: int) -> NDArray[np.float64]:
    """Return how often each of the numbers of a real signal is in its whole spectrum."""
    weights = np.ones(extent)
    if attrs.get("doubled"):
        weights[1 : (attrs["extent"] + 1) // 2] = 2.0
    return weights


def _along(values: NDArray[np.float64], ndim: int, axis: int) -> NDArray[np.float64]:
    shape = [1] * ndim
    shape[axis] = -1
    return values.reshape(shape)


def _transform(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    axis = attrs["axis"]
    extent = inputs[0].shape[axis]
    parts = _transform_parts(inputs[0], axis, extent, inverse=attrs["inverse"])
    return _parts(*parts, attrs["factor"])


def _back(b: Builder, node: Node, grad: int) -> int:
    return b.emit(
        fourier, grad, attrs={**node.attributes, "inverse": not node.attributes["inverse"]}
    )


def _pairs(rng: np.random.Generator) -> Example:
    parts = rng.standard_normal((2, 5, 3, 2)).astype(np.float32)
    return Example((parts,), {"axis": 1, "inverse": False, "factor": 0.5})


fourier: Op = Op(
    "fft",
    lambda inputs, attrs: inputs[0],
    _transform,
    gradients=(_back,),
    flops=_flops,
    example=_pairs,
    kind="reduce",
    placement="fp32",
)
"""`factor` times the transform of [..., 2] along `axis`, with e^+ where it is the `inverse`."""


def _spectrum(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    axis = attrs["axis"]
    half = np.fft.rfft(inputs[0].astype(np.float64), attrs["extent"], axis)
    weights = _along(_weights(attrs, half.shape[axis]), half.ndim, axis)
    return _parts(half.real, half.imag, weights * attrs["factor"])


def _spectrum_shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    shape, axis = inputs[0], attrs["axis"]
    return (*shape[:axis], attrs["extent"] // 2 + 1, *shape[axis + 1 :], 2)


def _by_signal(b: Builder, node: Node, grad: int) -> int:
    return b.emit(inverse_real_fourier, grad, attrs=node.attributes)


real_fourier: Op = Op(
    "rfft",
    _spectrum_shape,
    _spectrum,
    gradients=(_by_signal,),
    flops=_flops,
    example=lambda rng: Example(
        (rng.standard_normal((2, 6, 3)).astype(np.float32),),
        {"axis": 1, "extent": 6, "factor": 0.5, "doubled": False},
    ),
    kind="reduce",
    placement="fp32",
)
"""The first half of the spectrum, [..., 2], of real numbers of which `axis` has `extent`.

`doubled` counts what stands for two numbers of the whole spectrum twice.
"""


def _signal(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    (parts,), axis = inputs, attrs["axis"]
    weights = _along(_weights(attrs, parts.shape[axis]), parts.ndim, axis)
    real, _ = _transform_parts(parts * weights, axis, attrs["extent"], inverse=True)
    return (real * attrs["factor"]).astype(np.float32)


def _signal_shape(inputs: Sequence[Shape], attrs: Attrs) -> Shape:
    shape, axis = inputs[0][:-1], attrs["axis"]
    return (*shape[:axis], attrs["extent"], *shape[axis + 1 :])


def _by_spectrum(b: Builder, node: Node, grad: int) -> int:
    return b.emit(real_fourier, grad, attrs=node.attributes)


inverse_real_fourier: Op = Op(
    "irfft",
    _signal_shape,
    _signal,
    gradients=(_by_spectrum,),
    flops=_flops,
    example=lambda rng: Example(
        (rng.standard_normal((2, 4, 3, 2)).astype(np.float32),),
        {"axis": 1, "extent": 7, "factor": 0.25, "doubled": True},
    ),
    kind="reduce",
    placement="fp32",
)
"""`factor` times the real numbers, `extent` along `axis`, of which this is half the spectrum.

`doubled` as for the signal of a spectrum; without, the rest of the spectrum is zeros.
"""
