"""The page of a study in a real browser: silent, reachable by keys, accessible, of any width.

Needs playwright, axe-playwright-python and chromium (`make browser`); skipped without them, but
where CI=true.
"""

from __future__ import annotations

import importlib.resources
import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from policysearch.report.page.every import MOST_LINES
from policysearch.report.page.frame import page
from policysearch.study.results.results import Results
from tests.made_up import many, results_of

CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
NEEDED = [
    *(n for n in ("playwright", "axe_playwright_python") if importlib.util.find_spec(n) is None),
    *([] if Path(CHROMIUM).exists() else ["chromium"]),
]
QUIET = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"),
    *("--disable-background-networking", "--disable-component-update"),
)

if NEEDED and os.environ.get("CI") != "true":
    pytest.skip(f"needs {', '.join(NEEDED)}", allow_module_level=True)


def test_what_the_browser_tests_need_is_there() -> None:
    assert not NEEDED


@pytest.fixture(scope="module")
def results() -> Results:
    return results_of(10)


@pytest.fixture(scope="module")
def file(results: Results, tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("page") / "tiny.html"
    path.write_text(page(results, "studies/tiny.toml"), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield opened
        opened.close()


def shown(browser: Any, file: str, width: int = 1200, **options: Any) -> tuple[Any, list[str]]:
    """Return the page in a new window, and where its requests and messages go."""
    context = browser.new_context(viewport={"width": width, "height": 900}, **options)
    window, heard = context.new_page(), []
    window.on("console", lambda message: heard.append(message.text))
    window.on("pageerror", lambda error: heard.append(str(error)))
    window.on("request", lambda request: heard.append(request.url))
    window.goto(file)
    assert heard.pop(0) == file
    return window, heard


def accessible(window: Any) -> list[str]:
    """Return what axe-core finds wrong."""
    source = importlib.resources.files("axe_playwright_python") / "axe.min.js"
    window.evaluate(source.read_text(encoding="utf-8"))
    found = window.evaluate("axe.run()")
    assert len(found["passes"]) > 20  # it did look
    return [
        f"{each['id']}: {node['html'][:120]}"
        for each in found["violations"]
        for node in each["nodes"]
    ]


@pytest.mark.parametrize(("width", "scheme"), [(1200, "dark"), (390, "light")])
def test_it_is_silent_and_accessible(browser: Any, file: str, scheme: str, width: int) -> None:
    window, heard = shown(browser, file, width, color_scheme=scheme)
    window.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
    assert accessible(window) == []
    assert heard == []


@pytest.mark.parametrize("width", [360, 390, 768, 1200])
def test_nothing_is_wider_than_the_window(browser: Any, file: str, width: int) -> None:
    window, _ = shown(browser, file, width)
    window.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true })")
    assert window.evaluate("document.documentElement.scrollWidth") <= width


def test_on_a_phone_one_sees_that_there_are_more_columns(browser: Any, file: str) -> None:
    window, _ = shown(browser, file, 390)
    table = "#layers .scroll"
    assert window.evaluate(
        f"(e => e.scrollWidth > e.clientWidth)(document.querySelector('{table}'))"
    )
    assert window.locator("#layers .cue").first.is_visible()
    shade = f"getComputedStyle(document.querySelector('{table}'), '::after')"
    assert window.evaluate(f"{shade}.position") == "sticky"
    assert window.evaluate(f"{shade}.backgroundImage").startswith("linear-gradient(")
    window.evaluate(f"document.querySelector('{table}').scrollLeft = 1e6")
    for cell in (f"{table} tbody th", f"{table} thead th"):
        left = window.evaluate(f"document.querySelector('{cell}').getBoundingClientRect().left")
        assert 0 <= left < 60
    last = f"{table} thead th:last-child"
    end = window.evaluate(f"document.querySelector('{last}').getBoundingClientRect().right")
    edge = window.evaluate(f"document.querySelector('{table}').getBoundingClientRect().right")
    assert end <= edge - 15, "at the end nothing of the last column is in the shade"


