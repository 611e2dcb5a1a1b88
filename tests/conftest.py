"""Fixtures and settings that every test shares."""

from __future__ import annotations

import functools
import gc
import importlib.util
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings
from threadpoolctl import threadpool_limits

from policysearch.commands.trust import VARIABLE
from policysearch.data import fashion_mnist
from policysearch.data.datasets import Dataset, load_dataset
from policysearch.objective.objective import Objective
from policysearch.policy.policy import Policy
from policysearch.study import prices
from policysearch.study.estimate import Timed
from policysearch.study.journal import identity
from policysearch.study.workers import executors
from policysearch.study.workers.executors import SerialExecutor

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.load_profile("repeatable")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Seed torch's generator, which each process seeds at random, before fixtures draw from it."""
    needed = item.get_closest_marker("torch") and importlib.util.find_spec("torch")
    if "torch" in sys.modules or needed:
        importlib.import_module("torch").manual_seed(0)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the files of tests/speed, seconds each, last: so workers that take files end together."""
    items.sort(key=lambda item: item.path.parent.name == "speed")


def pytest_collection_finish() -> None:
    """Search for garbage less often, and never among thousands of tests: a fifth of the time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000)


@pytest.fixture(scope="session", autouse=True)
def one_blas_thread() -> Iterator[None]:
    """Keep BLAS to one thread: more threads change the bits and fight over the cores."""
    with threadpool_limits(1):
        yield


@pytest.fixture(scope="session", autouse=True)
def trusting(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have commands run the files that tests write, and remember no trust of the user's."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(VARIABLE, "1")
        patched.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(scope="session", autouse=True)
def what_stays_as_it_is() -> Iterator[None]:
    """Read what the package's files mean once, for none changes, and wait for no disk."""
    with pytest.MonkeyPatch.context() as patched:
        once = functools.cache(identity.code_fingerprints)
        for module in (identity, prices):
            patched.setattr(module, "code_fingerprints", once)
        patched.setattr(os, "fsync", lambda _: None)
        yield


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have commands do without what takes seconds and other tests are about.

    They train in this process, for each one that they start imports the package; they time no
    steps before they begin; and they write plots that are laid out but not painted.
    """

    def here(objective: Objective, processes: int) -> SerialExecutor:
        return SerialExecutor(objective)

    def timed(_: Objective, policy: Policy) -> Timed:
        return Timed(policy.name, 1e-3, 0.0, 1.0)

    monkeypatch.setattr(executors, "ProcessExecutor", here)
    monkeypatch.setattr("policysearch.study.estimate.timed_steps", timed)
    monkeypatch.setattr("policysearch.report.plots.image", lambda *_: b"")


@pytest.fixture(scope="session")
def digits() -> Dataset:
    """The data set "digits"."""
    return load_dataset("digits")


@pytest.fixture(scope="session")
def fashion_mnist_folder() -> Path:
    """The folder of the real Fashion-MNIST files; skips without them, but fails where CI=true."""
    found = fashion_mnist.installed_files()
    if found is not None:
        return next(iter(found.values())).parent
    message = (
        f"no Fashion-MNIST files in {fashion_mnist.DEBIAN_FOLDER} or "
        f"{fashion_mnist.cache_folder()}: install Debian's dataset-fashion-mnist"
    )
    if os.environ.get("CI") == "true":
        pytest.fail(message)
    pytest.skip(message)
