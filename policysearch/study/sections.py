"""The tables [study], [cost], [objectives] and [goal] of a study file, each checked by itself."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from policysearch.accumulators import MATRIX_UNITS
from policysearch.cost.devices import device_named
from policysearch.cost.price import MODEL_RESOLUTION
from policysearch.export.targets import targets
from policysearch.policy.presets import PRESETS
from policysearch.rounding.rounder import Fast, at_place
from policysearch.search.fidelity import Fidelity
from policysearch.search.objectives import ObjectiveName
from policysearch.study.optuna_samplers import OWN, SAMPLERS
from policysearch.study.plan import Budget, SearchPlan
from policysearch.values import InputError, number, one_of, shown

LONGEST_NAME_BYTES = 200

MATTERS = 0.01
"""A gap of this share of float32's loss drop matters, if a study says nothing; docs/noise.md."""


@dataclass(frozen=True)
class StudySection:
    """How long and how the search goes.

    - `name` is part of the names of result files.
    - `trials` policies are trained, each with every seed of `seeds`. `hours` or a [goal] may end
      the search before.
    - `workers` policies are asked for at once. Results depend on this number, but not on how many
      processes the machine can run.
    - `baseline` is the preset that is in use today. It is always trained, and speedups are given
      over it as well.
    - `sampler` chooses the next policy: "gain" by its expected gain, since prices are known
      before training; the others are Optuna's. `seed` is that of the search.
    - `target` is what the policy will be exported to. Then only what runs there is searched, and
      every policy is trained and priced as the target obeys it.
    - `fast` is what runs the emulator: "c", "numpy" or "off" (the reference alone), all with the
      same bits, or "torch", whose sums have an order of their own. Left out, it is the fastest of
      the first three. `place` is where torch runs: "cpu", "cuda" or "cuda:N".
    - `confirm_factor`: at its end the search trains the front over so many times the steps.
      That takes at most `confirm_share` of the steps of the search; a share of 0 leaves it out.
    - `short_runs` trains a quarter of the steps first, with the first of `seeds`. The best go on
      to their end, as long as short runs rank policies as whole ones do.
    - `narrow`, say 0.25, trains a net of that share of the widths first. What is best there is
      trained in the whole net, from its start. Cheap runs count as `trials` by their cost.
    - `search_seeds`: the search trains with so many of the seeds, and the front with all at the
      end.
    - `probe` begins with what float32's own run says of each decision. It costs about 0.7 of a
      training, once, and is for nets of many layers.
    - `goal_speedup`, `goal_gap` and `least_gain` are older keys: a [goal] of any policy that is so
      much faster than float32 at such a gap, and its `left`.
    """

    name: str
    seed: int = 0
    trials: int = 40
    sampler: str = OWN
    baseline: str | None = None
    workers: int = 4
    seeds: tuple[int, ...] = (0, 1, 2)
    fast: Literal["c", "numpy", "off", "torch"] | None = None
    place: str | None = None
    confirm_factor: float = 10.0
    confirm_share: float = 0.5
    target: str | None = None
    hours: float | None = None
    least_gain: float | None = None
    goal_gap: float | None = None
    goal_speedup: float | None = None
    short_runs: bool = False
    search_seeds: int | None = None
    narrow: float | None = None
    probe: bool = False

    def __post_init__(self) -> None:
        if not self.name or not all(c.isalnum() or c in "-_." for c in self.name):
            raise InputError(f"name: {self.name!r}; expected letters, digits, '-', '_' or '.'")
        if len(self.name.encode()) > LONGEST_NAME_BYTES:
            raise InputError(
                f"name: {shown(self.name)} of {len(self.name.encode())} bytes; expected at most "
                f"{LONGEST_NAME_BYTES}, for it is part of file names"
            )
        at_place(self.fast, self.place)
        self._check_sampler()
        if self.narrow is not None:
            number("narrow", self.narrow, 0.01, 0.99)
            if self.short_runs:
                raise InputError("short_runs and narrow: both; expected one of them or neither")
        if self.baseline is not None:
            one_of("baseline", self.baseline, PRESETS)
        if self.target is not None:
            one_of("target", self.target, targets())
        number("seed", self.seed, 0, 2**31)
        number("trials", self.trials, 1, 10**6)
        number("workers", self.workers, 1, 1024)
        number("confirm_factor", self.confirm_factor, 1.0, 1e6)
        number("confirm_share", self.confirm_share, 0.0, 1e3)
        if self.search_seeds is not None:
            number("search_seeds", self.search_seeds, 1, len(self.seeds))
        for name in ("hours", "goal_gap", "goal_speedup", "least_gain"):
            value = getattr(self, name)
            if value is not None:
                number(name, value, 0.0, 1.0 if name == "least_gain" else 1e6)
        if (self.goal_gap is None) != (self.goal_speedup is None):
            raise InputError("goal_gap and goal_speedup: one of them; expected both or neither")
        for seed in self.seeds:
            number("seeds", seed, 0, 2**31)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"seeds: {list(self.seeds)}; expected different training seeds")

    def _check_sampler(self) -> None:
        """Raise InputError for what the package's own sampler alone can do, of another."""
        one_of("sampler", self.sampler, SAMPLERS)
        for name in ("short_runs", "narrow", "least_gain", "probe"):
            if (value := getattr(self, name)) and self.sampler != OWN:
                said = f"{name}: {shown(value).lower()}"
                raise InputError(f"{said} with sampler {self.sampler!r}; expected {OWN!r}")

    @property
    def export_target(self) -> str:
        """What policies are exported to where nothing else is said."""
        return self.target or "torch"

    @property
    def confirmed(self) -> int:
        """How many policies `confirm_share` of the whole budget trains longer, beside float32."""
        paid = self.confirm_share * self.trials * len(self.searched) / self.confirm_factor
        return max(0, int(paid) - 1)

    @property
    def searched(self) -> tuple[int, ...]:
        """The training seeds that every policy of the search is trained with."""
        return self.seeds[: self.search_seeds]

    @property
    def executor(self) -> Fast | None:
        """What emulates, with its place."""
        return at_place(self.fast, self.place)

    def check_sums(self, accumulators: Collection[str]) -> None:
        """Raise InputError for an accumulator that what emulates has not."""
        if MATRIX_UNITS.name in accumulators and "cuda" not in (self.executor or ""):
            raise InputError(
                f"space.accumulators: {MATRIX_UNITS.name!r} on a CPU; expected "
                'study.fast = "torch" with study.place = "cuda"'
            )

    def fidelity(self, steps: int) -> Fidelity | None:
        """Return how policies are evaluated before they are trained whole, over `steps` steps."""
        if self.narrow is None and not self.short_runs:
            return None
        return Fidelity(self.seeds[0], steps, self.narrow)

    def plan(
        self, objectives: tuple[ObjectiveName, ...], steps: int, goal: GoalSection
    ) -> SearchPlan:
        """Return how the search goes, of a task that trains over `steps` steps, for a goal."""
        fidelity = self.fidelity(steps)
        trials = min(self.trials, goal.trainings or self.trials)
        hours = min((h for h in (self.hours, goal.hours) if h is not None), default=None)
        budget = Budget(trials, hours, fidelity.name if fidelity else "")
        asks = self.sampler, self.seed, self.baseline, objectives, self.workers
        return SearchPlan(*asks, budget, fidelity, self.seeds[0] if self.probe else None)


