"""The `[space]` section of a study file: what is searched."""

from __future__ import annotations

from dataclasses import dataclass

from policysearch.accumulators import accumulator_named
from policysearch.formats import format_named
from policysearch.ops.catalogue import FORWARD_OPS
from policysearch.policy.policy import LossScaleKind
from policysearch.policy.presets import PRESETS
from policysearch.policy.scaling import RECIPES, Recipe
from policysearch.values import InputError, number, one_of

UNIFORM = "uniform"
"""What `ladder` calls the uniform formats of the study's own options."""


@dataclass(frozen=True)
class Group:
    """The `layers` that share one searched format, and the `name` of them in decisions."""

    name: str
    layers: tuple[str, ...]


@dataclass(frozen=True)
class SpaceSection:
    """What is searched.

    `formats` are offered to every layer with parameters, or to each of the `groups`; a layer
    without parameters follows the one before it. `base` is the preset that says everything not
    searched: op lists, bias, scaling recipe. Each op of `ops` may run "low" or "fp32".
    `loss_scales` are kinds, "schedule" not among them; their initial scale is 2 to a whole
    power within `log2_scale`, and a dynamic one grows after `growth_intervals` clean steps.
    Where `master_weights` is false, parameters are stored in their layer's format, or in
    bfloat16 where that has fewer bits; `optimizer_states` are formats of the optimizer's state.
    `ladder` is tried first: presets by name, and "uniform" for each of the `formats` on every
    layer, with and without masters as `master_weights` has it. `accumulators` sum the products of
    every layer below float32; the ladder takes the first of them.
    `scalings` are recipes for operands below 16 bits; none given, that of `base` holds, or
    "delayed" where `base` has none. Unscaled operands, "none", must be asked for.
    """

    formats: tuple[str, ...]
    groups: tuple[Group, ...] = ()
    base: str = "bfloat16"
    ops: tuple[str, ...] = ()
    master_weights: tuple[bool, ...] = (True,)
    optimizer_states: tuple[str, ...] = ("float32",)
    loss_scales: tuple[LossScaleKind, ...] = ("none",)
    log2_scale: tuple[int, int] = (7, 16)
    growth_intervals: tuple[int, ...] = (2000,)
    accumulators: tuple[str, ...] = ("float32",)
    scalings: tuple[Recipe, ...] = ()
    ladder: tuple[str, ...] = (UNIFORM,)

    def __post_init__(self) -> None:
        one_of("base", self.base, PRESETS)
        for name in self.ladder:
            one_of("ladder", name, (UNIFORM, *PRESETS))
        for op in self.ops:
            one_of("ops", op, FORWARD_OPS)
        for kind in self.loss_scales:
            one_of("loss_scales", kind, ("none", "fixed", "dynamic"))
        low, high = self.log2_scale
        if not -24 <= low <= high <= 30:
            raise InputError(f"log2_scale: {[low, high]}; expected rising powers from -24 to 30")
        for interval in self.growth_intervals:
            number("growth_intervals", interval, 1, 2**31)
        self._check_choices()

    def _check_choices(self) -> None:
        for name in ("formats", "optimizer_states"):
            for given in getattr(self, name):
                try:
                    format_named(given)
                except InputError as error:
                    raise InputError(f"{name}: {error}") from None
        for given in self.accumulators:
            try:
                accumulator_named(given)
            except InputError as error:
                raise InputError(f"accumulators: {error}") from None
        for given in self.scalings:
            one_of("scalings", given, RECIPES)
        exact = [name for name in self.accumulators if name.startswith("tensor_core")]
        if exact and {"mx", "mx_rceil", "nvfp4"} & set(self.scalings):
            raise InputError(
                f"scalings: {list(self.scalings)} with accumulator {exact[0]!r}, which takes no "
                "block scales; expected none, current, delayed or rowwise"
            )
        choices = ("formats", "master_weights", "optimizer_states", "loss_scales", "scalings")
        for name in (*choices, "growth_intervals", "accumulators"):
            given = getattr(self, name)
            if not (given or name == "scalings") or len(set(given)) < len(given):
                raise InputError(f"{name}: {list(given)}; expected one or more different values")
