"""What published methods guess of each decision of a net of many layers, and whom they then train.

Each gives policies in the order in which it trains them. All read float32's own run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from benchmarks.search.gradient_errors import moments, seen_under
from benchmarks.search.layered import Layered
from benchmarks.search.probes import probe_steps, probes
from benchmarks.search.rivals import within_bounds
from benchmarks.search.scores import scores
from policysearch.policy.policy import Phase, Policy
from policysearch.policy.presets import preset
from policysearch.search.hypervolume import Array
from policysearch.search.price_table import formats_of
from policysearch.space.decided.base import Params
from policysearch.study.probes import probes as errors

LARGEST = 0.1
"""What the largest guess of each layer comes to in sum, in nats: methods do not give a unit."""

PARTS = 3
"""Of a run: what is decided for the first is decided anew for each other."""

Guess = Mapping[str, Array]
"""Values of each decision, in the order of `counted`, by what they are."""


def guesses(layered: Layered, seed: int) -> dict[str, Array]:
    """Return what float32's run with `seed` says.

    "errors" [decisions, 2] are the product's own probes. "loss", "fisher" and "gradients" are those
    of `scores` and `probes`, "context" of `in_context`, [decisions] each. "loss_at" and
    "gradients_at" [PARTS, decisions] are the same at the first step of each part of the run.
    """
    fed = layered.objective, layered.space, layered.encoding, seed
    steps = layered.objective.task.steps
    begins = [part * steps // PARTS for part in range(PARTS)]
    found = dict(scores(*fed))
    return found | {
        "errors": errors(*fed),
        "gradients": np.exp(probes(*fed)),
        "context": in_context(layered, seed, found["loss"]),
        "loss_at": np.array([scores(*fed, [step])["loss"] for step in begins]),
        "gradients_at": np.exp([probes(*fed, [step]) for step in begins]),
    }


def in_context(layered: Layered, seed: int, alone: Array) -> Array:
    """Return what each decision does to the loss beside others, in the order of `counted`.

    Errors saturate, so one counts for less beside others than `alone` (arXiv 2607.12266). It is the
    mean of what it does alone, and of what is gone where it alone goes back to float32.
    """
    objective, places = layered.objective, layered.encoding.decisions.counted()
    task, model, width = objective.task, objective.model, len(layered.space.groups)
    steps = probe_steps(task.steps)
    met = moments(task, seed, steps, dataset=objective.dataset, model=model)
    exact = seen_under(task, preset("float32", model.layer_names), seed, met, model)

    def damage(row: Sequence[int]) -> float:
        low = seen_under(task, policy_of(layered, row), seed, met, model)
        return float(np.mean([(a - b) ** 2 for (a, _), (b, _) in zip(low, exact, strict=True)]))

    whole = {option: damage([option] * width) for option in {option for _, option in places}}
    gone = [
        whole[option] - damage([0 if i == place else option for i in range(width)])
        for place, option in places
    ]
    return np.asarray((alone + np.maximum(gone, 0.0)) / 2)


def params_of(layered: Layered, row: Sequence[int]) -> Params:
    """Return the decisions that formats by their places are."""
    return formats_of(layered.space, tuple(row))


def policy_of(layered: Layered, row: Sequence[int]) -> Policy:
    """Return the policy of formats by their places."""
    return layered.space.policy(params_of(layered, row))


def _costs(layered: Layered, guessed: Array) -> Array:
    """Return guesses as [layers, formats], of the size of LARGEST; what says nothing costs none."""
    formats = len(layered.space.section.formats)
    costs = np.zeros((len(layered.space.groups), formats))
    for (place, option), value in zip(layered.encoding.decisions.counted(), guessed, strict=True):
        costs[place, option] = value if np.isfinite(value) else 0.0
    return np.asarray(costs / costs.max(axis=1).sum() * LARGEST)


def programmed(layered: Layered, guessed: Array) -> Iterator[Policy]:
    """Yield the policies that are cheapest within some bound on the sum of guesses."""
    costs = _costs(layered, guessed)
    rows, prices = layered.best(costs)
    totals = costs[np.arange(rows.shape[1]), rows].sum(axis=1)
    for place in _within_corner(layered, totals, prices):
        yield policy_of(layered, rows[place].tolist())


def _within_corner(layered: Layered, totals: Array, prices: Array) -> Iterator[int]:
    """Yield places of `within_bounds`, of what is fast and small enough to have a volume alone."""
    kept = np.flatnonzero((prices < layered.measure.corner[1:]).all(axis=1))
    yield from (int(kept[place]) for place in within_bounds(totals[kept], prices[kept]))


def divergence(loss: Array, gradients: Array) -> Array:
    """Return SNIP's (arXiv 2602.01410): of the loss and of the weights, each over its mean."""
    both = np.sqrt(loss), np.sqrt(gradients)
    return np.asarray(sum(each / np.nanmean(each) for each in both))


def decided_anew(layered: Layered, guess: Guess) -> Iterator[Policy]:
    """Yield policies that SNIP decides for the first part of the run and anew for each other."""
    pairs = zip(guess["loss_at"], guess["gradients_at"], strict=True)
    costs = [_costs(layered, divergence(*pair)) for pair in pairs]
    parts = [layered.weighed(each) for each in costs]
    rows = np.array([[layered.row(params)[0] for params in part] for part in parts])
    each = rows.transpose(1, 0, 2).reshape(rows.shape[1], -1)
    _, kept = np.unique(each, axis=0, return_index=True)
    layers = np.arange(rows.shape[2])
    totals = [cost[layers, row].sum(axis=1) for cost, row in zip(costs, rows, strict=True)]
    prices = np.array([layered.lookup.costs(part) for part in parts])
    both = np.column_stack([prices[:, kept, 0].mean(axis=0), prices[:, kept, 1].max(axis=0)])
    for place in _within_corner(layered, np.mean(totals, axis=0)[kept], both):
        yield joined(layered, [policy_of(layered, row) for row in rows[:, kept[place]].tolist()])


def joined(layered: Layered, policies: Sequence[Policy]) -> Policy:
    """Return the policy that is each of these in turn, for equal parts of the run."""
    steps, (first, *others) = layered.objective.task.steps, policies
    begins = [part * steps // len(policies) for part in range(1, len(policies))]
    pairs = zip(begins, others, strict=True)
    return replace(first, phases=tuple(Phase(begin, each.layers) for begin, each in pairs))


PROGRAMS: Mapping[str, str] = MappingProxyType(
    {"loss-error": "loss", "fisher": "fisher", "in-context": "context"}
)
"""The integer programs by name, and the guess that each is over."""

GUESSING = (*PROGRAMS, "divergences", "divergences-anew")


def guessed_by(layered: Layered, name: str, guess: Guess) -> Iterator[Policy]:
    """Return the policies of a method of GUESSING in the order in which it trains them."""
    if name == "divergences-anew":
        return decided_anew(layered, guess)
    if name == "divergences":
        return programmed(layered, divergence(guess["loss"], guess["gradients"]))
    return programmed(layered, guess[PROGRAMS[name]])
