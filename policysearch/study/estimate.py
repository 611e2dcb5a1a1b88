"""How long a study will take on this machine and how much memory, from a few of its own steps."""

from __future__ import annotations

import importlib
import math
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from policysearch.objective.objective import Objective
from policysearch.policy.policy import Policy
from policysearch.space.space import Space
from policysearch.study.results.picks import candidates
from policysearch.study.results.results import Results
from policysearch.study.specification import StudySpec, objective_of, space_of
from policysearch.study.workers.executors import cores
from policysearch.train.training import train

LONG_SECONDS, MANY_STEPS, FEW_STEPS = 1.0, 41, 5
"""Of a training whose first step took less, many are timed, else a few."""

TIMING_SECONDS = 10.0
"""After so many no further policy is timed, and a first training that took less is timed again."""

RELOADED_SECONDS = 1.0
"""What it takes to start a training process and its libraries, about."""


BUSY = 0.9
"""A training that gets less of a core stood beside other work."""


@dataclass(frozen=True)
class Timed:
    """One policy: seconds of a step, and of what a training takes besides, as its validation.

    `share` is what it had of a core while it was timed; the rest of the time it waited.
    """

    name: str
    step_seconds: float
    other_seconds: float
    share: float = 1.0

    def seconds(self, steps: int) -> float:
        """Return the seconds of a training over so many steps."""
        return self.other_seconds + steps * self.step_seconds


@dataclass(frozen=True)
class Estimate:
    """What the whole budget of a study takes: every trial, every seed and the longer runs.

    `timed` are the policies that were timed, the cheapest first, `float32` among them: it trains
    twice with every seed, as it is and jittered. `process_bytes` is the memory of one training
    process. `load` is how many processes ran on the machine before, where the system says it.
    """

    spec: StudySpec
    timed: tuple[Timed, ...]
    processes: int
    process_bytes: int
    float32: Timed
    load: float | None = None

    @cached_property
    def seconds(self) -> float:
        """Wall seconds on so many processes; policies cost as those that were timed on average."""
        study, steps = self.spec.study, self.spec.task.steps
        each = sum(timed.seconds(steps) for timed in self.timed) / len(self.timed)
        runs = study.trials * len(study.searched)
        trained = runs * each + 2 * len(study.seeds) * self.float32.seconds(steps)
        share = study.confirm_share if study.confirmed else 0.0
        return RELOADED_SECONDS + trained * (1.0 + share) / self.processes

    def lines(self) -> list[str]:
        """Return the estimate in words, and what would shorten it."""
        spec, cheap, dear = self.spec, self.timed[0], self.timed[-1]
        runs = f"{spec.study.trials} policies x {len(spec.study.searched)} seeds"
        longer = (
            f", and longer runs of up to {spec.study.confirmed}" if spec.study.confirmed else ""
        )
        return [
            f"{runs} x {spec.task.steps} steps, float32{longer}: about {said(self.seconds)} in all "
            f"on {self.processes} processes of {self.process_bytes / 2**30:.2g} GiB{self._busy()}",
            f"a step takes {cheap.step_seconds * 1e3:.3g} ms under {cheap.name}, "
            f"{dear.step_seconds * 1e3:.3g} ms under {dear.name}",
            *self._proposals(),
        ]

    def _busy(self) -> str:
        """Return that other work ran while steps were timed, and what it would be without."""
        share = min(timed.share for timed in self.timed)
        if share >= BUSY or (self.spec.study.place or "cpu") != "cpu":  # else it waits for a GPU
            return ""
        load = "" if self.load is None else f", load {self.load:.2g} on {cores()} cores"
        idle = [replace(t, step_seconds=t.step_seconds * t.share) for t in self.timed]
        base = next(row for row in idle if row.name == self.float32.name)
        rest = replace(self, timed=tuple(idle), float32=base).seconds
        busy = f"the machine is busy (a training had {share:.0%} of a core{load})"
        return f"; {busy}: about {said(rest)} with nothing beside it"

    def _proposals(self) -> Iterator[str]:
        study, task = self.spec.study, self.spec.task
        if len(study.searched) > 1:
            less = 1.0 - 1.0 / len(study.searched)
            saved = said(less * self.seconds)
            yield f"search_seeds = 1 saves up to {saved}: the front alone gets all seeds"
        if not study.short_runs and task.steps >= 40:
            yield "short_runs = true trains a quarter of the steps first, where those rank policies"
        if study.confirmed:
            share = study.confirm_share / (1.0 + study.confirm_share)
            saved = said(share * self.seconds)
            yield f"run --no-confirm saves up to {saved}: no longer runs of the front"
        if task.batch_size > 16:
            half = task.batch_size // 2
            yield f"task.batch_size = {half} saves up to half; the gap is then that of this batch"


