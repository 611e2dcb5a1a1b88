"""Layer normalisation and its gradients in the C extension `_layer_norm`: the bits of numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from types import MappingProxyType

from policysearch.emulator.kernels.kernel import Kernel, Offer, Run
from policysearch.graph import Attrs, FloatArray, Shape
from policysearch.layout import around_last_axis, stored_view
from policysearch.ops.layer_norm import EPSILON
from policysearch.ops.summation import LANES
from policysearch.rounding.extension import extension

_layer_norm = extension("emulator.kernels._layer_norm")

BLOCK = 256
"""Rows that the extension sums at a time, where they are side by side in memory."""

PLACES = ("grad", "x", "statistics", "weight", "bias")
"""The inputs that the extension knows, in its order."""


def _bind(
    name: str,
    places: Sequence[str],
    inputs: Sequence[FloatArray],
    out: FloatArray,
    attrs: Attrs,
    work: FloatArray,
) -> Run:
    given = dict(zip(places, map(stored_view, inputs), strict=False))
    arrays = *(given.get(place) for place in PLACES), stored_view(out), attrs.get("beside"), work
    shape = inputs[places.index("x")].shape
    epsilon = float(attrs.get("epsilon", EPSILON))
    return partial(getattr(_layer_norm, name), *arrays, *around_last_axis(shape), epsilon)


def _work(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> int:
    """The lanes of two sums for every row of a block, and of one for every feature."""
    return LANES * (2 * BLOCK + inputs[0][-1])


def _offer(name: str, *places: str) -> Offer:
    def offer(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
        return Kernel(partial(_bind, name, places), _work) if _layer_norm else None

    return offer


def _offer_grad(inputs: Sequence[Shape], out: Shape, attrs: Attrs) -> Kernel | None:
    """The weight's gradient comes with it where all rows are at the start of a row of lanes."""
    if not _layer_norm or attrs.get("fixed"):
        return None
    outer, _, inner = around_last_axis(out)
    beside = "layer_norm_weight_grad" if inner == 1 or outer == 1 or inner % LANES == 0 else None
    bind = partial(_bind, "layer_norm_grad", ("grad", "x", "statistics", "weight"))
    return Kernel(bind, _work, beside=beside)


C_KERNELS: Mapping[str, Offer] = MappingProxyType(
    {
        "layer_statistics": _offer("layer_statistics", "x"),
        "layer_norm": _offer("layer_norm", "x", "statistics", "weight", "bias"),
        "layer_norm_grad": _offer_grad,
        "layer_norm_weight_grad": _offer("layer_norm_weight_grad", "grad", "x", "statistics"),
    }
)
"""By the name of the op."""
