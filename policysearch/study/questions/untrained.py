"""What a study expects of policies before it trains one, by float32's own run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from policysearch.policy.policy import Policy
from policysearch.space.encoding import Encoding
from policysearch.space.space import Space
from policysearch.study.gain_sampler import sampler_of
from policysearch.study.probes import probe_cost, probes
from policysearch.study.specification import StudySpec, objective_of, space_of

SHOWN = 8
"""So many policies are proposed."""


@dataclass(frozen=True)
class Expected:
    """A policy that was not trained: its modeled costs over float32's, and the gap expected of it.

    `gap` in nats, four in five gaps expected between `low` and `high`.
    """

    policy: Policy
    time: float
    memory: float
    gap: float
    low: float
    high: float


def expected(spec: StudySpec, space: Space, count: int = SHOWN) -> list[Expected]:
    """Return what promises most before any training, the fastest first.

    float32 is trained up to half of its steps, with the first of the seeds.
    """
    objective = objective_of(spec)
    hints = probes(objective, space, Encoding(space), spec.study.seeds[0])
    how = spec.objectives.names, spec.study.baseline, spec.study.seed
    sampler = sampler_of(objective, space, *how, hints=hints)
    found = []
    for params, costs, (gap, low, high) in sampler.untrained(count):
        found.append(Expected(space.policy(params), *costs, gap, low, high))
    return sorted(found, key=lambda each: each.time)


def expectation(spec: StudySpec) -> Iterator[str]:
    """Yield what is expected of policies, line by line, as comments of TOML."""
    space = space_of(spec)
    trainings = probe_cost(space, spec.task.steps)
    yield f"# Before any training, by float32's own run, seed {spec.study.seeds[0]}, probed at a"
    yield f"# cost of {trainings:.2g} trainings. Four in five gaps are expected in the brackets."
    for each in expected(spec, space):
        costs = f"{1.0 / each.time:.2f}x modeled, memory {each.memory:.2f}"
        gap = f"gap {each.gap:.1e} [{each.low:.1e}, {each.high:.1e}]"
        yield f"# {costs}, {gap}: {_formats(each.policy, space)}"


def _formats(policy: Policy, space: Space) -> str:
    """Say the format that most groups have, and which have others."""
    groups: dict[str, list[str]] = {}
    for group in space.groups:
        layer = policy.layer(group.layers[0])
        stored = "" if policy.master_weights else f" stored in {layer.param}"
        groups.setdefault(layer.compute + stored, []).append(group.name)
    most = max(groups, key=lambda name: len(groups[name]))
    others = [f"{', '.join(names)} in {name}" for name, names in groups.items() if name != most]
    return "; ".join([most, *others])
