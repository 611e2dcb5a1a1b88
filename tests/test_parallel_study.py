"""Studies that search the spread over devices together with formats, and published rows of it."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.joint import alone, only_joint, page
from benchmarks.validation.__main__ import validation
from benchmarks.validation.ranks import Ranks, ranks_of, spread_speedup
from policysearch.cli import main
from policysearch.objective.published.known import PATH as HELD_OUT
from policysearch.objective.published.rows import read_rows
from policysearch.policy.parallel import Parallel
from policysearch.policy.policy import LayerPolicy
from policysearch.policy.policy_file import read_policy
from policysearch.policy.presets import TF32
from policysearch.study.journal.records import trained_digest
from policysearch.study.opening import load_results
from policysearch.study.questions.by_hand import try_policy
from policysearch.study.results.results import Results
from policysearch.study.specification import StudySpec, load_spec
from policysearch.study.study import run_study
from policysearch.values import InputError
from tests.studies import write_study

SPREAD = """
[parallel]
devices = 8
tensor = [1, 2]
zero = [0, 2]
gradients = ["buckets", "combined"]
all_reduce = ["float32", "bfloat16"]
"""

CHANGES = (
    ('device = "H100-SXM5"', 'device = "RTX-4090"'),
    ("batch_size = 32\nlearning_rate = 0.1", 'optimizer = "adam"\nbatch_size = 32'),
    ("widths = [8]", "widths = [512, 512]"),
    (', "float8_e4m3fn"]', "]"),
    ("trials = 6", "trials = 15"),
    ('sampler = "random"', 'sampler = "gain"'),
    ('ops = ["tanh"]\n', ""),
    ('loss_scales = ["none", "fixed", "dynamic"]\ngrowth_intervals = [10, 100]\n', ""),
    ('ladder = ["bfloat16", "mindspore.O0", "apex.O3"]', 'ladder = ["uniform"]' + SPREAD),
)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_study(tmp_path_factory.mktemp("parallel"), *CHANGES)


@pytest.fixture(scope="module")
def spec(study: Path) -> StudySpec:
    return load_spec(study)


@pytest.fixture(scope="module")
def storage(study: Path) -> Path:
    return study.parent / "joint.journal"


@pytest.fixture(scope="module")
def joint(spec: StudySpec, storage: Path) -> Results:
    return run_study(spec, storage, processes=0)


def test_a_spread_costs_no_training(joint: Results, storage: Path) -> None:
    """Policies that are only spread otherwise share their runs, and so their gaps."""
    runs = storage.read_text(encoding="utf-8").count('"policysearch:run:')
    trained = {trained_digest(trial.policy) for trial in joint.trials}
    seeds = len(joint.spec.study.seeds)
    assert len(trained) < len(joint.trials) == 15
    assert runs == len(trained) * seeds + seeds  # float32 once more, jittered
    gaps: dict[str, set[float]] = {}
    for trial in joint.trials:
        gaps.setdefault(trained_digest(trial.policy), set()).add(trial.loss_gap)
    assert all(len(found) == 1 for found in gaps.values())


def test_every_policy_says_how_it_is_spread(
    joint: Results, study: Path, storage: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert {trial.policy.parallel.devices for trial in joint.trials} == {8}
    assert len({trial.policy.parallel for trial in joint.trials}) > 1
    where = [str(study), "--storage", str(storage)]
    assert main(["show", *where, "--csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    by_number = {trial.number: trial for trial in joint.trials}
    for row in rows:
        policy = by_number[int(row["trial"])].policy
        assert row["parallel"] == policy.parallel.summary != ""
        assert row["all_reduce"] == policy.all_reduce
    spread = next(t for t in joint.trials if t.policy.parallel.zero)
    assert main(["show", *where, "--trial", str(spread.number)]) == 0
    text = capsys.readouterr().out
    assert f"RTX-4090 ({spread.policy.parallel.summary})" in text and "all_gather" in text
    assert main(["export", *where, "--trial", str(spread.number), "--out", str(tmp_path)]) == 0
    assert read_policy(tmp_path / "tiny-policy.json") == spread.policy
    assert "one replica of the whole batch" in _shown(where, capsys)


def _shown(where: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    capsys.readouterr()
    assert main(["show", *where]) == 0
    return capsys.readouterr().out


def test_the_joint_front_has_what_neither_search_finds(
    joint: Results, spec: StudySpec, tmp_path: Path
) -> None:
    """Each of the two searches alone runs as long; their spaces are halves of the joint one."""
    formats, spread = (
        run_study(each, tmp_path / f"{each.study.name}.journal", processes=0)
        for each in alone(spec)
    )
    assert {trial.policy.parallel for trial in formats.trials} == {spec.parallel.base}
    own = [trial for trial in spread.trials if TF32 not in trial.presets]  # the rival is of both
    assert {layer for t in own for _, layer in t.policy.layers} == {LayerPolicy()}
    assert {t.policy.parallel for t in spread.trials} == set(spec.parallel.strategies())
    found = only_joint(joint, [formats, spread])
    assert found
    for trial in found:
        low = any(layer.compute != "float32" for _, layer in trial.policy.layers)
        assert (low or trial.policy.all_reduce != "float32") and trial in joint.front
        assert trial.policy.parallel != spec.parallel.base
    text = page(joint, formats, spread)
    assert f"{len(found)} of {len(joint.front)} members of the joint front" in text


def test_a_policy_without_devices_is_tried_on_those_of_the_study(
    joint: Results, spec: StudySpec, storage: Path
) -> None:
    float32 = next(t for t in joint.trials if "float32" in t.presets)
    assert float32.policy.parallel == Parallel(8) == spec.parallel.base
    bare = replace(float32.policy, parallel=Parallel())
    before = load_results(spec, storage)
    results, number, new = try_policy(spec, storage, bare, processes=0)
    assert (number, new) == (float32.number, False) and len(results.trials) == len(before.trials)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("devices = 8", "devices = 6", "parallel.tensor: 4 of 6"),
        ("devices = 8", "devices = 1", "parallel.tensor: [1, 2] on one device; expected more"),
        ("zero = [0, 2]", "zero = [2, 2]", "parallel.zero: [2, 2]; expected one or more diff"),
        ("zero = [0, 2]", "zero = [5]", "parallel.zero: 5; expected a number from 0 to 3"),
        ('["float32", "bfloat16"]\n', '["fp7"]\n', "all_reduce: unknown format 'fp7'"),
        ("batch_size = 4096", "batch_size = 4097", "cost.batch_size: 4097 over 8 groups"),
        ("devices = 8", "machines = 8", "parallel: unknown key 'machines'"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    path = write_study(tmp_path, *CHANGES)
    text = path.read_text(encoding="utf-8")
    last = text.rindex(old) if old in text else -1
    assert last >= 0
    if "tensor: 4" in message:
        text = text.replace("tensor = [1, 2]", "tensor = [1, 4]")
        last = text.rindex(old)
    path.write_text(text[:last] + new + text[last + len(old) :], encoding="utf-8")
    with pytest.raises(InputError) as error:
        load_spec(path)
    assert message in str(error.value) and "\n" not in str(error.value)


def test_eight_devices_keep_the_published_speedup() -> None:
    """The bar is 5 % of speedup(8) / speedup(1).

    One row, with delayed scaling, is published at a third of it and approximate; it is not met.
    """
    rows, left, _ = ranks_of()
    eight = [row for row in rows if row.devices == 8]
    assert len(eight) == 6 and [row.id for row in eight if abs(row.error) > 0.05] == ["2/109"], (
        eight
    )
    assert len(rows) == 22 and "no like row of one device" in left
    assert all(0.5 < row.modeled < 1.5 for row in rows)


def test_rows_of_half_precision_are_compared_as_well(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Rows of the package, said to be of eight devices with an eighth of the batch or as much."""
    text = HELD_OUT.with_name("published_speedups.json").read_text(encoding="utf-8")
    rows = {row["id"]: row for row in json.loads(text)}
    net, ncf = rows[14], rows[202]
    eight = [{**net, "n_gpu": 8}, {**ncf, "n_gpu": 8}]
    for key in ("batch_per_gpu_baseline", "batch_per_gpu_mixed"):
        eight[1][key] = ncf[key] // 8
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([*eight, {**net, "n_gpu": 8, "model": "nothing"}]))
    found: dict[str, Ranks] = {row.model: row for row in ranks_of(path)[0]}
    assert found["resnet50"].modeled == pytest.approx(1.0, abs=0.01)
    # small parts of a batch wait for the gradients of large tables
    assert 0.5 < found["ncf"].modeled < 0.95
    assert validation(["--ranks", "--rows", str(path)]) == 0
    said = capsys.readouterr().out
    assert "8 devices: 2 rows" in said and "left out, no like row of one device" in said
    one = next(row for row in read_rows() if row.id == "14")
    assert spread_speedup(one) == pytest.approx(one.speedup, rel=0.4)