def test_without_scripts_every_policy_can_be_opened(
    browser: Any, file: str, results: Results
) -> None:
    window, _ = shown(browser, file, java_script_enabled=False)
    assert window.locator("#answer .answer").is_visible()
    assert window.locator("#front svg").first.is_visible()
    assert not window.locator("#find").is_visible()
    for trial in results.trials:
        window.locator(f"summary:has-text('Trial {trial.number} ')").first.click()
    assert window.locator("details[open]").count() >= len(results.trials) - 1


def test_a_mark_leads_to_its_policy_by_keys(browser: Any, file: str) -> None:
    window, heard = shown(browser, file)
    other = window.locator("details:not([open]) > div[id]").first.get_attribute("id")
    assert not window.locator(f"#{other}").is_visible()
    window.locator(f"#front .wide a[href='#{other}']").first.focus()
    window.keyboard.press("Enter")
    window.wait_for_function(f"document.getElementById('{other}').checkVisibility()")
    assert heard == []


def test_policies_are_found_sorted_and_downloaded(
    browser: Any, file: str, results: Results
) -> None:
    window, heard = shown(browser, file)
    lines = window.locator("#every tbody tr")
    assert lines.count() == len(results.trials)
    failing = sum(bool(row.fault) for row in results.rows())
    window.fill("#find", "LATER fails")
    assert 0 < lines.count() == failing < len(results.trials)
    assert f"{failing} of" in window.text_content("#count")
    window.fill("#find", "")
    for wanted, state in (("ascending", True), ("descending", False)):
        window.locator("#every th button", has_text="Speed").click()
        assert window.locator("#every th[aria-sort]").get_attribute("aria-sort") == wanted
        speeds = [
            float(s) for s in window.locator("#every tbody td:nth-child(4)").all_inner_texts()
        ]
        assert speeds == sorted(speeds, reverse=not state) and len(set(speeds)) > 2
    with window.expect_download() as download:
        window.locator("#csv").click()
    text = Path(download.value.path()).read_text(encoding="utf-8")
    assert len(text.splitlines()) == len(results.trials) + 1
    assert heard == [url for url in heard if url.startswith("blob:")]


def test_of_many_policies_the_first_are_shown_and_all_are_found(
    browser: Any, tmp_path: Path
) -> None:
    found, path = many(MOST_LINES + 50, 3), tmp_path / "many.html"
    path.write_text(page(found, "x.toml"), encoding="utf-8")
    window, heard = shown(browser, path.as_uri())
    lines = window.locator("#every tbody tr")
    window.fill("#find", "policy")
    assert lines.count() == MOST_LINES
    said = window.text_content("#count")
    assert said == f"{MOST_LINES + 49} of {MOST_LINES + 50} policies, the first {MOST_LINES} shown"
    last = found.rows()[-1].trial
    window.fill("#find", found.trial(last).name)
    assert window.locator(f"#every tbody tr[data-t='{last}']").count() == 1
    assert heard == []


def test_cells_of_the_csv_are_no_formulas(browser: Any, results: Results, tmp_path: Path) -> None:
    path = tmp_path / "x.html"
    path.write_text(page(results_of(6, names=("=1+1", '@x,"y')), "x.toml"), encoding="utf-8")
    window, _ = shown(browser, path.as_uri())
    with window.expect_download() as download:
        window.locator("#csv").click()
    text = Path(download.value.path()).read_text(encoding="utf-8")
    assert ",'=1+1," in text and ',"\'@x,""y",' in text


def test_it_prints_without_a_cut_picture(browser: Any, file: str) -> None:
    window, _ = shown(browser, file, 700)
    window.emulate_media(media="print")
    wide = window.evaluate("document.documentElement.clientWidth")
    ends = window.evaluate(
        "[...document.querySelectorAll('svg.picture')].filter(s => s.checkVisibility())"
        ".map(s => s.getBoundingClientRect().right)"
    )
    assert len(ends) > 4 and max(ends) <= wide
    assert len(window.pdf()) > 10_000
