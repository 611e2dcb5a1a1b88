"""Why a search asks for no more: budget, time, too little to expect, goal met, nothing left.

The reasons are words: a journal keeps them, and every view says them as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from policysearch.study.aim import Aim
from policysearch.study.optuna_view import TrialView
from policysearch.study.plan import Budget

Clock = Callable[[], float]
"""Seconds since any one moment."""

EXHAUSTED = "the space has no other policy"


class Limits:
    """The budget of a search, from now on."""

    def __init__(self, budget: Budget, ladder: AbstractSet[str], clock: Clock) -> None:
        """`ladder` holds the digests that are tried first."""
        self._budget, self._ladder, self._clock = budget, ladder, clock
        self._began = clock()

    def reached(
        self, known: AbstractSet[str], told: Sequence[TrialView], aim: Aim, spent: int = 0
    ) -> str:
        """Return the limit that is reached, in words; "" where none is.

        `known` are the digests of all that was asked for, `told` what the search knows of them,
        `spent` how many trials evaluations of low fidelity were worth.
        """
        budget = self._budget
        if any(aim.ended_by(trial) for trial in told):
            return f"goal met: {aim.words}"
        room = budget.trials - spent - len(known)
        if budget.trials >= len(self._ladder):
            # A preset that is still untried was added to the study file after its trials were done.
            room = max(room, len(self._ladder - known))
        if room <= 0:
            where = f", {spent} of them spent on {budget.low_fidelity}" if spent else ""
            return f"budget: {budget.trials} trials{where}"
        if budget.hours is not None and self._clock() - self._began >= 3600.0 * budget.hours:
            return f"time: {budget.hours:g} hours"
        return ""

    def too_small(self, gain: float) -> bool:
        """Whether so little is expected of a policy that it is not asked for now.

        `gain` as a share of the volume that the policies told dominate.
        """
        return gain < self._budget.least_gain

    @property
    def expected(self) -> str:
        """The reason to stop where what is expected stays too small."""
        return f"expected gain below {self._budget.least_gain:g} of the volume found"
