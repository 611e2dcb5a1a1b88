"""Spaces of one format a layer that are too large to list: prices, programs and a study of them."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from policysearch.objective.objective import Objective
from policysearch.policy.policy import Policy, from_json
from policysearch.search.acquisition import Yardstick, yardstick
from policysearch.search.goals import Goal
from policysearch.search.hypervolume import Array
from policysearch.search.price_table import Lookup
from policysearch.space.decided.base import Params
from policysearch.space.encoding import Encoding
from policysearch.space.space import Space
from policysearch.study.optuna_view import TrialView
from policysearch.study.proposer import Proposer
from policysearch.study.specification import StudySpec, objective_of, space_of

WEIGHTS = (24, 64)
"""So many shares of time and memory, and weights of the gap, of the best known front."""

Rows = NDArray[np.int64]
"""Formats of policies by their place among those of the space: [n, layers]."""

Truth = Callable[[Params, Policy], float]
"""What a training of a policy is told to have cost: its gap in nats."""


class Layered:
    """The space of a study with its prices, which all truths share."""

    def __init__(self, spec: StudySpec) -> None:
        self.spec = spec
        self.objective: Objective = objective_of(spec)
        self.space: Space = space_of(spec, self.objective.model)
        self.lookup = Lookup(self.objective, self.space, 0)
        self.encoding = Encoding(self.space)

    @cached_property
    def measure(self) -> Yardstick:
        """The corner of the ladder, as a study's."""
        ladder = self.space.ladder(None).values()
        costs = [self.costs(policy) for policy, names in ladder if "float32" not in names]
        return yardstick(np.array(costs))

    def costs(self, policy: Policy) -> tuple[float, float]:
        """Return modeled time and memory over float32's."""
        cost = self.objective.price(policy)
        return 1.0 / cost.speedup, cost.memory_ratio

    def row(self, params: Params) -> Rows:
        """Return the formats [1, layers] of a policy."""
        formats = self.space.section.formats
        return np.array([[formats.index(params[name]) for name in self.lookup.names]])

    def best(self, costs: Array, seed: int = 0) -> tuple[Rows, Array]:
        """Return formats [n, layers] that are best for many weights, and their prices.

        `costs` [layers, formats] are what each format costs each layer, in nats.
        """
        params = self.weighed(costs, seed)
        distinct = {tuple(sorted(each.items())): each for each in params}
        rows = np.concatenate([self.row(each) for each in distinct.values()])
        return rows, self.lookup.costs(list(distinct.values()))

    def weighed(self, costs: Array, seed: int = 0) -> list[Params]:
        """Return the policy that is best for each of many weights of time, memory and `costs`."""
        shares, gaps = WEIGHTS
        rng = np.random.default_rng(seed)
        share = rng.uniform(size=shares * gaps)
        weight = np.exp(rng.uniform(math.log(1e-2), math.log(1e5), size=shares * gaps))
        weights = np.column_stack([share, 1.0 - share])
        return self.lookup.cheapest(0, weights, weight[:, None, None] * costs)


@dataclass(frozen=True)
class Trained:
    """What was trained, float32 first: `gaps` [n], `costs` [n, 2], CPU `seconds` of asks [n].

    `charged` is what was spent before the first, in trainings.
    """

    gaps: Array
    costs: Array
    seconds: Array
    charged: float = 0.0

    def fastest(self, within: float) -> float:
        """Return the speed over float32's of the fastest policy within a gap in nats."""
        return float((1.0 / self.costs[self.gaps <= within, 0]).max(initial=1.0))

    def paid(self, trainings: float) -> Trained:
        """Return what so many trainings pay for; float32 is free."""
        count = 1 + max(0, math.floor(trainings - self.charged + 1e-9))
        return Trained(self.gaps[:count], self.costs[:count], self.seconds[:count], self.charged)


def studied(
    layered: Layered,
    truth: Truth,
    trials: int,
    hints: Array | None = None,
    sampler: str = "gain",
    seed: int = 0,
    goal: Goal | None = None,
) -> Trained:
    """Return what a study of so many trials trains; `hints` are what its probes say."""
    spec = layered.spec
    plan = spec.study.plan(spec.objectives.names, spec.task.steps, spec.wanted)
    plan = replace(plan, sampler=sampler, seed=seed)
    proposer = Proposer(
        plan, layered.objective, layered.space, None if hints is None else lambda: hints
    )
    shown: list[TrialView] = []
    known: set[str] = set()
    found: list[tuple[float, float, float, float]] = []
    while len(found) <= trials:  # float32 is free
        start = time.process_time()
        asked = proposer.propose(len(known), shown, [], known, goal=goal)
        seconds = time.process_time() - start
        assert asked is not None
        each = asked[0]
        known.add(each.digest)
        policy = from_json(each.text)
        gap, costs = truth(each.params, policy), layered.costs(policy)
        shown.append(TrialView(each.params, gap, 1.0 / costs[0], costs[1]))
        found.append((gap, *costs, seconds))
    every = np.array(found)
    return Trained(every[:, 0], every[:, 1:3], every[:, 3])
