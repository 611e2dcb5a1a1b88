"""Formats that change during training: low first, wide at the end."""

from __future__ import annotations

from dataclasses import dataclass, replace

from policysearch.formats import format_named
from policysearch.policy.policy import LayerPolicy, Layers, Phase, Policy, uniform_layer
from policysearch.policy.product_words import parsed, with_words, words_of
from policysearch.policy.products import is_narrow
from policysearch.space.decided.base import (
    SAME,
    Choices,
    Params,
    Setting,
    check_different,
    check_formats,
    short_format,
)
from policysearch.values import InputError, number


@dataclass(frozen=True, kw_only=True)
class PhaseFormats:
    """At each of the `phase_points`, shares of the run, every layer with fewer bits goes over to
    one of the `phase_formats`, or stays as it is: "same". Words widen single products of layers
    below 16 bits, as `products` has them: "fprop=bfloat16" heals the forward pass alone, and
    "dgrad=bfloat16 wgrad=bfloat16" the other one. One point makes two phases, two make three.
    `policysearch propose` prints a point where gradients sink into their rounding noise.
    """

    phase_points: tuple[float, ...] = ()
    phase_formats: tuple[str, ...] = (SAME,)


class Phases:
    """Decides "phase.share" for each point."""

    keys = PhaseFormats
    modifying = ()
    shared = ("phase",)

    def check(self, section: PhaseFormats) -> None:
        for share in section.phase_points:
            number("phase_points", share, 0.0, 1.0)
        points = list(section.phase_points)
        if points != sorted(set(points)) or any(share in (0.0, 1.0) for share in points):
            raise InputError(f"phase_points: {points}; expected rising shares between 0 and 1")
        words = [name for name in section.phase_formats if "=" in name]
        for said in words:
            try:
                parsed(said)
            except InputError as error:
                raise InputError(f"phase_formats: {error}") from None
        formats = [name for name in section.phase_formats if name not in words]
        check_formats("phase_formats", formats, SAME)
        check_different("phase_formats", section.phase_formats)
        if section.phase_formats[0] != SAME:
            formats = list(section.phase_formats)
            raise InputError(f"phase_formats: {formats}; expected {SAME!r} as the first")

    def choices(self, section: PhaseFormats, at: Setting) -> Choices:
        return {f"phase.{share:g}": section.phase_formats for share in section.phase_points}

    def applied(self, policy: Policy, params: Params, section: PhaseFormats, at: Setting) -> Policy:
        layers, phases = policy.layers, []
        for share in section.phase_points:
            name = params.get(f"phase.{share:g}", SAME)
            wide = layers if name == SAME else widened(layers, name)
            if wide != layers:
                phases.append(Phase(_step(share, at), wide))
            layers = wide
        return replace(policy, phases=tuple(phases))

    def read(self, policy: Policy, section: PhaseFormats, at: Setting) -> Params:
        params: Params = {}
        begun = {phase.first_step: phase.layers for phase in policy.phases}
        layers = policy.layers
        for share in section.phase_points:
            after = begun.get(_step(share, at), layers)
            offered = (name for name in section.phase_formats if name != SAME)
            same = after == layers
            fitting = (name for name in offered if not same and widened(layers, name) == after)
            params[f"phase.{share:g}"] = next(fitting, SAME)
            layers = after
        return params

    def words(self, policy: Policy, section: PhaseFormats, at: Setting) -> list[str]:
        said = []
        for phase in policy.phases:
            formats = sorted({_short(layer) for _, layer in phase.layers})
            said.append(f"{'/'.join(formats)}@{phase.first_step}")
        return said


def widened(layers: Layers, name: str) -> Layers:
    """Return the layers, those of fewer bits computing in format `name`; stored as before.

    `name` may be words, which are said of layers below 16 bits.
    """
    made = {old: _wide(old, name) for old in {old for _, old in layers}}
    return tuple((layer, made[old]) for layer, old in layers)


def _wide(old: LayerPolicy, name: str) -> LayerPolicy:
    formats = {old.compute, *old.operand_formats}
    if "=" in name:
        return with_words(old, name) if any(map(is_narrow, formats)) else old
    if min(format_named(format).bits for format in formats) >= format_named(name).bits:
        return old
    return uniform_layer(name, param=old.param, accumulator=_sum_format(name, old.accumulator))


def _short(layer: LayerPolicy) -> str:
    words = words_of(layer)
    return short_format(layer.compute) if words == SAME else words


def _sum_format(name: str, accumulator: str) -> str:
    return "float32" if name == "float32" else accumulator


def _step(share: float, at: Setting) -> int:
    if at.steps is None:
        raise InputError("phase_points: the steps of the run are not known; expected a task")
    return max(1, round(share * at.steps))
