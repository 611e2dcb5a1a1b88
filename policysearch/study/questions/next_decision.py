"""What one more decision would buy: every single change of a policy, by what the study believes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from policysearch.objective.objective import Objective
from policysearch.objective.score import DIVERGED_GAP
from policysearch.search.acquisition import yardstick
from policysearch.search.candidates import price_of
from policysearch.search.searcher import Listed, Searcher
from policysearch.space.decided.base import Params
from policysearch.space.encoding import Encoding
from policysearch.space.options import Row
from policysearch.space.space import Space
from policysearch.study.journal.trials import Trial
from policysearch.study.results.results import Results
from policysearch.values import InputError


@dataclass(frozen=True)
class Change:
    """One decision changed: its `value`, what it does to modeled speed and memory, and its gain.

    Ratios are over the policy as it is. `gain` is the volume that the study expects to win by
    training it, from the corner of its ladder; the sum of what is dominated is below 1.
    """

    decision: str
    value: object
    speed: float
    memory: float
    gain: float


def next_decisions(
    results: Results, trial: Trial, space: Space, objective: Objective
) -> list[Change]:
    """Return the untried changes of one decision in `trial`, the one that promises most first.

    A change that was tried, is the same policy or has no price is left out. Raises InputError for a
    policy that is none of the space.
    """
    params = space.project(trial.policy)
    if space.policy(params).digest != trial.digest:
        raise InputError(f"trial: {trial.number}; expected a policy that the space can make")
    encoding = Encoding(space)
    named = _changes(params, space, encoding, results)
    policies = {row: space.policy(params) for row, (_, _, params) in named.items()}
    costs = {row: cost for row, each in policies.items() if (cost := price_of(objective, each))}
    if not costs:
        return []
    rows = np.array(list(costs), dtype=np.int64).reshape(len(costs), -1)
    pool = Listed(rows, np.array(list(costs.values())).reshape(len(costs), 2))
    measure = yardstick(_ladder(results, space, objective))
    searcher = Searcher(encoding.decisions, pool, measure, few=math.inf)
    for other in results.trials:
        price = 1.0 / other.cost.speedup, other.cost.memory_ratio
        gap = DIVERGED_GAP if other.diverged else other.loss_gap
        row = encoding.row(space.project(other.policy))
        if space.policy(space.project(other.policy)).digest == other.digest:
            searcher.tell(row, price, gap)
        else:
            searcher.tell_outside(price, gap)
    changes = []
    for _ in range(len(costs)):
        asked = searcher.ask()
        if not asked:
            break
        row, (time, memory) = asked[0]
        name, value, _ = named[row]
        speed = 1.0 / (time * trial.cost.speedup)
        ratio = memory / trial.cost.memory_ratio
        changes.append(Change(name, value, speed, ratio, searcher.expected_gain))
    return changes


def _changes(
    params: Params, space: Space, encoding: Encoding, results: Results
) -> dict[Row, tuple[str, object, Params]]:
    """Return (decision, value, parameters) of every new policy one decision away, by its row."""
    known = {trial.digest for trial in results.trials}
    changes: dict[Row, tuple[str, object, Params]] = {}
    for name, values in space.choices().items():
        for value in values:
            changed = params | {name: value}
            if space.policy(changed).digest not in known:
                changes.setdefault(encoding.row(changed), (name, value, changed))
    return changes


def _ladder(results: Results, space: Space, objective: Objective) -> np.ndarray:
    ladder = space.ladder(results.spec.study.baseline).values()
    costs = [price_of(objective, policy) for policy, names in ladder if "float32" not in names]
    known = [each for each in costs if each]
    return np.array(known or [(1.0 / t.cost.speedup, t.cost.memory_ratio) for t in results.trials])
