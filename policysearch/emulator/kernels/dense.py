"""Matrix products written where they are wanted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from types import MappingProxyType

import numpy as np

from policysearch.emulator.kernels.kernel import Kernel, Offer, Run
from policysearch.graph import Attrs, FloatArray, Shape, size
from policysearch.ops.dense import transposed


def _bind_matmul(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    product = attrs.get("product", np.matmul)
    left, right = transposed(inputs[0], inputs[1], attrs)
    return lambda: product(left, right, out=out)


def _bind_stacks(
    inputs: Sequence[FloatArray], out: FloatArray, attrs: Attrs, work: FloatArray
) -> Run:
    """Copies, as the first axis of four is stored last and BLAS wants a matrix in one piece."""
    product, arrays = attrs.get("product", np.matmul), (*inputs, out)
    ends = pairwise(accumulate((array.size for array in arrays), initial=0))
    a, b, result = (
        work[start:stop].reshape(array.shape)
        for (start, stop), array in zip(ends, arrays, strict=True)
    )
    left, right = transposed(a, b, attrs)

    def run() -> None:
        np.copyto(a, inputs[0])
        np.copyto(b, inputs[1])
        product(left, right, out=result)
        np.copyto(out, result)

    return run


def _matmul(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel:
    if len(out) != 4:
        return Kernel(_bind_matmul)
    return Kernel(_bind_stacks, lambda inputs, out, attrs: size(out) + sum(map(size, inputs)))


NUMPY_KERNELS: Mapping[str, Offer] = MappingProxyType({"matmul": _matmul})
