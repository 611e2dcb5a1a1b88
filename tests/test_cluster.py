"""Training on a Dask cluster: the same bits, whatever happens to its workers."""

from __future__ import annotations

import itertools
import logging
import os
import random
import shlex
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from policysearch import api
from policysearch.cli import main
from policysearch.commands.run import TLS
from policysearch.objective.objective import Objective
from policysearch.objective.score import Failure
from policysearch.study.journal.records import PREFIX, Records
from policysearch.study.journal.storage import read_journal
from policysearch.study.opening import load_results
from policysearch.study.specification import StudySpec, load_spec
from policysearch.study.study import run_study
from policysearch.study.workers import cluster as module
from policysearch.study.workers.cluster import ATTEMPTS, Cluster, ClusterExecutor, cluster_at
from policysearch.study.workers.executors import Job
from policysearch.study.workers.worker import Payload, said_identity
from policysearch.values import InputError
from tests.fake_dask import FakeClient
from tests.studies import write_study

pytest.importorskip("distributed")


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    return load_spec(write_study(tmp_path_factory.mktemp("study")))


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """A scheduler and two worker processes, on the loopback interface."""
    with cluster_at("local:2") as made:
        yield made


def runs_in(path: Path) -> tuple[Records, list[str]]:
    """Return the facts of a journal, and the names of its records of runs, in their order."""
    reading = read_journal(path.read_bytes())
    assert not reading.damage
    keys = [key for line in reading.lines for key in line.record.get("system_attr", ())]
    return Records(reading.lines), [key for key in keys if key.startswith(PREFIX + "run:")]


def test_a_real_cluster_gives_the_bits_of_this_process(
    cluster: Cluster, spec: StudySpec, tmp_path: Path
) -> None:
    here, there = tmp_path / "here.journal", tmp_path / "there.journal"
    alone = run_study(spec, here, processes=0)
    results = api.run_study(spec, there, executor=cluster.client)
    assert {t.digest: t.scores for t in results.trials} == {
        t.digest: t.scores for t in alone.trials
    }
    assert runs_in(here)[0].runs == runs_in(there)[0].runs
    for address in (cluster.client.scheduler.address, cluster.client.dashboard_link):
        assert "//127.0.0.1:" in address


@pytest.mark.slow
def test_workers_killed_on_the_way_cost_nothing_but_their_own_runs(
    cluster: Cluster, spec: StudySpec, tmp_path: Path
) -> None:
    spec = replace(spec, task=replace(spec.task, steps=600), study=replace(spec.study, trials=8))
    path, rng, killed = tmp_path / "a.journal", random.Random(0), list[int]()
    marks = iter((2.0, 4.0))
    mark = [next(marks)]

    def kill(done: float, _: Callable[[], Any]) -> None:
        if done >= mark[0]:
            mark[0] = next(marks, 1e9)
            # Those that have registered: Dask does not start one again that dies before.
            pids = sorted(cluster.client.run(os.getpid, on_error="ignore").values())
            killed.append(rng.choice(pids))
            with suppress(ProcessLookupError):
                os.kill(killed[-1], signal.SIGKILL)

    results = run_study(spec, path, executor=cluster, progress=kill)
    assert len(set(killed)) == 2
    assert len(results.trials) == 8 and not results.failed
    records, recorded = runs_in(path)
    assert len(recorded) == len(set(recorded)) == len(records.runs) == 8 * 2 + 2
    assert cluster.status() == "2 workers, 0 runs in flight"


@pytest.fixture(scope="module")
def objective(spec: StudySpec) -> Objective:
    return Objective(spec.task, spec.cost.device, spec.cost.stack)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.02)


def outcomes(client: FakeClient, objective: Objective, seeds: int) -> dict[int, Any]:
    jobs = [Job(objective.float32, seed) for seed in range(seeds)]
    fake: Any = client
    with ClusterExecutor(fake, objective) as executor:
        return dict(executor.run(jobs))


def test_the_data_are_sent_to_each_worker_once_and_all_train(objective: Objective) -> None:
    client = FakeClient(["a", "b", "c"], lambda job, worker: (job.seed, False))
    found = outcomes(client, objective, 20)
    assert found == {seed: seed for seed in range(20)}
    assert {worker for _, worker in client.runs} == {"a", "b", "c"}
    workers, (key, *others) = zip(*client.sent, strict=True)
    assert sorted(workers) == ["a", "b", "c"] and set(others) == {key}
    task = replace(objective.task, data=objective.dataset)
    payload = Payload(task, objective.model.fingerprint, objective.fast)
    assert key == payload.key
    other = replace(payload, task=replace(payload.task, learning_rate=0.5))
    assert other.key != key


