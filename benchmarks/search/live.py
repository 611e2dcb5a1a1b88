"""Tasks of tables that can be run here: a policy of the table is trained when it is asked for."""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path

from policysearch.objective.score import DIVERGED_GAP, Measurement, gap_curve
from policysearch.search.fidelity import SHORT, short_share
from policysearch.space.decided.base import Params
from policysearch.space.space import Space
from policysearch.study.specification import StudySpec, load_spec, objective_of, space_of

FOLDER = Path(__file__).parent


class Live:
    """The study file of a table: its objective, its space and the parameters of every policy."""

    def __init__(self, spec: StudySpec) -> None:
        self.spec = spec
        self.objective = objective_of(spec)
        self.space = space_of(spec, self.objective.model)
        self.params = every(self.space)

    def short(self, seed: int) -> float:
        """Return how much of the steps a short run takes, as float32's own run says."""
        base = self.objective.baseline(seed)
        assert base.first_loss is not None and base.tail_loss is not None
        losses = dict(base.curve)
        quarter = losses[min(losses, key=lambda taken: abs(taken - SHORT * self.spec.task.steps))]
        return short_share(base.first_loss, quarter, base.tail_loss)

    def curve(self, seed: int, place: int) -> list[float]:
        """Return the gaps in nats at CURVE_SHARES of a run of the policy at `place`."""
        run = self.objective.measure(self.space.policy(self.params[place]), seed)
        return gaps_along(run, self.objective.baseline(seed))


def every(space: Space) -> list[Params]:
    """Return the parameters of every policy, the last decision fastest."""
    choices = space.choices()
    return [dict(zip(choices, each, strict=True)) for each in itertools.product(*choices.values())]


def gaps_along(run: Measurement | None, base: Measurement) -> list[float]:
    """Return the gaps in nats at CURVE_SHARES of the run, DIVERGED_GAP where it did not get."""
    beside = {taken: loss for taken, loss, _ in gap_curve(run, base)} if run else {}
    return [beside.get(taken, DIVERGED_GAP) for taken, _ in base.curve]


@cache
def live(name: str) -> Live | None:
    """Return the task of the table called `name`; None where it is none that can be run here."""
    path = FOLDER / f"{name}.toml"
    return Live(load_spec(path)) if path.exists() else None
