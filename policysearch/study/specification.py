"""The study file: what is searched, on which task, priced on which device."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from policysearch.files import SHIPPED, read_text, shipped_names, study_path
from policysearch.objective.objective import Objective
from policysearch.space.model_space import make_space
from policysearch.space.parallel import ParallelSection, spread_space
from policysearch.space.rules import FormatRules, rules_from_data
from policysearch.space.section import SpaceSection
from policysearch.space.space import Space
from policysearch.study.cost_section import CostSection
from policysearch.study.sections import (
    GoalSection,
    ObjectivesSection,
    StudySection,
    default_goal,
)
from policysearch.train.scripts.named import Script, script_in
from policysearch.train.tasks import Task
from policysearch.values import InputError, Shown, brief, from_plain, one_of, shown, values_of

T = TypeVar("T")

OLD_GOALS = ("goal_gap", "goal_speedup", "least_gain")
"""Keys of [study] that say a goal."""


@dataclass(frozen=True)
class StudySpec(Shown):
    """A study file, read and checked."""

    study: StudySection
    task: Task
    cost: CostSection
    space: SpaceSection
    objectives: ObjectivesSection = field(default_factory=ObjectivesSection)
    rules: FormatRules = ()
    parallel: ParallelSection = ParallelSection()
    goal: GoalSection | None = None

    def __repr__(self) -> str:
        task, study = self.task, self.study
        what = f"{task.said}, {study.trials} trials"
        where = f"{self.cost.device} with {self.cost.stack}"
        return brief(f"StudySpec({study.name!r}: {what} of {task.steps} steps, priced on {where})")

    def __post_init__(self) -> None:
        self._check_goal()
        self.study.check_sums(self.space.accumulators)
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

    def _check_goal(self) -> None:
        """Raise InputError for a goal in what this study does not weigh, or given twice."""
        if self.goal is None:
            return
        old = [name for name in OLD_GOALS if getattr(self.study, name) is not None]
        if old:
            raise InputError(f"goal: given beside study.{old[0]}; expected one of them")
        self.goal.check(self.objectives.names, self.priced_batch_size, self.task.metric_name)

    @property
    def wanted(self) -> GoalSection:
        """The goal: that of the file, what its older keys mean, or to beat the baseline."""
        study = self.study
        if self.goal is not None:
            return self.goal
        goal = default_goal(self.objectives.names)
        if study.goal_gap is not None:
            limits = study.goal_gap, None, study.goal_speedup
            goal = GoalSection("any", *limits, over="float32")
        return goal if study.least_gain is None else replace(goal, left=study.least_gain)

    @property
    def notices(self) -> list[str]:
        """What is to be said of older keys of the file that mean something else now."""
        old = [f"study.{name}" for name in OLD_GOALS if getattr(self.study, name)]
        if not old:
            return []
        words = repr(self.wanted.words) if self.study.goal_gap is not None else ""
        said = words or f"left = {self.wanted.left:g}"
        return [f"{', '.join(old)}: read as [goal] {said}"]

    @property
    def priced_batch_size(self) -> int:
        """The batch of the priced step."""
        return self.cost.batch_size or self.task.batch_size

    def with_values(self, model: Any = None, data: Any = None, *, cost: CostSection) -> StudySpec:
        """Return a copy whose task trains this Model, on this Dataset, instead of the named.

        It is priced as `cost` says: the device, batch and reasons of this study are another net's.
        """
        task = replace(self.task, model=model or self.task.model, data=data or self.task.data)
        return replace(self, task=task, cost=cost)

    def with_trials(self, trials: int) -> StudySpec:
        """Return a copy that goes on to `trials` trials."""
        return replace(self, study=replace(self.study, trials=trials))

    def emulated_by(self, fast: Any, place: str | None) -> StudySpec:
        """Return a copy with what emulates, and where, in the place of its own; None keeps that."""
        if fast is None and place is None:
            return self
        fast = self.study.fast if fast is None else fast
        return replace(self, study=replace(self.study, fast=fast, place=place))

    def to_the_end(self) -> StudySpec:
        """Return a copy whose search goes on whatever may be left."""
        if self.goal is not None:
            return replace(self, goal=replace(self.goal, left=0.0))
        return replace(self, study=replace(self.study, least_gain=0.0))


def objective_of(
    spec: StudySpec, device: str | None = None, batch_size: int | None = None
) -> Objective:
    """Return what trains and prices the policies of a study, on its device and at its batch.

    `device` and `batch_size`, where given, are what steps are priced on and at instead.
    """
    cost = spec.cost
    batch = cost.batch_size if batch_size is None else batch_size
    where = cost.device if device is None else device, cost.stack, batch
    return Objective(
        spec.task,
        *where,
        fast=spec.study.executor,
        parallel=spec.parallel.base,
        recompute=cost.recompute,
        net=cost.net,
    )


def load_spec(path: Path) -> StudySpec:
    """Return the study of the TOML file at `path`, or a shipped one ("studies:NAME").

    Raises InputError, one line `file: table.key: given; valid`, for anything not understood.
    """
    file = study_path(path)
    return beside(spec_from_data(tables_of(file, str(path)), str(path), file.parent), file.parent)


def beside(spec: StudySpec, folder: Path) -> StudySpec:
    """Return the same study, the files it names looked for in `folder` where they are not here."""
    net = spec.cost.net and spec.cost.net.beside(folder)
    return replace(spec, task=spec.task.beside(folder), cost=replace(spec.cost, net=net))


def tables_of(file: Path, where: str) -> dict[str, Any]:
    """Return the tables of a study file; errors begin with `where`."""
    if hint := _hint(file):
        raise InputError(f"{where}: {hint}")
    return _tables(read_text(file, "a study file in TOML"), where)


def _hint(file: Path) -> str:
    """Return what is wrong with a name that is no study file's, and what was meant; "" else."""
    if file.suffix == ".py":
        return f"a Python file; expected a study file, which `policysearch init {file}` writes"
    if file.suffix in (".journal", ".graph"):
        return "the results of a study; expected its study file (the journal is --storage)"
    if not file.exists() and file.stem in shipped_names():
        return f"no such file; expected a study file; did you mean '{SHIPPED}{file.stem}'?"
    return ""


