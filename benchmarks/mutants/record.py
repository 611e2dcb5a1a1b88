"""The tests on sound code, once: which passes through which line, and how long it takes."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import Any

import coverage
import pytest

CASES = 4
"""So many cases of one test function are asked before any other of its cases."""
FILES = 4
"""So many test files are asked first: reading all of them takes longer than most tests."""

READ = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED, pytest.ExitCode.TESTS_FAILED)
"""What pytest ends with where it could read the tests of a file."""


class _Recorder:
    """A pytest plugin: names each test to coverage, and times it; `failed` says which failed."""

    def __init__(self, cover: coverage.Coverage) -> None:
        self.cover = cover
        self.seconds: dict[str, float] = {}
        self.failed: set[str] = set()

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, None, None]:
        self.cover.switch_context(item.nodeid)
        before = time.perf_counter()
        yield
        self.seconds[item.nodeid] = time.perf_counter() - before

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.failed.add(report.nodeid)


def record(folder: Path, tree: Path, file: str, stamp: str) -> int:
    """Run a test file in `tree`, keep in `folder` what passes where, return 0 or pytest's code.

    A test that fails on sound code, as on a processor that sums in another order, says nothing of a
    mutant: it is left out.
    """
    lines, package = _place(folder, file).with_suffix(".coverage"), tree / "policysearch"
    lines.unlink(missing_ok=True)
    cover = coverage.Coverage(str(lines), include=[f"{package}/*"], config_file=False)
    cover.start()
    recorder = _Recorder(cover)
    code = run_pytest([file], [recorder])
    cover.stop()
    if code not in READ:
        return code
    for test in recorder.failed:
        recorder.seconds.pop(test, None)
    passed: dict[str, dict[str, list[int]]] = {}
    data = cover.get_data()
    for measured in sorted(data.measured_files()):
        by_test = defaultdict(list)
        for line, tests in data.contexts_by_lineno(measured).items():
            for test in tests:
                by_test[test].append(line)
        module = str(Path(measured).relative_to(tree))
        passed[module] = {test: by_test[test] for test in recorder.seconds if test in by_test}
    _keep(folder, file, stamp, recorder.seconds, passed, sorted(recorder.failed))
    return 0


def leave_out(folder: Path, file: str, stamp: str) -> None:
    """Keep that nothing of a test file is asked."""
    _keep(folder, file, stamp, {}, {}, [file])


def _keep(folder: Path, file: str, stamp: str, seconds: Any, passed: Any, failed: Any) -> None:
    plain = {"stamp": stamp, "seconds": seconds, "passed": passed, "failed": failed}
    _place(folder, file).write_text(json.dumps(plain))


def run_pytest(options: Sequence[str], plugins: Sequence[object]) -> int:
    """Run the tests of the folder this process is in and return pytest's exit code."""
    quiet = ["-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    return int(pytest.main([*quiet, *options], plugins=list(plugins)))


def _place(folder: Path, file: str) -> Path:
    return folder / f"{file.replace('/', '.')}.json"


class Record:
    """The tests there are, as `record` found them; `seconds` by test."""

    def __init__(self, folder: Path, files: Iterable[str], always: Sequence[str]) -> None:
        """`always` names test files that look at every module without passing through its lines."""
        self._always = frozenset(always)
        self.seconds: dict[str, float] = {}
        self.failed: list[str] = []
        self._by_module: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
        self._users: dict[str, set[str]] = defaultdict(set)
        for file in files:
            found = json.loads(_place(folder, file).read_text())
            self.seconds.update(found["seconds"])
            self.failed += found["failed"]
            for module, by_test in found["passed"].items():
                # What is passed on import only is no use: every test file of the room has that.
                self._users[module].update([file] if by_test else [])
                for test, lines in by_test.items():
                    for line in lines:
                        self._by_module[module][line].append(test)

    @staticmethod
    def has(folder: Path, file: str, stamp: str) -> bool:
        """Whether the file was recorded with these contents of it and of what it runs."""
        place = _place(folder, file)
        return place.exists() and json.loads(place.read_text())["stamp"] == stamp

    def of(self, module: str, lines: Sequence[int], budget_seconds: float) -> list[list[str]]:
        """Return the tests that say whether these lines of `module` are right, in their order.

        First those that pass through the lines, those of a few files before the rest, then the
        others of the files that use the module: what it holds once it is imported, or keeps from
        an earlier test, is read without passing through a line. Each group takes at most half of
        `budget_seconds`, or its one fastest test where that takes longer.
        """
        by_line = self._by_module[module]
        through = {test for line in lines for test in by_line.get(line, ())}
        files = self._users[module] | self._always
        near = {test for test in self.seconds if _file(test) in files} - through
        chosen = [self._within(group, budget_seconds / 2) for group in (through, near)]
        first = self._likely(chosen[0])
        early = [test for test in chosen[0] if _file(test) in first]
        late = [test for test in chosen[0] if _file(test) not in first]
        return [early, late, chosen[1]]

    def _within(self, tests: set[str], left: float) -> list[str]:
        """Return the tests that fit into `left` seconds, fast ones first, few of one function."""
        ranked = sorted(tests, key=lambda name: (self.seconds[name], name))
        turn: dict[str, int] = defaultdict(int)
        order: list[tuple[int, int, str]] = []
        for test in ranked:
            function = test.partition("[")[0]
            order.append((turn[function] // CASES, len(order), test))
            turn[function] += 1
        chosen: list[str] = []
        for *_, test in sorted(order):
            left -= self.seconds[test]
            if left < 0.0 and chosen:
                break
            chosen.append(test)
        return chosen

    def _likely(self, tests: Sequence[str]) -> set[str]:
        """Return the files that hold most of these tests' functions."""
        functions = {test.partition("[")[0] for test in tests}
        count: dict[str, int] = defaultdict(int)
        for function in functions:
            count[_file(function)] += 1
        return set(sorted(count, key=lambda file: (-count[file], file))[:FILES])


def _file(test: str) -> str:
    return test.partition("::")[0]
