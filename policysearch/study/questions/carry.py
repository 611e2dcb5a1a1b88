"""Whether what a study of a small net found holds in a large one: rules, prices, a few trainings.

Policies go from net to net as rules. The large net prices all of them and trains a few, in a
journal of its own; a gap is known of those alone. Whether the small net speaks for the large one is
their rank correlation, beside how well each net agrees with itself from seed to seed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from policysearch.cost.price import PolicyCost
from policysearch.nn.model import Model
from policysearch.objective.objective import Objective
from policysearch.policy.policy import Policy
from policysearch.search.objectives import counted
from policysearch.space.rules_file import RulesFile, blocks_between, rules_file_of
from policysearch.study.journal.trials import Trial
from policysearch.study.questions.by_hand import try_policy
from policysearch.study.results.ranking import rank_correlation, split_half
from policysearch.study.results.results import Results
from policysearch.study.specification import StudySpec, objective_of
from policysearch.values import InputError

FEWEST = 4
"""Fewer policies trained on both nets say nothing of a rank."""

OWN = 0.5
"""The least rank correlation between halves of a net's own seeds: below it gaps are noise."""

SURE, LEAST = 0.8, 0.5
"""A rank correlation from SURE on carries if no choice of seeds brings it below LEAST."""

FEWEST_OF_KIND = 3
"""With as many policies with masters, or without, their own rank correlation is told as well."""

Kind = Literal["carries", "does not carry", "cannot tell"]
Say = Callable[[str], None]


@dataclass(frozen=True)
class Agreement:
    """How alike two nets rank `count` policies: a rank correlation, its least and most over seeds.

    The bounds hold 95 % of all draws of as many seeds of each net with replacement. `small` and
    `large`: how alike each net ranks them itself with half of its seeds and the other half; None
    with one seed.
    """

    count: int
    correlation: float
    low: float
    high: float
    small: float | None
    large: float | None

    @property
    def kind(self) -> Kind:
        """What that says."""
        if self.noise or self.count < FEWEST:
            return "cannot tell"
        if self.correlation >= SURE and self.low >= LEAST:
            return "carries"
        return "does not carry" if self.high < SURE else "cannot tell"

    @property
    def noise(self) -> str:
        """Which net does not agree with itself; "" where both do."""
        for name, own in (("small", self.small), ("large", self.large)):
            if own is None:
                return f"the {name} net was trained with one seed, so its noise is not known"
            if own < OWN:
                return f"the {name} net's own seeds rank them at {own:.2f}: noise"
        return ""

    def __str__(self) -> str:
        bounds = f"{self.low:.2f} to {self.high:.2f} over the seeds"
        return f"rank correlation {self.correlation:.2f} ({bounds}) of {self.count} policies"


def agreement(small: Sequence[Sequence[float]], large: Sequence[Sequence[float]]) -> Agreement:
    """Return how alike two nets rank policies, from the gap of each per seed of the net."""
    tables = np.array(small, np.float64), np.array(large, np.float64)
    found = rank_correlation(*(table.mean(axis=1) for table in tables))
    draws = [_means(table) for table in tables]
    every = [rank_correlation(a, b) for a, b in itertools.product(*draws)]
    low, high = np.quantile(every, (0.025, 0.975))
    return Agreement(
        len(small), found, float(low), float(high), split_half(small), split_half(large)
    )


def _means(table: np.ndarray[tuple[int, int], np.dtype[np.float64]]) -> list[list[float]]:
    """Return the mean gaps for every choice of as many seeds, one and the same more than once."""
    seeds = range(min(table.shape[1], 4))
    chosen = itertools.product(seeds, repeat=len(seeds))
    return [table[:, list(places)].mean(axis=1).tolist() for places in chosen]


@dataclass(frozen=True)
class Moved:
    """A policy of the small study on the large net.

    `why` says why it has none there, and `there` is its trial in the large study, None where it was
    not trained. `notes`: what its rules made of a stack of another depth.
    """

    trial: Trial
    policy: Policy | None = None
    cost: PolicyCost | None = None
    why: str = ""
    notes: tuple[str, ...] = ()
    there: Trial | None = None

    @property
    def masters(self) -> bool:
        return self.trial.policy.master_weights