def estimate(spec: StudySpec, processes: int | None = None) -> Estimate:
    """Time a few steps of float32 and of the ladder, the dearest first; return what comes of it.

    The dearest are those whose steps have most nodes; the others are left out once TIMING_SECONDS
    are spent. InputError where the study cannot run.
    """
    objective = objective_of(spec)
    space = space_of(spec, objective.model)
    jobs = spec.study.workers * len(spec.study.searched)
    begin, timed, load = time.perf_counter(), list[Timed](), _load()
    for policy in _dearest_first(objective, space, spec):
        if len(timed) < 2 or time.perf_counter() - begin < TIMING_SECONDS:
            timed.append(timed_steps(objective, policy))
    return Estimate(
        spec,
        tuple(sorted(timed, key=lambda row: row.step_seconds)),
        min(processes or cores(), jobs),
        _peak_bytes(),
        next(row for row in timed if row.name == objective.float32.name),
        load,
    )


def longer_runs(
    results: Results, factor: float, seeds: int, every: bool, processes: int | None = None
) -> str:
    """Return how many runs confirm a study and what they take, as its own runs took, in words.

    "" where nothing is to be trained. Runs that are there from before are counted too.
    """
    chosen = candidates(results, every)
    runs = (1 + len(chosen)) * seeds
    took = [score.wall_seconds for trial in results.trials for score in trial.scores]
    if not chosen:
        return ""
    at_once = min(processes or cores(), runs)
    steps = round(results.spec.task.steps * factor)
    line = f"up to {runs} runs of {steps} steps, float32 among them"
    if not any(took):
        return f"{line}; how long runs took is not in this journal"
    seconds = math.fsum(took) / len(took) * factor * math.ceil(runs / at_once)
    return f"{line}: about {said(seconds)} on {at_once} processes"


def _dearest_first(objective: Objective, space: Space, spec: StudySpec) -> list[Policy]:
    """Return float32 and then the policies of the ladder, those of most nodes first."""
    ladder = [policy for policy, _ in space.ladder(spec.study.baseline).values()]
    others = [policy for policy in ladder if policy.name != objective.float32.name]
    size_of = {p.digest: len(objective.step_graph(p).nodes) for p in others}
    return [objective.float32, *sorted(others, key=lambda p: size_of[p.digest], reverse=True)]


def timed_steps(objective: Objective, policy: Policy) -> Timed:
    """Return what a training of a policy takes, from a few of its steps."""
    data, model, fast = objective.dataset, objective.model, objective.fast

    def seconds(until: int) -> float:
        start, used = time.perf_counter(), time.process_time()
        train(objective.task, policy, 0, dataset=data, model=model, fast=fast, until=until)
        spent.append((time.perf_counter() - start, time.process_time() - used))
        return spent[-1][0]

    spent: list[tuple[float, float]] = []
    first = seconds(1)
    until = min(MANY_STEPS if first < LONG_SECONDS else FEW_STEPS, objective.task.steps)
    if until == 1:
        return Timed(policy.name, first, 0.0, _share(spent))
    # the first training of a process loads libraries and data, which no other one does
    first = min(first, seconds(1)) if first < TIMING_SECONDS else first
    whole = seconds(until)
    # on a busy machine one step can take longer than many do
    step = (whole - first) / (until - 1) if whole > first else whole / until
    return Timed(policy.name, step, max(0.0, first - step), _share(spent))


def _share(spent: Sequence[tuple[float, float]]) -> float:
    """Return the part of the wall seconds, the first of each pair, in which a core was had."""
    wall, used = (math.fsum(seconds) for seconds in zip(*spent, strict=True))
    return min(1.0, used / wall)


def _load() -> float | None:
    """Return how many processes ran or wanted to in the last minute; None where none says."""
    try:
        return os.getloadavg()[0]
    except (AttributeError, OSError):
        return None


def _peak_bytes() -> int:
    """Return the most memory that this process has held, which has trained; 0 where none says."""
    if sys.platform == "win32":
        return 0
    resource = importlib.import_module("resource")
    peak: int = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def said(seconds: float) -> str:
    """Return a time in words, with the unit that fits."""
    for unit, length in (("hours", 3600.0), ("minutes", 60.0)):
        if seconds >= 1.5 * length:
            return f"{seconds / length:.2g} {unit}"
    return f"{seconds:.2g} seconds"
