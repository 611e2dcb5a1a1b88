"""How much worse a policy trains than another, as far as seeds and validation labels can tell."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import ndtri, stdtrit

from policysearch.study.journal.trials import Trial
from policysearch.study.results.noise import CONFIDENCE, change, seeds_needed


@dataclass(frozen=True)
class Difference:
    """A policy beside another: more loss in `unit`s, and more accuracy, each with its 95 % reach.

    `matters` and `matters_accuracy` are the least of either that matters. `reach` is None with one
    seed; `accuracy` where no labels are classes, its reach where it is not known how many there are
    (`labels`), or what of it matters.
    """

    gap: float
    reach: float | None
    seeds: int
    matters: float
    accuracy: float | None = None
    accuracy_reach: float | None = None
    matters_accuracy: float | None = None
    labels: int | None = None
    unit: str = "nats"

    @property
    def worse(self) -> bool:
        """Whether more loss is likelier than not, and matters, or less accuracy can be told."""
        lost = -self.accuracy if self.accuracy is not None else 0.0
        least = math.inf if self.accuracy_reach is None else self.accuracy_reach
        return self.gap > self.matters or lost > max(least, self.matters_accuracy or 0.0)

    @property
    def loss_told(self) -> bool:
        """Whether seeds would tell more loss that matters."""
        return self.reach is not None and max(self.gap, 0.0) + self.reach <= self.matters

    @property
    def seeds_needed(self) -> int:
        """With how many seeds that could be told, if they scatter as these: three for one alone."""
        if self.reach is None:
            return 3
        error = self.reach / float(stdtrit(self.seeds - 1.0, 0.5 + CONFIDENCE / 2))
        left = self.matters - max(self.gap, 0.0)
        return seeds_needed(error, self.seeds - 1.0, self.seeds, left)

    @property
    def accuracy_told(self) -> bool:
        """Whether seeds and labels would tell less accuracy that matters, or there is none."""
        if self.accuracy is None:
            return True
        if self.accuracy_reach is None or self.matters_accuracy is None:
            return False
        return self.accuracy_reach - min(self.accuracy, 0.0) <= self.matters_accuracy

    @property
    def said(self) -> str:
        """Say of a policy that is not `worse` how sure that is."""
        if self.loss_told and self.accuracy_told:
            both = "loss" if self.accuracy is None else "loss and accuracy"
            return f"{both} no worse, at 95 %"
        loss = "loss no worse, at 95 %"
        if not self.loss_told:
            loss = f"{_too_few(self.seeds, 'seed')} to judge its loss: {self._loss}"
        return f"{loss}; {self._accuracy}" if self.accuracy is not None else loss

    @property
    def cost(self) -> str:
        """Say of a policy that is `worse` by how much."""
        more = "" if self.accuracy is None else f", accuracy {self.accuracy:+.3f}"
        if self.accuracy_reach is not None:
            more += f" +- {self.accuracy_reach:.3f}"
        return f"loss {self._loss}{more}"

    @property
    def _loss(self) -> str:
        reach = "" if self.reach is None else f" +- {self.reach:.1e}"
        unit = "" if self.unit == "loss" else f" {self.unit}"  # "loss +2e-06", of a net's own
        return f"{self.gap:+.1e}{reach}{unit}"

    @property
    def _accuracy(self) -> str:
        if self.accuracy_told:
            return "accuracy no worse, at 95 %"
        if self.accuracy_reach is None:
            return f"accuracy {self.accuracy:+.3f}, of an unknown number of validation labels"
        few = _too_few(self.labels or 0, "validation label")
        return f"{few} to judge its accuracy: {self.accuracy:+.3f} +- {self.accuracy_reach:.3f}"


def _too_few(number: int, what: str) -> str:
    return f"{number} {what} is too few" if number == 1 else f"{number} {what}s are too few"


def difference(
    trial: Trial,
    beside: Trial | None,
    matters: float,
    matters_accuracy: float | None = None,
    labels: int | None = None,
) -> Difference:
    """Return how much worse the trial is than `beside`, None being float32 of gap zero.

    Over the seeds that both were trained with. `matters`: nats; `labels`: of the validation part.
    """
    other = dict(zip(beside.seeds, beside.scores, strict=False)) if beside else {}
    pairs = [
        (score, other.get(seed))
        for seed, score in zip(trial.seeds, trial.scores, strict=False)
        if beside is None or seed in other
    ]
    after = [score.loss_gap for score, _ in pairs]
    before = [one.loss_gap if one else 0.0 for _, one in pairs]
    moved = change(before, after)
    gap = math.fsum(after) / len(after) - math.fsum(before) / len(before) if pairs else math.nan
    reach = moved.high - moved.mean if moved else None
    shares = [
        (score.validation_accuracy, one.validation_accuracy)
        for score, one in pairs
        if one and score.validation_accuracy is not None and one.validation_accuracy is not None
    ]
    here = [share for share, _ in shares]
    there = [share for _, share in shares if share is not None]
    if not shares or len(here) != len(there):
        return Difference(gap, reach, len(pairs), matters, unit=trial.loss_unit)
    less = math.fsum(here) / len(here) - math.fsum(there) / len(there)
    wide = _accuracy_reach(here, there, labels)
    told = wide, matters_accuracy, labels, trial.loss_unit
    return Difference(gap, reach, len(pairs), matters, less, *told)


def _accuracy_reach(
    here: Sequence[float], there: Sequence[float], labels: int | None
) -> float | None:
    """Return how far a difference of accuracies reaches at 95 %: by its labels, and by its seeds.

    All seeds are judged by the same labels, so seeds make these no more. Which labels are got right
    is not recorded: as if the two erred independently, which is the widest that can be for policies
    that err alike.
    """
    if not labels:
        return None
    variance = sum(
        share * (1.0 - share) / labels
        for share in (math.fsum(here) / len(here), math.fsum(there) / len(there))
    )
    wide = float(ndtri(0.5 + CONFIDENCE / 2)) * math.sqrt(variance)
    seeds = change(there, here)
    return wide if seeds is None else max(wide, seeds.high - seeds.mean)
