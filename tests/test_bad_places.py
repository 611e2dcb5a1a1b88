"""Places that cannot be written, read or trusted: one line, and nothing half done."""

from __future__ import annotations

import gzip
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from policysearch import files
from policysearch.data.idx import read_idx
from policysearch.files import write_whole
from policysearch.study.specification import load_spec
from policysearch.study.study import run_study
from policysearch.train import tasks
from policysearch.values import InputError
from tests.studies import replaced_training, write_study
from tests.test_bad_input import refused

ROOT = Path(__file__).parents[1]


BARE = """
from policysearch.commands import run as module
from policysearch.study.workers import executors
from policysearch.__main__ import run

module.write_plots = lambda *_: None
executors.ProcessExecutor = lambda objective, _: executors.SerialExecutor(objective)
raise SystemExit(run())
"""
"""The command without processes of its own and without plots, which take seconds."""


def ran(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(  # type: ignore[call-overload, no-any-return]
        command, env={**os.environ, "PYTHONPATH": str(ROOT)}, text=True, check=False, **options
    )


def python(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return ran([sys.executable, *arguments], **options)


def command(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    return python("-m", "policysearch", *arguments, **options)


@pytest.mark.parametrize("kind", ["file", "dangling link"])
def test_results_that_is_no_folder(
    kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = write_study(tmp_path)
    monkeypatch.chdir(tmp_path)
    if kind == "file":
        Path("results").write_text("mine")
    else:
        Path("results").symlink_to(tmp_path / "nowhere")
    assert "results: File exists; expected a folder" in refused(["run", str(study)], capsys)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["results", "tiny.toml"]


def test_a_device_as_storage(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = write_study(tmp_path)
    for act in (["run", "--out", str(tmp_path)], ["show"], ["repair"]):
        line = refused([act[0], str(study), "--storage", "/dev/null", *act[1:]], capsys)
        assert line.count("/dev/null") == line.count("not a file; expected") == 1


def test_a_name_that_is_no_file_name_is_refused_before_training(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(tmp_path, ('name = "tiny"', f'name = "{"x" * 246}"'))
    with replaced_training() as trained:
        line = refused(["run", str(study), "--out", str(tmp_path)], capsys)
    assert "246 bytes; expected at most 200" in line and trained == []


def test_a_full_standard_output_is_one_line() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    with open("/dev/full", "w") as full:
        done = command("formats", stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "policysearch: output: No space left on device; expected room and access"
    ]


def test_a_reader_that_leaves_is_no_mistake() -> None:
    read, write = os.pipe()
    os.close(read)
    done = command("formats", stdout=write, stderr=subprocess.PIPE)
    os.close(write)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("how", ["closed from the start", "reader gone"])
def test_a_standard_error_that_is_gone_ends_no_study(how: str, tmp_path: Path) -> None:
    study = write_study(tmp_path, ("trials = 6", "trials = 2"))
    arguments = ["-c", BARE, "run", str(study), "--storage", str(tmp_path / "x")]
    if how == "reader gone":
        read, write = os.pipe()
        os.close(read)
        done = python(*arguments, stdout=subprocess.PIPE, stderr=write)
        os.close(write)
    else:
        shell = ["sh", "-c", '"$0" "$@" 2>&-', sys.executable, *arguments]
        done = ran(shell, stdout=subprocess.PIPE)
    assert done.returncode == 0 and "2 policies tried" in done.stdout


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("widths = [8]", "widths = [1000000000, 1000000000]", "GiB of memory"),
        ("widths = [8]", "widths = [1000000000]", "GiB of memory"),
        ("steps = 6", "steps = 2000000000", "GiB of memory"),
        ("widths = [8]", f"widths = {[1] * 10_001}", "10001 of them; expected at most 10000"),
    ],
)
def test_sizes_are_checked_before_anything_is_created(
    old: str, new: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    study = write_study(tmp_path, (old, new))
    line = refused(["run", str(study), "--storage", str(tmp_path / "x")], capsys)
    assert message in line and not (tmp_path / "x").exists()


def test_what_fits_is_not_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "machine_bytes", lambda: 1000)
    tasks.check_memory("task", 1000)
    with pytest.raises(InputError, match="task: needs about"):
        tasks.check_memory("task", 1001)
    monkeypatch.setattr(tasks, "machine_bytes", lambda: 6 * 2**30)
    said = "task: needs about 7.5 GiB of memory; expected at most the 6 GiB of this machine"
    with pytest.raises(InputError, match=f"^{said}$"):
        tasks.check_memory("task", 7 * 2**30 + 2**29)
    monkeypatch.setattr(tasks, "machine_bytes", lambda: None)
    tasks.check_memory("task", 2**60)


def test_a_gzip_file_that_swells_is_read_no_further_than_its_header_says(tmp_path: Path) -> None:
    path = tmp_path / "labels.gz"
    swollen = struct.pack(">4BI", 0, 0, 8, 1, 100) + bytes(2**26)
    path.write_bytes(gzip.compress(swollen, 1))
    with pytest.raises(InputError, match="more than 100 values; expected 100"):
        read_idx(path, 1)
    path.write_bytes(gzip.compress(struct.pack(">4B3I", 0, 0, 8, 3, 2**20, 2**10, 2**10)))
    with pytest.raises(InputError, match=r"1099511627776 values .*expected at most"):
        read_idx(path, 3)


def test_a_planted_link_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    victim, target = tmp_path / "victim", tmp_path / "policy.json"
    victim.write_text("mine")
    monkeypatch.setattr("policysearch.files.secrets.token_hex", lambda _: "guessed")
    (tmp_path / ".guessed.tmp").symlink_to(victim)
    with pytest.raises(InputError, match="File exists"):
        write_whole({target: b"new"})
    assert victim.read_text() == "mine" and not target.exists()


def test_temporary_names_are_never_the_same(tmp_path: Path) -> None:
    seen: list[str] = []
    write = files._write_new

    def noted(path: Path, content: bytes) -> None:
        seen.append(path.name)
        write(path, content)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "_write_new", noted)
        for _ in range(3):
            write_whole({tmp_path / "a": b"1", tmp_path / "b": b"2"})
    assert len(set(seen)) == 6 and all(len(name) > 16 for name in seen)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("fault", ["second is a folder", "disk full at the second"])
def test_an_export_is_all_or_nothing(
    fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    study = write_study(tmp_path)
    places = [str(study), "--storage", str(tmp_path / "x")]
    with replaced_training():
        run_study(load_spec(study).with_trials(2), tmp_path / "x", processes=0)
    out = tmp_path / "out"
    out.mkdir()
    (out / "tiny-policy.json").write_text("old")
    if fault == "second is a folder":
        (out / "tiny-torch.py").mkdir()
    else:
        write = files._write_new

        def failing(path: Path, content: bytes) -> None:
            if b"torch" in content:
                path.write_bytes(content[:10])
                raise OSError(28, "No space left on device")
            write(path, content)

        monkeypatch.setattr(files, "_write_new", failing)
    before = {path.name for path in out.iterdir()}
    refused(["export", *places, "--trial", "0", "--out", str(out)], capsys)
    assert {path.name for path in out.iterdir()} == before
    assert (out / "tiny-policy.json").read_text() == "old"
