"""The `[space]` section of a study file: what is searched."""

from __future__ import annotations

from dataclasses import dataclass

from policysearch.policy.presets import PRESETS
from policysearch.search.decided.base import Decided
from policysearch.search.decided.layer_formats import Formats, LayerFormats, Roles
from policysearch.search.decided.loss_scales import LossScales, Scale
from policysearch.search.decided.op_lists import OpLists, Ops, Rules
from policysearch.search.decided.phases import PhaseFormats, Phases
from policysearch.search.decided.products import Accumulators, Products, Scalings
from policysearch.search.decided.storage import OptimizerState, Storage, StoredFormats
from policysearch.values import one_of

UNIFORM = "uniform"
"""What `ladder` calls the uniform formats of the study's own options."""

DECIDED: tuple[Decided, ...] = (
    Formats(),
    Roles(),
    Ops(),
    Storage(),
    OptimizerState(),
    Scale(),
    Accumulators(),
    Scalings(),
    Rules(),
    Phases(),
)
"""Every kind of decision, in the order in which a policy takes them."""


@dataclass(frozen=True)
class SpaceSection(PhaseFormats, Products, LossScales, StoredFormats, OpLists, LayerFormats):
    """What is searched: the formats of layers and roles, storage, op lists, loss scale, phases.

    `base` is the preset that says everything not searched: op lists, bias, scaling recipe.
    `ladder` is tried first: presets by name, and "uniform" for each of the `formats` on every
    layer, with and without masters as `master_weights` has it.
    """

    base: str = "bfloat16"
    ladder: tuple[str, ...] = (UNIFORM,)

    def __post_init__(self) -> None:
        one_of("base", self.base, PRESETS)
        for name in self.ladder:
            one_of("ladder", name, (UNIFORM, *PRESETS))
        for kind in DECIDED:
            kind.check(self)


def is_named(name: str, given: tuple[str, ...]) -> bool:
    """Whether the decision `name` is one of those, or "given.group" of one."""
    return name.partition(".")[0] in given


SHARED = tuple(name for kind in DECIDED for name in kind.shared)
"""Decisions made once that change every layer."""

MODIFYING = tuple(name for kind in DECIDED for name in kind.modifying)
"""Decisions that change no price, and only what others cost in gap."""
