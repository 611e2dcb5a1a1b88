"""The `[space]` section of a study file: what is searched."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator
from dataclasses import dataclass
from types import new_class
from typing import TYPE_CHECKING

import policysearch.space.decided
from policysearch.policy.presets import PRESETS
from policysearch.space.decided.base import Decided
from policysearch.values import one_of

UNIFORM = "uniform"
"""What `ladder` calls the uniform formats of the study's own options, as far as they promise."""

ALL_UNIFORM = "uniform.all"
"""The same, all of them."""


def _defined() -> Iterator[Decided]:
    for info in pkgutil.iter_modules(policysearch.space.decided.__path__):
        module = importlib.import_module(f"{policysearch.space.decided.__name__}.{info.name}")
        for kind in vars(module).values():
            if hasattr(kind, "turn") and kind.__module__ == module.__name__:
                yield kind()


DECIDED: tuple[Decided, ...] = tuple(sorted(_defined(), key=lambda kind: kind.turn))
"""Every kind of decision that a file of `decided/` defines, in the order a policy takes them."""

if TYPE_CHECKING:
    from policysearch.space.decided.layer_formats import LayerFormats
    from policysearch.space.decided.loss_scales import LossScales
    from policysearch.space.decided.op_lists import OpLists
    from policysearch.space.decided.phases import PhaseFormats
    from policysearch.space.decided.products import Products
    from policysearch.space.decided.storage import StoredFormats

    class _Keys(PhaseFormats, Products, LossScales, StoredFormats, OpLists, LayerFormats):
        """The keys that other modules read by name."""

else:
    # The class of the first decision comes last: its fields are the first.
    _Keys = new_class("_Keys", tuple(dict.fromkeys(k.keys for k in DECIDED[::-1] if k.keys)))


@dataclass(frozen=True)
class SpaceSection(_Keys):
    """What is searched: the formats of layers and roles, storage, op lists, loss scale, phases.

    `base` is the preset that says everything not searched: op lists, bias, scaling recipe.
    `ladder` is what a study begins with: presets by name, which are all trained, and "uniform"
    for each of the `formats` on every layer, with and without masters as `master_weights` has it.
    Of "uniform" the sampler "gain" trains each where it promises more than any other policy, and
    leaves the rest; "uniform.all" is trained whole.
    """

    base: str = "bfloat16"
    ladder: tuple[str, ...] = (UNIFORM,)

    def __post_init__(self) -> None:
        one_of("base", self.base, PRESETS)
        for name in self.ladder:
            one_of("ladder", name, (UNIFORM, ALL_UNIFORM, *PRESETS))
        for kind in DECIDED:
            kind.check(self)


def is_named(name: str, given: tuple[str, ...]) -> bool:
    """Whether the decision `name` is one of those, or "given.group" of one."""
    return name.partition(".")[0] in given


SHARED = tuple(name for kind in DECIDED for name in kind.shared)
"""Decisions made once that change every layer."""

MODIFYING = tuple(name for kind in DECIDED for name in kind.modifying)
"""Decisions that change no price, and only what others cost in gap."""
