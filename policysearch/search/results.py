"""The results of a study: its trained policies, their front, and the picks from it."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from policysearch.cost.price import PolicyCost
from policysearch.objective import DIVERGED_GAP, Score
from policysearch.policy.policy import Policy, from_json
from policysearch.search.front import Point, knee, non_dominated
from policysearch.search.spec import ObjectiveName, StudySpec
from policysearch.values import InputError

if TYPE_CHECKING:
    import pandas

RESOLUTION = 10.0
"""An effect is claimed from this many times the noise floor on."""


@dataclass(frozen=True)
class Trial:
    """One trained policy: `scores` holds one score per training seed of the study.

    `text` is the policy as JSON. `presets` names the presets of the ladder that are this policy;
    none for a sampled one. `divergence` says where the first run that diverged did; "" if none.
    """

    number: int
    digest: str
    text: str
    presets: tuple[str, ...]
    scores: tuple[Score, ...]
    divergence: str

    @cached_property
    def policy(self) -> Policy:
        """The policy as a value."""
        return from_json(self.text, f"trial {self.number} policy")

    @cached_property
    def name(self) -> str:
        """The policy's name."""
        return policy_name(self.text)

    @property
    def diverged(self) -> bool:
        """Whether any of the runs diverged."""
        return any(score.diverged for score in self.scores)

    @property
    def loss_gap(self) -> float:
        """Mean loss gap to float32 over the seeds, in nats; DIVERGED_GAP if any run diverged."""
        if self.diverged:
            return DIVERGED_GAP
        return math.fsum(score.loss_gap for score in self.scores) / len(self.scores)

    @property
    def gap_range(self) -> tuple[float, float]:
        """The smallest and largest loss gap over the seeds, in nats."""
        gaps = [score.loss_gap for score in self.scores]
        return min(gaps), max(gaps)

    @property
    def gap_error(self) -> float:
        """Standard error of `loss_gap` over the seeds, in nats; 0 for a single seed."""
        count = len(self.scores)
        squares = math.fsum((score.loss_gap - self.loss_gap) ** 2 for score in self.scores)
        return math.sqrt(squares / (count - 1) / count) if count > 1 else 0.0

    @property
    def validation_accuracy(self) -> float:
        """Mean share of validation images classified right."""
        return math.fsum(s.validation_accuracy for s in self.scores) / len(self.scores)

    @property
    def skipped_steps(self) -> int:
        """Most steps that one of the runs skipped."""
        return max(score.skipped_steps for score in self.scores)

    @property
    def cost(self) -> PolicyCost:
        """The modeled cost; it does not depend on the seed."""
        return self.scores[0].cost


@dataclass(frozen=True)
class FailedTrial:
    """A policy whose training did not end in a result, and why."""

    number: int
    text: str
    presets: tuple[str, ...]
    reason: str

    @cached_property
    def name(self) -> str:
        """The policy's name."""
        return policy_name(self.text)


def policy_name(text: str) -> str:
    """Return the name of the policy written in the JSON `text`."""
    name: str = json.loads(text)["name"]
    return name


@dataclass(frozen=True)
class Row:
    """One trained policy.

    Gaps are in nats: the mean over the seeds, the smallest and largest, and what the front counts
    (see `Results.counted_gap`). The speedup with its interval and the memory ratio are modeled,
    against float32 on the same device and stack. `presets` are the presets that are this policy,
    separated by spaces.
    """

    trial: int
    policy: str
    presets: str
    on_front: bool
    diverged: bool
    loss_gap: float
    loss_gap_low: float
    loss_gap_high: float
    counted_gap: float
    noise_gap: float | None
    validation_accuracy: float
    modeled_speedup: float
    modeled_speedup_low: float
    modeled_speedup_high: float
    modeled_memory_ratio: float
    skipped_steps: int
    device: str
    stack: str
    digest: str

    @property
    def label(self) -> str:
        """The name to show: the presets where there are any."""
        return self.presets or self.policy


