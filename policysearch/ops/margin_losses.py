"""Losses of each score or distance, by the side of a margin that it is to be on.

Source: torch 2.13, `aten/src/ATen/native/Loss.cpp`.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np

from policysearch.graph import Attrs, FloatArray
from policysearch.ops.paired_losses import paired_loss

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


def _sides(rng: np.random.Generator) -> tuple[FloatArray, FloatArray]:
    """Numbers away from 0 and from a margin of 1, and for each the side it is to be on, 1 or -1."""
    signs = rng.choice(np.array([-1.0, 1.0], np.float32), (3, 5))
    return rng.choice(np.array([-1.7, -0.6, 0.4, 0.7, 1.3], np.float32), (3, 5)), signs


def _margin(attrs: Attrs) -> np.float32:
    return np.float32(attrs.get("margin", 0.0))


def _hinge_embedding(x: FloatArray, y: FloatArray, attrs: Attrs) -> Any:
    far = np.where(y != 1, np.maximum(_margin(attrs) - x, _ZERO), _ZERO)
    return far + np.where(y != -1, x, _ZERO)


def _hinge_embedding_slope(x: FloatArray, y: FloatArray, attrs: Attrs) -> Any:
    far = (y != 1) & (_margin(attrs) - x >= 0)
    return (y != -1).astype(np.float32) - far.astype(np.float32)


def _cosine_embedding(x: FloatArray, y: FloatArray, attrs: Attrs) -> Any:
    apart = np.where(y == -1, np.maximum(x - _margin(attrs), _ZERO), _ZERO)
    return apart + np.where(y == 1, _ONE - x, _ZERO)


def _cosine_embedding_slope(x: FloatArray, y: FloatArray, attrs: Attrs) -> Any:
    apart = (y == -1) & (x >= _margin(attrs))
    return apart.astype(np.float32) - (y == 1).astype(np.float32)


hinge_embedding = paired_loss(
    "hinge_embedding",
    _hinge_embedding,
    _hinge_embedding_slope,
    inputs=_sides,
    attrs=MappingProxyType({"margin": 1.0}),
)
"""A distance x where y is 1, and by how much it falls short of `margin` where y is -1."""
cosine_embedding = paired_loss(
    "cosine_embedding",
    _cosine_embedding,
    _cosine_embedding_slope,
    inputs=_sides,
    attrs=MappingProxyType({"margin": 1.0}),
)
"""1 - x of a cosine x where y is 1, and by how much it exceeds `margin` where y is -1."""
