"""The results of a study: its trained policies, their front, and the picks from it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING
from policysearch.cost.price import PolicyCost, Speedup, speedup_over
from policysearch.objective.score import DIVERGED_GAP
from policysearch.policy.presets import TF32
from policysearch.search.hypervolume import (Point, covers, knee, thinned)
from policysearch.study.results.fidelity import Looked
from policysearch.study.results.noise import (Interval, intervals)
from policysearch.study.results.ranking import (RESOLUTION, Learned, cannot_rank)
from policysearch.study.results.rows import (Row, own_columns)
from policysearch.study.specification import (ObjectiveName, StudySpec)
from policysearch.study.results.trend import (Trend, columns, later_trends, trends)
from policysearch.study.journal.trials import (Confirmation, FailedTrial, Trial)
from policysearch.values import InputError
from policysearch.cost.memory import VISIBLE_SHARE
from policysearch.objective.objective import Objective
from policysearch.study.journal.trials import Trial


if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Results:
    """What a study has found so far; `trials` and `failed` by number, equal policies once.

    `noise_gap`: root mean square, over the training seeds, of how far the float32 tail loss moves
    when its initial parameters are jittered by 1e-6; None if not measured. `float32_fault`: why
    nothing can be compared with float32, where it diverged or failed itself. `confirmed`: (digest,
    confirmation) of policies that were trained longer, `unconfirmed`: (digest, why) of those whose
    longer runs came to no verdict; see `search.confirm`. `mixed`: changes of
    code or libraries amid the results, which a run was told to accept. `references`: modeled costs
    of what speedups are given against, by preset: float32, TF32 where the device has it, and the
    baseline. `learned`: what float32 itself learns, None if not known. `stopped`: why the search
    asked for no more, "" before its end. `looked`: its short runs. `left`: name and modeled cost of
    what of the ladder was not trained, for others promised more.
    """

    spec: StudySpec
    trials: tuple[Trial, ...]
    noise_gap: float | None
    failed: tuple[FailedTrial, ...] = ()
    float32_fault: str = ""
    mixed: tuple[str, ...] = ()
    confirmed: tuple[tuple[str, Confirmation], ...] = ()
    references: tuple[tuple[str, PolicyCost], ...] = ()
    learned: Learned | None = None
    stopped: str = ""
    looked: Looked | None = None
    left: tuple[tuple[str, PolicyCost], ...] = ()
    unconfirmed: tuple[tuple[str, str], ...] = ()

    def speedups(self, trial: Trial) -> tuple[Speedup, ...]:
        """Return the modeled speedup over each of `references`, in their order."""
        return tuple(speedup_over(trial.cost, cost, name) for name, cost in self.references)

    @property
    def reference_speedups(self) -> dict[str, float]:
        """The modeled speedup of each of `references` over strict float32, which is the first."""
        pairs = [(*strict, *pair) for strict in self.references[:1] for pair in self.references]
        return {name: speedup_over(cost, base, over).value for over, base, name, cost in pairs}

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

        A policy that looks better than float32, or closer than the seeds can tell, gains nothing.
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
    def cannot_rank(self) -> str:
        """Why the recipe cannot rank policies and what to change; "" where it can, or unknown."""
        found, seeds = list(self._intervals.values()), len(self.spec.study.seeds)
        return cannot_rank(self.learned, self.noise_gap, found, self.spec.task, seeds)

    @cached_property
    def front(self) -> tuple[Trial, ...]:
        """The trials no other trial is as good as, fastest first; diverged ones left out.

        Modeled speed and memory count as different from what the model can tell on. Empty where
        the recipe cannot rank policies.
        """
        return () if self.cannot_rank else self._front_of(self.trials)

    def _front_of(self, trials: Sequence[Trial]) -> tuple[Trial, ...]:
        sound = [trial for trial in trials if not trial.diverged]
        points, told = [self.point(trial) for trial in sound], self.spec.objectives.resolutions
        chosen = [sound[i] for i in thinned(points, told)]
        return tuple(sorted(chosen, key=lambda t: (-t.cost.speedup, t.loss_gap, t.number)))

    def beaten_by(self, trial: Trial) -> tuple[Trial, ...]:
        """Return the other members of the front that are nowhere worse by what can be told."""
        here, told = self.point(trial), self.spec.objectives.resolutions
        others = (t for t in self.front if t is not trial)
        return tuple(t for t in others if covers(self.point(t), here, told))

    def knee(self) -> Trial:
        """Return the member of the sound front nearest to the ideal; see `front.knee`.

        The counted loss gap enters by its logarithm, because gaps span decades; one of exactly
        zero (float32's own) counts as the least of the others there.
        """
        front = self.sound_front()
        place = self.spec.objectives.names.index("loss_gap")
        return front[knee([self.point(trial) for trial in front], place)]

    def within(self, max_gap: float | None = None) -> list[Trial]:
        """Return the sound members of the front with a loss gap up to `max_gap`, fastest first.

        The gap is in nats, at the longest horizon: once members were confirmed, only those count.
        Raises InputError where no member is that close to float32.
        """
        gaps = [(self.final_gap(trial), trial) for trial in self.sound_front()]
        found = [trial for gap, trial in gaps if max_gap is None or gap <= max_gap]
        if not found:
            least = min(gap for gap, _ in gaps)
            raise InputError(f"max-gap: {max_gap}; expected at least {least:.3g}, the least found")
        return found

    def fastest(self, max_gap: float | None = None) -> Trial:
        """Return the first of `within`, the one of highest modeled speedup; errors as there."""
        return self.within(max_gap)[0]

    @cached_property
    def _intervals(self) -> dict[int, Interval | None]:
        sound = [trial for trial in self.trials if not trial.diverged]
        found = intervals([[score.loss_gap for score in trial.scores] for trial in sound])
        return {trial.number: interval for trial, interval in zip(sound, found, strict=True)}

    def interval(self, trial: Trial) -> Interval | None:
        """Return the 95 % interval of the mean gap over seeds; None for one seed, or diverged."""
        return self._intervals.get(trial.number)

    @cached_property
    def _trends(self) -> dict[int, Trend]:
        curves = [[score.gap_curve for score in trial.scores] for trial in self.trials]
        found = trends(curves, self.spec.task.steps, self.resolution_gap)
        return {trial.number: trend for trial, trend in zip(self.trials, found, strict=True)}

    def trend(self, trial: Trial) -> Trend:
        """Return where the trial's gap goes over the study's own run."""
        return self._trends[trial.number]

    @cached_property
    def _confirmed_trends(self) -> dict[str, Trend]:
        return later_trends(self.confirmed, self.resolution_gap)

    def confirmed_trend(self, trial: Trial) -> Trend:
        """Return where the trial's gap goes over the longer run; empty where there is none."""
        return self._confirmed_trends.get(trial.digest, Trend())

    @cached_property
    def ties(self) -> dict[int, int]:
        """By number, the members of the front that seeds cannot tell from a faster one: its number.

        Without intervals (one seed) nothing is called apart, and nothing a tie.
        """
        tied: dict[int, int] = {}
        head: tuple[Trial, Interval] | None = None
        for trial in self.front:
            here = self.interval(trial)
            if here is not None and head is not None and not here.apart(head[1]):
                tied[trial.number] = head[0].number
            elif here is not None:
                head = trial, here
        return tied

    @cached_property
    def _confirmations(self) -> dict[str, Confirmation]:
        return dict(self.confirmed)

    def confirmation(self, trial: Trial) -> Confirmation | None:
        """Return what longer training made of the policy; None where it was not confirmed."""
        return self._confirmations.get(trial.digest)

    def fault(self, trial: Trial) -> str:
        """Return why the policy fails at the longer horizon; "" where it does not, or none ran."""
        confirmed = self.confirmation(trial)
        return confirmed.fault(self.counted_gap(trial)) if confirmed else ""

    def verdict(self, trial: Trial) -> str:
        """Return in words what is known of the policy beyond the steps of the search."""
        if self.cannot_rank:
            return self.cannot_rank
        confirmed = self.confirmation(trial)
        if confirmed is None:
            known = dict(self.unconfirmed).get(trial.digest) or trial.early_sign
            known = known or f"nothing is known of it beyond {self.spec.task.steps} steps"
            return f"not confirmed: {known}"
        if fault := self.fault(trial):
            return f"fails later: {fault}"
        return f"holds: gap {confirmed.loss_gap:+.2e} nats at {confirmed.steps} steps"

    def final_gap(self, trial: Trial) -> float:
        """Return the loss gap at the longest horizon the policy was trained over, in nats."""
        confirmed = self.confirmation(trial)
        return confirmed.loss_gap if confirmed else trial.loss_gap

    def sound_front(self) -> list[Trial]:
        """Return the front of what neither fails later nor will; once any was, of the confirmed."""
        self._check_front()
        doubts = [self.fault(t) if self.confirmation(t) else t.early_sign for t in self.trials]
        sound = [trial for trial, doubt in zip(self.trials, doubts, strict=True) if not doubt]
        sure = [t for t in sound if self.confirmation(t) or "float32" in t.presets]
        front = self._front_of(sure if any(map(self.confirmation, sure)) else sound)
        return list(front or self.front)

    def trial(self, number: int) -> Trial:
        """Return the trial with this number; InputError where there is none."""
        for trial in self.trials:
            if trial.number == number:
                return trial
        numbers = ", ".join(str(trial.number) for trial in self.trials)
        raise InputError(f"trial: {number}; expected one of {numbers or 'none yet'}")

    def _check_front(self) -> None:
        lost = sum(trial.diverged for trial in self.trials) + len(self.failed)
        none = f"no finished trial that trained ({lost} diverged or failed); expected at least one"
        if not self.front:
            raise InputError(f"study {self.spec.study.name}: {self.cannot_rank or none}")

    def rows(self) -> tuple[Row, ...]:
        """Return one row per trained policy: the front first, fastest first, then the rest so."""
        order = {trial.number: place for place, trial in enumerate(self.front)}

        def place(trial: Trial) -> tuple[int, float, int]:
            return order.get(trial.number, len(order)), -trial.cost.speedup, trial.number

        ordered = sorted(self.trials, key=place)
        return tuple(_compared(self, trial, _row(self, trial)) for trial in ordered)

    def to_frame(self) -> pandas.DataFrame:
        """Return `rows` as a DataFrame, a column per field of `Row`."""
        import pandas  # takes half a second, which only this should wait for

        return pandas.DataFrame(
            [astuple(row) for row in self.rows()],
            columns=[field.name for field in fields(Row)],
        )


def _row(results: Results, trial: Trial) -> Row:
    confirmed, interval = results.confirmation(trial), results.interval(trial)
    return Row(
        on_front=trial in results.front,
        counted_gap=results.counted_gap(trial),
        noise_gap=results.noise_gap,
        device=results.spec.cost.device,
        stack=results.spec.cost.stack,
        confirmed_steps=confirmed.steps if confirmed else None,
        confirmed_gap=confirmed.loss_gap if confirmed else None,
        float32_loss=confirmed.float32_loss if confirmed else None,
        fault=results.fault(trial),
        gap_low95=interval.low if interval else None,
        gap_high95=interval.high if interval else None,
        tied_with=results.ties.get(trial.number),
        **own_columns(trial),
        **columns(results.trend(trial), results.confirmed_trend(trial), results.spec.task.steps),
    )


def _compared(results: Results, trial: Trial, row: Row) -> Row:
    """Return the row with what its speed is compared with, and the batches it rests on."""
    spec, over = results.spec, {found.over: found.value for found in results.speedups(trial)}
    return replace(
        row,
        speedup_over_tf32=over.get(TF32),
        baseline=spec.study.baseline or "",
        speedup_over_baseline=over.get(spec.study.baseline or ""),
        batch_size=spec.task.batch_size,
        priced_batch_size=spec.priced_batch_size,
        cannot_rank=results.cannot_rank,
    )


def smallest(results: Results, max_gap: float | None = None) -> Trial:
    """Return the front's member of least modeled memory with a loss gap up to `max_gap` nats.

    Of equal ones the fastest. Raises InputError where none is that close.
    """
    return min(results.within(max_gap), key=lambda t: (t.cost.memory_ratio, -t.cost.speedup))


def fitting(results: Results, there: Objective, max_gap: float | None = None) -> Trial:
    """Return the front's fastest member that fits on the device of `there`, at its batch.

    Speed and memory are modeled there, loss gaps up to `max_gap` nats. Raises InputError where none
    is that close, and where none fits.
    """
    costs = [(there.price(trial.policy), trial) for trial in results.within(max_gap)]
    fit = [(cost, trial) for cost, trial in costs if cost.fits]
    if not fit:
        least = min(cost.reserved_high_bytes for cost, _ in costs) / VISIBLE_SHARE
        raise InputError(
            f"fits: {there.device.name} with {there.device.memory_bytes / 2**30:.0f} GiB at batch "
            f"{there.cost_batch_size}; expected {least / 2**30:.1f} GiB or more, the least of the "
            "front, or a smaller batch"
        )
    return max(fit, key=lambda pair: (pair[0].speedup, -pair[1].loss_gap))[1]
