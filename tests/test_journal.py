"""The journal of a study: cut, flipped, filled up, shared with Optuna, and repaired."""

from __future__ import annotations

import contextlib
import random
import resource
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from policysearch.study.journal import storage
from policysearch.study.journal.records import Records
from policysearch.study.journal.storage import read_journal
from policysearch.study.opening import load_results
from policysearch.study.results.results import Results
from policysearch.study.scoring import read_results
from policysearch.study.specification import StudySpec, load_spec
from policysearch.study.study import run_study
from policysearch.values import InputError
from tests.studies import replaced_training, write_study

SAMPLERS = ("gain", "random", "tpe", "nsga2")


def with_sampler(spec: StudySpec, sampler: str) -> StudySpec:
    return replace(spec, study=replace(spec.study, sampler=sampler, trials=9, workers=4))


@pytest.fixture(scope="module")
def spec(tmp_path_factory: pytest.TempPathFactory) -> StudySpec:
    return with_sampler(load_spec(write_study(tmp_path_factory.mktemp("study"))), "random")


@pytest.fixture(scope="module")
def journals(spec: StudySpec, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A finished 9-trial study per sampler, its training replaced."""
    folder = tmp_path_factory.mktemp("journals")
    for name in SAMPLERS:
        with replaced_training():
            run_study(with_sampler(spec, name), folder / name, processes=0)
    return {name: folder / name for name in SAMPLERS}


@pytest.fixture
def journal(journals: dict[str, Path], tmp_path: Path) -> Path:
    path = tmp_path / "tiny.journal"
    path.write_bytes(journals["random"].read_bytes())
    return path


def shown(path: Path, spec: StudySpec) -> Results:
    """What `show` would print of the journal, with the prices it holds."""
    records = Records(storage.read_checked(path).lines)
    priced = {digest: cost for (_, digest), cost in records.prices.items()}
    return read_results(records, spec, lambda asked: priced[asked.digest])


def resumed(spec: StudySpec, path: Path) -> tuple[Results, list[tuple[str, int, float]]]:
    with replaced_training() as trained:
        return run_study(spec, path, processes=0), trained


@pytest.mark.parametrize("turn", range(len(SAMPLERS)), ids=SAMPLERS)
def test_a_cut_after_any_record_resumes_as_if_undisturbed(
    turn: int, spec: StudySpec, journals: dict[str, Path], tmp_path: Path
) -> None:
    """Also after two cuts; what was finished before a cut is never trained again.

    Their records are of the same kinds in the same order, so the samplers take turns, and every
    third record is cut behind: `make faults-cuts` cuts anywhere.
    """
    sampler = SAMPLERS[turn]
    spec, content = with_sampler(spec, sampler), journals[sampler].read_bytes()
    whole, lines = load_results(spec, journals[sampler]), content.splitlines(keepends=True)
    assert len(whole.trials) == 9 and len(lines) > 30
    rng = random.Random(0)
    path = tmp_path / "cut.journal"
    for count in range(turn, len(lines) + 1, 3 * len(SAMPLERS)):
        path.write_bytes(b"".join(lines[:count]))
        kept = set(Records(read_journal(path.read_bytes()).lines).runs)
        if count % 3 == 0:  # A second cut, somewhere in what the resumed run writes.
            resumed(spec, path)
            again = path.read_bytes().splitlines(keepends=True)
            path.write_bytes(b"".join(again[: rng.randint(count, len(again))]))
        results, trained = resumed(spec, path)
        assert results == whole
        assert {(k.digest, k.seed, k.jitter) for k in kept}.isdisjoint(trained)


def test_a_record_torn_at_any_byte_is_dropped(
    journal: Path, spec: StudySpec, journals: dict[str, Path]
) -> None:
    *whole, last = journal.read_bytes().splitlines(keepends=True)
    kept, length = b"".join(whole), len(last)
    wanted = read_journal(kept)
    for cut in range(1, length - 1):  # Without its line feed alone it is whole.
        torn = read_journal(kept + last[:cut])
        assert torn.lines == wanted.lines and not torn.damage
    for cut in (0, 1, length // 2, length - 1):
        journal.write_bytes(kept + last[:cut])
        results, _ = resumed(spec, journal)
        assert results == load_results(spec, journals["random"])


@contextlib.contextmanager
def full_beyond(size: int) -> Iterator[None]:
    """Let no file grow beyond `size` bytes, as on a disk that fills."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("share", [0.0, 0.004, 0.5, 0.999])
def test_a_disk_that_fills_is_one_line_and_the_study_resumes(
    share: float, spec: StudySpec, journals: dict[str, Path], tmp_path: Path
) -> None:
    size = len(journals["random"].read_bytes())
    path = tmp_path / "full.journal"
    with full_beyond(int(size * share)), pytest.raises(InputError) as caught:
        resumed(spec, path)
    assert "\n" not in str(caught.value) and "expected room" in str(caught.value)
    assert not read_journal(path.read_bytes()).damage
    assert resumed(spec, path)[0] == load_results(spec, journals["random"])


def flipped(content: bytes, rng: random.Random) -> bytes:
    place = rng.randrange(len(content))
    return content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]