def test_a_worker_goes_on_before_its_result_is_told(objective: Objective) -> None:
    """However long telling and asking take: the next run is asked for ahead."""
    client: Any = FakeClient(["a"], lambda job, worker: (job.seed, False))
    asked, allowed = list[int](), [0]
    client.held = lambda job: job.seed > allowed[0]

    def jobs() -> Iterator[Job]:
        for seed in range(5):
            asked.append(seed)
            yield Job(objective.float32, seed)

    with ClusterExecutor(client, objective) as executor:
        for told, _ in enumerate(executor.run(jobs())):
            assert len(client.runs) == min(told + 2, 5)
            assert len(asked) <= told + 2  # No further ahead than it must.
            allowed[0] = told + 1
    assert told == 4


def test_a_worker_that_says_nothing_is_asked_again(
    objective: Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Identities(dict[str, Any]):
        """Has the coordinator wait for the worker once that speaks, however long it takes."""

        def get(self, key: str, default: Any = None) -> Any:
            monkeypatch.setattr(module, "TAKE_ON_SECONDS", 0.1 if client.silent else 60.0)
            return default

    client = FakeClient(["a"], lambda job, worker: (job.seed, False))
    client.silent, client.identities = 2, Identities()
    assert outcomes(client, objective, 3) == {0: 0, 1: 1, 2: 2} and client.silent == 0


def test_a_worker_whose_interpreter_slips_is_asked_again(objective: Objective) -> None:
    class Once(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            return self.pop(key, default)

    client = FakeClient(["a"], lambda job, worker: (job.seed, False))
    client.identities = Once(a=SystemError("AST constructor recursion depth mismatch"))
    assert outcomes(client, objective, 3) == {0: 0, 1: 1, 2: 2} and not client.identities


def test_a_lost_worker_s_run_goes_elsewhere_a_set_number_of_times(objective: Objective) -> None:
    names = (f"w{number}" for number in itertools.count(2))

    def act(job: Job, worker: str) -> Any:
        if job.seed != 3:
            return job.seed, False
        client.workers.remove(worker)
        client.workers.append(next(names))
        return None

    client = FakeClient(["w0", "w1"], act)
    found = outcomes(client, objective, 6)
    tried = [worker for seed, worker in client.runs if seed == 3]
    assert len(tried) == len(set(tried)) == ATTEMPTS
    assert found.pop(3) == Failure(f"worker lost {ATTEMPTS} times (no memory?)")
    assert found == {seed: seed for seed in (0, 1, 2, 4, 5)}


def test_a_run_without_memory_is_tried_on_another_worker(objective: Objective) -> None:
    def act(job: Job, worker: str) -> Any:
        return (Failure("MemoryError"), True) if worker == "small" else (job.seed, False)

    client = FakeClient(["large", "small"], act)
    assert outcomes(client, objective, 4) == {seed: seed for seed in range(4)}
    client = FakeClient(["small"], act)
    assert outcomes(client, objective, 1) == {0: Failure("MemoryError")}
    assert len(client.runs) == ATTEMPTS


def test_a_run_that_takes_far_too_long_is_started_elsewhere(
    objective: Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLOW", 0.0)  # However long a run takes on this machine.
    monkeypatch.setattr(module, "LEAST_LEASE_SECONDS", 0.3)
    hung: list[str] = []

    def act(job: Job, worker: str) -> Any:
        if job.seed == 2 and not hung:
            hung.append(worker)
            return None
        return None if worker in hung else (job.seed, False)

    client = FakeClient(["a", "b"], act)
    assert outcomes(client, objective, 5) == {seed: seed for seed in range(5)}
    first, *others = [worker for seed, worker in client.runs if seed == 2]
    assert first == hung[0] and others and first not in others
    # On workers that all hang it is a failure in the end.
    monkeypatch.setattr(module, "LEAST_LEASE_SECONDS", 0.05)
    client = FakeClient([str(n) for n in range(9)], lambda j, w: None if j.seed else (0, False))
    found = outcomes(client, objective, 2)
    assert isinstance(found[1], Failure) and "no result, on 5 workers" in found[1].reason


def test_a_worker_with_other_code_or_libraries_is_refused_by_name(
    objective: Objective, caplog: pytest.LogCaptureFixture
) -> None:
    client = FakeClient(["tcp://old", "tcp://new"], lambda job, worker: (job.seed, False))
    other = said_identity()
    other["libraries"] = {**other["libraries"], "numpy": "1.99"}
    client.identities["tcp://old"] = other
    client._first = {"tcp://new"}
    assert outcomes(client, objective, 5) == {seed: seed for seed in range(5)}
    assert {worker for _, worker in client.runs} == {"tcp://new"}
    assert "worker tcp://old refused: libraries differ: numpy 1.99" in caplog.text
    client.workers = ["tcp://old"]
    with pytest.raises(InputError, match=r"worker tcp://old: libraries differ: numpy 1\.99"):
        outcomes(client, objective, 1)


@pytest.mark.parametrize(
    ("address", "said"),
    [
        ("local:0", "expected local:N with N from 1"),
        ("local:two", "expected local:N"),
        ("127.0.0.1:9", "expected the address of a dask scheduler"),
        ("nonsense://x", "expected the address of a dask scheduler"),
    ],
)
def test_a_cluster_that_is_none_is_one_line(
    address: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CONNECT_SECONDS", 0.3)
    with pytest.raises(InputError, match=said), cluster_at(address):
        pass


def test_workers_that_do_not_start_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(**_: Any) -> None:
        raise RuntimeError("Cluster failed to start:\nno memory")

    monkeypatch.setattr("distributed.LocalCluster", fails)
    said = "--cluster: local:3: Cluster failed to start: no memory; expected"
    with pytest.raises(InputError, match=said), cluster_at("local:3"):
        pass


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TimeoutError(), "the scheduler has said nothing for 60 s: it is stopped, or out of reach"),
        (OSError("ConnectionPool closing."), "the scheduler is gone"),
        (RuntimeError("Client is closed"), "the scheduler is gone"),
    ],
)
def test_a_scheduler_that_is_gone_or_stopped_ends_it_in_plain_words(
    error: Exception, said: str, objective: Objective
) -> None:
    client = FakeClient(["a"], lambda job, worker: (job.seed, False))
    client.gone = error
    with pytest.raises(InputError, match=f"cluster: {said}.*; expected one that answers: the same"):
        outcomes(client, objective, 2)


def test_no_worker_is_said_once_and_one_that_comes_late_trains(
    objective: Objective, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NO_WORKER_SECONDS", -1.0)
    monkeypatch.setattr(module, "LOOK_SECONDS", 0.01)
    client, said = FakeClient([], lambda job, worker: (job.seed, False)), list[str]()

    class Joins(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())
            client.workers.append("late")

    handler = Joins()
    logging.getLogger(module.__name__).addHandler(handler)
    try:
        assert outcomes(client, objective, 2) == {0: 0, 1: 1}
    finally:
        logging.getLogger(module.__name__).removeHandler(handler)
    assert len(said) == 1 and said[0].startswith("cluster: no worker for 0 s; this waits")


def test_what_is_no_client_is_refused(spec: StudySpec, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"executor: int; expected a dask\.distributed Client"):
        api.run_study(spec, tmp_path / "x.journal", executor=3)


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A certificate that signs itself, and its key."""
    folder = tmp_path_factory.mktemp("tls")
    files = {"key": folder / "key.pem", "cert": folder / "cert.pem"}
    made = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost"
    where = ["-keyout", str(files["key"]), "-out", str(files["cert"])]
    subprocess.run([*shlex.split(made), *where], check=True, capture_output=True)
    return {**files, "ca-file": files["cert"]}


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes certificates with openssl")
def test_a_scheduler_that_speaks_tls_is_joined_with_its_files_alone(
    pem: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from distributed import LocalCluster, Security

    own = [
        f"tls_{role}_{part}"
        for role in ("client", "scheduler", "worker")
        for part in ("key", "cert")
    ]
    files = {name: str(pem[name.rpartition("_")[2]]) for name in own}
    secured = Security(require_encryption=True, tls_ca_file=str(pem["cert"]), **files)
    study, storage = write_study(tmp_path), tmp_path / "tls.journal"
    options = {"host": "tls://127.0.0.1", "dashboard_address": "127.0.0.1:0", "n_workers": 1}
    with LocalCluster(**options, processes=False, security=secured, silence_logs=40) as there:
        run = ["run", str(study), "--out", str(tmp_path), "--storage", str(storage)]
        run += ["--cluster", there.scheduler_address]
        tls = [word for part in TLS for word in (f"--tls-{part}", str(pem[part]))]
        assert there.scheduler_address.startswith("tls://")
        assert main(run) == 2
        assert "without --tls-ca-file; expected tls://" in capsys.readouterr().err
        assert main([*run, *tls[:2]]) == 2
        said = (
            "--cluster and --tls-ca-file alone; expected --tls-ca-file, --tls-cert, --tls-key, all"
        )
        assert said in capsys.readouterr().err
        assert main([*run, *tls[:-1], "nowhere.pem"]) == 2
        assert "--tls-key: nowhere.pem; expected a PEM file" in capsys.readouterr().err
        assert main([*run, *tls[:-1], str(study)]) == 2  # no key
        assert len(capsys.readouterr().err.splitlines()) == 1
        assert not storage.exists()
        assert main([*run, *tls]) == 0
    results = load_results(load_spec(study), storage)
    assert len(results.trials) == 6 and not results.failed
