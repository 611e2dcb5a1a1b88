"""The copy of the tree that mutants live in, and the tests that run there."""

from __future__ import annotations

import compileall
import contextlib
import importlib
import os
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from benchmarks.mutants.record import run_pytest

LEFT_OUT = (".venv*", ".git", "build", "__pycache__", ".*_cache", ".hypothesis")
RESULTS = ("results", "benchmarks/results")
TIMEOUT = "timeout"

# Imported once, so that the process of each mutant does not wait for them.
_HEAVY = (
    *("numpy", "optuna", "pandas", "hypothesis.extra.numpy", "ml_dtypes", "jsonschema"),
    *("threadpoolctl", "tqdm", "optuna.storages.journal", "optuna.samplers", "torch"),
)


def copy_tree(source: Path, target: Path) -> None:
    """Copy what the tests need to `target`, compiled; what was there goes."""
    shutil.rmtree(target, ignore_errors=True)
    by_name = shutil.ignore_patterns(*LEFT_OUT)

    def left_out(folder: str, names: list[str]) -> set[str]:
        results = {name for name in names if Path(folder, name) in [source / p for p in RESULTS]}
        return by_name(folder, names) | results

    shutil.copytree(source, target, ignore=left_out, symlinks=True)
    compileall.compile_dir(target / "policysearch", quiet=2)


@contextlib.contextmanager
def mutated(file: Path, text: str) -> Iterator[None]:
    """Have `text` in `file` meanwhile."""
    before = file.read_text(encoding="utf-8")
    # A compiled file of the same second and size would be taken for the mutant's.
    for compiled in (file.parent / "__pycache__").glob(f"{file.stem}.*"):
        compiled.unlink()
    file.write_text(text, encoding="utf-8")
    try:
        yield
    finally:
        file.write_text(before, encoding="utf-8")


class _Chosen:
    """A pytest plugin: runs the chosen tests in their order, and says which one failed.

    A test whose parameters are not in the record runs where another of its function is gone: a
    mutant that renames a row must not pass for killed because tests are named after rows.
    """

    def __init__(self, tests: Sequence[str], report: Path) -> None:
        self.place = {name: place for place, name in enumerate(tests)}
        self.report = report

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        found = {item.nodeid for item in items}
        gone: dict[str, int] = {}
        for name, place in self.place.items():
            if name not in found:
                gone.setdefault(name.partition("[")[0], place)
        ranked = []
        for item in items:
            rank = self.place.get(item.nodeid, gone.get(item.nodeid.partition("[")[0]))
            if rank is not None:
                ranked.append((rank, item))
        items[:] = [item for _, item in sorted(ranked, key=lambda pair: pair[0])]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self.report.write_text(report.nodeid)


def killer(tree: Path, tests: Sequence[str], timeout_seconds: float, log: Path) -> str | None:
    """Return what kills the mutant in `tree`, None if it survives.

    That is the first test to fail, TIMEOUT, or "collection" where tests cannot even be read.
    """
    report = log.with_suffix(".killer")
    report.unlink(missing_ok=True)
    files = list(dict.fromkeys(name.partition("::")[0] for name in tests))
    plugins = [_Chosen(tests, report)]
    code = in_child(tree, lambda: run_pytest(["-x", *files], plugins), timeout_seconds, log)
    if code is None:
        return TIMEOUT
    if code in (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED):
        return None
    return report.read_text() if report.exists() else "collection"


def in_child(tree: Path, work: Callable[[], int], timeout_seconds: float, log: Path) -> int | None:
    """Return what `work` returns in a forked process inside `tree`; None if it takes too long.

    Signals at the terminal do not reach the child; it and all it started are gone afterwards.
    """
    child = os.fork()
    if child == 0:
        _become(tree, work, log)
    try:
        deadline = time.monotonic() + timeout_seconds
        while time.monotonic() < deadline:
            ended, status = os.waitpid(child, os.WNOHANG)
            if ended:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        return None
    finally:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


def _become(tree: Path, work: Callable[[], int], log: Path) -> None:
    """Do `work` as a process that was started in `tree` and writes to `log`, and end."""
    code = 70
    try:
        os.setsid()
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(descriptor, stream)
        os.chdir(tree)
        ours = str(Path(__file__).parents[2])
        sys.path[:] = [str(tree), *(path for path in sys.path if path not in ("", ours))]
        os.environ["PYTHONPATH"] = str(tree)
        os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
        sys.dont_write_bytecode = True
        for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
            del sys.modules[name]
        code = work()
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def warm_up() -> None:
    """Import what every mutant needs and no mutant changes."""
    for name in _HEAVY:
        with contextlib.suppress(ImportError):
            importlib.import_module(name)
