"""Which policy is asked for next: what is left of the ladder, then what the sampler proposes."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from optuna.trial import TrialState

from policysearch.objective.objective import Objective
from policysearch.search.gain_sampler import GainSampler, gain_sampler
from policysearch.search.records import Asked, compact
from policysearch.search.samplers import OWN, sampler_named
from policysearch.search.space import Params, Space
from policysearch.search.spec import StudySpec
from policysearch.search.view import Seen, gap_of, sampler_view

MOST_DUPLICATES = 64
"""So many known policies proposed in a row mean that the space has no others."""

PATIENCE = 3
"""After so many in a row, policies are drawn at random until there is a new one."""


class Proposer:
    """Proposes policies of a study; what it proposes depends on its arguments alone."""

    def __init__(self, spec: StudySpec, objective: Objective, space: Space) -> None:
        self._spec, self._objective, self._space = spec, objective, space
        self.ladder = space.ladder(spec.study.baseline)

    def propose(
        self,
        place: int,
        shown: Sequence[Seen],
        pending: Sequence[Params],
        known: Collection[str],
        promised: Sequence[Asked] = (),
    ) -> tuple[Asked, float] | None:
        """Return the policy to ask for and what it is expected to add; None where there is none.

        `shown` is what the search is told, `pending` what it asked for and is not told yet, `known`
        the digests of all it has asked for, `promised` what comes after the ladder. The gain is a
        share of the volume that the policies told dominate, infinity where the sampler does not
        say. The sampler is made anew for every place, from the study's seed and the place.
        """
        for digest, (policy, presets) in self.ladder.items():
            if digest not in known:
                params = self._space.project(policy)
                asked = Asked(-1, digest, compact(policy), presets, params, place, start=True)
                return asked, np.inf
        for first in promised:
            if first.digest not in known:
                return replace(first, place=place), np.inf
        spec, space = self._spec, self._space
        view = sampler_view(shown, space, spec.objectives.names, spec.study.sampler, pending)
        seeds = np.random.SeedSequence([spec.study.seed, place]).generate_state(2)
        own = spec.study.sampler == OWN
        chosen = self._own if own else sampler_named(spec.study.sampler, int(seeds[0]))
        at_random = sampler_named("random", int(seeds[1]))
        for streak in range(MOST_DUPLICATES):
            view.sampler = at_random if streak >= PATIENCE else chosen
            trial = view.ask()
            params = space.suggest(trial)
            policy = space.policy(params)
            if policy.digest not in known:
                gain = self._own.expected_share if own and streak < PATIENCE else np.inf
                return Asked(-1, policy.digest, compact(policy), (), params, place), gain
            view.tell(trial, state=TrialState.FAIL)
        return None

    @cached_property
    def _own(self) -> GainSampler:
        """The package's own sampler; it keeps the prices of the space."""
        return gain_sampler(self._spec, self._objective, gap_of)
