"""How soon `report --watch` shows a trial that has ended, and whether a page is ever read half.

    python -m benchmarks.watch [--period 3] [--trials 10] [STUDY]

Runs the study and watches it, each in a process of its own, and reads the journal and the page
twenty times a second. The bar is the period and two seconds. Said for an idle machine alone.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.timing import machine

ROWS = re.compile(r'<script type="application/json"[^>]*>(.*?)</script>', re.S)
LEAST_PAUSE_SECONDS = 0.05
"""Between two looks; a look takes a few milliseconds besides."""


def ended(journal: Path) -> int:
    """Return how many trials of the journal have ended: records that add one whole (Optuna's 4)."""
    lines = journal.read_text(encoding="utf-8").split("\n")[:-1] if journal.exists() else []
    records = (json.loads(line) for line in lines)
    return sum(r.get("op_code") == 4 and r.get("state") == 1 for r in records)


def shown(page: Path) -> tuple[int, bool]:
    """Return how many policies the page shows, and whether it is whole."""
    text = page.read_text(encoding="utf-8") if page.exists() else ""
    rows = ROWS.search(text)
    return len(json.loads(rows[1])["rows"]) if rows else 0, not text or text.endswith("</html>\n")


def looks(
    folder: Path, study: str, period: int, trials: int
) -> Iterator[tuple[float, int, int, bool]]:
    """Run and watch the study; yield the time, trials that ended, policies shown, page whole."""
    journal, page = folder / "study.journal", folder / "page.html"
    command = [sys.executable, "-m", "policysearch"]
    place = [study, "--storage", str(journal)]
    run = [*command, "run", *place, "--trials", str(trials), "--yes"]
    watch = [*command, "report", *place, "--out", str(page), "--watch", str(period)]
    with (folder / "run.txt").open("w") as out:
        running = subprocess.Popen(run, stdout=out, stderr=out)
        while running.poll() is None and not journal.exists():
            time.sleep(LEAST_PAUSE_SECONDS)
        watching = subprocess.Popen(watch, stdout=out, stderr=out)
        while running.poll() is None or watching.poll() is None:
            yield time.monotonic(), ended(journal), *shown(page)
            time.sleep(LEAST_PAUSE_SECONDS)
    if running.returncode or watching.returncode:
        raise SystemExit((folder / "run.txt").read_text())


def main() -> None:
    """Print the delays of all trials and how many reads met half a page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("study", nargs="?", default="studies:mlp-digits")
    parser.add_argument("--period", type=int, default=3)
    parser.add_argument("--trials", type=int, default=10)
    options = parser.parse_args()
    journaled: dict[int, float] = {}
    paged: dict[int, float] = {}
    reads = halves = 0
    with tempfile.TemporaryDirectory() as name:
        for at, trials, policies, whole in looks(
            Path(name), options.study, options.period, options.trials
        ):
            reads, halves = reads + 1, halves + (not whole)
            for count in range(1, trials + 1):
                journaled.setdefault(count, at)
            for count in range(1, policies + 1):
                paged.setdefault(count, at)
    delays = [paged[n] - journaled[n] for n in journaled if n in paged]
    print(machine())
    print(f"trials {len(journaled)}, on the page {len(paged)}; reads {reads}, half a page {halves}")
    print(
        f"from the journal to the page: median {statistics.median(delays):.1f} s, "
        f"most {max(delays):.1f} s; allowed {options.period + 2} s"
    )


if __name__ == "__main__":
    main()
