"""What `show --trial` says of lost values, the loss scale, the gap's trend, kernels and memory."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from policysearch.cost.memory import step_memory
from policysearch.cost.time import step_time
from policysearch.objective.objective import Objective
from policysearch.objective.score import Measurement
from policysearch.policy.policy import Policy
from policysearch.report.one_trial import trial_page
from policysearch.report.table import confirmed_table
from policysearch.study.journal.records import Records
from policysearch.study.journal.storage import read_journal
from policysearch.study.opening import load_results
from policysearch.study.results.results import Results
from policysearch.study.specification import load_spec
from policysearch.study.study import confirm_study, run_study
from policysearch.train.lost_values import LostValues
from policysearch.values import InputError, from_plain, to_plain
from tests.studies import measured, replaced_training, write_study

LOST = (
    LostValues("underflow", "fc2", "dgrad", 30, 1000, 20, 2e-8),
    LostValues("overflow", "fc1", "wgrad", 4, 1000, 20, 7e4),
    LostValues("swamped", "fc1", "update", 5, 1000, 0, 1e-5),
)
STEPS = (1, 2, 3, 6)


def signs(policy: Policy, seed: int) -> Measurement:
    """The gap of bfloat16 grows by a tenth of a nat along the run, apex.O3 has all else."""
    grows = 0.1 * (policy.name == "bfloat16")
    curve = tuple((taken, 1.0 / taken + grows * taken + 1e-3 * seed * grows) for taken in STEPS)
    run = replace(measured(policy, seed), curve=curve)
    if policy.name == "apex.O3":
        shifted = tuple(replace(row, first_step=row.first_step + 20 * seed) for row in LOST)
        return replace(run, overflows=(("fc1", 4),), underflows=(("fc2", 30),), lost=shifted)
    if policy.name == "float16":
        scales, skips = ((0, 2.0**16), (1, 2.0**15), (2, 2.0**14), (5, 3e4)), (0, 1)
        return replace(run, skipped_steps=2, scales=scales[: 4 - 3 * seed], skips=skips)
    return run


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    folder = tmp_path_factory.mktemp("signs")
    ladder = ('ladder = ["bfloat16", ', 'ladder = ["bfloat16", "float16", ')
    spec = load_spec(write_study(folder, ladder))
    with replaced_training(signs):
        run_study(spec, folder / "x.journal", processes=0)
        return confirm_study(spec, folder / "x.journal", processes=0, seeds=2)


def page_of(results: Results, label: str) -> str:
    return trial_page(results, number(results, label))


def number(results: Results, label: str) -> int:
    (found,) = (trial.number for trial in results.trials if label in (trial.name, trial.label))
    return found


def words(page: str, *first: str) -> list[str]:
    """Return the cells of the line that starts with these cells, without them."""
    rows = [re.split(r" {2,}", line) for line in page.splitlines()]
    (row,) = (row for row in rows if tuple(row[: len(first)]) == first)
    return row[len(first) :]


def test_lost_values_are_summed_over_the_seeds(results: Results) -> None:
    page = page_of(results, "apex.O3")
    assert words(page, "underflow", "fc2", "-", "dgrad") == ["60", "3%", "20", "2e-08"]
    assert words(page, "overflow", "fc1", "-", "wgrad") == ["8", "0.4%", "20", "7e+04"]
    assert words(page, "swamped", "fc1", "-", "update") == ["10", "0.5%", "0", "1e-05"]
    order = [page.index(f"\n{kind} ") for kind in ("overflow", "underflow", "swamped")]
    assert order == sorted(order)
    assert "values lost in the probed steps: none" in page_of(results, "bfloat16")


def test_the_loss_scale_over_time_and_the_skips(results: Results) -> None:
    page = page_of(results, "float16")
    assert (
        "seed 0: loss scale first 2^16, last 30000, lowest 2^14, highest 2^16, raised 1x, "
        "lowered 2x (2^16 from step 0, 2^15 from step 1, 2^14 from step 2, 30000 from step "
        "5); 2 skipped: steps 0, 1" in page
    )
    assert "seed 1: loss scale 2^16 throughout; 2 skipped: steps 0, 1" in page
    assert "loss scale 2^" not in page_of(results, "bfloat16")


def test_the_course_of_a_gap_and_its_trend(results: Results) -> None:
    page = page_of(results, "bfloat16").partition("gap over the longer run")[0]
    assert "gap over the study's run: growing (+3.0e-01 nats from the middle to the end" in page
    assert words(page, "gap, nats")[0] == "+1.00e-01"
    # At step 6 the gap is 0.6 and float32's loss 1/6.
    assert words(page, "of float32's loss there")[-1] == "+360.03%"
    assert "gap over the study's run: flat" in page_of(results, "apex.O3")
    for trend, row in ((results.trend(results.trial(r.trial)), r) for r in results.rows()):
        assert row.gap_trend == trend.gap in ("growing", "flat")
        assert row.gap_half == trend.points[2].gap and row.relative_gap == trend.points[3].relative
        assert (row.gap_trend == "growing") == (row.policy == "bfloat16")
    frame = results.to_frame()
    assert frame.set_index("policy").loc["bfloat16", "relative_gap"] == pytest.approx(3.6003)


def test_one_seed_has_a_course_but_no_trend(results: Results) -> None:
    trials = tuple(
        replace(trial, scores=trial.scores[:1], seeds=trial.seeds[:1]) for trial in results.trials
    )
    study = replace(results.spec.study, seeds=(0,))
    one = replace(results, trials=trials, spec=replace(results.spec, study=study))
    page = page_of(one, "bfloat16")
    assert "nats from the middle to the end; one seed, so no trend is called" in page
    assert {row.gap_trend for row in one.rows()} == {"one seed"}


def test_confirm_shows_the_course_over_the_longer_run(tmp_path: Path) -> None:
    spec = load_spec(write_study(tmp_path))

    def longer(policy: Policy, seed: int) -> Measurement:
        run = signs(policy, seed)
        return replace(run, curve=tuple((10 * taken, loss) for taken, loss in run.curve))

    with replaced_training(signs):
        run_study(spec, tmp_path / "x.journal", processes=0)
    with replaced_training(longer):
        found = confirm_study(spec, tmp_path / "x.journal", processes=0, seeds=2)
    table = confirmed_table(found)
    assert "under 'at step " in table and "as a share of float32's loss there" in table
    rows = {row.policy: row for row in found.rows() if row.confirmed_gap is not None}
    for name, row in rows.items():
        assert row.confirmed_gap_trend == ("growing" if name == "bfloat16" else "flat")
        line = next(line for line in table.splitlines() if line.startswith(f"{row.trial} "))
        assert row.confirmed_gap_trend in line and line.count("%") + line.count(" -  ") >= 3
    first = next(iter(rows.values()))
    assert "gap over the longer run: " in trial_page(found, first.trial)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A study whose kernels are long enough to differ."""
    folder = tmp_path_factory.mktemp("wide")
    large = (("widths = [8]", "widths = [256, 256]"), ("batch_size = 4096", "batch_size = 65536"))
    spec = load_spec(write_study(folder, *large))
    with replaced_training(signs):
        return run_study(spec, folder / "x.journal", processes=0)


