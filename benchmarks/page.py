"""Times the page of a study: to write it, to open it in chromium, and to find and choose there.

    python -m benchmarks.page                            # made up: 10,000 policies of 500 layers
    python -m benchmarks.page --policies 1000 --layers 50
    python -m benchmarks.page --study studies/lenet5-digits.toml     # of the journal in results/

Needs what `make browser` installs. Writing is counted in CPU seconds of this process, from results
that are read to the text of the file. Opening is what the browser says of its own loading, up to
the end of the load event. Finding, sorting and choosing are timed inside the page, each from the
event to the frame that shows it, the slowest of several.
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
from policysearch.report.page.frame import page
from policysearch.study.results.results import Results
from tests.made_up import many

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"

LIMITS = {"MB": 5.0, "opens, s": 1.0, "finds, s": 0.1, "sorts, s": 0.1, "chooses, s": 0.1}
"""At most so much of the largest page, and of any."""

OPENED = "(performance.getEntriesByType('navigation')[0].loadEventEnd) / 1000"

IN_PAGE = """async () => {
  const shown = () => new Promise(r => requestAnimationFrame(() => setTimeout(r)));
  const timed = async (act) => {
    await shown();
    const start = performance.now();
    await act();
    document.body.offsetHeight;
    await shown();
    return (performance.now() - start) / 1000;
  };
  const worst = async (acts) => {
    let most = 0;
    for (const act of acts) most = Math.max(most, await timed(act));
    return most;
  };
  const find = document.getElementById("find");
  const typed = words => () => { find.value = words; find.dispatchEvent(new Event("input")); };
  const finds = await worst(["p", "po", "policy 9", "fp16 beaten", "no such words", ""].map(typed));
  const heads = [...document.querySelectorAll("#every th button")];
  const sorts = await worst([...heads, ...heads].map(head => () => head.click()));
  const ids = [...document.querySelectorAll("details.policy > div[id]")].map(e => e.id);
  const chooses = await worst(ids.map(id => () => new Promise(r => {
    addEventListener("hashchange", r, { once: true });
    document.querySelector(`a[href="#${id}"]`)
      .dispatchEvent(new MouseEvent("click", { bubbles: true, cancelable: true }));
  })));
  const open = document.querySelectorAll("details[open]").length;
  return { finds, sorts, chooses, chosen: ids.length, open };
}"""


def figures(results: Results) -> dict[str, float]:
    """Return size and seconds of the page, by the names of LIMITS; what writing took besides."""
    start = time.process_time()
    text = page(results)
    written = time.process_time() - start
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "page.html"
        file.write_text(text, encoding="utf-8")
        megabytes = file.stat().st_size / 1e6
        opened, found = _looked_at(file)
    if found["open"] < found["chosen"]:
        raise SystemExit(f"{found['chosen']} policies were chosen and {found['open']} are open")
    seconds = (opened, found["finds"], found["sorts"], found["chooses"])
    return {"written, s": written, **dict(zip(LIMITS, (megabytes, *seconds), strict=True))}


def _looked_at(file: Path) -> tuple[float, dict[str, float]]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        window = browser.new_page(viewport={"width": 1200, "height": 900})
        opened = []
        for _ in range(3):
            window.goto(file.as_uri())
            opened.append(window.evaluate(OPENED))
        found: dict[str, float] = window.evaluate(IN_PAGE)
        browser.close()
    return max(opened), found


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
    rows = [(name, value, LIMITS.get(name)) for name, value in found.items()]
    show(machine(), ("", "measured", "at most"), rows)
    return int(any(value > LIMITS.get(name, value) for name, value in found.items()))


if __name__ == "__main__":
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.exit(main())
