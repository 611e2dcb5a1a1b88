"""Comparisons and logic: truth values, 1 or 0, of two tensors or of one and a number."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from policysearch.graph import Attrs, Example, FloatArray, Op
from policysearch.ops.elementwise import broadcast

RELATIONS: Mapping[str, Callable[..., Any]] = MappingProxyType(
    {
        "equal": np.equal,
        "not_equal": np.not_equal,
        "less": np.less,
        "less_equal": np.less_equal,
        "greater": np.greater,
        "greater_equal": np.greater_equal,
        "and": np.logical_and,
        "or": np.logical_or,
        "xor": np.logical_xor,
    }
)
"""By name; the last three read what is not 0 as true."""


def _compare(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    number = () if len(inputs) > 1 else (np.float32(attrs["number"]),)
    truths = RELATIONS[attrs["relation"]](*inputs, *number)
    return truths.astype(np.float32)


compare = Op(
    "compare",
    broadcast,
    _compare,
    example=lambda rng: Example(
        (
            rng.integers(0, 3, (2, 3, 5)).astype(np.float32),
            rng.integers(0, 3, (3, 1)).astype(np.float32),
        ),
        {"relation": "less"},
    ),
)
"""Where the `relation`, a key of RELATIONS, holds: of two tensors, or of one and a `number`.

The values are compared as they are; no gradient passes.
"""
