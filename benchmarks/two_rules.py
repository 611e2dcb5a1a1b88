"""How soon a search over two rules, instead of over every layer, has the front of what they allow.

    python -m benchmarks.two_rules

The net is an encoder of five blocks and 66 layers on digits; the rules give the first three blocks
and the last two one format each. Every policy that the rules allow is trained once. Then studies
with other seeds, of training and of the sampler, search them, told what was trained, and it is
counted after how many trainings the volume of what they have found is 95 % of that of the whole
space. Axes are the loss gap, none below the noise of a jitter of float32, and the modeled time and
memory, so that the front is no single point; scale and corner are those of `search.acquisition`.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from unittest import mock

import numpy as np

from benchmarks.timing import machine
from policysearch.objective.objective import JITTER, Objective
from policysearch.objective.score import Measurement, gap
from policysearch.policy.policy import Policy
from policysearch.policy.presets import preset
from policysearch.rewrite.format_rules import FormatRule, LayerMatch
from policysearch.search.acquisition import yardstick
from policysearch.space.section import SpaceSection
from policysearch.study.cost_section import CostSection
from policysearch.study.optuna_samplers import SAMPLERS
from policysearch.study.sections import ObjectivesSection, StudySection
from policysearch.study.specification import StudySpec, objective_of, space_of
from policysearch.study.study import run_study
from policysearch.train.tasks import Task

FORMATS = (
    "float32",
    "bfloat16",
    "float16",
    "float8_e4m3fn",
    "float8_e5m2",
    "float4_e2m1fn",
)
RULES = (
    FormatRule("first blocks", LayerMatch(block="block[123]"), formats=FORMATS),
    FormatRule("last blocks", LayerMatch(block="block[45]"), formats=FORMATS),
)
TASK = Task(
    model="transformer",
    widths=(16, *(32,) * 5),
    data="digits",
    optimizer="adamw",
    learning_rate=3e-3,
    batch_size=32,
    steps=60,
    tail_steps=15,
)
SPEC = StudySpec(
    StudySection("two-rules", seeds=(0, 1), workers=1, confirm_share=0.0, least_gain=0.0),
    TASK,
    CostSection("H100-SXM5", "torch.compile", 8192, "kernels as a large net has them"),
    SpaceSection(("bfloat16",), ladder=()),
    ObjectivesSection(("loss_gap", "speedup", "memory_ratio")),
    RULES,
)
SHARE = 0.95
MOST = 10
NOISES = 10.0
"""So many times the noise is the least gap that counts, as in a study."""


class Trained:
    """Every training run of the task that was asked for, each trained once."""

    def __init__(self) -> None:
        self.objective = objective_of(SPEC)
        self._measure = Objective.measure
        self.runs: dict[tuple[str, int, float], Measurement] = {}

    def measure(
        self,
        _: Objective,
        policy: Policy,
        seed: int,
        jitter: float = 0.0,
        steps: int | None = None,
        until: int | None = None,
        checkpoint: Path | None = None,
        width: float = 1.0,
    ) -> Measurement:
        """Return what `Objective.measure` does, from memory where it is known: of whole runs."""
        if (steps, until, width) != (None, None, 1.0):
            raise ValueError(f"steps {steps}, until {until}, width {width}: not a whole run")
        key = policy.digest, seed, jitter
        if key not in self.runs:
            self.runs[key] = self._measure(self.objective, policy, seed, jitter)
        return self.runs[key]

    def remembered(self) -> Callable[..., Measurement]:
        """Return `measure` as a function, which takes an objective's place as a method."""
        return lambda *arguments, **options: self.measure(*arguments, **options)

    def gap(self, policy: Policy, seeds: Sequence[int], jitter: float = 0.0) -> float:
        """Return the mean loss gap over the seeds, in nats."""
        runs = [
            (
                self.measure(self.objective, policy, seed, jitter),
                self.measure(self.objective, self.objective.float32, seed),
            )
            for seed in seeds
        ]
        return statistics.fmean(gap(ours, base) for ours, base in runs)


