"""Prints what a decision is worth: the front of a study beside that of the same study without it.

    python -m benchmarks.simpler studies/decisions/phases-digits.toml --without phase_points

Both are searched, or go on from their journals in `--folder`, and their fronts confirmed over
`confirm_factor` times the steps on three seeds that neither search saw. Of each policy that uses
the decision it says the best one of the other front that takes no more time: its gap, by how much
it is behind on the mean of the seeds and on how many of them, and whether that is more than the
resolution of the gap. First it says how many policies each search trained to reach the volume that
the simpler one ends with.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import MISSING, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from policysearch.files import make_folder
from policysearch.report.text import aligned
from policysearch.search.acquisition import Yardstick, yardstick
from policysearch.space.section import SpaceSection
from policysearch.study.journal.trials import Confirmation, Trial
from policysearch.study.results.gain import ladder_costs
from policysearch.study.results.results import Results
from policysearch.study.specification import StudySpec, load_spec
from policysearch.study.study import confirm_study, run_study
from policysearch.values import InputError, one_of

SEEDS = 3
SHARES = (0.9, 0.95, 0.99, 1.0)
BESIDE = ("best without, no slower", "time", "gap", "sd", "behind by")
TITLES = ("policy", "time", "memory", "gap", "sd", *BESIDE)


def without(spec: StudySpec, keys: Sequence[str]) -> StudySpec:
    """Return the study with keys of its space as they are by default, under another name.

    A key of `loss_scales` is "loss_scales=KIND": that kind is not offered.
    """
    defaults = {f.name: f.default for f in fields(SpaceSection) if f.default is not MISSING}
    space = spec.space
    for key in keys:
        name, _, kind = key.partition("=")
        if kind:
            one_of(name, kind, getattr(space, name))
            kept = tuple(each for each in getattr(space, name) if each != kind)
            others = {"scale_schedules": ()} if kind == "schedule" else {}
            changes: dict[str, Any] = {name: kept, **others}
        else:
            changes = {one_of("--without", name, defaults): defaults[name]}
        space = replace(space, **changes)
    return replace(spec, study=replace(spec.study, name=f"{spec.study.name}-without"), space=space)


def searched(spec: StudySpec, folder: Path) -> Results:
    """Search a study and confirm its front on seeds of its own."""
    storage = folder / f"{spec.study.name}.journal"
    run_study(spec.to_the_end(), storage)
    return confirm_study(spec, storage, factor=spec.study.confirm_factor, seeds=SEEDS)


def rows(every: Results, fewer: Results) -> list[tuple[str, ...]]:
    """Return a line per front member that the simpler study cannot make, the fastest first."""
    known = {trial.digest for trial in fewer.trials}
    others = [t for t in fewer.trials if fewer.confirmation(t) is not None]
    lines = []
    for trial in every.front:
        if trial.digest in known or every.confirmation(trial) is None:
            continue
        fitting = [t for t in others if t.cost.speedup >= trial.cost.speedup]
        best = min(fitting, key=fewer.final_gap, default=None)
        beside = ("none", *[""] * (len(BESIDE) - 1))
        if best is not None:
            pair = every.confirmation(trial), fewer.confirmation(best)
            least = max(every.resolution_gap, fewer.resolution_gap)
            beside = (*_cells(fewer, best, memory=False), behind(*pair, least))
        lines.append((*_cells(every, trial), *beside))
    return lines


def behind(one: Confirmation | None, other: Confirmation | None, least: float) -> str:
    """Say by how many nats the second is behind the first, paired by seed; `least` is told."""
    if one is None or other is None or one.diverged or other.diverged:
        return ""
    ends = (dict(zip(each.seeds, each.gap_curves, strict=True)) for each in (one, other))
    here, there = ({seed: curve[-1][1] for seed, curve in each.items()} for each in ends)
    apart = [there[seed] - here[seed] for seed in here.keys() & there.keys()]
    mean = float(np.mean(apart))
    told = "told" if mean >= least else "not told"
    return f"{mean:+.1e}, {sum(each > 0.0 for each in apart)} of {len(apart)} seeds, {told}"


def trainings(every: Results, fewer: Results, share: float) -> list[int | None]:
    """Return how many policies the study, and the simpler one, trained to `share` of a volume.

    That is what the simpler study came to, by counted gaps over the study's own steps and from the
    corner of its ladder; None where a search did not get there.
    """
    measure = yardstick(ladder_costs(fewer))
    grown = [_volumes(results, measure) for results in (every, fewer)]
    return [_first(volumes, share * grown[1][-1]) for volumes in grown]


def _volumes(results: Results, measure: Yardstick) -> list[float]:
    """Return the volume after each policy trained, in the order they were asked for."""
    trials = [trial for trial in results.trials if not trial.by_hand]
    gaps = np.array([results.counted_gap(trial) for trial in trials])
    costs = np.array([(1 / t.cost.speedup, t.cost.memory_ratio) for t in trials])
    return [measure.volume(gaps[:n], costs[:n]) for n in range(1, len(trials) + 1)]


def _first(volumes: Sequence[float], wanted: float) -> int | None:
    return next((n for n, volume in enumerate(volumes, 1) if volume >= wanted), None)


def _cells(results: Results, trial: Trial, memory: bool = True) -> tuple[str, ...]:
    found = results.confirmation(trial)
    gap = "" if found is None else f"{found.loss_gap:+.2e}"
    sd = "" if found is None or found.gap_spread is None else f"{found.gap_spread:.1e}"
    size = (f"{trial.cost.memory_ratio:.3f}",) if memory else ()
    return trial.label, f"{1 / trial.cost.speedup:.3f}", *size, gap, sd


def main() -> int:
    """Run the command; return its exit code."""
    parser = argparse.ArgumentParser(description=__doc__, allow_abbrev=False)
    parser.add_argument("study", type=Path, metavar="STUDY.toml")
    parser.add_argument("--without", nargs="+", required=True, metavar="KEY")
    parser.add_argument("--folder", type=Path, default=Path("results"))
    options = parser.parse_args()
    try:
        make_folder(options.folder)
        spec = load_spec(options.study)
        every = searched(spec, options.folder)
        fewer = searched(without(spec, options.without), options.folder)
    except InputError as error:
        print(f"simpler: {error}", file=sys.stderr)
        return 2
    print(f"{spec.study.name}: policies trained to a share of the volume of the study without")
    for share in SHARES:
        said = [str(count or "not reached") for count in trainings(every, fewer, share)]
        print(f"  {share:.0%}: {said[0]}, without: {said[1]}")
    steps = round(spec.task.steps * spec.study.confirm_factor)
    print(f"{spec.study.name}: fronts after {steps} steps on {SEEDS} new seeds; gaps in nats, time")
    print("and memory modeled over float32's; told: by at least the resolution, ", end="")
    print(f"{max(every.resolution_gap, fewer.resolution_gap):.1e} nats")
    print("\n".join(aligned([TITLES, *rows(every, fewer)])))
    print("\nthe front without:")
    plain = [t for t in fewer.front if fewer.confirmation(t) is not None]
    print("\n".join(aligned([TITLES[:5], *(_cells(fewer, t) for t in plain)])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
