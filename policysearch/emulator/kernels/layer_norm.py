"""Layer normalisation and its gradients in the C extension `_layer_norm`: the bits of numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from policysearch.emulator.kernels.kernel import Kernel, Offer
from policysearch.graph import Attrs, FloatArray, Shape
from policysearch.layout import around_last_axis, stored_view
from policysearch.ops.lanes import LANES
from policysearch.ops.layer_norm import EPSILON

try:
    import policysearch.emulator.kernels._layer_norm as _layer_norm
except ImportError:
    _layer_norm = None

MOST_WIDE = 64
"""Rows of a tile of the extension at most."""

PLACES = ("grad", "x", "weight", "bias")
"""The inputs that the extension knows, in its order."""


def _bind(
    name: str,
    places: Sequence[str],
    inputs: Sequence[FloatArray],
    out: FloatArray,
    attrs: Attrs,
    work: FloatArray,
) -> Callable[[], object]:
    given = dict(zip(places, map(stored_view, inputs), strict=False))
    arrays = *(given.get(place) for place in PLACES), stored_view(out), work
    shape = inputs[places.index("x")].shape
    epsilon = float(attrs.get("epsilon", EPSILON))
    return partial(getattr(_layer_norm, name), *arrays, *around_last_axis(shape), epsilon)


def _work(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> int:
    """Two tiles, and the lanes that the gradient of the weight sums in."""
    return inputs[0][-1] * (2 * MOST_WIDE + LANES)


def _offer(name: str, *places: str) -> Offer:
    def offer(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
        return Kernel(partial(_bind, name, places), _work) if _layer_norm else None

    return offer


KERNELS: Mapping[str, Offer] = MappingProxyType(
    {
        "layer_norm": _offer("layer_norm", "x", "weight", "bias"),
        "layer_norm_grad": _offer("layer_norm_grad", "grad", "x", "weight"),
        "layer_norm_weight_grad": _offer("layer_norm_weight_grad", "grad", "x"),
    }
)
"""By the name of the op."""
