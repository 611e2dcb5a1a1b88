"""A search under way: a policy is asked for whenever a worker is free, and told when it is done."""

from __future__ import annotations

import math
import shutil
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from policysearch.objective.score import Outcome
from policysearch.policy.policy import Policy
from policysearch.space.decided.base import Params
from policysearch.space.encoding import Encoding
from policysearch.study.journal.records import Asked, RunKey
from policysearch.study.low_fidelity import LowFidelitySearch
from policysearch.study.optuna_view import History, TrialView, params_of
from policysearch.study.probes import probes
from policysearch.study.proposer import Proposer
from policysearch.study.session import Progress, Session
from policysearch.study.stopping import EXHAUSTED, NO_REFERENCE, Clock, Limits, due, settled
from policysearch.study.workers.executors import Executor, Job


def search(
    session: Session,
    executor: Executor,
    progress: Progress | None,
    retry_failed: bool = False,
    clock: Clock = time.monotonic,
) -> None:
    """Go on until the study's trials are done or there is another reason to stop; record it.

    First come the runs that recorded trials lack: a seed was added, or, with `retry_failed`, runs
    that failed.
    """
    if retry_failed:
        session.runs.forget_failed()
    missing = session.runs.missing(session.records.trials)
    for key, outcome in session.runs.trained(executor, missing):
        session.records.add_run(key, outcome)
        if progress is not None:
            progress(len(session.records.searched), session.results)
    coordinator = Coordinator(session, executor.in_order, clock)
    session.records.add_weighed(coordinator.weighed)
    session.prices.record((*session.records.trials, *session.records.weighed))
    if progress is not None:
        progress(coordinator.done, session.results)
    for _ in coordinator.low_fidelity.train(executor) if session.plan.fidelity else ():
        if progress is not None:
            progress(coordinator.done, session.results)
    for index, outcome in executor.run(coordinator.jobs()):
        coordinator.tell(index, outcome)
        if progress is not None:
            progress(coordinator.done, session.results)
    session.records.add_stop(coordinator.reason)
    session.prices.record(())  # Of the references, once there are trials.
    for _ in _settle_front(session, executor):
        if progress is not None:
            progress(coordinator.done, session.results)
    if session.runs.folder is not None:
        shutil.rmtree(session.runs.folder, ignore_errors=True)  # What was not gone on with.
    if progress is not None:
        progress(coordinator.done, session.results)


def _settle_front(session: Session, executor: Executor) -> Iterator[None]:
    """Train members of the front with all seeds until each has them; yield after each run."""
    while len(session.runs.searched) < len(session.runs.seeds) and (runs := session.settling()):
        for key, outcome in session.runs.trained(executor, runs):
            session.records.add_run(key, outcome)
            yield


LADDER_LOOKS = 2
"""Up to so many trials, float32 and the baseline, prices may say that nothing else is worth it."""

BATCHES = 8
"""Out of order, policies are asked for from the same trials until so small a share of those under
way, or of those told, has been told since: a model is fitted once for many asks."""