@dataclass(frozen=True)
class ObjectivesSection:
    """Which objectives span the front, by their `names`; the others are still reported.

    Loss gaps up to `matters`, a share of how far float32's own loss falls, are equal in the front,
    in what is picked from it and in the verdict. What is below ten times the noise floor is equal
    too, whatever `matters` says.
    """

    names: tuple[ObjectiveName, ...] = ("loss_gap", "speedup", "memory_ratio")
    matters: float = MATTERS

    def __post_init__(self) -> None:
        number("matters", self.matters, 0.0, 1.0)
        if "loss_gap" not in self.names or len(set(self.names)) < max(2, len(self.names)):
            raise InputError(
                f"names: {list(self.names)}; expected loss_gap with speedup, memory_ratio or both"
            )

    @property
    def resolutions(self) -> tuple[float, ...]:
        """Per objective, the least relative difference that counts; 0 for one not modeled."""
        return tuple(MODEL_RESOLUTION.get(name, 0.0) for name in self.names)


Want = Literal["fastest", "smallest", "closest", "any"]
Over = Literal["baseline", "float32"]

LIMITS = MappingProxyType(
    {
        "gap": "<=",
        "accuracy": ">=",
        "metric": "",
        "speedup": ">=",
        "over": "=",
        "memory": "<=",
        "fits": "=",
        "trainings": "<=",
        "hours": "<=",
        "left": "<=",
    }
)
"""What a goal can be subject to, with the sign that it has in words; a metric's is its own."""


