"""The looks of a study: asked for, taken, and what is proposed by them.

Which policy is looked at depends on the looks told before it alone; each is recorded before its
run, with how many had been told. So a study that was stopped goes on with the same policies.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from policysearch.files import make_folder
from policysearch.policy.policy import from_json
from policysearch.search.acquisition import yardstick
from policysearch.search.fidelity import LOOK, proposed
from policysearch.space.encoding import Effective
from policysearch.study.gain_sampler import FLOAT32
from policysearch.study.journal.records import Asked, RunKey
from policysearch.study.optuna_view import History, as_seen
from policysearch.study.proposer import Proposer
from policysearch.study.results.fidelity import Look, Looks, trusted
from policysearch.study.session import Session
from policysearch.study.workers.executors import Executor, Job


class Looking:
    """Asks for the looks of a study, is told how they end, and says what is proposed by them."""

    def __init__(self, session: Session, proposer: Proposer, in_order: bool) -> None:
        self._session, self._proposer, self._in_order = session, proposer, in_order
        self._records = session.records
        self._looks = Looks(session.records, session.spec, session.float32.digest, session.prices)
        self._ready = deque(self._records.looks.values())
        self._keys: list[RunKey] = []
        self._ended = False

    def take(self, executor: Executor) -> Iterator[None]:
        """Take the looks that are missing, float32's runs first; yield after each run."""
        session = self._session
        beside = {self._looks.beside} - self._records.runs.keys()
        missing = session.missing_float32() | dict.fromkeys(beside, session.float32)
        for key, outcome in session.trained(executor, missing):
            self._records.add_run(key, outcome)
            yield
        if self._looks.learns:
            if session.folder is not None:
                make_folder(session.folder)
            for index, outcome in executor.run(self._jobs()):
                self._records.add_run(self._keys[index], outcome)
                yield

    @cached_property
    def _most(self) -> int:
        return LOOK * len(Effective(self._session.space).decisions.places)

    def _jobs(self) -> Iterator[Job | None]:
        while True:
            if self._ready:
                asked = self._ready.popleft()
                key = self._looks.key(asked)
                if key not in self._records.runs and key not in self._keys:
                    self._keys.append(key)
                    yield self._session.job(key, from_json(asked.text, "stored policy"))
            elif (found := self._next()) is not None:
                self._records.add_look(found)
                self._ready.append(found)
            elif self._ended:
                return
            else:
                yield None

    def _next(self) -> Asked | None:
        """Return the policy to look at; None where there is none now, or none any more."""
        asked = list(self._records.looks.values())
        ended = self._looks.ended(self._in_order)
        count = len(ended)
        if self._in_order:
            count = max(0, len(asked) - self._session.spec.study.workers + 1)
            if count > len(ended):
                return None
        looks = self._looks.of(ended[:count])
        enough = len(asked) >= self._most or not trusted(looks)
        found = None if enough else self._proposed(asked, looks)
        self._ended = found is None
        return found

    def _proposed(self, asked: Sequence[Asked], told: Sequence[Look]) -> Asked | None:
        session = self._session
        history = History(session.spec.objectives.names)
        for look in told:
            cost = session.prices(look.asked)
            history.append(as_seen(session.params(look.asked), look.short, cost))
        heard = {look.asked.digest for look in told}
        pending = [session.params(each) for each in asked if each.digest not in heard]
        known = {session.float32.digest, *(each.digest for each in asked)}
        shown = history.shown(len(told))
        found = self._proposer.propose(len(asked), shown, pending, known, whole=True)
        return replace(found[0], told=len(told)) if found else None

    def promised(self, told: Collection[str]) -> list[Asked]:
        """Return what looks propose, the most promising first, once the trials `told` are known.

        Nothing where they do not rank policies as whole runs do.
        """
        if not self._session.spec.study.looks:
            return []
        looks = self._looks.of(self._looks.ended(), told)
        if not looks or not trusted(looks):
            return []
        costs = np.array([look.costs for look in looks])
        ladder = [place for place, look in enumerate(looks) if look.asked.start]
        measure = yardstick(costs[ladder]) if ladder else FLOAT32
        gaps = np.array([look.short for look in looks])
        return [looks[place].asked for place in proposed(measure, gaps, costs)]

    @property
    def trials(self) -> int:
        """How many trials the looks are worth, rounded up."""
        study = self._session.spec.study
        looks = len(self._records.looks) if study.looks else 0
        return math.ceil(self._looks.worth * looks / len(study.searched))