def spec_from_text(
    text: str, where: str, folder: Path = Path(), script: Script | None = None
) -> StudySpec:
    """Return the study written in the TOML `text`; errors begin with `where`.

    The file of a script is looked for in `folder` too, and `script` takes its place.
    """
    return spec_from_data(_tables(text, where), where, folder, script)


def _tables(text: str, where: str) -> dict[str, Any]:
    try:
        return tomllib.loads(text)
    except ValueError as error:  # Also an integer of thousands of digits.
        raise InputError(f"{where}: {' '.join(str(error).split())}; expected TOML") from None
    except RecursionError:
        raise InputError(f"{where}: nested too deep; expected TOML") from None


def spec_from_data(
    data: Mapping[str, object], where: str, folder: Path = Path(), script: Script | None = None
) -> StudySpec:
    """Return the study of these tables; errors begin with `where`.

    `script` takes the place of the one that they name, which runs its file.
    """
    for name in data:
        one_of(f"{where}: table", name, [section.name for section in fields(StudySpec)])
    if "task" in data:  # before a script runs: whatever is misspelt is said at once
        values_of(Task, data["task"], f"{where}: task")
    study = _section(StudySection, data, "study", where)
    others: tuple[Any, ...] = (
        _section(CostSection, data, "cost", where),
        _section(SpaceSection, data, "space", where),
        _section(ObjectivesSection, {"objectives": {}, **data}, "objectives", where),
        rules_from_data(data, where),
        _section(ParallelSection, {"parallel": {}, **data}, "parallel", where),
        _section(GoalSection, data, "goal", where) if "goal" in data else None,
    )
    try:
        script = script or script_in(data.get("task"), folder)
    except InputError as error:
        raise InputError(f"{where}: task.{error}") from None
    if script is not None:
        data = script.in_tables(data)
        study = _section(StudySection, data, "study", where)
    task = _section(Task, data, "task", where)
    task = task if script is None else script.task_of(task, data["task"])
    try:
        return StudySpec(study, task, *others)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None


def _section(kind: type[T], data: Mapping[str, object], name: str, where: str) -> T:
    if name not in data:
        raise InputError(f"{where}: {name}: missing; expected a table [{name}]")
    return from_plain(kind, data[name], f"{where}: {name}")


def space_of(spec: StudySpec, model: Any = None) -> Space:
    """Return the space of a study file; its model is made where it is not given."""
    model = model or spec.task.build_model(spec.task.load_dataset())
    space = make_space(spec.space, model, spec.rules, spec.study.target, spec.task.steps)
    return spread_space(
        replace(space, rivals=spec.cost.rivals, recipes=spec.cost.recipes), spec.parallel
    )