class Coordinator:
    """Asks for policies and hands out their runs; what is asked depends on what was told alone.

    A trial is told when it is recorded, so numbers give the order. With `in_order` trials are told
    in the order they were asked for, and policy k is asked for from the first k - workers + 1 of
    them: then nothing depends on how fast runs are. Without, they are told as they end, and a
    policy is asked for, from nearly all of them (see BATCHES), for every run that can be started.
    Either way each policy is recorded with how many trials it was asked from, so that its asking
    can be repeated.
    """

    def __init__(self, session: Session, in_order: bool, clock: Clock = time.monotonic) -> None:
        self._session, self._records, self._in_order = session, session.records, in_order
        self._plan, self._runs = session.plan, session.runs
        seed, probed = self._plan.probed_seed, (session.objective, session.space)
        hints = None if seed is None else partial(probes, *probed, Encoding(session.space), seed)
        self._proposer = Proposer(self._plan, *probed, hints)
        self.low_fidelity = LowFidelitySearch(
            *(self._plan, self._runs, session.space, session.prices), self._proposer, in_order
        )
        self._limits = Limits(self._plan.budget, self._proposer.first, clock)
        self._history = History(self._plan.objectives)
        for asked in self._records.searched:
            self._history.append(session.view(asked))
        self._asked = sorted(self._records.searched, key=lambda asked: asked.place)
        self._keys: list[RunKey] = []
        self._begun: set[RunKey] = set()
        self._ready: deque[tuple[RunKey, Policy]] = deque()
        self._seeds, self._finished = self._runs.searched, 0
        self._passed = -1
        self.reason = ""
        """Why the search asked for no more, once it is at its end."""
        for asked in list(self._records.outstanding.values()):
            self._begin(asked)

    @property
    def weighed(self) -> list[Asked]:
        """What of the ladder is left while another policy promises more."""
        return self._proposer.weighed

    @property
    def done(self) -> float:
        """Trials done, with fractions."""
        return len(self._records.searched) + self._finished / len(self._seeds)

    def jobs(self) -> Iterator[Job | None]:
        """Yield what to run next; None where that is not known before another run has ended."""
        while True:
            if self._ready:
                key, policy = self._ready.popleft()
                self._keys.append(key)
                yield self._runs.job(key, policy)
            elif (asked := self._next()) is not None:
                self._records.add_asked(asked)
                self._begin(asked)
            elif self.reason:
                return
            elif not self._ready:
                yield None

    def tell(self, index: int, outcome: Outcome) -> None:
        """Record how the run at place `index` of `jobs` ended, and the trials that end with it."""
        key = self._keys[index]
        self._records.add_run(key, outcome)
        if not key.jitter and key.seed in self._seeds:
            self._finished += len(self._waiting_trials(key.digest))
        self._settle(key.digest)

    def _begin(self, asked: Asked) -> None:
        """Make ready the runs that the policy needs and that nobody has begun."""
        self._asked.append(asked)
        runs = self._runs.missing([asked])
        self._ready.extend((key, runs[key]) for key in runs if key not in self._begun)
        self._begun |= runs.keys()
        own = {key for key in runs if key.seed in self._seeds and not key.jitter}
        self._finished += len(self._seeds) - sum(key.digest == asked.trained for key in own)
        self._settle(asked.trained)

    def _waiting_trials(self, digest: str) -> list[Asked]:
        """Return what is outstanding and trained by runs of the policy `digest`."""
        return [a for a in self._records.outstanding.values() if a.trained == digest]

    def _settle(self, digest: str) -> None:
        """Record the trials whose runs have all ended, now that one of the policy `digest` has."""
        waiting = list(self._records.outstanding.values())
        if not self._in_order and digest != self._runs.float32.digest:
            waiting = self._waiting_trials(digest)
        for asked in waiting:
            if self._runs.ended(asked, jittered=self._in_order):
                self._session.record(asked)
                self._finished -= len(self._seeds)
                self._history.append(self._session.view(asked))
            elif self._in_order:
                break

    def _next(self) -> Asked | None:
        """Return the policy to ask for; None where there is none now, with `reason` where ever."""
        told, place = len(self._records.searched), len(self._asked)
        late = self._plan.workers - 1
        first = place - late if self._in_order else self._asked_from(told)
        for count in range(max(0, first, self._passed + 1), told + 1):
            known = {asked.digest for asked in self._asked}
            views = self._settled_goal(count if self._in_order else told)
            if views is None:
                return None
            if count and self._runs.no_reference:
                self.reason = NO_REFERENCE
                return None
            spent = self.low_fidelity.trials
            self.reason = self._limits.reached(known, views, self._session.aims.now, spent)
            if self.reason:
                return None
            proposal = self.proposed(self._asked, count)
            if proposal is None:
                self.reason = EXHAUSTED
                return None
            asked, gain = proposal
            ending = self._ending(count, gain == math.inf)
            if not ending:
                self._passed = -1
                return asked
            self._passed = count
            if count == place:  # With nothing outstanding that could say otherwise.
                self.reason = ending
        return None

    def _ending(self, count: int, first: bool) -> str:
        """Return why so little is left after `count` trials that no more is asked for, or "".

        What comes `first` is left out only where prices alone say so.
        """
        aim, place = self._session.aims.now, len(self._asked)
        if not (aim.left and count and due(place)) or (first and count > LADDER_LOOKS):
            return ""
        told, (pending, known) = (
            self._history.first(count),
            self._pending_params(self._asked, count),
        )
        goal = aim.of_search(told) if aim.asked else None
        left = self._proposer.left(told, pending, known, goal)
        return "" if left is None or (first and left.chance) else settled(left, aim, told)

    def _settled_goal(self, count: int) -> list[TrialView] | None:
        """Return the first `count` trials, those that meet the goal as all seeds have them.

        None while runs of these are missing: they are made ready. One seed may be luck.
        """
        views, seeds, aim = self._history.first(count), self._runs.seeds, self._session.aims.now
        places = [place for place, view in enumerate(views) if aim.ended_by(view)]
        asked = self._records.searched
        runs = self._runs.missing([asked[place] for place in places], seeds)
        self._ready.extend((key, runs[key]) for key in runs if key not in self._begun)
        self._begun |= runs.keys()
        for place in places if not runs else ():
            views[place] = self._session.view(asked[place], seeds)
        return None if runs else views

    def _pending_params(self, asked: Sequence[Asked], told: int) -> tuple[list[Params], set[str]]:
        """Return what of `asked` is none of the first `told` trials, and the digests of it all."""
        digests = {trial.digest for trial in self._records.searched[:told]}
        space = self._session.space
        pending = [params_of(each, space) for each in asked if each.digest not in digests]
        return pending, {each.digest for each in asked}

    def _asked_from(self, told: int) -> int:
        """Return from how many of the trials `told` to ask, where their order is that of coming."""
        last = max((asked.told for asked in self._asked), default=0)
        return told if told - last >= min(len(self._asked) - told, last) / BATCHES else last

    def proposed(self, asked: Sequence[Asked], told: int) -> tuple[Asked, float] | None:
        """Return what is asked for after `asked`, with the first `told` trials told; and its gain.

        See `Proposer.propose`. What is asked for and not told counts as under way, also where it
        has ended since.
        """
        pending, known = self._pending_params(asked, told)
        digests = {trial.digest for trial in self._records.searched[:told]}
        shown, promised = self._history.shown(told), self.low_fidelity.promised(digests)
        aim = self._session.aims.now
        goal = aim.of_search(self._history.first(told)) if aim.asked else None
        proposal = self._proposer.propose(len(asked), shown, pending, known, promised, goal=goal)
        return proposal and (replace(proposal[0], told=told), proposal[1])
