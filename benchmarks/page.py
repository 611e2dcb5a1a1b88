"""Times the page of a study: to write it, to open it in chromium, and to find and choose there.

    python -m benchmarks.page                            # made up: 10,000 policies of 500 layers
    python -m benchmarks.page --policies 1000 --layers 50
    python -m benchmarks.page --study studies/lenet5-digits.toml     # of the journal in results/

Needs what `make browser` installs. Writing is counted in CPU seconds of this process, from results
that are read to the text of the file. Opening is what the browser says of its own loading, up to
the end of the load event. Finding, sorting and choosing are timed inside the page, each from the
event to the frame that shows it, the slowest of several. On a busy machine the seconds that the
page's own thread was at work say more than those by the clock.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.timing import machine, show
from policysearch.api import load_results, load_study
from policysearch.report.page.every import TITLES
from policysearch.report.page.frame import page
from policysearch.study.results.results import Results
from tests.made_up import many

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"

LIMITS = {"MB": 5.0, "opens, s": 1.0, "finds, s": 0.1, "sorts, s": 0.1, "chooses, s": 0.1}
"""At most so much of the largest page, and of any."""

OPENED = "(performance.getEntriesByType('navigation')[0].loadEventEnd) / 1000"

WORDS = ("p", "po", "policy 9", "fp16 beaten", "no such words", "")

ACT = """async ([kind, what]) => {
  const shown = () => new Promise(r => requestAnimationFrame(() => setTimeout(r)));
  const acts = {
    find: () => {
      const find = document.getElementById("find");
      find.value = what;
      find.dispatchEvent(new Event("input"));
    },
    sort: () => document.querySelectorAll("#every th button")[what].click(),
    choose: () => new Promise(r => {
      addEventListener("hashchange", r, { once: true });
      document.querySelector(`a[href="#${what}"]`)
        .dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true }));
    }),
  };
  await shown();
  const start = performance.now();
  await acts[kind]();
  document.body.offsetHeight;
  await shown();
  return (performance.now() - start) / 1000;
}"""

LINKED = "[...document.querySelectorAll('details.policy > div[id]')].map(e => e.id)"


def figures(results: Results) -> dict[str, tuple[float, float | None]]:
    """Return size and seconds of the page, by the names of LIMITS; what writing took besides.

    Beside seconds by the clock stand those that the page's own thread was busy, where it was.
    """
    start = time.process_time()
    text = page(results)
    written = time.process_time() - start
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(text, encoding="utf-8")
        seconds = _looked_at(file)
        megabytes = file.stat().st_size / 1e6
    return {"written, s": (written, None), "MB": (megabytes, None), **seconds}


def _looked_at(file: Path) -> dict[str, tuple[float, float | None]]:
    from playwright.sync_api import sync_playwright

    found: dict[str, tuple[float, float | None]] = {}
    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        window = browser.new_page(viewport={"width": 1200, "height": 900})
        metrics = window.context.new_cdp_session(window)
        metrics.send("Performance.enable", {"timeDomain": "threadTicks"})

        def busy() -> float:
            values = metrics.send("Performance.getMetrics")["metrics"]
            return next(float(v["value"]) for v in values if v["name"] == "TaskDuration")

        window.goto(file.as_uri())
        found["opens, s"] = window.evaluate(OPENED), busy()
        wanted: dict[str, list[str | int]] = {
            "find": [*WORDS],
            "sort": [*range(len(TITLES)), *range(len(TITLES))],
            "choose": window.evaluate(LINKED),
        }
        for kind, each in wanted.items():
            took = []
            for what in each:
                before = busy()
                took.append((window.evaluate(ACT, [kind, what]), busy() - before))
            found[f"{kind}s, s"] = max(a for a, _ in took), max(b for _, b in took)
        opened = window.locator("details.policy[open]").count()
        browser.close()
    if opened < len(wanted["choose"]):
        raise SystemExit(f"{len(wanted['choose'])} policies were chosen and {opened} are open")
    return found


def _results(options: argparse.Namespace) -> Results:
    if options.study is None:
        return many(options.policies, options.layers, 2)
    return load_results(load_study(options.study), options.storage)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--policies", type=int, default=10_000)
    parser.add_argument("--layers", type=int, default=500)
    parser.add_argument("--study", type=Path)
    parser.add_argument("--storage", type=Path)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Print size and seconds beside what they may be at most; 1 where one is more."""
    found = figures(_results(_parser().parse_args(arguments)))
    rows = [(name, *values, LIMITS.get(name)) for name, values in found.items()]
    show(machine(), ("slowest", "measured", "its thread busy", "at most"), rows)
    return int(any(value > LIMITS.get(name, value) for name, (value, _) in found.items()))


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(main())