def test_flipped_bits_change_no_result_silently(journal: Path, spec: StudySpec) -> None:
    content, whole = journal.read_bytes(), shown(journal, spec)
    rng = random.Random(1)
    refused = 0
    for _ in range(300):
        journal.write_bytes(flipped(content, rng))
        try:
            assert shown(journal, spec) == whole
        except InputError as error:
            assert "line " in str(error) and "repair" in str(error)
            refused += 1
    assert refused > 297


def damaged(content: bytes, how: str) -> bytes:
    lines = content.splitlines(keepends=True)
    return {
        "a line gone wrong": b"".join([*lines[:5], lines[5][:9] + b"\0\n", *lines[6:]]),
        "a digit changed": content.replace(b'"tail_loss":0.5', b'"tail_loss":0.4', 1),
        "a line lost": b"".join([*lines[:5], *lines[6:]]),
        "two lines joined": b"".join([*lines[:5], lines[5][:-1], *lines[6:]]),
        "lines swapped": b"".join([*lines[:5], lines[6], lines[5], *lines[7:]]),
        "head lost": b"".join(lines[1:]),
        "foreign": b"# notes\n" + content[8:],
    }[how]


HOW = (
    "a line gone wrong",
    "a digit changed",
    "a line lost",
    "two lines joined",
    "lines swapped",
    "head lost",
    "foreign",
)


@pytest.mark.parametrize("how", HOW)
def test_a_damaged_journal_is_refused_left_alone_and_repaired(
    how: str, journal: Path, spec: StudySpec, journals: dict[str, Path]
) -> None:
    whole = load_results(spec, journal)
    bad = damaged(journal.read_bytes(), how)
    journal.write_bytes(bad)
    for act in (run_study, load_results):
        with pytest.raises(InputError, match=r"storage .*: line \d+ is .*repair STUDY") as caught:
            act(spec, journal)
        assert "\n" not in str(caught.value)
    assert journal.read_bytes() == bad
    done = storage.repair(journal, "tiny", ["minimize", "maximize", "minimize"])
    assert done.copy is not None and done.copy.read_bytes() == bad and done.damage
    kept = (
        {trial.digest for trial in load_results(spec, journal).trials}
        if how != "foreign"
        else set()
    )
    assert kept <= {trial.digest for trial in whole.trials}
    assert resumed(spec, journal)[0] == whole
    again = storage.repair(journal, "tiny", ["minimize", "maximize", "minimize"])
    assert again.copy is None and not again.damage


