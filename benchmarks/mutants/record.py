"""The tests on sound code, once: which passes through which line, and how long it takes."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Sequence
from pathlib import Path

import coverage
import pytest

LINES, SECONDS = "lines.coverage", "seconds.json"
"""What `record` leaves in its folder."""


class _Recorder:
    """A pytest plugin: names each test to coverage, and times it."""

    def __init__(self, cover: coverage.Coverage) -> None:
        self.cover = cover
        self.seconds: dict[str, float] = {}

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, None, None]:
        self.cover.switch_context(item.nodeid)
        before = time.perf_counter()
        yield
        self.seconds[item.nodeid] = time.perf_counter() - before


def record(folder: Path, modules: Sequence[str], files: Sequence[str]) -> int:
    """Run the test files, add to LINES and SECONDS in `folder`, return pytest's exit code."""
    cover = coverage.Coverage(str(folder / LINES), include=list(modules), config_file=False)
    known = _seconds(folder) if (folder / LINES).exists() else {}
    if known:
        cover.load()
    cover.start()
    recorder = _Recorder(cover)
    code = run_pytest(files, [recorder])
    cover.stop()
    if code == 0:
        cover.save()
        kept = {name: s for name, s in known.items() if name.partition("::")[0] not in files}
        (folder / SECONDS).write_text(json.dumps({**kept, **recorder.seconds}, indent=0))
    return code


def run_pytest(options: Sequence[str], plugins: Sequence[object]) -> int:
    """Run the tests of the folder this process is in and return pytest's exit code."""
    quiet = ["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return int(pytest.main([*quiet, *options], plugins=list(plugins)))


def _seconds(folder: Path) -> dict[str, float]:
    found: dict[str, float] = json.loads((folder / SECONDS).read_text())
    return found


class Record:
    """The tests there are, as `record` found them; `seconds` by test."""

    def __init__(self, folder: Path, always: Sequence[str]) -> None:
        """`always` names test files that look at every module without passing through its lines."""
        self._always = frozenset(always)
        self._data = coverage.CoverageData(str(folder / LINES))
        self._data.read()
        self.seconds = _seconds(folder)
        self._by_module: dict[Path, dict[int, list[str]]] = {}

    def of(self, module: Path, lines: Sequence[int], budget_seconds: float) -> list[str]:
        """Return the tests that say whether these lines of `module` are right, fast ones first.

        First those that pass through the lines, then the others of the files that use the module:
        what it holds once it is imported, or keeps from an earlier test, is read without passing
        through a line. Each group takes at most half of `budget_seconds`.
        """
        if module not in self._by_module:
            self._by_module[module] = self._data.contexts_by_lineno(str(module))
        by_line = self._by_module[module]
        known = self.seconds.keys()
        through = {test for line in lines for test in by_line.get(line, ())} & known
        users = {test for tests in by_line.values() for test in tests}
        files = {test.partition("::")[0] for test in users} | self._always
        near = {test for test in known if test.partition("::")[0] in files} - through
        chosen: list[str] = []
        for group in (through, near):
            left = budget_seconds / 2
            for test in sorted(group, key=lambda name: (self.seconds[name], name)):
                left -= self.seconds[test]
                if left < 0.0:
                    break
                chosen.append(test)
        return chosen