@dataclass(frozen=True)
class Carried:
    """What came of the policies of a small study on a large net, in the order of their gaps there.

    `of_all`, and `with_masters` and `without` where there are enough, say how alike the nets rank
    what was trained on both; None where there are too few. Gaps up to `counts_from`, in the small
    net and in the large, are alike.
    """

    small: Results
    large: Results | None
    moved: tuple[Moved, ...]
    of_all: Agreement | None = None
    with_masters: Agreement | None = None
    without: Agreement | None = None
    counts_from: tuple[float, float] = (0.0, 0.0)

    @property
    def trained(self) -> tuple[Moved, ...]:
        """What has a gap on both nets."""
        return tuple(each for each in self.moved if each.there is not None)

    @property
    def kind(self) -> Kind:
        """Whether the small net speaks for the large one."""
        if self.fault or self.of_all is None:
            return "cannot tell"
        return self.of_all.kind

    @property
    def fault(self) -> str:
        """Why nothing can be told whatever the ranks are; "" where nothing stands against it."""
        for name, results in (("small", self.small), ("large", self.large)):
            if results is not None and results.cannot_rank:
                return f"of the {name} net, {results.cannot_rank}"
        count = len(self.trained)
        return "" if count >= FEWEST else f"{count} policies trained on both nets, of {FEWEST}"

    @property
    def verdict(self) -> str:
        """What it comes to, in a sentence with its numbers."""
        if self.fault or self.of_all is None:
            return f"cannot tell: {self.fault}"
        found, kind = self.of_all, self.kind
        if kind == "cannot tell":
            return f"cannot tell: {found}; {found.noise or 'that holds both'}"
        if kind == "carries":
            return f"carries: {found}"
        return f"does not carry: {found}; {self._difference()}"

    def _difference(self) -> str:
        """Say which policy changes its place most, and what it costs in either net."""
        small = np.argsort(np.argsort([each.trial.loss_gap for each in self.trained]))
        large = np.argsort(np.argsort([each.there.loss_gap for each in self.trained if each.there]))
        place = int(np.argmax(np.abs(small - large)))
        each, unit, count = self.trained[place], self.small.unit, len(small)
        there = each.there.loss_gap if each.there else math.nan
        masters = "with" if each.masters else "without"
        return (
            f"{each.trial.label}, {masters} masters, is number {small[place] + 1} of {count} in "
            f"the small net ({each.trial.loss_gap:+.1e} {unit}), {large[place] + 1} in the large "
            f"({there:+.1e})"
        )


def carry(
    small: Results,
    spec: StudySpec,
    storage: Path,
    *,
    policies: int = 6,
    processes: int | None = None,
    say: Say = lambda line: None,
) -> Carried:
    """Return what of `small` may be on the front of the large net of `spec`, and what it is there.

    Its `contenders` are priced there, and `policies` of them are trained with the seeds of `spec`
    and recorded in its journal `storage`, as tried by hand. `say` is told of that before. Raises
    InputError as `try_policy`, and where `spec` is of another kind of net, other data or another
    loss.
    """
    small.spec.task.check_alike(spec.task, "to: task")
    if small.cannot_rank:
        return Carried(small, None, ())
    here, there = objective_of(small.spec), objective_of(spec)
    every = [_moved_policy(trial, here.model, there) for trial in comparable(small)]
    found = contenders(small, every, policies)
    chosen = sample([e for e in found if e.policy is not None], policies, small.matters_gap)
    runs = (len(chosen) + 2) * len(spec.study.seeds)
    say(f"trains {len(chosen)} policies and float32 there: {runs} runs of {spec.task.steps} steps")
    large: Results | None = None
    numbers: dict[str, int] = {}
    for each in chosen:
        assert each.policy is not None
        say(f"trains {each.trial.label}")
        large, number, _ = try_policy(spec, storage, each.policy, processes=processes)
        numbers[each.trial.digest] = number
    trials = {trial.number: trial for trial in large.trials} if large is not None else {}
    ended = (replace(e, there=trials.get(numbers.get(e.trial.digest, -1))) for e in found)
    return comparison(small, large, tuple(sorted(ended, key=lambda each: each.trial.loss_gap)))


def comparison(small: Results, large: Results | None, moved: tuple[Moved, ...]) -> Carried:
    """Return how alike the nets rank what of `moved` was trained on both, by what counts there."""
    carried = Carried(small, large, moved)
    if large is None or not carried.trained:
        return carried
    here = _counts_from(small, [each.trial for each in carried.trained])
    there = _counts_from(large, [each.there for each in carried.trained if each.there])
    carried = replace(carried, counts_from=(here, there))
    kinds = {True: [e for e in carried.trained if e.masters]}
    kinds[False] = [each for each in carried.trained if not each.masters]
    of_kind = {
        kind: _agreement(members, here, there) if len(members) >= FEWEST_OF_KIND else None
        for kind, members in kinds.items()
    }
    every = carried.trained
    whole = _agreement(every, here, there) if len(every) >= FEWEST else None
    return replace(carried, of_all=whole, with_masters=of_kind[True], without=of_kind[False])


