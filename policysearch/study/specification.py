"""The study file: what is searched, on which task, priced on which device."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

from policysearch.cost.device_file import device_at, is_device_file
from policysearch.cost.devices import DEVICES
from policysearch.cost.price import MODEL_RESOLUTION
from policysearch.cost.stacks import STACKS
from policysearch.data.datasets import Dataset
from policysearch.export.targets import targets
from policysearch.files import read_text
from policysearch.nn.model import Model
from policysearch.objective.objective import Objective
from policysearch.policy.presets import PRESETS
from policysearch.rewrite.format_rules import FormatRule
from policysearch.rounding.rounder import Fast
from policysearch.space.parallel import ParallelSection, spread_space
from policysearch.space.rules import rules_from_data
from policysearch.space.section import SpaceSection
from policysearch.space.space import Space, make_space
from policysearch.study.optuna_samplers import OWN, SAMPLERS
from policysearch.train.tasks import Task
from policysearch.values import InputError, from_plain, number, one_of, shown

T = TypeVar("T")
ObjectiveName = Literal["loss_gap", "speedup", "memory_ratio"]
LONGEST_NAME_BYTES = 200
DIRECTIONS: dict[ObjectiveName, Literal["minimize", "maximize"]] = {
    "loss_gap": "minimize",
    "speedup": "maximize",
    "memory_ratio": "minimize",
}


@dataclass(frozen=True)
class StudySection:
    """How long and how the search goes.

    `name` is part of the names of result files. `trials` policies are trained, each with every
    training seed of `seeds`. `workers` of them are under way at once: each is asked for as soon as
    all but `workers` - 1 of those before it are told. Results depend on that number, never on how
    many processes the machine can run. The search ends earlier after `hours`, once a policy is
    `goal_speedup` times as fast as float32 at a gap up to `goal_gap` nats, or where the expected
    gain of the best policy stays below `least_gain` of the volume found. `seed` drives the
    `sampler`: "gain" asks for what promises most new volume with prices known, the others are
    Optuna's. `baseline` is the preset that is in use today: always among the policies that are
    trained, and speedups are given against it as well. `fast` is what emulates: "c", "numpy" or,
    with the reference alone, "off"; by default the fastest there is, for the bits are the same. At
    its end the front is confirmed over `confirm_factor` times the steps, for at most
    `confirm_share` of the training steps that the search took; 0 leaves that out. With a `target`
    to export to, only what runs there is searched: every policy is trained and priced as the
    target obeys it. With `short_runs` policies are looked at first: over a quarter of the steps
    with the first of `seeds`, if float32 learns by then. What looks propose is gone on with to its
    end, so long as they rank policies as whole runs do; they count as `trials` by their steps.
    With `narrow`, say 0.25, looks are whole runs of a net of that share of the widths instead, if
    float32 learns in it; they count by that share, and what they propose is trained from its start.
    The search trains each policy with the first `search_seeds` of the `seeds`, by default with all;
    when it ends, members of the front are trained with the others, until all of them are.
    """

    name: str
    seed: int = 0
    trials: int = 40
    sampler: str = OWN
    baseline: str | None = None
    workers: int = 4
    seeds: tuple[int, ...] = (0, 1, 2)
    fast: Fast | None = None
    confirm_factor: float = 10.0
    confirm_share: float = 0.5
    target: str | None = None
    hours: float | None = None
    least_gain: float = 0.0
    goal_gap: float | None = None
    goal_speedup: float | None = None
    short_runs: bool = False
    search_seeds: int | None = None
    narrow: float | None = None

    def __post_init__(self) -> None:
        if not self.name or not all(c.isalnum() or c in "-_." for c in self.name):
            raise InputError(f"name: {self.name!r}; expected letters, digits, '-', '_' or '.'")
        if len(self.name.encode()) > LONGEST_NAME_BYTES:
            raise InputError(
                f"name: {shown(self.name)} of {len(self.name.encode())} bytes; expected at most "
                f"{LONGEST_NAME_BYTES}, for it is part of file names"
            )
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
        number("least_gain", self.least_gain, 0.0, 1.0)
        if self.search_seeds is not None:
            number("search_seeds", self.search_seeds, 1, len(self.seeds))
        for name in ("hours", "goal_gap", "goal_speedup"):
            given = getattr(self, name)
            if given is not None:
                number(name, given, 0.0, 1e6)
        if (self.goal_gap is None) != (self.goal_speedup is None):
            raise InputError("goal_gap and goal_speedup: one of them; expected both or neither")
        for seed in self.seeds:
            number("seeds", seed, 0, 2**31)
        if not self.seeds or len(set(self.seeds)) < len(self.seeds):
            raise InputError(f"seeds: {list(self.seeds)}; expected different training seeds")

    def _check_sampler(self) -> None:
        """Raise InputError for what the package's own sampler alone can do, of another."""
        one_of("sampler", self.sampler, SAMPLERS)
        for name in ("short_runs", "narrow", "least_gain"):
            if (given := getattr(self, name)) and self.sampler != OWN:
                said = f"{name}: {shown(given).lower()}"
                raise InputError(f"{said} with sampler {self.sampler!r}; expected {OWN!r}")

    @property
    def searched(self) -> tuple[int, ...]:
        """The training seeds that every policy of the search is trained with."""
        return self.seeds[: self.search_seeds]

    @property
    def looks(self) -> str:
        """What policies are looked at by before they are trained; "" where they are not."""
        if self.narrow is not None:
            return "narrow runs"
        return "short runs" if self.short_runs else ""


