"""Why a layer is as it is: its neighbours, trained beside the policy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from policysearch.formats import format_named
from policysearch.policy.policy import Policy, from_json, uniform_layer, usual_storage
from policysearch.space.decided.base import Group
from policysearch.space.space import Space
from policysearch.study.journal.trials import FailedTrial, Trial
from policysearch.study.questions.by_hand import try_policy
from policysearch.study.results.noise import change
from policysearch.study.results.results import Results
from policysearch.study.session import Progress
from policysearch.study.specification import StudySpec, space_of
from policysearch.values import one_of

Step = Literal["wider", "beside", "narrower"]
Verdict = Literal["better", "worse", "trade", "alike"]


@dataclass(frozen=True)
class Neighbour:
    """A policy whose layers of a group compute in `format`, a `step` from another policy."""

    step: Step
    format: str
    policy: Policy


def group_of(space: Space, layer: str) -> Group:
    """Return the group that decides for a layer; InputError for a layer there is not."""
    one_of("layer", layer, space.layers)
    return next(group for group in space.groups if layer in group.layers)


def neighbours(policy: Policy, layer: str, space: Space) -> tuple[Neighbour, ...]:
    """Return the policies in which the group of `layer` takes the formats next to its own.

    Of the formats that the space offers: those of the next more bits, of as many bits, and of the
    next fewer. All else stays: a policy of the space takes its place there with that decision
    changed, scaled as the space scales such operands; of another, without masters, parameters are
    stored as the new format has them.
    """
    group = group_of(space, layer)
    now, params = policy.layer(group.layers[0]).compute, space.project(policy)
    of_space = space.policy(params).digest == policy.digest
    return tuple(
        Neighbour(
            step,
            name,
            space.policy(params | {f"format.{group.name}": name})
            if of_space
            else _in_format(policy, group, name),
        )
        for step, name in _next_formats(now, space.section.formats)
    )


def verdict(results: Results, before: Trial, after: Trial) -> Verdict:
    """Return whether `after` is better than `before`: the objectives by what can be told of each.

    "better" and "worse" are so on all axes; a "trade" gives on one what it takes on another. Gaps
    are told apart where the 95 % interval of their differences by seed leaves out zero, with one
    seed by any difference, and where what the front counts of them moves the same way: of two
    policies that look better than float32 neither gains by that.
    """
    names, resolutions = results.spec.objectives.names, results.spec.objectives.resolutions
    axes = zip(names, results.point(before), results.point(after), resolutions, strict=True)
    signs = set()
    for name, old, new, least in axes:
        if name == "loss_gap":
            differs = _told(before, after, new - old)
        else:
            differs = abs(math.log(new / old)) >= math.log1p(least)
        signs |= {math.copysign(1.0, new - old)} if differs else set()
    if not signs:
        return "alike"
    return "trade" if len(signs) > 1 else "worse" if signs == {1.0} else "better"


def _next_formats(now: str, offered: tuple[str, ...]) -> Iterator[tuple[Step, str]]:
    bits = {name: format_named(name).bits for name in offered if name != now}
    here = format_named(now).bits
    more = min((b for b in bits.values() if b > here), default=0)
    less = max((b for b in bits.values() if b < here), default=0)
    steps: tuple[tuple[Step, int], ...] = (("wider", more), ("beside", here), ("narrower", less))
    for step, wanted in steps:
        yield from ((step, name) for name, count in bits.items() if count == wanted)


def _in_format(policy: Policy, group: Group, name: str) -> Policy:
    param = "float32" if policy.master_weights else usual_storage(name)
    layers = tuple(
        (layer, uniform_layer(name, param=param, accumulator=old.accumulator))
        if layer in group.layers
        else (layer, old)
        for layer, old in policy.layers
    )
    return replace(policy, layers=layers, name=f"{policy.name} {group.name}:{name}")


def _told(before: Trial, after: Trial, counted: float) -> bool:
    """Return whether gaps can be told apart whose counted difference is `counted`, in nats."""
    if before.diverged or after.diverged:
        return counted != 0.0
    if (after.loss_gap - before.loss_gap) * counted <= 0.0:
        return False
    moved = change(*([score.loss_gap for score in trial.scores] for trial in (before, after)))
    return moved is None or not moved.holds_zero


@dataclass(frozen=True)
class NeighbourTrial:
    """A neighbour, its trial, and what it is beside the policy; failed ones have no verdict.

    The layers run in the neighbour's format, or `runs_in` what the study's target makes of it.
    """

    neighbour: Neighbour
    runs_in: str
    trial: Trial | FailedTrial
    verdict: Verdict | None


@dataclass(frozen=True)
class Why:
    """A policy, the `group` of layers that was asked about, and its neighbours trained."""

    results: Results
    trial: Trial | FailedTrial
    group: str
    layers: tuple[str, ...]
    tried: tuple[NeighbourTrial, ...]


def why(
    spec: StudySpec,
    storage: Path,
    policy: Policy,
    layer: str,
    *,
    processes: int | None = None,
    progress: Progress | None = None,
) -> Why:
    """Train `policy` and its neighbours in one layer with the study's seeds, and compare them.

    Each is recorded as a trial tried by hand; runs that are there are used again. The layers that
    the study decides together change together. Raises InputError as `try_policy`, and for a layer
    there is not.
    """
    space = space_of(spec)
    near = neighbours(policy, layer, space)
    numbers = []
    for each in (policy, *(n.policy for n in near)):
        results, number, _ = try_policy(spec, storage, each, processes=processes, progress=progress)
        numbers.append(number)
    trials: list[Trial | FailedTrial] = [*results.trials, *results.failed]
    every = {trial.number: trial for trial in trials}
    here, *others = (every[number] for number in numbers)
    group = group_of(space, layer)
    tried = tuple(
        NeighbourTrial(
            neighbour, _runs_in(neighbour, group, trial), trial, _verdict(results, here, trial)
        )
        for neighbour, trial in zip(near, others, strict=True)
    )
    return Why(results, here, group.name, group.layers, tried)


def _runs_in(neighbour: Neighbour, group: Group, trial: Trial | FailedTrial) -> str:
    trained = from_json(trial.text, f"trial {trial.number} policy")
    formats = [trained.layer(name).compute for name in group.layers]
    return neighbour.format if neighbour.format in formats else formats[0]


def _verdict(
    results: Results, before: Trial | FailedTrial, after: Trial | FailedTrial
) -> Verdict | None:
    if isinstance(before, FailedTrial) or isinstance(after, FailedTrial):
        return None
    return verdict(results, before, after)
