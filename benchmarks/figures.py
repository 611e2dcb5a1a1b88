"""Makes README's picture and the figures of its verdict anew, from the study that they show.

    python -m benchmarks.figures

Runs studies/lenet5-digits.toml (four minutes on two cores), draws docs/lenet5-digits-speedup.png
and writes docs/figures.json: the day, the verdict, the policy that it takes beside the baseline,
and digests of what it was made from. tests/test_figures.py is red where one of these has changed
since, where today's prices are others, or where README says another number.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import policysearch
from policysearch.cli import main as run
from policysearch.cost.price import speedup_over
from policysearch.files import write_files
from policysearch.policy.policy import from_json
from policysearch.report.plots import plots
from policysearch.study.results.results import Results
from policysearch.study.specification import objective_of

ROOT = Path(__file__).parents[1]
STUDY = ROOT / "studies" / "lenet5-digits.toml"
PICTURE = ROOT / "docs" / "lenet5-digits-speedup.png"
RECORD = ROOT / "docs" / "figures.json"

SOURCES = (STUDY, ROOT / "policysearch" / "report" / "plots.py")
"""What the picture shows, and what draws it."""


def digests() -> dict[str, str]:
    """Return the digest of every source, by its place in the repository."""
    return {
        str(path.relative_to(ROOT)): hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        for path in SOURCES
    }


def record_of(results: Results) -> dict[str, Any]:
    """Return what README says of a study: its verdict, and the two policies of it as text."""
    verdict = results.verdict
    rows = {trial.number: trial for trial in results.trials}
    baseline = next(trial for trial in results.trials if verdict.over in trial.presets)
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "sources": digests(),
        "verdict": verdict.as_dict(),
        "policy": json.loads(rows[verdict.trial].text) if verdict.trial is not None else None,
        "baseline": json.loads(baseline.text),
    }


def priced(record: dict[str, Any]) -> tuple[float, float, float]:
    """Return how fast the policy is over the baseline by today's prices, and the interval."""
    objective = objective_of(policysearch.load_study(STUDY))
    taken, baseline = (
        objective.price(from_json(json.dumps(record[name]), name))
        for name in ("policy", "baseline")
    )
    speedup = speedup_over(taken, baseline, record["verdict"]["over"])
    return speedup.value, speedup.low, speedup.high


def main() -> None:
    """Run the study, and write picture and record."""
    with tempfile.TemporaryDirectory() as folder:  # a journal of before has prices of before
        storage = Path(folder) / "figures.journal"
        if run(["run", str(STUDY), "--storage", str(storage), "--out", folder]):
            raise SystemExit(1)
        results = policysearch.load_results(policysearch.load_study(STUDY), storage)
    text = json.dumps(record_of(results), indent=2) + "\n"
    write_files(
        {RECORD.name: text.encode(), PICTURE.name: plots(results)["speedup"]}, RECORD.parent
    )
    print(results.verdict)


if __name__ == "__main__":
    main()