def test_repair_keeps_every_intact_trial_of_a_file_cut_and_damaged_anywhere(
    journal: Path, spec: StudySpec, tmp_path: Path
) -> None:
    content = journal.read_bytes()
    rng = random.Random(2)
    ends = [i + 1 for i, byte in enumerate(content) if byte == 10]
    starts = [0, *ends]
    path = tmp_path / "bad.journal"
    for _ in range(50):
        cut = rng.randrange(1, len(content))
        hit = rng.randrange(cut)
        path.write_bytes((flipped(content[: hit + 1], rng) + content[hit + 1 :])[:cut])
        left = path.read_bytes()
        intact = [
            content[a:b]
            for a, b in zip(starts, ends, strict=False)
            if left[a : b - 1] == content[a : b - 1] and b - 1 <= cut
        ]
        try:
            storage.repair(path, "tiny", ["minimize", "maximize", "minimize"])
        except InputError as error:
            assert "no intact record" in str(error) and not intact
            continue
        kept = Records(storage.read_checked(path).lines)
        wanted = Records(read_journal(b"".join(intact)).lines)
        assert [t.digest for t in kept.trials] == [t.digest for t in wanted.trials]
        assert kept.runs == wanted.runs
        for copy in tmp_path.glob("bad.journal.damaged*"):
            copy.unlink()


def test_repair_of_nothing_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.journal"
    with pytest.raises(InputError, match="not there"):
        storage.repair(path, "tiny", ["minimize"])
    path.write_bytes(b"# nothing of ours\n")
    with pytest.raises(InputError, match="no intact record"):
        storage.repair(path, "tiny", ["minimize"])
    assert path.read_bytes() == b"# nothing of ours\n"


def test_what_optuna_writes_is_kept_and_changes_no_result(journal: Path, spec: StudySpec) -> None:
    before = load_results(spec, journal)
    backend = optuna.storages.journal.JournalFileBackend(str(journal))
    study = optuna.load_study(study_name="tiny", storage=optuna.storages.JournalStorage(backend))
    study.set_user_attr("note", "a look at the front")
    study.enqueue_trial({})
    foreign = journal.read_bytes().splitlines()[-2:]
    assert load_results(spec, journal) == before
    longer, _ = resumed(spec.with_trials(12), journal)
    assert longer.trials[:9] == before.trials and len(longer.trials) == 12
    assert all(line in journal.read_bytes().splitlines() for line in foreign)
    # Numbers are Optuna's: the queued trial has one too.
    assert [trial.number for trial in longer.trials[9:]] == [10, 11, 12]
    again = optuna.load_study(study_name="tiny", storage=optuna.storages.JournalStorage(backend))
    assert again.user_attrs["note"] == "a look at the front" and len(again.trials) == 13


def test_two_runs_at_once_are_refused(journal: Path, spec: StudySpec) -> None:
    with (
        storage.exclusive(journal),
        pytest.raises(InputError, match="in use by another run"),
    ):
        run_study(spec, journal)


def test_an_unfinished_study_shows_what_it_has(journal: Path, spec: StudySpec) -> None:
    lines = journal.read_bytes().splitlines(keepends=True)
    for count in (1, 2):
        journal.write_bytes(b"".join(lines[:count]))
        with pytest.raises(InputError, match="no results yet"):
            load_results(spec, journal)
    journal.write_bytes(b"".join(lines[:12]))
    assert len(load_results(spec, journal).trials) < 9


def test_the_journal_of_another_study_is_refused(journal: Path, spec: StudySpec) -> None:
    other = replace(spec, study=replace(spec.study, name="other"))
    for act in (run_study, load_results):
        with pytest.raises(InputError, match="holds study 'tiny'; expected 'other'"):
            act(other, journal)


def test_a_journal_that_optuna_alone_made_is_refused(spec: StudySpec, tmp_path: Path) -> None:
    path = tmp_path / "x.journal"
    backend = optuna.storages.journal.JournalFileBackend(str(path))
    optuna.create_study(study_name="tiny", storage=optuna.storages.JournalStorage(backend))
    before = path.read_bytes()
    for act in (run_study, load_results):
        with pytest.raises(InputError, match="made by another program"):
            act(spec, path)
    assert path.read_bytes() == before
