"""Layer normalisation and its gradients in the C extension `_layer_norm`: the bits of numpy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType

from policysearch.emulator.kernels.kernel import Kernel, Offer
from policysearch.emulator.kernels.tiles import extents, tile_rows
from policysearch.graph import Attrs, FloatArray, Shape
from policysearch.layout import stored_view
from policysearch.ops.folding import LANES
from policysearch.ops.layer_norm import EPSILON

try:
    import policysearch.emulator.kernels._layer_norm as _layer_norm
except ImportError:
    _layer_norm = None

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
    return partial(getattr(_layer_norm, name), *arrays, *extents(shape), epsilon)


def _work(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> int:
    """Three tiles, two rows of one, and the lanes that the gradient of the weight sums in."""
    length = inputs[0][-1]
    return tile_rows(length) * (3 * length + 2) + LANES * length


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
