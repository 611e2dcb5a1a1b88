"""Why a search asks for no more: budget, time, too little to expect, goal met, nothing left.

The reasons are words: a journal keeps them, and every view says them as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from policysearch.search.acquisition import LARGEST_GAP
from policysearch.search.goals import Left
from policysearch.study.aim import Aim
from policysearch.study.optuna_view import TrialView
from policysearch.study.plan import Budget

Clock = Callable[[], float]
"""Seconds since any one moment."""

EXHAUSTED = "the space has no other policy"

NO_REFERENCE = "float32 itself has not learned, so no policy can be ranked"


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


def _counts(trial: TrialView) -> bool:
    """Whether the gap is none of those from which on a policy adds nothing."""
    return trial.loss_gap < LARGEST_GAP


def due(place: int) -> bool:
    """Whether what is left is looked at before the policy at this place: a tenth as often later."""
    return place % max(1, place // 10) == 0


def settled(left: Left, aim: Aim, told: Sequence[TrialView]) -> str:
    """Return why no more than `left` is little enough to end the search; "" where it is not."""
    if left.share > aim.left:
        return ""
    if not left.chance:
        if aim.measured and not any(map(aim.meets, told)):
            return ""  # A price says nothing of what only a training measures.
        return "settled: by price alone nothing else can be better"
    trained = [trial for trial in told if trial.speedup != 1.0 or trial.memory_ratio != 1.0]
    found = aim.meets if aim.asked else _counts
    if not any(map(found, trained)):
        chance = f"the chance that something is left is below {left.chance:.2g}"
        return f"nothing found after {len(trained)}; {chance}"
    if not aim.asked:
        return f"settled: at 95 % at most {left.share:.1%} of the volume is left"
    than = {"time": "faster", "memory": "smaller", "gap": "closer"}[aim.goal.axis]
    return f"settled: at 95 % no other policy is more than {left.share:.1%} {than} than the best"