@dataclass(frozen=True)
class Results:
    """What a study has found so far; `trials` and `failed` by number, equal policies once.

    `noise_gap`: root mean square, over the training seeds, of how far the float32 tail loss moves
    when its initial parameters are jittered by 1e-6; None before it is measured.
    `float32_fault` says why nothing can be compared with float32, where float32 itself diverged
    or failed; "" otherwise. `mixed` lists changes of code or libraries that a run was told to
    accept: the results were made on both sides of them.
    """

    spec: StudySpec
    trials: tuple[Trial, ...]
    noise_gap: float | None
    failed: tuple[FailedTrial, ...] = ()
    float32_fault: str = ""
    mixed: tuple[str, ...] = ()

    @property
    def resolution_gap(self) -> float:
        """The least loss gap that counts as an effect, in nats: ten times the noise."""
        return RESOLUTION * (self.noise_gap or 0.0)

    @property
    def accumulators(self) -> tuple[str, ...]:
        """The accumulators that products were summed in, by name."""
        found = (re.findall(r'"accumulator": ?"([^"]*)"', trial.text) for trial in self.trials)
        return tuple(sorted({name for names in found for name in names}))

    def counted_gap(self, trial: Trial) -> float:
        """Return the gap the front counts: never below the resolution or its standard error.

        A policy that looks better than float32, or closer to it than the seeds can tell, gains
        nothing by that.
        """
        if trial.diverged:
            return DIVERGED_GAP
        return max(trial.loss_gap, trial.gap_error, self.resolution_gap)

    def point(self, trial: Trial) -> Point:
        """Return the trial's objectives, every one to be minimised."""
        axes: dict[ObjectiveName, float] = {
            "loss_gap": self.counted_gap(trial),
            "speedup": -trial.cost.speedup,
            "memory_ratio": trial.cost.memory_ratio,
        }
        return tuple(axes[name] for name in self.spec.objectives.names)

    @cached_property
    def front(self) -> tuple[Trial, ...]:
        """The trials no other trial dominates, fastest first; diverged ones left out."""
        sound = [trial for trial in self.trials if not trial.diverged]
        chosen = [sound[i] for i in non_dominated([self.point(trial) for trial in sound])]
        return tuple(sorted(chosen, key=lambda t: (-t.cost.speedup, t.loss_gap, t.number)))

    def knee(self) -> Trial:
        """Return the member of the front nearest to the ideal; see `front.knee`.

        The counted loss gap enters by its logarithm, because gaps span decades; one of exactly
        zero (float32's own) counts as the least of the others there.
        """
        front = self._front()
        place = self.spec.objectives.names.index("loss_gap")
        points = [list(self.point(trial)) for trial in front]
        least = min((point[place] for point in points if point[place] > 0.0), default=1.0)
        for point in points:
            point[place] = math.log10(max(point[place], least))
        return front[knee([tuple(point) for point in points])]

    def fastest(self, max_gap: float | None = None) -> Trial:
        """Return the front's member of highest modeled speedup with a loss gap up to `max_gap`.

        The gap is in nats. Raises InputError where no member is that close to float32.
        """
        front = self._front()
        within = [t for t in front if max_gap is None or t.loss_gap <= max_gap]
        if not within:
            least = min(t.loss_gap for t in front)
            raise InputError(f"max-gap: {max_gap}; expected at least {least:.3g}, the least found")
        return max(within, key=lambda t: (t.cost.speedup, -t.loss_gap, -t.number))

    def trial(self, number: int) -> Trial:
        """Return the trial with this number; InputError where there is none."""
        for trial in self.trials:
            if trial.number == number:
                return trial
        numbers = ", ".join(str(trial.number) for trial in self.trials)
        raise InputError(f"trial: {number}; expected one of {numbers or 'none yet'}")

    def _front(self) -> tuple[Trial, ...]:
        if not self.front:
            lost = sum(trial.diverged for trial in self.trials) + len(self.failed)
            raise InputError(
                f"study {self.spec.study.name}: no finished trial that trained "
                f"({lost} diverged or failed); expected at least one"
            )
        return self.front

    def rows(self) -> tuple[Row, ...]:
        """Return one row per trained policy: the front first, fastest first, then the rest so."""
        front = [trial.number for trial in self.front]
        order = {number: place for place, number in enumerate(front)}

        def place(trial: Trial) -> tuple[int, float, int]:
            return order.get(trial.number, len(front)), -trial.cost.speedup, trial.number

        return tuple(_row(self, trial) for trial in sorted(self.trials, key=place))

    def to_frame(self) -> pandas.DataFrame:
        """Return `rows` as a DataFrame, a column per field of `Row`."""
        import pandas  # takes half a second, which only this should wait for

        return pandas.DataFrame(
            [dataclasses.astuple(row) for row in self.rows()],
            columns=[field.name for field in dataclasses.fields(Row)],
        )


def _row(results: Results, trial: Trial) -> Row:
    cost = trial.cost
    low, high = trial.gap_range
    return Row(
        trial=trial.number,
        policy=trial.name,
        presets=" ".join(trial.presets),
        on_front=trial in results.front,
        diverged=trial.diverged,
        loss_gap=trial.loss_gap,
        loss_gap_low=low,
        loss_gap_high=high,
        counted_gap=results.counted_gap(trial),
        noise_gap=results.noise_gap,
        validation_accuracy=trial.validation_accuracy,
        modeled_speedup=cost.speedup,
        modeled_speedup_low=cost.speedup_low,
        modeled_speedup_high=cost.speedup_high,
        modeled_memory_ratio=cost.memory_ratio,
        skipped_steps=trial.skipped_steps,
        device=results.spec.cost.device,
        stack=results.spec.cost.stack,
        digest=trial.digest,
    )