def test_kernels_are_those_of_the_priced_step(wide: Results) -> None:
    trial, cost = wide.trial(number(wide, "bfloat16")), wide.spec.cost
    objective = Objective(wide.spec.task, cost.device, cost.stack, cost.batch_size)
    graph, page = objective.step_graph(trial.policy), page_of(wide, "bfloat16")
    time = step_time(graph, objective.device, objective.stack)
    for title, key in (("op", "op"), ("what bounds them", "bound")):
        (line,) = re.findall(f"kernels by {title}: (.*)", page)
        shares = [float(share) for share in re.findall(r"([0-9.]+)%", line)]
        assert len(shares) == len({getattr(kernel, key) for kernel in time.kernels}) > 1
        assert sum(shares) == pytest.approx(100.0, abs=0.05 * len(shares))
        assert shares == sorted(shares, reverse=True)
    products = sum(kernel.seconds for kernel in time.kernels if kernel.op == "matmul")
    assert f"matmul {products / time.kernel_seconds:.1%}" in page
    host = time.launch_seconds / time.kernel_seconds
    assert f"the host takes {host:.2f} of the kernels' time" in page and host < 0.9
    seconds = sorted((kernel.seconds for kernel in time.kernels), reverse=True)
    longest = max(time.kernels, key=lambda kernel: kernel.seconds)
    limit = {"elements": "instructions per element"}.get(longest.bound, longest.bound)
    said = [longest.role, longest.format, f"{seconds[0] / sum(seconds):.1%}", limit]
    assert words(page, longest.op, longest.layer) == said
    rest = f"{len(seconds) - 8} shorter ones take {sum(seconds[8:]) / sum(seconds):.1%}"
    assert rest in page


