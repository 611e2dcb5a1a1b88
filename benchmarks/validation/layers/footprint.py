"""Live memory of a step of layers: what there is at its peak.

    live = parameters + masters + gradients + optimizer state + data + what layers keep + passing

Forward has added what each layer keeps; backward takes it away layer by layer, holds the gradients
that pass for a moment and adds those of parameters; the update holds all gradients and its own
temporaries. Bytes per parameter with Adam: 16 in float32 and under autocast, 20 with masters whose
float32 gradients lie beside the narrow ones (ZeRO's count of 16 has none of those).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType

from benchmarks.validation.layers.layer_memory import Kept, Weights
from policysearch.cost.update_price import Kernels
from policysearch.optimizers.optimizer import rules

KEPT = ("activations", "masks", "copies")
"""Kinds of what layers keep."""

STORED: Mapping[Weights, tuple[int, int, int, int]] = MappingProxyType(
    {"float32": (4, 0, 4, 0), "cached": (4, 0, 4, 0), "halved": (2, 4, 2, 4), "pure": (2, 0, 2, 0)}
)
"""Bytes per parameter: as stored, masters, gradients, gradients of masters."""


@dataclass(frozen=True)
class Keeping:
    """How a training keeps what is no activation.

    `persistent_gradients`: gradients are set to zero and never given back, as frameworks had it
    before `set_to_none`. `data_bytes`: of a data set that lies on the device.
    """

    weights: Weights
    optimizer: str
    kernels: Kernels
    persistent_gradients: bool
    data_bytes: float = 0.0


@dataclass(frozen=True)
class Footprint:
    """Live bytes at the peak of a step by kind, and the `moment` of it."""

    moment: str
    parameters: float
    masters: float
    optimizer: float
    data: float
    gradients: float = 0.0
    copies: float = 0.0
    activations: float = 0.0
    masks: float = 0.0
    passing: float = 0.0

    @property
    def live_bytes(self) -> float:
        return sum(bytes for _, bytes in self.parts)

    @property
    def parts(self) -> tuple[tuple[str, float], ...]:
        """(kind, bytes) of all that is live."""
        return tuple((f.name, getattr(self, f.name)) for f in fields(self) if f.name != "moment")


def footprint(kept: Sequence[Kept], parameters: float, how: Keeping) -> Footprint:
    """Return the peak of a step whose layers keep `kept`, with so many parameters."""
    return max(_moments(kept, parameters, how), key=lambda moment: moment.live_bytes)


def _moments(kept: Sequence[Kept], parameters: float, how: Keeping) -> Iterator[Footprint]:
    """Yield what lives at the backward of each layer, last first, and at the update."""
    rule, (stored, masters, gradient, of_masters) = rules()[how.optimizer], STORED[how.weights]
    state = (2 if how.weights == "pure" else 4) * parameters
    fixed = {
        "parameters": stored * parameters,
        "masters": masters * parameters,
        "optimizer": len(rule.states) * state,
        "data": how.data_bytes,
    }
    whole = (gradient + of_masters) * parameters
    now = {name: sum(getattr(k, name) * k.times for k in kept) for name in KEPT}
    now["gradients"] = whole if how.persistent_gradients else 0.0
    for place in range(len(kept) - 1, -1, -1):
        layer = kept[place]
        moment = f"backward of {layer.layer} ({place + 1} of {len(kept)})"
        yield Footprint(moment, **fixed, **now, passing=layer.passing)
        for name in KEPT:
            now[name] -= getattr(layer, name) * layer.times
        if not how.persistent_gradients:
            now["gradients"] += gradient * layer.parameters * layer.times
    aside = rule.aside * state if how.kernels == "foreach" else 0.0
    yield Footprint("update", **fixed, gradients=whole, passing=aside)
