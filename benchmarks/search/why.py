"""Does `policysearch why` name the neighbours that a table of all policies names?

    python -m benchmarks.search.why [--tables NAME ...] [--members 4] [--trials 40] [--fresh 10]

Each table's study is run as far as --trials; 0 leaves that out. Then, of the members of the table's
front, those with the most formats: for every group of layers of each, `why` trains the member and
its neighbours, with the study's own seeds and steps. Beside it stands what the table says, whose
runs and prices were made by an older state of the code. A layer counts as named alike where every
neighbour has the same verdict (better, worse, trade or alike), as contradicted where one is better
here and worse there, as ordered alike where the mean gaps of the member and its neighbours lie in
the same order. --fresh N trains what `why` tells apart in gap on N seeds that no study has, and
counts where their mean is the other way round.
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import optuna

from benchmarks.search.live import Live, live
from benchmarks.search.tables import NAMES, Table, load
from policysearch.objective.score import DIVERGED_GAP, Score, gap
from policysearch.policy.policy import Policy
from policysearch.space.space import Space
from policysearch.study.journal.trials import FailedTrial, Trial
from policysearch.study.questions.why import Why, verdict, why
from policysearch.study.results.noise import change
from policysearch.study.results.results import Results
from policysearch.study.study import run_study

FRESH = 1000
"""The first of the seeds that no study has."""

LEAST_ALIKE = 0.9
"""The share of layers that is to be named alike."""


Told = tuple[Policy, Policy, float]
"""Two policies, and by how many nats the mean gap of the second is larger."""


@dataclass(frozen=True)
class Layer:
    """A group of layers of a front member: what `why` and the table say of each neighbour.

    `told` are the gaps to neighbours that `why` tells apart.
    """

    member: str
    group: str
    said: dict[str, str | None]
    known: dict[str, str | None]
    ordered: bool
    told: tuple[Told, ...] = ()

    @property
    def alike(self) -> bool:
        return bool(self.said) and self.said == self.known

    @property
    def contradicted(self) -> bool:
        pairs = ({said, self.known[name]} for name, said in self.said.items())
        return any(pair == {"better", "worse"} for pair in pairs)

    @property
    def line(self) -> str:
        """The layer as printed."""
        pairs = ((name, said, self.known[name]) for name, said in self.said.items())
        words = (f"{n} {s}" if s == k else f"{n} {s}, table {k}" for n, s, k in pairs)
        marks = "" if self.alike else "  NOT ALIKE"
        return f"  {self.member}, {self.group}: {'; '.join(words)}{marks}"


class Known:
    """A table as the trials that a study of all its policies has."""

    def __init__(self, table: Table, task: Live) -> None:
        self._table, self._space = table, task.space
        self._places: dict[str, int] = {}
        for place, params in enumerate(task.params):
            self._places.setdefault(task.space.policy(params).digest, place)

    def place(self, policy: Policy) -> int:
        """Return the place in the table of a policy of its space."""
        return self._places[self._space.policy(self._space.project(policy)).digest]

    def results(self, like: Why) -> Results:
        """Return the results of all policies; what no table has is that of `like`."""
        score = next(t.scores[0] for t in like.results.trials)
        trials = tuple(self._trial(place, score) for place in self._places.values())
        return Results(like.results.spec, trials, like.results.noise_gap)

    def _trial(self, place: int, score: Score) -> Trial:
        time, memory = self._table.costs[place].tolist()
        cost = replace(score.cost, speedup=1.0 / time, memory_ratio=memory)
        gaps = self._table.gaps[:, place].tolist()
        lost = [gap >= DIVERGED_GAP for gap in gaps]
        pairs = zip(gaps, lost, strict=True)
        scores = (replace(score, loss_gap=g, diverged=d, cost=cost) for g, d in pairs)
        return Trial(place, str(place), "", (), tuple(scores), "lost" if any(lost) else "")


def members(results: Results, task: Live, count: int) -> list[Policy]:
    """Return those of the front of the table with the most formats, one of each speed."""
    policies = [task.space.policy(task.params[trial.number]) for trial in results.front]
    return sorted(policies, key=lambda policy: -_formats(policy, task.space))[:count]


def _formats(policy: Policy, space: Space) -> int:
    return len({policy.layer(group.layers[0]).compute for group in space.groups})


def compared(policy: Policy, found: Why, known: Known, results: Results) -> Layer:
    """Return what `why` says of one layer beside what the table does."""
    every = {trial.number: trial for trial in results.trials}
    here = every[known.place(policy)]
    pairs = [(t, every[known.place(t.neighbour.policy)]) for t in found.tried]
    said: dict[str, str | None] = {t.neighbour.format: t.verdict for t, _ in pairs}
    tabled: dict[str, str | None] = {
        t.neighbour.format: verdict(results, here, there) for t, there in pairs
    }
    now = [_gap(found.trial), *(_gap(t.trial) for t, _ in pairs)]
    then = [here.loss_gap, *(there.loss_gap for _, there in pairs)]
    return Layer(
        policy.name, found.group, said, tabled, _order(now) == _order(then), told(policy, found)
    )


def told(policy: Policy, found: Why) -> tuple[Told, ...]:
    """Return the neighbours whose gap can be told from that of the policy."""
    rows = []
    for each in found.tried:
        here, there = _by_seed(found.trial), _by_seed(each.trial)
        moved = change(here, there) if here and there else None
        if moved is not None and not moved.holds_zero:
            rows.append((policy, each.neighbour.policy, moved.mean))
    return tuple(rows)


def _by_seed(trial: Trial | FailedTrial) -> list[float]:
    """Return the gap per seed, none where a run diverged or failed."""
    if isinstance(trial, FailedTrial) or trial.diverged:
        return []
    return [score.loss_gap for score in trial.scores]


def turned(task: Live, pairs: Sequence[Told], seeds: Sequence[int]) -> int:
    """Return how many of the gaps told apart lie the other way round on the mean of `seeds`."""
    policies = {policy.digest: policy for one, other, _ in pairs for policy in (one, other)}
    bases = {seed: task.objective.baseline(seed) for seed in seeds}
    means = {
        digest: math.fsum(gap(task.objective.measure(policy, s), bases[s]) for s in seeds)
        for digest, policy in policies.items()
    }
    return sum((means[other.digest] - means[one.digest]) * moved < 0 for one, other, moved in pairs)


def _gap(trial: object) -> float:
    return trial.loss_gap if isinstance(trial, Trial) else DIVERGED_GAP


def _order(gaps: Sequence[float]) -> list[int]:
    return sorted(range(len(gaps)), key=gaps.__getitem__)


def layers_of(name: str, count: int, trials: int, folder: Path) -> list[Layer]:
    """Return every group of layers of `count` members of the front of a table."""
    task = live(name)
    assert task is not None
    known, storage = Known(load(name), task), folder / f"{name}.journal"
    if trials:
        run_study(task.spec.with_trials(trials).to_the_end(), storage, processes=0)
    ask = [group.layers[0] for group in task.space.groups]
    base = task.space.policy(task.params[0])
    whole = known.results(why(task.spec, storage, base, ask[0], processes=0))
    found = []
    for policy in members(whole, task, count):
        found += [
            compared(policy, why(task.spec, storage, policy, at, processes=0), known, whole)
            for at in ask
        ]
    return found


def main() -> int:
    """Run the command; return 1 where fewer than LEAST_ALIKE of the layers are named alike."""
    parser = argparse.ArgumentParser(
        description=__doc__,
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    runnable = [name for name in NAMES if live(name) is not None]
    parser.add_argument("--tables", nargs="+", choices=runnable, default=runnable)
    parser.add_argument("--members", type=int, default=4, help="of the front of each table")
    parser.add_argument("--trials", type=int, default=40, help="that each study has before")
    parser.add_argument("--fresh", type=int, default=0, help="seeds to check gaps told apart on")
    options = parser.parse_args()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    found: list[Layer] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in options.tables:
            layers = layers_of(name, options.members, options.trials, Path(folder))
            print(f"{name}: {shares(layers)}")
            print("\n".join(layer.line for layer in layers), flush=True)
            if options.fresh:
                print(checked(name, layers, range(FRESH, FRESH + options.fresh)), flush=True)
            found += layers
    print(f"all: {shares(found)}")
    return 0 if sum(layer.alike for layer in found) >= LEAST_ALIKE * len(found) else 1


def checked(name: str, layers: Sequence[Layer], seeds: Sequence[int]) -> str:
    """Say how many of the gaps told apart are the other way round on seeds of their own."""
    task = live(name)
    assert task is not None
    every = [row for layer in layers for row in layer.told]
    pairs = {(one.digest, other.digest): (one, other, moved) for one, other, moved in every}
    count = turned(task, list(pairs.values()), seeds)
    return f"  on {len(seeds)} fresh seeds {count} of {len(pairs)} gaps told apart are reversed"


def shares(layers: Sequence[Layer]) -> str:
    """Say how many layers are named alike, contradicted and ordered alike."""
    names = "alike", "contradicted", "ordered"
    alike, against, ordered = (sum(getattr(each, name) for each in layers) for name in names)
    return (
        f"of {len(layers)} layers {alike} named alike, {against} contradicted, "
        f"{ordered} ordered alike"
    )


if __name__ == "__main__":
    sys.exit(main())