@dataclass(frozen=True)
class GoalSection:
    """What is searched for; without this table policies faster than the baseline at no loss.

    `want` is the "fastest", the "smallest" (peak memory) or the "closest" policy to float32
    that is within the limits, or "any" that is. The limits:

    - `gap` is the largest loss gap, in nats. Left out, it is the least that matters
      (`objectives.matters`), but for the "closest". Other limits that are left out are none.
    - `accuracy` is the least validation accuracy, `metric` the least or the largest mean of the
      task's own (">=0.8" or "<=12").
    - `speedup` is the least over the baseline (or `over` "float32"), `memory` the largest peak over
      float32's.
    - `fits` is a device whose memory the step must fit at the batch that is priced; "DEVICE@B" says
      that batch.

    The search ends after so many `trainings` of policies, or so many `hours`, or when too little is
    `left`: at 95 %, no untrained policy is better than the best by more than this share. Without
    this table it is a share of the volume of the front. 0 goes on to the end. Every other policy
    is chosen for the goal, the rest for the front.
    """

    want: Want = "fastest"
    gap: float | None = None
    accuracy: float | None = None
    speedup: float | None = None
    over: Over = "baseline"
    memory: float | None = None
    fits: str = ""
    trainings: int | None = None
    hours: float | None = None
    left: float = 0.05
    metric: str = ""

    def __post_init__(self) -> None:
        number("left", self.left, 0.0, 1.0)
        for name, most in (("gap", 1e6), ("accuracy", 1.0), ("speedup", 1e6), ("memory", 1e6)):
            if (value := getattr(self, name)) is not None:
                number(name, value, 0.0, most)
        _ = self.metric_bounds
        if self.trainings is not None:
            number("trainings", self.trainings, 1, 10**6)
        if self.hours is not None:
            number("hours", self.hours, 0.0, 1e6)
        if self.over == "float32" and self.speedup is None:
            raise InputError("over: 'float32' without speedup; expected both or neither")
        if self.want == "any" and not self.limited:
            raise InputError("want: 'any' without a limit; expected speedup, memory or fits")
        if self.fits:
            self._check_fits()

    def _check_fits(self) -> None:
        name, at, batch = self.fits.partition("@")
        device_named(name, "fits")
        if at and not (batch.isdecimal() and int(batch) > 0):
            raise InputError(f"fits: {shown(self.fits)}; expected DEVICE or DEVICE@BATCH")

    @property
    def metric_bounds(self) -> tuple[float, float]:
        """The least and the largest metric; InputError for what says neither."""
        if not self.metric:
            return -math.inf, math.inf
        sign, said = self.metric[:2], self.metric[2:]
        try:
            bound = float(said)
        except ValueError:
            bound = math.nan
        if sign not in (">=", "<=") or not math.isfinite(bound):
            raise InputError(f"metric: {shown(self.metric)}; expected a limit as >=0.8 or <=12")
        return (bound, math.inf) if sign == ">=" else (-math.inf, bound)

    @property
    def limited(self) -> bool:
        """Whether a price is limited."""
        return self.speedup is not None or self.memory is not None or bool(self.fits)

    def check(self, objectives: Sequence[str], priced: int, metric: str) -> None:
        """Raise InputError for what a search of these objectives, at this batch, cannot weigh.

        `metric` is the name of the task's own, "" for none.
        """
        if self.metric and not metric:
            raise InputError(
                f"goal.metric: {shown(self.metric)} of a task without one; expected task.metric"
            )
        if "speedup" not in objectives and (self.want == "fastest" or self.speedup is not None):
            raise InputError("goal: of speed, without speedup in objectives.names; expected it")
        memory = self.want == "smallest" or self.memory is not None or self.fits
        if "memory_ratio" not in objectives and memory:
            raise InputError(
                "goal: of memory, without memory_ratio in objectives.names; expected it"
            )
        batch = self.fits.partition("@")[2]
        if batch and int(batch) != priced:
            raise InputError(
                f"goal.fits: {shown(self.fits)} where steps are priced at a batch of {priced}; "
                f"expected that batch, or cost.batch_size = {batch}"
            )

    @property
    def words(self) -> str:
        """The goal in one line, as `goal_from_words` reads it."""
        default = GoalSection()
        said = [
            f"{name}{sign}{value:g}" if isinstance(value, float) else f"{name}{sign}{value}"
            for name, sign in LIMITS.items()
            if (value := getattr(self, name)) != getattr(default, name)
        ]
        return " ".join([self.want, *said])


def default_goal(objectives: Sequence[str]) -> GoalSection:
    """Return the goal of a study that says none: to beat the baseline at no loss that matters."""
    if "speedup" in objectives:
        return GoalSection("fastest", speedup=1.0)
    return GoalSection("smallest")
