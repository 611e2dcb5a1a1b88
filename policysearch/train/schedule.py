"""Learning-rate schedules: what a recipe makes of its rate, step by step.

A name without a dot is a class of torch 2.13's `torch/optim/lr_scheduler.py`, after a warm-up of
its `LinearLR`, the two joined by its `SequentialLR`; "hf." is what Hugging Face's Trainer calls by
the rest of the name (transformers 5.23 `optimization.py`, a lambda of `LambdaLR`), whose warm-up
rises from 0. There is one `scheduler.step()` after every training step, skipped or not. Closed
forms are evaluated here in float64; torch's recursive ones agree with them to a few units in the
last place of a float64 and, at 1 + cos(x) near 0, to about 1e-11 of the rate.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any, Literal, get_args

from policysearch.values import InputError, number, one_of, to_plain

Shape = Literal["cosine", "linear", "1-sqrt"]
OLDEST = ("constant", "step", "cosine")
"""Kinds that ignored what they do not read, as files in use may rely on."""

OLDEST_FIELDS = (
    "kind",
    "period_steps",
    "factor",
    "final_factor",
    "warmup_steps",
    "warmup_factor",
)
"""Fields that fingerprints hold whatever their value; later ones, where they are set."""

TIMESCALE = 10_000
"""Steps of "hf.inverse_sqrt" without a warm-up."""

LONGEST, LARGEST_FACTOR = 2**31, 1e6


@dataclass(frozen=True)
class Schedule:
    """What the learning rate is multiplied by, over steps counted from 0.

    - `kind` is a row of docs/registries.md, which names the fields that it reads.
    - `warmup_steps` come first. Kinds of torch rise in a line from `warmup_factor` of the rate,
      "hf." ones from 0. What follows counts its steps from there.
    - `period_steps` is how long the rate falls, or the steps between two falls; 0 is the rest of
      the training. "hf.inverse_sqrt" has it as its time scale, by default the warm-up or 10,000.
    - `final_factor` is the share of the rate that it falls to; `least_rate` is that rate itself,
      of every group.
    - `factor` multiplies the rate at every period, at each of the `milestones`, or, of
      "exponential", at every step.
    - `power` is that of a polynomial. `period_factor` multiplies the period at each restart.
    - `cycles` are the waves of a cosine, by default half of one, or restarts, by default 1.
    - `decay_steps`: the last ones of "hf.warmup_stable_decay", which fall along a `shape`. Its
      warm-up rises from `final_factor`.
    - "one_cycle" is as long as the training. It rises from 1/`start_divisor` of the rate, over
      `peak_share` of the steps. It ends at 1/`end_divisor` of where it began. With `three_phase` it
      first falls back to where it began, in as many steps as it rose. With `momenta` it moves the
      momentum (Adam's `beta1`) too: from the first to the second at the peak, and back.
    - "recorded" is any scheduler, as a script has it: `shares` of the rate step by step, the
      `floors` added to them, the same for groups with rates of their own, and the `momenta`.
      A run of another length takes those at the same share of the way.
    """

    kind: str = "constant"
    period_steps: int = 0
    factor: float = 0.1
    final_factor: float = 0.0
    warmup_steps: int = 0
    warmup_factor: float = 1.0 / 3.0
    milestones: tuple[int, ...] = ()
    power: float = 1.0
    period_factor: int = 1
    cycles: float | None = None
    decay_steps: int = 0
    shape: Shape = "cosine"
    peak_share: float = 0.3
    start_divisor: float = 25.0
    end_divisor: float = 1e4
    three_phase: bool = False
    shares: tuple[float, ...] = ()
    floors: tuple[float, ...] = ()
    momenta: tuple[float, ...] = ()
    least_rate: float = 0.0

    def __post_init__(self) -> None:
        if self.kind in REFUSED:
            raise InputError(
                f"schedule kind: {self.kind!r}; expected one whose rate is known before the "
                "training: this one's depends on losses, which differ from policy to policy"
            )
        one_of("schedule kind", self.kind, KINDS)
        for name, lowest, highest in RANGES:
            if (given := getattr(self, name)) is not None:
                number(f"schedule {name}", given, lowest, highest)
        one_of("schedule shape", self.shape, get_args(Shape))
        self._check_milestones()
        self._check_read()
        row = KINDS[self.kind]
        if row.needs and not getattr(self, row.needs):
            given = to_plain(getattr(self, row.needs))
            raise InputError(
                f"schedule {row.needs}: {given} with kind {self.kind!r}; expected at least 1"
            )
        self._check_counts()
        if self.least_rate and self.final_factor:
            raise InputError(
                f"schedule final_factor: {self.final_factor:g} beside least_rate; expected one"
            )
        if self.kind == "one_cycle" and self.shape == "1-sqrt":
            raise InputError(
                "schedule shape: '1-sqrt' with kind 'one_cycle'; expected cosine or linear"
            )
        if self.kind == "hf.polynomial" and self.final_factor >= 1.0:
            raise InputError("schedule final_factor: 1 with kind 'hf.polynomial'; expected below 1")

    def _check_milestones(self) -> None:
        for step in self.milestones:
            number("schedule milestones", step, 1, LONGEST)
        for share in self.shares:
            number("schedule shares", share, 0.0, LARGEST_FACTOR)
        for momentum in self.momenta:
            number("schedule momenta", momentum, 0.0, 1.0 - 2.0**-24)
        if any(later < step for step, later in pairwise(self.milestones)):
            raise InputError(f"schedule milestones: {list(self.milestones)}; expected rising steps")

    def _check_counts(self) -> None:
        """Raise InputError for another number of `momenta` or `floors` than the kind has."""
        steps = len(self.shares)
        for name, count in (("momenta", steps or 2), ("floors", steps)):
            if len(getattr(self, name)) not in (0, count):
                raise InputError(f"schedule {name}: {len(getattr(self, name))}; expected {count}")

    def _check_read(self) -> None:
        """Raise InputError for a field that is set and not read."""
        read = ("kind", *KINDS[self.kind].reads, *(OLDEST_FIELDS if self.kind in OLDEST else ()))
        for field in fields(self):
            if field.name not in read and getattr(self, field.name) != field.default:
                raise InputError(
                    f"schedule {field.name}: {to_plain(getattr(self, field.name))} with kind "
                    f"{self.kind!r}, which does not read it; expected it left out"
                )

    def check_length(self, steps: int) -> None:
        """Raise InputError where the schedule cannot be that of a training of `steps`."""
        if self.warmup_steps > steps:
            given = f"schedule warmup_steps: {self.warmup_steps}"
            raise InputError(f"{given}; expected at most the {steps} steps")
        used = self.warmup_steps + self.decay_steps
        if self.decay_steps and used > steps:
            raise InputError(
                f"schedule warmup_steps + decay_steps: {used}; expected at most the {steps} steps"
            )
        ends = (0.0, *_ends(self, steps)) if self.kind == "one_cycle" else ()
        if any(begin == end for begin, end in pairwise(ends)):  # torch divides by its length
            raise InputError(
                f"schedule peak_share: {self.peak_share:g} of {steps} steps leaves a phase without "
                "a step; expected more or less"
            )

    def rate(self, learning_rate: float, step: int, steps: int) -> float:
        """Return the learning rate of `step` in a training of `steps`."""
        row = KINDS[self.kind]
        if step < self.warmup_steps:
            least = getattr(self, row.rises_from) if row.rises_from else 0.0
            gone = step / self.warmup_steps
            return learning_rate * (least + (1.0 - least) * gone)
        return row.rate(self, learning_rate, step - self.warmup_steps, steps - self.warmup_steps)

    def momentum(self, step: int, steps: int) -> float | None:
        """Return the momentum, or beta1, of `step`; None where the schedule moves none."""
        if not self.momenta:
            return None
        if self.kind == "recorded":
            return _place(self.momenta, step, steps)
        ends, peak = self.momenta
        return _along(self, [ends, peak, ends, *([ends] * self.three_phase)], step, steps)

    def settled_at(self, steps: int) -> int:
        """Return the step at which the rate has risen, in a training of `steps`."""
        if self.kind == "one_cycle":
            return math.ceil(max(self.peak_share * steps - 1.0, 0.0))
        return self.warmup_steps

    def stretched(self, steps: int, before: int) -> Schedule:
        """Return the same schedule over `steps` instead of `before` steps."""
        share = steps / before
        period_steps, decay_steps = self.period_steps, round(self.decay_steps * share)
        if self.kind == "hf.inverse_sqrt" and not self.warmup_steps and share != 1.0:
            period_steps = period_steps or TIMESCALE
        warmup_steps = round(self.warmup_steps * share)
        if self.decay_steps:  # Both have to fit into the run, however they are rounded.
            decay_steps = max(decay_steps, 1)
            warmup_steps = min(warmup_steps, steps - decay_steps)
        factor = self.factor
        if self.kind == "exponential":  # Of every step.
            factor = min(_power(factor, before / steps), LARGEST_FACTOR)
        return replace(
            self,
            period_steps=math.ceil(period_steps * share),
            factor=factor,
            warmup_steps=warmup_steps,
            milestones=tuple(max(1, round(step * share)) for step in self.milestones),
            decay_steps=decay_steps,
        )

    def to_plain(self) -> dict[str, Any]:
        """Return the oldest fields, and those of the others that are set, as plain data."""
        return {
            field.name: to_plain(getattr(self, field.name))
            for field in fields(self)
            if field.name in OLDEST_FIELDS or getattr(self, field.name) != field.default
        }


Rate = Callable[[Schedule, float, int, int], float]
"""The rate of a schedule and the largest one, so many steps after the warm-up, of so many."""


@dataclass(frozen=True)
class Kind:
    """A row: the rate after the warm-up.

    `source` is the class of torch or the function of transformers, `reads` are the fields of
    `Schedule` that matter, one of them what it `needs`. The warm-up begins at the share of the rate
    that the field `rises_from` says, "" standing for 0.
    """

    rate: Rate
    source: str
    reads: tuple[str, ...]
    rises_from: str = ""
    needs: str = ""


def _constant(row: Schedule, most: float, since: int, rest: int) -> float:
    return most


def _step(row: Schedule, most: float, since: int, rest: int) -> float:
    return most * _power(row.factor, since // row.period_steps)


def _multistep(row: Schedule, most: float, since: int, rest: int) -> float:
    return most * _power(row.factor, bisect_right(row.milestones, since))


def _exponential(row: Schedule, most: float, since: int, rest: int) -> float:
    return most * _power(row.factor, since)


def _power(factor: float, times: float) -> float:
    try:
        return float(factor**times)
    except OverflowError:  # torch multiplies, and comes to infinity
        return math.inf


def _linear(row: Schedule, most: float, since: int, rest: int) -> float:
    period = _period(row, rest)
    return most * (1.0 + (row.final_factor - 1.0) * min(period, since) / period)


def _polynomial(row: Schedule, most: float, since: int, rest: int) -> float:
    period = _period(row, rest)
    return float(most * (1.0 - min(period, since) / period) ** row.power)


def _period(row: Schedule, rest: int) -> int:
    return row.period_steps or max(rest, 1)


def _cosine(row: Schedule, most: float, since: int, rest: int) -> float:
    return _half_wave(row, most, since, _period(row, rest))


def _half_wave(row: Schedule, most: float, gone: int, period: int) -> float:
    least = row.least_rate or most * row.final_factor
    return least + (most - least) * (1.0 + math.cos(math.pi * gone / period)) / 2


def _cosine_restarts(row: Schedule, most: float, since: int, rest: int) -> float:
    period = _period(row, rest)
    if row.period_factor == 1:
        return _half_wave(row, most, since % period, period)
    while since >= period:
        since, period = since - period, period * row.period_factor
    return _half_wave(row, most, since, period)


def _ends(row: Schedule, steps: int) -> list[float]:
    """Return the last step of each phase of one cycle, as far as it is whole."""
    rise = row.peak_share * steps - 1.0
    back = [2 * row.peak_share * steps - 2.0] if row.three_phase else []
    return [rise, *back, steps - 1.0]


def _one_cycle(row: Schedule, most: float, since: int, rest: int) -> float:
    first = most / row.start_divisor
    rates = [first, most, *([first] if row.three_phase else []), first / row.end_divisor]
    return _along(row, rates, since, rest)


def _along(row: Schedule, values: Sequence[float], since: int, rest: int) -> float:
    """Return what is between the values at the ends of the phases of one cycle."""
    ends = _ends(row, rest)
    phase = next((n for n, end in enumerate(ends[:-1]) if since <= end), len(ends) - 1)
    begin = ends[phase - 1] if phase else 0.0
    share = (since - begin) / (ends[phase] - begin)
    start, end = values[phase : phase + 2]
    if row.shape == "linear":
        return (end - start) * share + start
    return end + (start - end) / 2.0 * (math.cos(math.pi * share) + 1.0)


def _hf_linear(row: Schedule, most: float, since: int, rest: int) -> float:
    return most * max(0.0, (rest - since) / max(1, rest))


def _hf_cosine(row: Schedule, most: float, since: int, rest: int) -> float:
    cycles = 0.5 if row.cycles is None else row.cycles
    wave = _wave(cycles, since / max(1, rest))
    return most * max(0.0, wave * (1.0 - row.final_factor) + row.final_factor)


def _wave(cycles: float, gone: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * cycles * 2.0 * gone))


def _hf_restarts(row: Schedule, most: float, since: int, rest: int) -> float:
    gone = since / max(1, rest)
    cycles = 1.0 if row.cycles is None else row.cycles
    return 0.0 if gone >= 1.0 else most * 0.5 * (1.0 + math.cos(math.pi * ((cycles * gone) % 1.0)))


def _hf_polynomial(row: Schedule, most: float, since: int, rest: int) -> float:
    if most == 0.0:
        return 0.0
    least = most * row.final_factor
    left = max(0.0, 1.0 - since / max(1, rest))
    return float(most * (((most - least) * left**row.power + least) / most))


def _hf_inverse_sqrt(row: Schedule, most: float, since: int, rest: int) -> float:
    scale = row.period_steps or row.warmup_steps or TIMESCALE
    return most * (1.0 / math.sqrt((since + scale) / scale))


def _hf_stable_decay(row: Schedule, most: float, since: int, rest: int) -> float:
    gone = (since - (rest - row.decay_steps)) / row.decay_steps
    if gone < 0.0:
        return most
    if gone >= 1.0:
        return most * row.final_factor
    left = {
        "linear": lambda: 1.0 - gone,
        "cosine": lambda: _wave(0.5 if row.cycles is None else row.cycles, gone),
        "1-sqrt": lambda: 1.0 - math.sqrt(gone),
    }[row.shape]()
    return most * max(0.0, left * (1.0 - row.final_factor) + row.final_factor)


def _recorded_rate(row: Schedule, most: float, since: int, rest: int) -> float:
    rate = most * _place(row.shares, since, rest)
    return max(0.0, rate + _place(row.floors, since, rest)) if row.floors else rate


def _place(values: Sequence[float], since: int, rest: int) -> float:
    """Return the value at the same share of the way."""
    count = len(values)
    return values[min(since if rest == count else since * count // rest, count - 1)]


RISE, LINE = ("warmup_steps", "warmup_factor"), "warmup_factor"
CYCLE = ("peak_share", "start_divisor", "end_divisor", "three_phase", "shape", "momenta")
RECORDED = ("shares", "floors", "momenta")
FALL = (*RISE, "period_steps", "final_factor")
WAVE = (*FALL, "least_rate")

KINDS: Mapping[str, Kind] = {
    "constant": Kind(_constant, "ConstantLR(factor=1)", RISE, LINE),
    "step": Kind(_step, "StepLR", (*RISE, "period_steps", "factor"), LINE, "period_steps"),
    "multistep": Kind(
        _multistep, "MultiStepLR", (*RISE, "milestones", "factor"), LINE, "milestones"
    ),
    "exponential": Kind(_exponential, "ExponentialLR", (*RISE, "factor"), LINE),
    "linear": Kind(_linear, "LinearLR(start_factor=1)", FALL, LINE),
    "polynomial": Kind(_polynomial, "PolynomialLR", (*RISE, "period_steps", "power"), LINE),
    "cosine": Kind(_cosine, "CosineAnnealingLR", WAVE, LINE),
    "cosine_restarts": Kind(
        _cosine_restarts,
        "CosineAnnealingWarmRestarts",
        (*WAVE, "period_factor"),
        LINE,
    ),
    "one_cycle": Kind(_one_cycle, "OneCycleLR", CYCLE),
    "hf.constant_with_warmup": Kind(
        _constant, "get_constant_schedule_with_warmup", ("warmup_steps",)
    ),
    "hf.linear": Kind(_hf_linear, "get_linear_schedule_with_warmup", ("warmup_steps",)),
    "hf.cosine": Kind(_hf_cosine, "get_cosine_schedule_with_warmup", ("warmup_steps", "cycles")),
    "hf.cosine_with_restarts": Kind(
        _hf_restarts,
        "get_cosine_with_hard_restarts_schedule_with_warmup",
        ("warmup_steps", "cycles"),
    ),
    "hf.cosine_with_min_lr": Kind(
        _hf_cosine,
        "get_cosine_with_min_lr_schedule_with_warmup",
        ("warmup_steps", "cycles", "final_factor"),
    ),
    "hf.polynomial": Kind(
        _hf_polynomial,
        "get_polynomial_decay_schedule_with_warmup",
        ("warmup_steps", "power", "final_factor"),
    ),
    "hf.inverse_sqrt": Kind(
        _hf_inverse_sqrt, "get_inverse_sqrt_schedule", ("warmup_steps", "period_steps")
    ),
    "hf.warmup_stable_decay": Kind(
        _hf_stable_decay,
        "get_wsd_schedule",
        ("warmup_steps", "decay_steps", "shape", "cycles", "final_factor"),
        "final_factor",
        "decay_steps",
    ),
    "recorded": Kind(_recorded_rate, "any scheduler that steps by number", RECORDED, "", "shares"),
}

REFUSED = ("plateau", "reduce_lr_on_plateau")

RANGES = (
    ("period_steps", 0, LONGEST),
    ("factor", 0.0, LARGEST_FACTOR),
    ("final_factor", 0.0, 1.0),
    ("warmup_steps", 0, LONGEST),
    ("warmup_factor", 0.0, 1.0),
    ("power", 0.0, 1e3),
    ("period_factor", 1, LONGEST),
    ("cycles", 0.0, 1e6),
    ("decay_steps", 0, LONGEST),
    ("peak_share", 0.0, 1.0),
    ("start_divisor", 1e-30, 1e30),
    ("end_divisor", 1e-30, 1e30),
    ("least_rate", 0.0, 1e6),
)
"""The least and the most of each field."""

CONSTANT = Schedule()
"""The rate as it is, at every step."""