@dataclass(frozen=True)
class CostSection:
    """The `device` and software `stack` the step is priced on.

    A device that ends in ".toml" is a file of your own, as `policysearch calibrate` writes it.
    `batch_size` is the batch of the priced step. One that is not that of the training must come
    with a `batch_size_reason`, which every view shows: the gap is then measured at one batch and
    the speed modeled at another. `recompute` names blocks of layers whose activations are not kept
    but computed again in the backward pass, in float32 too: a layer, what stands before a dot in
    the names of several ("block1"), or all from one to another ("conv1..relu1"). It saves memory
    and takes time in the priced step; training and files of exporters are as without.
    """

    device: str
    stack: str
    batch_size: int | None = None
    batch_size_reason: str = ""
    recompute: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if is_device_file(self.device):
            device_at(self.device)
        else:
            one_of("device", self.device, DEVICES)
        one_of("stack", self.stack, STACKS)
        if self.batch_size is not None:
            number("batch_size", self.batch_size, 1, 2**24)


@dataclass(frozen=True)
class ObjectivesSection:
    """Which objectives span the front, by their `names`; the others are still reported."""

    names: tuple[ObjectiveName, ...] = ("loss_gap", "speedup", "memory_ratio")

    def __post_init__(self) -> None:
        if "loss_gap" not in self.names or len(set(self.names)) < max(2, len(self.names)):
            raise InputError(
                f"names: {list(self.names)}; expected loss_gap with speedup, memory_ratio or both"
            )

    @property
    def resolutions(self) -> tuple[float, ...]:
        """Per objective, the least relative difference that counts; 0 for one not modeled."""
        return tuple(MODEL_RESOLUTION.get(name, 0.0) for name in self.names)


