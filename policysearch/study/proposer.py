"""Which policy is asked for next: what is left of the ladder, then what the sampler proposes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from optuna.trial import TrialState

from policysearch.objective.objective import Objective
from policysearch.policy.policy import Policy
from policysearch.rewrite.format_rules import LISTS
from policysearch.search.goals import Goal, Left
from policysearch.space.decided.base import Params
from policysearch.space.section import ALL_UNIFORM
from policysearch.space.space import Space
from policysearch.study.gain_sampler import GainSampler, Observation, sampler_of
from policysearch.study.journal.records import Asked, compact
from policysearch.study.optuna_samplers import OWN, sampler_named
from policysearch.study.optuna_view import TrialView, gap_of, sampler_view
from policysearch.study.plan import SearchPlan

MOST_DUPLICATES = 64
"""So many known policies proposed in a row mean that the space has no others."""

PATIENCE = 3
"""After so many in a row, policies are drawn at random until there is a new one."""


def lists_sorted(policy: Policy) -> Policy:
    """Return the policy with its op lists sorted: their order is in the digest, and no matter."""
    lists: dict[str, Any] = {key: tuple(sorted(getattr(policy, key))) for key in LISTS.values()}
    return replace(policy, **lists)


class Proposer:
    """Proposes policies of a study; what it proposes depends on its arguments alone.

    `hints` gives what is known of each decision before any training, once it is needed.
    """

    def __init__(
        self,
        plan: SearchPlan,
        objective: Objective,
        space: Space,
        hints: Callable[[], NDArray[np.float64]] | None = None,
    ) -> None:
        self._plan, self._objective, self._space = plan, objective, space
        self._hints = hints
        self.ladder = space.ladder(plan.baseline)
        self._weighed = self._weighable() if plan.sampler == OWN else {}
        # What of the ladder differs by the order of op lists alone, by each digest and the sorted.
        self._alike: dict[str, list[str]] = {}
        for digest, (policy, _) in self.ladder.items():
            alike = self._alike.setdefault(lists_sorted(policy).digest, [])
            alike.append(digest)
            self._alike[digest] = alike

    @property
    def first(self) -> AbstractSet[str]:
        """The digests of what is asked for before anything else: of the ladder what is named."""
        return self.ladder.keys() - self._weighed.keys()

    @property
    def weighed(self) -> list[Asked]:
        """What of the ladder is left while another policy promises more (`Searcher`)."""
        return [self._of_ladder(digest, -1) for digest in self._weighed]

    def _weighable(self) -> dict[str, Params]:
        """Return the uniform formats that are no preset, with the parameters that make them."""
        if ALL_UNIFORM in self._space.section.ladder:
            return {}
        uniform = {k: self._space.project(p) for k, (p, names) in self.ladder.items() if not names}
        return {k: each for k, each in uniform.items() if self._space.policy(each).digest == k}

    def propose(
        self,
        place: int,
        shown: Sequence[TrialView],
        pending: Sequence[Params],
        known: Collection[str],
        promised: Sequence[Asked] = (),
        whole: bool = False,
        goal: Goal | None = None,
    ) -> tuple[Asked, float] | None:
        """Return the policy to ask for and what it is expected to add; None where there is none.

        `shown` is what the search is told, `pending` what it asked for and is not told yet, `known`
        the digests of all it has asked for, `promised` what comes after `first`, or after the
        `whole` ladder, `goal` what is asked for beside the front. The gain is a share of the volume
        that the policies told dominate, infinity
        where the sampler does not say. The sampler is made anew for every place, from the study's
        seed and the place.
        """
        for digest in self.ladder:
            if digest not in known and (whole or digest not in self._weighed):
                return self._of_ladder(digest, place), np.inf
        for first in promised:
            if first.digest not in known:
                return replace(first, place=place), np.inf
        if self._plan.sampler != OWN:
            return self._sampled_proposal(place, shown, pending, known)
        chosen = self._chosen(place, shown, pending, known, goal)
        return chosen or self._sampled_proposal(place, (), (), known, PATIENCE)

    def left(
        self,
        told: Sequence[TrialView],
        pending: Sequence[Params],
        known: Collection[str],
        goal: Goal | None,
    ) -> Left | None:
        """Return what may be left of the goal, or of the front; None where no sampler can say."""
        if self._plan.sampler != OWN:
            return None
        return self._own.left(*self._observations(told, pending, known), goal)

    def _is_known(self, policy: Policy, known: Collection[str]) -> bool:
        """Whether it was asked for, or one of the ladder whose op lists are ordered otherwise."""
        alike = self._alike.get(lists_sorted(policy).digest, [])
        return any(digest in known for digest in (policy.digest, *alike))

    def _of_ladder(self, digest: str, place: int) -> Asked:
        policy, presets = self.ladder[digest]
        params = self._space.project(policy)
        return Asked(-1, digest, compact(policy), presets, params, place, start=True)

    def _chosen(
        self,
        place: int,
        shown: Sequence[TrialView],
        pending: Sequence[Params],
        known: Collection[str],
        goal: Goal | None,
    ) -> tuple[Asked, float] | None:
        """Return what the package's own sampler proposes; None where all of it is known."""
        trials, start = self._observations(shown, pending, known)
        for _ in range(PATIENCE):
            params = self._own.following(trials, start, goal)
            if not params:
                break
            policy = self._space.policy(params)
            if not self._is_known(policy, known):
                asked = Asked(-1, policy.digest, compact(policy), (), params, place)
                if policy.digest in self._weighed:
                    asked = self._of_ladder(policy.digest, place)
                return replace(asked, expected=self._own.expected_gap), self._own.expected_share
            trials.append(Observation(params))  # Of the trials that are not shown.
        return None

    def _observations(
        self, shown: Sequence[TrialView], pending: Sequence[Params], known: Collection[str]
    ) -> tuple[list[Observation], list[Params]]:
        """Return trials as the package's own sampler has them, and what is left of the start."""
        names = self._plan.objectives
        trials = [Observation(each.params, each.values(names)) for each in shown]
        trials += [Observation(params) for params in pending]
        weighed = self._weighed.items()
        return trials, [e for k, e in weighed if not any(d in known for d in self._alike[k])]

    def _sampled_proposal(
        self,
        place: int,
        shown: Sequence[TrialView],
        pending: Sequence[Params],
        known: Collection[str],
        streak: int = 0,
    ) -> tuple[Asked, float] | None:
        """Return what a sampler of Optuna proposes; after `streak` known ones, at random."""
        plan, space = self._plan, self._space
        seeds = np.random.SeedSequence([plan.seed, place]).generate_state(2)
        at_random = sampler_named("random", int(seeds[1]))
        chosen = at_random if streak else sampler_named(plan.sampler, int(seeds[0]))
        view = sampler_view(shown, space, plan.objectives, plan.sampler, pending)
        for tried in range(streak, MOST_DUPLICATES):
            view.sampler = at_random if tried >= PATIENCE else chosen
            trial = view.ask()
            params = space.suggest(trial)
            policy = space.policy(params)
            if not self._is_known(policy, known):
                return Asked(-1, policy.digest, compact(policy), (), params, place), np.inf
            view.tell(trial, state=TrialState.FAIL)
        return None

    @cached_property
    def _own(self) -> GainSampler:
        """The package's own sampler; it keeps the prices of the space."""
        plan = self._plan
        how = plan.objectives, plan.baseline, plan.seed, gap_of
        hints = self._hints() if self._hints else None
        return sampler_of(self._objective, self._space, *how, hints)