def _counts_from(results: Results, trials: Sequence[Trial]) -> float:
    """Return up to which gap these are alike: what does not matter, or half of them leave open."""
    # As in a front, where a gap below what matters, or below its standard error, gains nothing.
    errors = [trial.gap_error for trial in trials if not trial.diverged]
    return max(results.matters_gap, float(np.median(errors)) if errors else 0.0)


def _agreement(members: Sequence[Moved], here: float, there: float) -> Agreement:
    small = [[max(here, score.loss_gap) for score in each.trial.scores] for each in members]
    large = [[max(there, s.loss_gap) for s in e.there.scores] for e in members if e.there]
    return agreement(*(_whole(table) for table in (small, large)))


def _whole(table: Sequence[Sequence[float]]) -> list[list[float]]:
    """Return the gaps with the seeds that every policy has, the first of each."""
    count = min(map(len, table))
    return [list(row[:count]) for row in table]


def comparable(small: Results) -> list[Trial]:
    """Return what trained in the small net but for float32, which all is compared with."""
    return [t for t in small.trials if not t.diverged and "float32" not in t.presets]


def contenders(small: Results, moved: Sequence[Moved], count: int) -> list[Moved]:
    """Return what none beats that costs no more there; if fewer than `count`, the next by gaps.

    To beat another the gap in the small net is less by more than the standard error of their
    difference. One below zero counts as far above: rounding makes no net better, so that shows how
    far other things move the loss.
    """
    kept = [each for each in moved if not any(_beats(other, each, small) for other in moved)]
    beaten = sorted((e for e in moved if e not in kept), key=lambda each: each.trial.loss_gap)
    return kept + beaten[: max(0, count - len(kept))]


def _beats(one: Moved, other: Moved, small: Results) -> bool:
    """Whether `one` costs no more there, and is better here by more than seeds leave open."""
    if one.cost is None or other.cost is None:
        return False
    names = small.spec.objectives.names
    costs = (counted(1 / c.speedup, c.memory_ratio, names) for c in (one.cost, other.cost))
    cheaper = all(here <= there for here, there in zip(*costs, strict=True))
    means = small.interval(one.trial), small.interval(other.trial)
    error = math.hypot(*(mean.error if mean else 0.0 for mean in means))
    return cheaper and abs(one.trial.loss_gap) + error < other.trial.loss_gap


def _moved_policy(trial: Trial, model: Model, there: Objective) -> Moved:
    """Return the policy on the other net, by the shortest rules that give it on its own."""
    try:
        file = rules_file_of(trial.policy, model)
        policy = named(file, trial).policy(there.model)
        notes = blocks_between(trial.policy, policy)
        return Moved(trial, policy, there.price(policy), notes=notes)
    except InputError as error:
        return Moved(trial, why=str(error))


def named(file: RulesFile, trial: Trial) -> RulesFile:
    """Return the rules with a name that says where they come from."""
    name = file.settings.get("name", trial.name)
    return replace(file, settings={**file.settings, "name": f"{name} carried"})


def sample(moved: Sequence[Moved], count: int, matters: float) -> list[Moved]:
    """Return `count` to train: the fastest with a gap up to `matters`, and a spread of others."""
    costs = [(each.cost.speedup, each) for each in moved if each.cost is not None]
    near = [pair for pair in costs if pair[1].trial.loss_gap <= matters]
    taken = [max(near, key=lambda pair: pair[0])[1]] if near and count else []
    return taken + _spread([each for each in moved if each not in taken], count - len(taken))


def _spread(moved: Sequence[Moved], count: int) -> list[Moved]:
    """Return `count` of them: of those with masters and those without, evenly over their gaps."""
    kinds = [[e for e in moved if e.masters is kind] for kind in (True, False)]
    kinds = [sorted(kind, key=lambda each: each.trial.loss_gap) for kind in kinds]
    larger = max(kinds, key=len)
    least = min(len(min(kinds, key=len)), FEWEST_OF_KIND, count // 2)
    share = round(count * len(larger) / max(1, len(moved)))
    of_larger = max(0, min(share, count - least, len(larger)))
    counts = [of_larger if kind is larger else count - of_larger for kind in kinds]
    return [each for kind, few in zip(kinds, counts, strict=True) for each in _evenly(kind, few)]


def _evenly(members: Sequence[Moved], count: int) -> Iterator[Moved]:
    """Yield so many of them, the first and the last and evenly between."""
    count = min(count, len(members))
    places = {round(i * (len(members) - 1) / max(1, count - 1)) for i in range(count)}
    yield from (members[place] for place in sorted(places))
