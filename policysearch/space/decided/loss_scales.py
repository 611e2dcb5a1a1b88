"""The loss scale: its kind, value, interval and factors, or its schedule."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from policysearch.policy.loss_scale import LossScale, LossScaleKind
from policysearch.policy.policy import Policy
from policysearch.space.decided.base import Choices, Params, Setting, check_different
from policysearch.values import InputError, number, one_of, shown

USUAL_INTERVAL = 2000
"""Clean steps before a dynamic scale grows, as torch and MindSpore have it, in a long run."""

GROWTHS = 10
"""A dynamic scale can grow so many times in a run, where the run is too short for the usual."""

NAMES = ("log2_scale", "growth_interval", "growth_factor", "backoff_factor")
DYNAMIC = ("growth_interval", "growth_factor", "backoff_factor")
LOWEST, HIGHEST = -24, 30


@dataclass(frozen=True, kw_only=True)
class LossScales:
    """`loss_scales` are kinds; the initial scale of "fixed" and "dynamic" is 2 to a whole power
    within `log2_scale`. A dynamic one grows by one of the `growth_factors` after one of
    `growth_intervals` clean steps (none given: 2000, or a tenth of the run where that is shorter)
    and is multiplied by one of the `backoff_factors` after an overflow. A "schedule" is one of
    `scale_schedules`, each of pairs "share:power" as in "0:10 0.5:14": from that share of the run
    on the scale is 2 to that power. `policysearch propose` prints one that follows the gradients.
    """

    loss_scales: tuple[LossScaleKind, ...] = ("none",)
    log2_scale: tuple[int, int] = (7, 16)
    growth_intervals: tuple[int, ...] = ()
    growth_factors: tuple[float, ...] = (2.0,)
    backoff_factors: tuple[float, ...] = (0.5,)
    scale_schedules: tuple[str, ...] = ()


class Scale:
    """Decides "loss_scale" and, as far as its kind uses them, NAMES and "scale_schedule"."""

    keys = LossScales
    shared = ()
    modifying = ("loss_scale", *NAMES, "scale_schedule")

    def check(self, section: LossScales) -> None:
        check_different("loss_scales", section.loss_scales)
        low, high = section.log2_scale
        if not LOWEST <= low <= high <= HIGHEST:
            where = f"log2_scale: {[low, high]}"
            raise InputError(f"{where}; expected rising powers from {LOWEST} to {HIGHEST}")
        for interval in section.growth_intervals:
            number("growth_intervals", interval, 1, 2**31)
        for factor in section.growth_factors:
            number("growth_factors", factor, 1.0, 2.0**16)
        for factor in section.backoff_factors:
            number("backoff_factors", factor, 2.0**-16, 1.0)
        for name in ("growth_intervals", "growth_factors", "backoff_factors", "scale_schedules"):
            optional = name in ("growth_intervals", "scale_schedules")
            if not optional or getattr(section, name):
                check_different(name, getattr(section, name))
        for text in section.scale_schedules:
            shares_of(text)
        for kind in section.loss_scales:
            one_of("loss_scales", kind, ("none", "fixed", "dynamic", "schedule"))
        if ("schedule" in section.loss_scales) != bool(section.scale_schedules):
            raise InputError(
                f"scale_schedules: {list(section.scale_schedules)} with loss_scales "
                f"{list(section.loss_scales)}; expected schedules with the kind 'schedule' alone"
            )

    def choices(self, section: LossScales, at: Setting) -> Choices:
        low, high = section.log2_scale
        kinds = set(section.loss_scales)
        return {
            "loss_scale": section.loss_scales,
            "log2_scale": tuple(range(low, high + 1)) if kinds & {"fixed", "dynamic"} else (),
            "growth_interval": intervals(section, at),
            "growth_factor": section.growth_factors,
            "backoff_factor": section.backoff_factors,
            "scale_schedule": section.scale_schedules,
        }

    def applied(self, policy: Policy, params: Params, section: LossScales, at: Setting) -> Policy:
        choice = {name: values[0] for name, values in self.choices(section, at).items() if values}
        choice |= {name: params[name] for name in choice if name in params}
        kind = choice["loss_scale"]
        if kind == "none":
            return replace(policy, loss_scale=LossScale())
        if kind == "schedule":
            steps = over_run(shares_of(choice["scale_schedule"]), at)
            return replace(policy, loss_scale=LossScale("schedule", schedule=steps))
        scale = LossScale(kind, 2.0 ** choice["log2_scale"])
        if kind == "dynamic":
            scale = replace(scale, **{name: choice[name] for name in DYNAMIC})
        return replace(policy, loss_scale=scale)

    def read(self, policy: Policy, section: LossScales, at: Setting) -> Params:
        scale = policy.loss_scale
        params: Params = {
            "loss_scale": scale.kind,
            "log2_scale": round(math.log2(scale.init_scale)),
            "growth_interval": scale.growth_interval,
            "growth_factor": scale.growth_factor,
            "backoff_factor": scale.backoff_factor,
        }
        same = [
            text
            for text in section.scale_schedules
            if over_run(shares_of(text), at) == scale.schedule
        ]
        return params | {"scale_schedule": (*same, "")[0]}

    def words(self, policy: Policy, section: LossScales, at: Setting) -> list[str]:
        scale = policy.loss_scale
        if scale.kind == "none":
            return []
        if scale.kind == "schedule":
            powers = [f"{round(math.log2(value))}@{step}" for step, value in scale.schedule]
            return [f"schedule:{'/'.join(powers)}"]
        said = f"{scale.kind}:{scale.init_scale:g}"
        several = len(intervals(section, at)) > 1 and scale.kind == "dynamic"
        return [f"{said}/{scale.growth_interval}" if several else said]


def intervals(section: LossScales, at: Setting) -> tuple[int, ...]:
    """Return the growth intervals that are offered: those given, or one that fits the run."""
    if section.growth_intervals:
        return section.growth_intervals
    fitting = USUAL_INTERVAL if at.steps is None else max(1, at.steps // GROWTHS)
    return (min(USUAL_INTERVAL, fitting),)


def shares_of(text: str) -> list[tuple[float, int]]:
    """Return (share of the run, power of two) pairs of a schedule; InputError for another text."""
    try:
        pairs = [(float(a), int(b)) for a, _, b in (each.partition(":") for each in text.split())]
    except ValueError:
        pairs = []
    shares = [share for share, _ in pairs]
    sound = all(0.0 <= share < 1.0 for share in shares) and shares == sorted(set(shares))
    if not shares or shares[0] or not sound or not all(-24 <= power <= 30 for _, power in pairs):
        raise InputError(
            f"scale_schedules: {shown(text)}; expected share:power pairs such as '0:10 0.5:14', "
            f"shares rising from 0 and below 1, powers from {LOWEST} to {HIGHEST}"
        )
    return pairs


def over_run(pairs: Sequence[tuple[float, int]], at: Setting) -> tuple[tuple[int, float], ...]:
    """Return (first step, scale) pairs; of those that fall on one step, the last."""
    if at.steps is None:
        raise InputError("scale_schedules: the steps of the run are not known; expected a task")
    return tuple({round(share * at.steps): 2.0**power for share, power in pairs}.items())