@dataclass(frozen=True)
class Space:
    """All policies of the rules and TF32, by digest: gap in nats on some training seeds, and costs.

    Costs are (time, memory) over float32's.
    """

    seeds: tuple[int, ...]
    gaps: Mapping[str, float]
    costs: Mapping[str, tuple[float, float]]
    floor: float

    def volume(self, digests: Sequence[str]) -> float:
        """Return the dominated volume of some of the policies."""
        measure = yardstick(np.array(list(self.costs.values())))
        gaps = np.array([self.gaps[digest] for digest in digests])
        return measure.volume(gaps, np.array([self.costs[digest] for digest in digests]))

    @property
    def front(self) -> list[str]:
        """The policies that no other beats, without which there is less volume."""
        whole, every = self.volume([*self.gaps]), [*self.gaps]
        return [d for d in every if self.volume([o for o in every if o != d]) < whole * (1 - 1e-9)]

    def trainings_needed(self, order: Sequence[Policy]) -> float:
        """Return after how many of the policies the share of the volume is there, or inf."""
        wanted = SHARE * self.volume([*self.gaps])
        found: list[str] = []
        for count, policy in enumerate(order, 1):
            found.append(policy.digest)
            if self.volume(found) >= wanted:
                return count
        return math.inf


def trained_space(trained: Trained, seeds: tuple[int, ...]) -> Space:
    """Train every policy of the rules on these seeds, and what one switch of the device gives."""
    objective, names = trained.objective, [f"rule.{rule.name}" for rule in RULES]
    space = space_of(SPEC, objective.model)
    policies = [
        space.policy(dict(zip(names, (a, b), strict=True))) for a in FORMATS for b in FORMATS
    ]
    floor = NOISES * abs(trained.gap(objective.float32, seeds, JITTER))
    gaps, costs = {}, {}
    rivals = [preset(name, objective.model.layer_names) for name in SPEC.cost.rivals]
    for policy in (objective.float32, *rivals, *policies):
        price = objective.price(policy)
        gaps[policy.digest] = max(trained.gap(policy, seeds), floor)
        costs[policy.digest] = 1 / price.speedup, price.memory_ratio
    return Space(seeds, gaps, costs, floor)


def searched(sampler: str, seed: int, space: Space, folder: Path) -> list[Policy]:
    """Return the policies of a study in the order in which it trained them; none may fail."""
    trials = len(space.gaps)  # float32 is one of them
    study = replace(SPEC.study, sampler=sampler, seed=seed, trials=trials, seeds=space.seeds)
    path = folder / f"{sampler}-{seed}-{space.seeds[0]}.journal"
    results = run_study(replace(SPEC, study=study), path, processes=0)
    if results.failed:
        raise RuntimeError(f"a run failed: {results.failed[0].reason}")
    return [trial.policy for trial in results.trials]


def report(samplers: Sequence[str], spaces: Sequence[Space], seeds: int, folder: Path) -> bool:
    """Print a line per space and per sampler; whether the first sampler has them within MOST."""
    for space in spaces:
        print(
            f"training seeds {space.seeds}: {len(space.gaps) - 1} policies, "
            f"{len(space.front)} points on the front, gaps from {space.floor:.1e}"
        )
    medians = []
    for sampler in samplers:
        counts = [
            space.trainings_needed(searched(sampler, seed, space, folder))
            for space in spaces
            for seed in range(seeds)
        ]
        within = sum(count <= MOST for count in counts)
        medians.append(statistics.median(counts))
        print(
            f"  {sampler:<8} {medians[-1]:g} trainings (median), {max(counts):g} at most, "
            f"{within} of {len(counts)} within {MOST}"
        )
    return medians[0] <= MOST


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 1 where the first sampler needs more than MOST in the median."""
    parser = argparse.ArgumentParser(description="search of two rules over 66 layers")
    parser.add_argument(
        "--samplers", nargs="+", choices=list(SAMPLERS), default=["gain", "random", "tpe"]
    )
    parser.add_argument("--seeds", type=int, default=5, metavar="N", help="of the sampler")
    parser.add_argument(
        "--spaces", type=int, default=3, metavar="N", help="pairs of training seeds"
    )
    options = parser.parse_args(arguments)
    print(machine())
    trained = Trained()
    spaces = [trained_space(trained, (2 * n, 2 * n + 1)) for n in range(options.spaces)]
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(Objective, "measure", trained.remembered()),
    ):
        return 0 if report(options.samplers, spaces, options.seeds, Path(folder)) else 1


if __name__ == "__main__":
    sys.exit(main())
