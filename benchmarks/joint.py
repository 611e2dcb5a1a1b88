"""What a search over formats and the spread over devices together finds that neither finds alone.

`python -m benchmarks.joint studies/mlp-parallel.toml` runs a study with a `[parallel]` table three
times: as it stands, with the formats alone (devices as float32 has them), and with the spread alone
(every layer, and the reduction, in float32). It prints the members of the first front that no
member of the other two fronts covers: is nowhere worse by what the model can tell.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

from policysearch.report.text import aligned
from policysearch.search.hypervolume import covers
from policysearch.study.journal.trials import Trial
from policysearch.study.results.results import Results
from policysearch.study.specification import StudySpec, load_spec
from policysearch.study.study import run_study


def alone(spec: StudySpec) -> tuple[StudySpec, StudySpec]:
    """Return the study that searches formats alone, and the one that searches the spread alone."""
    first = {n: getattr(spec.parallel, n)[:1] for n in ("tensor", "zero", "gradients")}
    formats = replace(
        spec,
        study=replace(spec.study, name=f"{spec.study.name}-formats"),
        parallel=replace(spec.parallel, **first),
    )
    # float32 as the preset, and as each spread of the space's own
    ways = 1 + len(set(spec.parallel.strategies()))
    spread = replace(
        spec,
        study=replace(spec.study, name=f"{spec.study.name}-spread", trials=ways, baseline=None),
        space=replace(
            spec.space, formats=("float32",), master_weights=(True,), loss_scales=("none",)
        ),
        parallel=replace(spec.parallel, all_reduce=("float32",)),
    )
    return formats, spread


def only_joint(joint: Results, others: list[Results]) -> list[Trial]:
    """Return the members of the joint front that no member of the other fronts covers."""
    told = joint.spec.objectives.resolutions
    points = [joint.point(trial) for other in others for trial in other.front]
    return [t for t in joint.front if not any(covers(p, joint.point(t), told) for p in points)]


def page(joint: Results, formats: Results, spread: Results) -> str:
    """Return the three fronts and what the joint one alone has, as text."""
    rows = [("search", "trial", "policy", "counted gap", "speedup", "memory")]
    found = only_joint(joint, [formats, spread])
    fronts = (("formats", formats.front), ("spread", spread.front), ("joint", joint.front))
    for name, front in fronts:
        for t in front:
            mark = " *" * (name == "joint" and t in found)
            cost = (f"{t.cost.speedup:.2f}", f"{t.cost.memory_ratio:.2f}{mark}")
            rows.append((name, str(t.number), t.label, f"{joint.counted_gap(t):.1e}", *cost))
    return "\n".join(
        [
            *aligned(rows),
            "",
            f"{len(found)} of {len(joint.front)} members of the joint front (*) are covered by no "
            f"member of the others; {len(formats.trials)}, {len(spread.trials)} and "
            f"{len(joint.trials)} policies were tried",
        ]
    )


def main() -> None:
    """Run the three studies and print the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path)
    parser.add_argument("--out", type=Path, default=Path("results"))
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    joint = load_spec(options.study)
    results = [
        run_study(spec.to_the_end(), options.out / f"{spec.study.name}.journal")
        for spec in (joint, *alone(joint))
    ]
    print(page(*results))


if __name__ == "__main__":
    main()
