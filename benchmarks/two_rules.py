"""How soon a search over two rules, instead of over every layer, has the front of what they allow.

    python -m benchmarks.two_rules

The net is an encoder of five blocks and 66 layers on digits; the rules give the first three blocks
and the last two one format each. Every policy that the rules allow is trained once. Then studies
with other sampler seeds search them, told what was trained, and it is counted after how many
trainings the hypervolume of what they have found is 95 % of that of the whole space. Axes are the
modeled speedup over float32 and log10 of the loss gap, none below the noise of ten jitters of
float32; the corner is the slowest and the worst of the space, or a gap of a nat.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from unittest import mock

from benchmarks.timing import machine
from policysearch.objective.objective import JITTER, Objective
from policysearch.objective.score import Measurement, gap
from policysearch.policy.policy import Policy
from policysearch.rewrite.format_rules import FormatRule, LayerMatch
from policysearch.search.samplers import SAMPLERS
from policysearch.search.space import make_space
from policysearch.search.space_section import SpaceSection
from policysearch.search.spec import CostSection, ObjectivesSection, StudySection, StudySpec
from policysearch.search.study import run_study
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
    StudySection("two-rules", seeds=(0, 1), workers=1, confirm_share=0.0),
    TASK,
    CostSection("H100-SXM5", "torch.compile", 8192, "kernels as a large net has them"),
    SpaceSection(("bfloat16",), ladder=()),
    ObjectivesSection(("loss_gap", "speedup")),
    RULES,
)
SHARE = 0.95
MOST = 10
WORST_GAP = 1.0
Point = tuple[float, float]


class Trained:
    """Every training run of the task that was asked for, each trained once."""

    def __init__(self) -> None:
        self.objective = Objective(TASK, SPEC.cost.device, SPEC.cost.stack, SPEC.cost.batch_size)
        self._measure = Objective.measure
        self.runs: dict[tuple[str, int, float], Measurement] = {}

    def measure(
        self, _: Objective, policy: Policy, seed: int, jitter: float = 0.0, steps: int | None = None
    ) -> Measurement:
        """Return what `Objective.measure` does, from memory where it is known."""
        key = policy.digest, seed, jitter
        if key not in self.runs:
            self.runs[key] = self._measure(self.objective, policy, seed, jitter, steps)
        return self.runs[key]

    def remembered(self) -> Callable[..., Measurement]:
        """Return `measure` as a function, which takes an objective's place as a method."""
        return lambda *arguments, **options: self.measure(*arguments, **options)

    def gap(self, policy: Policy, jitter: float = 0.0) -> float:
        """Return the mean loss gap over the seeds, in nats."""
        runs = [
            (
                self.measure(self.objective, policy, seed, jitter),
                self.measure(self.objective, self.objective.float32, seed),
            )
            for seed in SPEC.study.seeds
        ]
        return statistics.fmean(gap(ours, base) for ours, base in runs)

    def point(self, policy: Policy, floor: float) -> Point:
        """Return (speedup, log10 of the gap), the gap within the noise and the worst counted."""
        price = self.objective.price(policy)
        given = min(max(self.gap(policy), floor), WORST_GAP)
        return price.speedup, math.log10(given)


def hypervolume(points: Iterable[Point], corner: Point) -> float:
    """Return the area that is dominated: more speedup and less gap than the corner."""
    area, lowest = 0.0, corner[1]
    for speedup, gap_ in sorted(points, reverse=True):
        if gap_ < lowest and speedup > corner[0]:
            area += (speedup - corner[0]) * (lowest - gap_)
            lowest = gap_
    return area


def trainings_needed(
    order: Sequence[Policy], points: dict[str, Point], corner: Point, wanted: float
) -> int | None:
    """Return after how many of the policies the hypervolume is there, None for never."""
    found: list[Point] = []
    for count, policy in enumerate(order, 1):
        found.append(points[policy.digest])
        if hypervolume(found, corner) >= wanted:
            return count
    return None


def searched(sampler: str, seed: int, trials: int, folder: Path) -> list[Policy]:
    """Return the policies of a study in the order in which it trained them."""
    study = replace(SPEC.study, sampler=sampler, seed=seed, trials=trials)
    spec = replace(SPEC, study=study)
    results = run_study(spec, folder / f"{sampler}-{seed}.journal", processes=0)
    return [trial.policy for trial in results.trials]


def report(samplers: Sequence[str], seeds: int, trained: Trained, folder: Path) -> bool:
    """Print the front of the space and a line per sampler; whether one has it within MOST."""
    model = trained.objective.model
    space = make_space(SPEC.space, model, RULES)
    names = [f"rule.{rule.name}" for rule in RULES]
    policies = [
        space.policy(dict(zip(names, (a, b), strict=True))) for a in FORMATS for b in FORMATS
    ]
    noise = trained.gap(trained.objective.float32, JITTER)
    floor = max(10.0 * abs(noise), 1e-7)
    points = {policy.digest: trained.point(policy, floor) for policy in policies}
    points |= {trained.objective.float32.digest: trained.point(trained.objective.float32, floor)}
    corner = min(speedup for speedup, _ in points.values()), max(g for _, g in points.values())
    whole = hypervolume(points.values(), corner)
    print(f"{len(model.layer_names)} layers, {len(RULES)} rules, {len(policies)} policies")
    print(f"noise floor {floor:.1e}, hypervolume {whole:.3f}")
    reached = False
    for sampler in samplers:
        counts = [
            trainings_needed(
                searched(sampler, seed, len(policies), folder), points, corner, SHARE * whole
            )
            for seed in range(seeds)
        ]
        known = sorted(math.inf if count is None else count for count in counts)
        within = sum(count <= MOST for count in known)
        middle = statistics.median(known)
        print(f"  {sampler:<8} {middle:g} trainings (median), {within} of {seeds} within {MOST}")
        reached |= middle <= MOST
    return reached


def main(arguments: list[str] | None = None) -> int:
    """Print the table; return 1 where no sampler has 95 % within MOST trainings in the median."""
    parser = argparse.ArgumentParser(description="search of two rules over 66 layers")
    parser.add_argument("--samplers", nargs="+", choices=list(SAMPLERS), default=["random", "tpe"])
    parser.add_argument("--seeds", type=int, default=20, metavar="N")
    options = parser.parse_args(arguments)
    print(machine())
    trained = Trained()
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(Objective, "measure", trained.remembered()),
    ):
        return 0 if report(options.samplers, options.seeds, trained, Path(folder)) else 1


if __name__ == "__main__":
    sys.exit(main())
