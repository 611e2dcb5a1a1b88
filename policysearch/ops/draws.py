"""Values drawn anew in every step, and the format that they are read in."""

from __future__ import annotations

import numpy as np

from policysearch.graph import Example, Op
from policysearch.ops.source import pinned_cast

like = Op(
    "like",
    lambda inputs, attrs: inputs[1],
    lambda inputs, attrs: inputs[1],
    gradients=(None, lambda b, node, grad: b.emit(pinned_cast, grad)),
    flops=lambda inputs, out, attrs: 0,
    example=lambda rng: Example(
        (np.zeros((2, 3), np.float32), rng.standard_normal((4,)).astype(np.float32))
    ),
    pinned=(1,),
    pointwise=False,
)
"""The second input, rounded to the format of the first."""

bernoulli = Op(
    "bernoulli",
    lambda inputs, attrs: inputs[0],
    lambda inputs, attrs: (inputs[1] < inputs[0]).astype(np.float32),
    example=lambda rng: Example(tuple(rng.random((2, 3, 4)).astype(np.float32))),
)
"""1 where the uniform draw of the second input is below the first, a probability; else 0."""
