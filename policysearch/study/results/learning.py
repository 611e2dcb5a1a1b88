"""Whether float32 has learned: on validation data, beyond the best constant, beyond its seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import bdtr, bdtrik, ndtri, stdtrit

from policysearch.study.results.noise import CONFIDENCE
from policysearch.train.constant import CHANCE, Constant


@dataclass(frozen=True)
class Beside:
    """float32 beside the best constant predictor on the validation labels, per training seed.

    `accuracies`: shares got right; `gains`: by how much its loss is below the constant's, mean over
    the labels and standard error. A loss of the net's own has no constant: there it is below itself
    with the labels of other examples, and of constant outputs. Either is () where it was not
    measured with every seed.
    """

    constant: Constant
    accuracies: tuple[float, ...] = ()
    gains: tuple[tuple[float, float], ...] = ()

    @property
    def checked(self) -> bool:
        """Whether anything can be said."""
        return bool(self.gains or (self.accuracies and self.constant.accuracy is not None))

    @property
    def learned(self) -> bool:
        """Whether float32 is beyond the constant, in labels got right or in its loss."""
        return self._by_accuracy() or self._by_loss()

    def _by_accuracy(self) -> bool:
        share, count = self.constant.accuracy, self.constant.validation_labels
        if share is None or not self.accuracies:
            return False
        # So many are got right by chance, all seeds on the same labels: seeds add none to them.
        most = most_by_chance(count, share) / count
        return _beyond(self.accuracies, share, [most - share] * len(self.accuracies))

    def _by_loss(self) -> bool:
        wide = float(ndtri(1.0 - CHANCE))
        means = [mean for mean, _ in self.gains]
        return bool(means) and _beyond(means, 0.0, [wide * error for _, error in self.gains])

    @property
    def said(self) -> str:
        """What it gets beside the constant, in numbers."""
        share, count = self.constant.accuracy, self.constant.validation_labels
        parts = []
        if self.accuracies and share is not None:
            mean = math.fsum(self.accuracies) / len(self.accuracies)
            parts.append(f"accuracy {mean:.3f}, the most frequent class alone {share:.3f}")
        if self.gains:
            less = math.fsum(mean for mean, _ in self.gains) / len(self.gains)
            side = "below" if less >= 0.0 else "above"
            known = self.constant.validation_loss is not None
            chance = "its own with other examples' labels, or of constant outputs"
            rival = "that of the best constant" if known else chance
            parts.append(f"loss {abs(less):.2g} {side} {rival}")
        what = "labels" if share is not None else "examples"
        return f"on {count} validation {what}, {'; '.join(parts)}"

    @property
    def fault(self) -> str:
        """Say that float32 has not learned, and what to change; "" where it has, or not known."""
        if not self.checked or self.learned:
            return ""
        return (
            f"float32 has not learned here: {self.said}: no better than chance as far "
            "as seeds and labels tell, so no policy can be ranked; change: more task.steps, "
            "another task.learning_rate, a larger model, or data whose labels follow from inputs"
        )


@dataclass(frozen=True)
class Learned:
    """What float32 does under the recipe: mean loss before any update, and in the tail, in `unit`s.

    `beside` compares it with the best constant on validation data; None where no record says that.
    """

    first_loss: float
    tail_loss: float
    beside: Beside | None = None
    unit: str = "nats"

    @property
    def checked(self) -> bool:
        """Whether it is known that float32 has learned something, or that it has not."""
        return self.beside is not None and self.beside.checked

    @property
    def fault(self) -> str:
        """Say that float32 has not learned, and what to change; "" where it has, or not known."""
        if self.drop <= 0.0:
            why = "float32 has not learned here: its own training loss does not fall"
            return f"{why}; change: more task.steps, or another rate"
        return self.beside.fault if self.beside else ""

    @property
    def drop(self) -> float:
        """How far the loss falls, in nats."""
        return self.first_loss - self.tail_loss


def most_by_chance(count: int, share: float) -> int:
    """Return how many of `count` labels chance gets right at most, but for CHANCE of its draws.

    The quantile of a binomial distribution: `scipy.stats.binom.ppf`, whose import takes longer than
    all else that a command waits for.
    """
    if not 0.0 < share < 1.0:
        return count if share >= 1.0 else 0
    most: int = math.ceil(bdtrik(1.0 - CHANCE, count, share))
    return most - 1 if most > 0 and bdtr(most - 1, count, share) >= 1.0 - CHANCE else most


def _beyond(values: Sequence[float], chance: float, reaches: Sequence[float]) -> bool:
    """Whether values per seed exceed `chance` by more than the labels' reach, and than seeds do.

    Seeds agree where each of them does so, or where the mean is above at 95 % by Student's t.
    """
    each = [value - chance > reach for value, reach in zip(values, reaches, strict=True)]
    mean = math.fsum(values) / len(values) - chance
    if all(each) or mean <= math.fsum(reaches) / len(reaches):
        return all(each)
    error = float(np.std(values, ddof=1)) / math.sqrt(len(values))
    return mean > float(stdtrit(len(values) - 1, CONFIDENCE)) * error
