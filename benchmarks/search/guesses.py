"""What published methods guess of each decision of a net of many layers, and whom they then train.

Each gives policies in the order in which it trains them. All read float32's own run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from benchmarks.search.gradient_errors import moments, seen_under
from benchmarks.search.layered import Layered, Rows
from benchmarks.search.probes import probe_steps, probes
from benchmarks.search.rivals import within_bounds
from benchmarks.search.scores import scores
from policysearch.policy.policy import Phase, Policy
from policysearch.policy.presets import preset
from policysearch.search.hypervolume import Array
from policysearch.search.price_table import MOST_ERROR, formats_of
from policysearch.space.decided.base import Params
from policysearch.study.probes import probes as errors

LARGEST = 1e-3
"""What the largest guess of each layer comes to in sum: methods do not give a unit.

So small that the least weight of it finds what is fastest of all, and the largest float32.
"""

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
    return formats_of(layered.space, tuple(int(option) for option in row))


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


def _ranked(costs: Array) -> Rows:
    """Return rows [n, layers]: of two neighbouring formats the lower where it is least harmful.

    For no layer up to all of them. That is what a program over prices that add up finds where
    layers are alike; Viterbi's algorithm, which sees casts to the next layer alone, misses some.
    """
    layers, formats = costs.shape
    found = []
    for low in range(1, formats):
        order = np.argsort(costs[:, low] - costs[:, low - 1])
        for count in range(layers + 1):
            row = np.full(layers, low - 1)
            row[order[:count]] = low
            found.append(row)
    return np.array(found)


def _candidates(layered: Layered, costs: Array) -> Rows:
    """Return rows [n, layers] of the solutions of a program for many weights, repeated or not."""
    weighed = [layered.row(params) for params in layered.weighed(costs)]
    return np.concatenate([*weighed, _ranked(costs)])


def programmed(layered: Layered, guessed: Array) -> Iterator[Policy]:
    """Yield the policies that are cheapest within some bound on the sum of guesses."""
    return _programs(layered, [_costs(layered, guessed)])


def _programs(layered: Layered, costs: Sequence[Array]) -> Iterator[Policy]:
    """Yield the policies of programs, of one for each equal part of the run."""
    parts = np.stack([_candidates(layered, each) for each in costs], axis=1)
    parts = np.unique(parts, axis=0)  # [n, parts, layers]
    layers = np.arange(parts.shape[2])
    totals = [each[layers, parts[:, i]].sum(axis=1) for i, each in enumerate(costs)]
    prices = np.stack(
        [
            layered.lookup.costs([params_of(layered, row) for row in parts[:, i]])
            for i in range(len(costs))
        ]
    )
    both = np.column_stack([prices[:, :, 0].mean(axis=0), prices[:, :, 1].max(axis=0)])

    def policy(place: int) -> Policy:
        return joined(layered, [policy_of(layered, row) for row in parts[place]])

    return _within_corner(layered, np.mean(totals, axis=0), both, policy)


def _within_corner(
    layered: Layered, totals: Array, prices: Array, policy: Callable[[int], Policy]
) -> Iterator[Policy]:
    """Yield policies in the order of `within_bounds` that are fast and small enough for a volume.

    The prices of the table are rough, so each is priced exactly before it is trained.
    """
    corner = layered.measure.corner[1:]
    kept = np.flatnonzero((prices < corner * (1.0 + MOST_ERROR)).all(axis=1))
    for place in within_bounds(totals[kept], prices[kept]):
        found = policy(int(kept[place]))
        if (layered.costs(found) < corner).all():
            yield found


def divergence(loss: Array, gradients: Array) -> Array:
    """Return SNIP's (arXiv 2602.01410): of the loss and of the weights, each over its mean."""
    both = np.sqrt(loss), np.sqrt(gradients)
    return np.asarray(sum(each / np.nanmean(each) for each in both))


def decided_anew(layered: Layered, guess: Guess) -> Iterator[Policy]:
    """Yield policies that SNIP decides for the first part of the run and anew for each other."""
    pairs = zip(guess["loss_at"], guess["gradients_at"], strict=True)
    return _programs(layered, [_costs(layered, divergence(*pair)) for pair in pairs])


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
