"""The results of a study: its trained policies, their front, and the picks from it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from policysearch.cost.price import PolicyCost, Speedup, speedup_over
from policysearch.search.hypervolume import Point, covers, knee, thinned
from policysearch.study.journal.trials import Confirmation, FailedTrial, Provenance, Trial
from policysearch.study.results.fidelity import FidelitySummary
from policysearch.study.results.ranking import (
    RESOLUTION,
    WANTED_SHARE,
    Learned,
    cannot_rank,
    matters_gap,
)
from policysearch.study.results.rows import Row, columns_over, own_columns
from policysearch.study.results.trend import Trend, columns, later_trends, trends
from policysearch.study.results.validation import (
    GAP,
    Intervals,
    OfMean,
    bounds,
    seed_intervals,
    words,
)
from policysearch.study.results.verdict import Verdict, training_verdict, verdict_of
from policysearch.study.results.views import Views
from policysearch.study.specification import StudySpec
from policysearch.values import InputError, brief

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True)
class Results(Views):
    """What a study has found so far; `trials` and `failed` by number, equal policies once.

    `noise_gap`: root mean square, over the training seeds, of how far the float32 tail loss moves
    when its initial parameters are jittered by 1e-6; None if not measured. `float32_fault`: why
    nothing can be compared with float32, where it diverged or failed itself. `confirmed`: (digest,
    confirmation) of policies that were trained longer, `unconfirmed`: (digest, why) of those whose
    longer runs came to no verdict, `horizons`: (digest, what each length came to, longest last);
    see `results.confirmation`. `mixed`: changes of
    code or libraries amid the results, which a run was told to accept. `references`: modeled costs
    of what speedups are given against, by preset: float32, TF32 where the device has it, and the
    baseline. `learned`: what float32 itself learns, None if not known. `stopped`: why the search
    asked for no more, "" before its end. `fidelity`: its runs of low fidelity, None of none.
    `left`: name and modeled cost of what of the ladder was not trained, for others promised more.
    `storage`: the journal they were read from, where that is known. `provenance`: what made the
    results, from the journal.
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
    fidelity: FidelitySummary | None = None
    left: tuple[tuple[str, PolicyCost], ...] = ()
    unconfirmed: tuple[tuple[str, str], ...] = ()
    horizons: tuple[tuple[str, tuple[Confirmation, ...]], ...] = ()
    storage: Path | None = field(default=None, compare=False)
    provenance: Provenance = field(default=Provenance(), compare=False)

    def __repr__(self) -> str:
        count, front = len(self.trials), len(self.front)
        head = f"{self.spec.study.name!r}: {count} policies, {front} on the front"
        return brief(f"Results({head}; verdict: {self.verdict})")

    def speedups(self, trial: Trial) -> tuple[Speedup, ...]:
        """Return the modeled speedup over each of `references`, in their order."""
        return tuple(speedup_over(trial.cost, cost, name) for name, cost in self.references)

    @property
    def reference_speedups(self) -> dict[str, float]:
        """The modeled speedup of each of `references` over strict float32, which is the first."""
        pairs = [(*strict, *pair) for strict in self.references[:1] for pair in self.references]
        return {name: speedup_over(cost, base, over).value for over, base, name, cost in pairs}

    @cached_property
    def unit(self) -> str:
        """What losses and gaps are counted in: nats of a likelihood, "MSE" of squares."""
        return next((trial.loss_unit for trial in self.trials), "nats")

    @property
    def resolution_gap(self) -> float:
        """The least loss gap that counts as an effect, in nats: ten times the noise."""
        return RESOLUTION * (self.noise_gap or 0.0)

    @property
    def matters_gap(self) -> float:
        """The least loss gap that matters, in nats: `objectives.matters` of what float32 learns."""
        return matters_gap(self.spec.objectives.matters, self.learned, self.noise_gap)

    @property
    def accumulators(self) -> tuple[str, ...]:
        """The accumulators that products were summed in, by name."""
        mentions = (re.findall(r'"accumulator": ?"([^"]*)"', trial.text) for trial in self.trials)
        return tuple(sorted({name for names in mentions for name in names}))

    def counted_gap(self, trial: Trial) -> float:
        """Return the gap that can be told: never below the resolution or its standard error."""
        if trial.diverged:
            return trial.loss_gap
        return max(trial.loss_gap, trial.gap_error, self.resolution_gap)

    def ranked_gap(self, trial: Trial) -> float:
        """Return the gap the front counts: never below what matters, so that those are equal.

        A policy that looks better than float32, or closer than seeds can tell, gains nothing.
        """
        return max(self.counted_gap(trial), self.matters_gap)

    def point(self, trial: Trial) -> Point:
        """Return the trial's objectives, every one to be minimised."""
        axes: dict[str, float] = {
            "loss_gap": self.ranked_gap(trial),
            "speedup": -trial.cost.speedup,
            "memory_ratio": trial.cost.memory_ratio,
        }
        return tuple(axes[name] for name in self.spec.objectives.names)

    @cached_property
    def cannot_rank(self) -> str:
        """Why no policy can be ranked and what to change; "" where they can, or that is unknown.

        float32 diverges or has not learned, or its recipe tells policies not apart.
        """
        known, seeds = list(self.means[GAP].values()), len(self.spec.study.seeds)
        # A study may call smaller gaps its own: then those count that noise leaves to be told.
        share = max(WANTED_SHARE, self.spec.objectives.matters)
        how = self.spec.task, seeds, share
        return self.float32_fault or cannot_rank(self.learned, self.noise_gap, known, *how)

    @cached_property
    def front(self) -> tuple[Trial, ...]:
        """The trials no other trial is as good as, fastest first; diverged ones left out.

        Modeled speed and memory count as different from what the model can tell on. Empty where
        the recipe cannot rank policies.
        """
        return () if self.cannot_rank else self._front_of(self.trials)

    def _front_of(self, trials: Sequence[Trial]) -> tuple[Trial, ...]:
        sound = [trial for trial in trials if not trial.diverged]
        points, resolutions = (
            [self.point(trial) for trial in sound],
            self.spec.objectives.resolutions,
        )
        chosen = [sound[i] for i in thinned(points, resolutions)]
        return tuple(sorted(chosen, key=lambda t: (-t.cost.speedup, t.loss_gap, t.number)))

    def beaten_by(self, trial: Trial) -> tuple[Trial, ...]:
        """Return the other members of the front that are nowhere worse by what can be told."""
        here, resolutions = self.point(trial), self.spec.objectives.resolutions
        others = (t for t in self.front if t is not trial)
        return tuple(t for t in others if covers(self.point(t), here, resolutions))

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
        members = [trial for gap, trial in gaps if max_gap is None or gap <= max_gap]
        if not members:
            least = min(gap for gap, _ in gaps)
            raise InputError(f"max-gap: {max_gap}; expected at least {least:.3g}, the least found")
        return members

    def fastest(self, max_gap: float | None = None) -> Trial:
        """Return the first of `within`, the one of highest modeled speedup; errors as there."""
        return self.within(max_gap)[0]

    @cached_property
    def means(self) -> Intervals:
        """The 95 % intervals over seeds of what was measured, see `validation.seed_intervals`."""
        return seed_intervals(self.trials)

    def interval(self, trial: Trial) -> OfMean:
        """Return the 95 % interval of the mean gap over seeds; None for one seed, or diverged."""
        return self.means[GAP].get(trial.number)

    @cached_property
    def _trends(self) -> dict[int, Trend]:
        curves = [[score.gap_curve for score in trial.scores] for trial in self.trials]
        each_trend = trends(curves, self.spec.task.steps, self.resolution_gap)
        return {trial.number: trend for trial, trend in zip(self.trials, each_trend, strict=True)}

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
        head: tuple[int, OfMean] = (0, None)
        for trial in self.front:
            here, (number, first) = self.interval(trial), head
            if here is not None and first is not None and not here.apart(first):
                tied[trial.number] = number
            elif here is not None:
                head = trial.number, here
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

    def doubt(self, trial: Trial) -> str:
        """Return why the policy fails later, or will by an early sign; "" where nothing says so."""
        return self.fault(trial) if self.confirmation(trial) else trial.early_sign

    def outlook(self, trial: Trial) -> str:
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
        return f"holds: gap {confirmed.loss_gap:+.2e} {self.unit} at {confirmed.steps} steps"

    def final_gap(self, trial: Trial) -> float:
        """Return the loss gap at the longest horizon the policy was trained over, in nats."""
        confirmed = self.confirmation(trial)
        return confirmed.loss_gap if confirmed else trial.loss_gap

    @cached_property
    def verdict(self) -> Verdict:
        """What the study comes to, in one sentence with its numbers."""
        return verdict_of(self)

    def training_verdict(self, trial: Trial) -> Verdict:
        """Return whether this policy trains, in one sentence: it alone, beside float32."""
        return training_verdict(self, trial)

    def sound_front(self) -> list[Trial]:
        """Return the front of what neither fails later nor will; once any was, of the confirmed."""
        self._check_front()
        return list(self._sound)

    @cached_property
    def _sound(self) -> tuple[Trial, ...]:
        doubts = [self.fault(t) if self.confirmation(t) else t.early_sign for t in self.trials]
        sound = [trial for trial, doubt in zip(self.trials, doubts, strict=True) if not doubt]
        sure = [t for t in sound if self.confirmation(t) or "float32" in t.presets]
        front = self._front_of(sure if any(map(self.confirmation, sure)) else sound)
        return front or self.front

    def measured(self, trial: Trial) -> list[str]:
        """Return what the validation part shows, a line each, with its interval."""
        return words(self.means, trial, self.unit, self.spec.task.metric_name)

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
            said = f"{self.cannot_rank}; expected a front, or a trial by its number (--trial N)"
            raise InputError(f"study {self.spec.study.name}: {said if self.cannot_rank else none}")

    def rows(self) -> tuple[Row, ...]:
        """Return one row per trained policy: the front first, fastest first, then the rest so."""
        order = {trial.number: place for place, trial in enumerate(self.front)}

        def place(trial: Trial) -> tuple[int, float, int]:
            return order.get(trial.number, len(order)), -trial.cost.speedup, trial.number

        ordered = sorted(self.trials, key=place)
        return tuple(_compared_row(self, trial, _row(self, trial)) for trial in ordered)

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
        metric_name=results.spec.task.metric_name,
        **own_columns(trial),
        **bounds(results.means, trial),
        **columns(results.trend(trial), results.confirmed_trend(trial), results.spec.task.steps),
    )


def _compared_row(results: Results, trial: Trial, row: Row) -> Row:
    """Return the row with what its speed is compared with, and the batches it rests on."""
    spec, over = results.spec, {speedup.over: speedup.value for speedup in results.speedups(trial)}
    return replace(
        row,
        **columns_over(over, spec.study.baseline or ""),
        batch_size=spec.task.batch_size,
        priced_batch_size=spec.priced_batch_size,
        cannot_rank=results.cannot_rank,
        matters_gap=results.matters_gap,
        verdict=results.verdict.text,
    )