def test_the_live_bytes_are_those_of_the_priced_step(wide: Results) -> None:
    trial, cost = wide.trial(number(wide, "bfloat16")), wide.spec.cost
    objective = Objective(wide.spec.task, cost.device, cost.stack, cost.batch_size)
    memory = step_memory(objective.step_graph(trial.policy))
    line = page_of(wide, "bfloat16").partition("live at the peak: ")[2].splitlines()[0]
    parts = [part.rsplit(" ", 2) for part in line.split(", ")]
    held = {name: float(size) * 2**20 for name, size, _ in parts}
    expected = {
        "master weights": memory.master_bytes,
        "parameters": memory.parameter_bytes,
        "optimizer state": memory.optimizer_bytes,
        "gradients": memory.gradient_bytes,
        "low copies of parameters": memory.weight_copy_bytes,
        "activations and the rest": memory.activation_bytes,
    }
    expected = {name: bytes for name, bytes in expected.items() if bytes}
    assert held == pytest.approx(expected, rel=1e-3) and len(set(held.values())) >= 4
    assert sum(held.values()) == pytest.approx(memory.peak_bytes, rel=1e-3)


def test_without_the_data_the_sums_are_told(
    results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object) -> None:
        raise InputError("data_folder: none; expected one")

    monkeypatch.setattr(Objective, "step_price", gone)
    page = page_of(results, "bfloat16")
    assert "kernel by kernel: not shown: data_folder: none" in page
    assert "modeled memory: peak" in page and "modeled on H100-SXM5" in page


OLDER = ("lost", "scales", "skips", "swamped", "curve")


def test_a_journal_from_before_is_read_and_says_what_it_lacks(tmp_path: Path) -> None:
    spec, path = load_spec(write_study(tmp_path)), tmp_path / "x.journal"

    def older(policy: Policy, seed: int) -> Measurement:
        run = signs(policy, seed)
        plain = {key: item for key, item in to_plain(run).items() if key not in OLDER}
        made = from_plain(Measurement, plain, "run")
        assert replace(made, **{key: getattr(run, key) for key in OLDER}) == run
        return made

    with replaced_training(older):
        run_study(spec, path, processes=0)
    page = page_of(load_results(spec, path), "apex.O3")
    assert "not recorded by role, for the runs are older" in page
    assert "over the study's run" not in page


def test_signs_are_read_back_as_they_were(tmp_path: Path) -> None:
    spec, path = load_spec(write_study(tmp_path)), tmp_path / "x.journal"
    with replaced_training(signs):
        made = run_study(spec, path, processes=0)
    runs = Records(read_journal(path.read_bytes()).lines).runs.values()
    assert any(isinstance(run, Measurement) and run.lost for run in runs)
    assert load_results(spec, path).trials == made.trials
