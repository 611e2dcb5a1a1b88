"""Whether a narrower net of the same builder ranks policies as the net of a study does.

    python -m benchmarks.narrow studies/mlp-digits.toml --width 0.5 0.25

The ladder and random policies of the study's space are trained on its net and on narrower twins of
it, with the same seeds; `--widths 768 768 768` has the net itself be another. Prints a row per way
of looking at a policy: what it takes of a whole run, in CPU time and in FLOPs; the rank correlation
of its gaps with those of whole runs with the same seed, of all policies, given their prices, and of
those with master weights; whether a study would trust it; and how many policies it proposes, with
what share of the volume of all, by the mean gaps of whole runs. Of the seeds the worst counts. A
whole run is compared with those of the other seeds.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from benchmarks.runs import measured, random_params
from benchmarks.timing import interleaved, pin_one_thread, show
from policysearch.data.datasets import batches
from policysearch.objective.objective import Objective
from policysearch.objective.score import CURVE_SHARES, DIVERGED_GAP, gap_curve
from policysearch.policy.policy import Policy
from policysearch.search.acquisition import Yardstick, yardstick
from policysearch.search.fidelity import (
    SHORT,
    beyond_prices,
    promising,
    rank_correlation,
    ranks_alike,
)
from policysearch.search.hypervolume import Array
from policysearch.study.specification import StudySpec, load_spec, objective_of, space_of
from policysearch.study.workers.executors import Job
from policysearch.train.feeding import initial_parameters
from policysearch.train.trainer import Trainer
from policysearch.values import InputError

TITLES = (
    *("look", "CPU", "FLOPs", "rank", "given prices", "masters", "trusted"),
    *("proposed", "volume"),
)
TIMED = 3
"""So many policies, float32 among them, are timed on both nets."""


Gaps = Mapping[float, Array]
"""Gaps [seeds, policies] in nats by share of the steps."""


@dataclass(frozen=True)
class Sample:
    """Policies without float32: [n], their costs [n, 2] and the scale of volumes."""

    policies: tuple[Policy, ...]
    costs: Array
    measure: Yardstick

    @property
    def masters(self) -> Array:
        """Which of them keep master weights: [n]."""
        return np.array([policy.master_weights for policy in self.policies])


def sample(spec: StudySpec, objective: Objective, count: int) -> Sample:
    """Return the ladder and random policies of the study's space, `count` of them in all."""
    rng, space = np.random.default_rng(spec.study.seed), space_of(spec, objective.model)
    found = {key: policy for key, (policy, _) in space.ladder(spec.study.baseline).items()}
    found.pop(objective.float32.digest, None)
    ladder = len(found)
    while len(found) < count:
        policy = space.policy(random_params(space, rng))
        if policy.digest != objective.float32.digest:
            found.setdefault(policy.digest, policy)
    policies = tuple(found.values())
    prices = [objective.price(policy) for policy in policies]
    costs = np.array([(1.0 / price.speedup, price.memory_ratio) for price in prices])
    return Sample(policies, costs, yardstick(np.vstack([np.ones((1, 2)), costs[:ladder]])))


