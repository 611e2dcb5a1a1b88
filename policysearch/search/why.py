"""Why a layer is as it is: its neighbours, trained beside the policy."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from policysearch.policy.policy import Policy, from_json
from policysearch.search.decided.base import Group
from policysearch.search.neighbours import Neighbour, Verdict, group_of, neighbours, verdict
from policysearch.search.results import Results
from policysearch.search.session import Progress
from policysearch.search.spec import StudySpec
from policysearch.search.study import try_policy
from policysearch.search.study_space import space_of
from policysearch.search.trials import FailedTrial, Trial


@dataclass(frozen=True)
class Tried:
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
    tried: tuple[Tried, ...]


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
    found: list[Trial | FailedTrial] = [*results.trials, *results.failed]
    every = {trial.number: trial for trial in found}
    here, *others = (every[number] for number in numbers)
    group = group_of(space, layer)
    tried = tuple(
        Tried(neighbour, _runs_in(neighbour, group, trial), trial, _verdict(results, here, trial))
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
