"""What `policysearch estimate` says beside what the study then takes, both as CPU time.

    python -m benchmarks.estimated lenet5 gpt resnet18

Each study has few policies and steps and trains in this process. CPU time is what a machine that is
shared can still tell: on an idle one it is wall time, one process at a time. What the study takes
besides its trainings (libraries, questions, prices) is in it, two to three seconds.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from policysearch.study.estimate import estimate
from policysearch.study.specification import StudySpec, load_spec
from policysearch.study.study import run_study

NETS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "lenet5": ("studies:lenet5-digits", {"steps": 160, "tail_steps": 40}),
    "gpt": (
        "studies:gpt-sums",
        {"widths": (704, 2816, 2816), "steps": 20, "tail_steps": 5},
    ),
    "resnet18": (
        "studies:resnet-digits",
        {"widths": (64, 128, 256, 512), "steps": 20, "tail_steps": 5},
    ),
}


def short(name: str, trials: int) -> StudySpec:
    """Return a study of the net with so many trials, one seed and no longer runs."""
    place, changes = NETS[name]
    spec = load_spec(Path(place)).to_the_end()
    schedule = replace(spec.task.schedule, warmup_steps=2)
    task = replace(spec.task, schedule=schedule, **changes)
    study = replace(spec.study, trials=trials, seeds=(0,), confirm_share=0.0)
    groups = spec.space.groups
    if name == "resnet18":  # whose fourth stage the smaller one of the study lacks
        (third,) = (group for group in groups if group.name == "layer3")
        layers = tuple(layer.replace("layer3", "layer4") for layer in third.layers)
        groups = (*groups, replace(third, name="layer4", layers=layers))
    return replace(spec, task=task, study=study, space=replace(spec.space, groups=groups))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("nets", nargs="+", choices=NETS)
    parser.add_argument("--trials", type=int, default=4)
    options = parser.parse_args()
    time.perf_counter = time.process_time  # of the estimate's own timings
    for name in options.nets:
        spec = short(name, options.trials)
        found = estimate(spec, 1)
        said = found.seconds
        with tempfile.TemporaryDirectory() as folder:
            begin = time.process_time()
            results = run_study(spec, Path(folder) / "x.journal", processes=0)
            took = time.process_time() - begin
        print(
            f"{name}: said {said:.3g} s, took {took:.3g} s of CPU, {said / took - 1:+.0%}; "
            f"{len(results.trials)} trials, {len(found.timed)} policies timed",
            flush=True,
        )


if __name__ == "__main__":
    main()