@dataclass(frozen=True)
class StudySpec:
    """A study file, read and checked."""

    study: StudySection
    task: Task
    cost: CostSection
    space: SpaceSection
    objectives: ObjectivesSection = ObjectivesSection()
    rules: tuple[FormatRule, ...] = ()
    parallel: ParallelSection = ParallelSection()

    def __post_init__(self) -> None:
        try:
            self.parallel.check_batch(self.priced_batch_size)
        except InputError as error:
            raise InputError(f"cost.{error}") from None
        if self.study.narrow is not None:
            try:
                self.task.narrower(self.study.narrow)
            except InputError as error:
                raise InputError(f"study.narrow: {error}") from None
        trained, priced = self.task.batch_size, self.priced_batch_size
        if trained != priced and not self.cost.batch_size_reason:
            raise InputError(
                f"cost.batch_size: {priced}, trained at task.batch_size {trained}; expected equal "
                "ones, or cost.batch_size_reason that says why not"
            )
        if trained == priced and self.cost.batch_size_reason:
            raise InputError(
                f"cost.batch_size_reason: {shown(self.cost.batch_size_reason)} with equal batches "
                f"of {trained}; expected none"
            )

    @property
    def priced_batch_size(self) -> int:
        """The batch of the priced step."""
        return self.cost.batch_size or self.task.batch_size

    def with_fast(self, fast: Fast) -> StudySpec:
        """Return a copy that is emulated so."""
        return replace(self, study=replace(self.study, fast=fast))

    def with_values(self, model: Model | None = None, data: Dataset | None = None) -> StudySpec:
        """Return a copy whose task trains this model, on this data set, instead of the named."""
        task = replace(self.task, model=model or self.task.model, data=data or self.task.data)
        return replace(self, task=task)

    def with_trials(self, trials: int) -> StudySpec:
        """Return a copy that goes on to `trials` trials."""
        return replace(self, study=replace(self.study, trials=trials))


def objective_of(
    spec: StudySpec, device: str | None = None, batch_size: int | None = None
) -> Objective:
    """Return what trains and prices the policies of a study, on its device and at its batch.

    `device` and `batch_size`, where given, are what steps are priced on and at instead.
    """
    cost = spec.cost
    batch = cost.batch_size if batch_size is None else batch_size
    where = cost.device if device is None else device, cost.stack, batch
    return Objective(spec.task, *where, spec.study.fast, spec.parallel.base, cost.recompute)


def load_spec(path: Path) -> StudySpec:
    """Return the study of the TOML file at `path`.

    Raises InputError, one line `file: table.key: given; valid`, for anything not understood.
    """
    text = read_text(path, "a study file in TOML")
    return spec_from_text(text, str(path))


def spec_from_text(text: str, where: str) -> StudySpec:
    """Return the study written in the TOML `text`; errors begin with `where`."""
    try:
        data = tomllib.loads(text)
    except ValueError as error:  # Also an integer of thousands of digits.
        raise InputError(f"{where}: {' '.join(str(error).split())}; expected TOML") from None
    except RecursionError:
        raise InputError(f"{where}: nested too deep; expected TOML") from None
    return spec_from_data(data, where)


def spec_from_data(data: Mapping[str, object], where: str) -> StudySpec:
    """Return the study of these tables; errors begin with `where`."""
    for name in data:
        one_of(f"{where}: table", name, [section.name for section in fields(StudySpec)])
    sections: tuple[Any, ...] = (
        _section(StudySection, data, "study", where),
        _section(Task, data, "task", where),
        _section(CostSection, data, "cost", where),
        _section(SpaceSection, data, "space", where),
        _section(ObjectivesSection, {"objectives": {}, **data}, "objectives", where),
        rules_from_data(data, where),
        _section(ParallelSection, {"parallel": {}, **data}, "parallel", where),
    )
    try:
        return StudySpec(*sections)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _section(kind: type[T], data: Mapping[str, object], name: str, where: str) -> T:
    if name not in data:
        raise InputError(f"{where}: {name}: missing; expected a table [{name}]")
    return from_plain(kind, data[name], f"{where}: {name}")


def space_of(spec: StudySpec, model: Model | None = None) -> Space:
    """Return the space of a study file; its model is made where it is not given."""
    made = model or spec.task.build_model(spec.task.load_dataset())
    space = make_space(spec.space, made, spec.rules, spec.study.target, spec.task.steps)
    return spread_space(space, spec.parallel)