def gaps(
    objective: Objective, policies: Sequence[Policy], seeds: Sequence[int], processes: int | None
) -> Gaps:
    """Return gaps [seeds, policies] in nats by CURVE_SHARES of the steps."""
    jobs = [Job(policy, seed) for policy in (objective.float32, *policies) for seed in seeds]
    runs = measured(objective, jobs, processes)
    count, steps = len(seeds), objective.task.steps
    found = {share: np.full((count, len(policies)), DIVERGED_GAP) for share in CURVE_SHARES}
    for place, run in enumerate(runs[count:]):
        seed = place % count
        at = {taken: gap for taken, gap, _ in gap_curve(run, runs[seed])}
        for share, rows in found.items():
            rows[seed, place // count] = at.get(math.ceil(share * steps), DIVERGED_GAP)
    return found


def cpu_share(narrow: Objective, wide: Objective, policies: Sequence[Policy]) -> float:
    """Return the CPU time of steps of the narrow net over that of the wide one's, interleaved."""
    calls = {}
    for place, policy in enumerate(policies):
        calls[f"narrow {place}"] = _step(narrow, policy)
        calls[f"wide {place}"] = _step(wide, policy)
    timed = interleaved(calls, rounds=10)
    seconds = [
        math.fsum(timed[f"{which} {place}"].minimum_seconds for place in range(len(policies)))
        for which in ("narrow", "wide")
    ]
    return seconds[0] / seconds[1]


def _step(objective: Objective, policy: Policy) -> Callable[[], object]:
    task, dataset = objective.task, objective.dataset
    trainer = Trainer(objective.model, task, policy, 0, objective.fast)
    trainer.load(initial_parameters(objective.model, 0, 0.0))
    inputs, labels = dataset.train
    chosen = batches(dataset, task.batch_size, 1, np.random.default_rng(0))[0]
    fed = [array[chosen] for array in inputs], labels[chosen]
    return lambda: trainer.step(*fed)


def flops(objective: Objective) -> int:
    """Return the FLOPs of a float32 step."""
    graph = objective.step_graph(objective.float32)
    return sum(
        node.op.flops([x.shape for x in graph.inputs_of(node)], node.shape, node.attributes)
        for node in graph.nodes
    )


def row(
    name: str, of: Sample, cost: Sequence[float], looks: Gaps, share: float, beside: Array
) -> list[object]:
    """Return the row of looks over `share` of the steps; gaps `beside` [seeds, policies]."""
    ranks, beyond, masters, trusted, counts, shares = [], [], [], [], [], []
    mean = beside.mean(axis=0)
    for seed, whole in enumerate(beside):
        look, before = looks[share][seed], looks[share / 2][seed]
        pairs = list(zip(look.tolist(), whole.tolist(), strict=True))
        ranks.append(rank_correlation(pairs))
        beyond.append(beyond_prices(pairs, of.costs))
        masters.append(rank_correlation([pairs[i] for i in np.flatnonzero(of.masters)]))
        halfway = list(zip(before.tolist(), look.tolist(), strict=True))
        early = share == 1.0 or ranks_alike(halfway, of.costs)
        trusted.append(early and ranks_alike(pairs, of.costs))
        chosen = promising(of.measure, look, of.costs)
        counts.append(len(chosen))
        worth = of.measure.volume(mean[chosen], of.costs[chosen])
        shares.append(worth / of.measure.volume(mean, of.costs))
    least = [f"{min(each):.2f}" for each in (ranks, beyond, masters)]
    said = f"{sum(trusted)} of {len(trusted)}"
    return [name, *cost, *least, said, max(counts), f"{min(shares):.3f}"]


def report(spec: StudySpec, options: argparse.Namespace) -> None:
    """Train a study's sample on all of its nets and print the table."""
    wide, seeds = objective_of(spec), range(options.seeds)
    of = sample(spec, wide, options.policies)
    told = gaps(wide, of.policies, seeds, options.processes)
    truth = told[1.0]
    rows = [row("a quarter of the steps", of, (SHORT, SHORT), told, SHORT, truth)]
    if len(seeds) > 1:
        others = np.array([np.delete(truth, seed, axis=0).mean(axis=0) for seed in seeds])
        rows.insert(0, row("a whole run", of, (1.0, 1.0), told, 1.0, others))
    whole = flops(wide)
    timed = (wide.float32, *of.policies[:: len(of.policies) // (TIMED - 1)])
    for width in options.width:
        narrow = objective_of(replace(spec, task=spec.task.narrower(width)))
        cost = cpu_share(narrow, wide, timed), flops(narrow) / whole
        looks = gaps(narrow, of.policies, seeds, options.processes)
        name = f"widths {', '.join(map(str, narrow.task.widths))}"
        rows.append(row(name, of, cost, looks, 1.0, truth))
        part = cost[0] * SHORT, cost[1] * SHORT
        rows.append(row(f"{name}, a quarter", of, part, looks, SHORT, truth))
    title = f"{spec.study.name}, widths {', '.join(map(str, spec.task.widths))}"
    show(f"{title}: {len(of.policies)} policies, seeds {', '.join(map(str, seeds))}", TITLES, rows)


def main() -> int:
    """Print every study's table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("studies", nargs="+", type=Path, metavar="STUDY.toml")
    parser.add_argument("--width", type=float, nargs="+", default=[0.25], metavar="SHARE")
    parser.add_argument("--widths", type=int, nargs="+", help="of the net itself")
    parser.add_argument("--policies", type=int, default=47)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--processes", type=int, default=None)
    options = parser.parse_args()
    pin_one_thread()
    try:
        for path in options.studies:
            spec = load_spec(path)
            if options.widths:
                spec = replace(spec, task=replace(spec.task, widths=tuple(options.widths)))
            report(spec, options)
    except InputError as error:
        print(f"narrow: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
