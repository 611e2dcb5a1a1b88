"""The `[space]` section of a study file: what is searched."""

from __future__ import annotations

from dataclasses import dataclass

from policysearch.policy.presets import PRESETS
from policysearch.space.decided.base import Decided
from policysearch.space.decided.layer_formats import Formats, LayerFormats, Roles
from policysearch.space.decided.loss_scales import LossScales, Scale
from policysearch.space.decided.op_lists import OpLists, Ops, Rules
from policysearch.space.decided.phases import PhaseFormats, Phases
from policysearch.space.decided.product_formats import LayerProducts, ProductFormats
from policysearch.space.decided.products import Accumulators, Products, Scalings
from policysearch.space.decided.state_forms import State, StateForms
from policysearch.space.decided.storage import OptimizerState, Storage, StoredFormats
from policysearch.space.decided.updates import UpdateRounding, Updates
from policysearch.values import one_of

UNIFORM = "uniform"
"""What `ladder` calls the uniform formats of the study's own options, as far as they promise."""

ALL_UNIFORM = "uniform.all"
"""The same, all of them."""

DEVICE = "device"
"""What `ladder` calls the presets of narrow operands whose products the device has."""


DECIDED: tuple[Decided, ...] = (
    *(Formats(), Roles(), LayerProducts(), Ops(), Storage(), OptimizerState(), UpdateRounding()),
    *(State(), Scale(), Accumulators(), Scalings(), Rules(), Phases()),
)
"""Every kind of decision, in the order a policy takes them: a later one changes what is there."""


# The class of the first keys comes last: a dataclass has the fields of its last base first.
@dataclass(frozen=True)
class SpaceSection(
    PhaseFormats,
    Products,
    LossScales,
    Updates,
    StateForms,
    StoredFormats,
    OpLists,
    ProductFormats,
    LayerFormats,
):
    """What is searched: the formats of layers and roles, storage, op lists, loss scale, phases.

    `base` is the preset that says everything not searched: op lists, bias, scaling recipe.

    `ladder` is what a study begins with. Presets that it names are all trained, and "torch.tf32"
    on every device that has it. "device" is every preset of operands below 16 bits whose products
    the device has. "uniform" is each of the `formats` on every layer, with and without masters as
    `master_weights` says; without them, with each of the `update_roundings`. The sampler "gain"
    leaves out those that another policy is expected to beat; "uniform.all" leaves out none.
    """

    base: str = "bfloat16"
    ladder: tuple[str, ...] = (UNIFORM,)

    def __post_init__(self) -> None:
        one_of("base", self.base, PRESETS)
        for name in self.ladder:
            one_of("ladder", name, (UNIFORM, ALL_UNIFORM, DEVICE, *PRESETS))
        for kind in DECIDED:
            kind.check(self)


def is_named(name: str, kinds: tuple[str, ...]) -> bool:
    """Whether the decision `name` is one of those, or "given.group" of one."""
    return name.partition(".")[0] in kinds


SHARED = tuple(name for kind in DECIDED for name in kind.shared)
"""Decisions made once that change every layer."""

MODIFYING = tuple(name for kind in DECIDED for name in kind.modifying)
"""Decisions that change no price, and only what others cost in gap."""
