"""Decisions that did nothing: policies that differ in one alone and trained to the same bit."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from policysearch.space.decided.base import Params
from policysearch.space.section import MODIFYING
from policysearch.space.space import Space
from policysearch.study.journal.trials import Trial
from policysearch.study.results.results import Results

ENOUGH = 2
"""Pairs from which on a decision is said to do nothing."""


@dataclass(frozen=True)
class IdleDecision:
    """Of the `pairs` of policies that differ in `decision` alone, so many were `alike`."""

    decision: str
    pairs: int
    alike: int

    @property
    def line(self) -> str:
        """What a study says of it at its end."""
        which = f"all {self.pairs}" if self.alike == self.pairs else f"{self.alike} of {self.pairs}"
        return (
            f"{self.decision} does nothing here: {which} pairs of policies that differ in it alone "
            "trained to the same bit"
        )


def idle_decisions(results: Results, space: Space) -> tuple[IdleDecision, ...]:
    """Return the decisions of which every pair trained to the same bit, by name.

    Only policies of the space count, and no two that diverged. Loss scales count as one decision:
    kind, value, interval and factors.
    """
    trained = [(trial, space.project(trial.policy)) for trial in results.trials]
    exact = [(t, p) for t, p in trained if not t.diverged and space.policy(p).digest == t.digest]
    merged = [(trial, _merged_params(params, trial)) for trial, params in exact]
    decisions = []
    for name in sorted({name for _, params in merged for name in params}):
        groups: dict[Hashable, list[Trial]] = defaultdict(list)
        for trial, params in merged:
            rest = tuple((k, v) for k, v in params.items() if k != name)
            groups[rest].append(trial)
        pairs = [pair for group in groups.values() for pair in combinations(group, 2)]
        alike = sum(
            _alike(_measures_by_seed(one), _measures_by_seed(other)) for one, other in pairs
        )
        decisions.append(IdleDecision(name, len(pairs), alike))
    return tuple(each for each in decisions if each.pairs >= ENOUGH and each.alike == each.pairs)


def idle_lines(results: Results, space: Space) -> Sequence[str]:
    """Return a line for each decision that did nothing in this study."""
    return [each.line for each in idle_decisions(results, space)]


def _merged_params(params: Params, trial: Trial) -> dict[str, Hashable]:
    """Return what was decided, the parts of the loss scale as one."""
    scale = {name for name in params if name in MODIFYING}
    others: dict[str, Hashable] = {k: v for k, v in params.items() if k not in scale}
    return others | ({"loss_scale": trial.policy.loss_scale} if scale else {})


def _measures_by_seed(trial: Trial) -> dict[int, tuple[float, float | None]]:
    measured = ((score.loss_gap, score.validation_accuracy) for score in trial.scores)
    return dict(zip(trial.seeds, measured, strict=True))


def _alike(one: Mapping[int, object], other: Mapping[int, object]) -> bool:
    """Whether runs with the same seed measured the same."""
    return all(one[seed] == other[seed] for seed in one.keys() & other.keys())
