"""Devices of the user's own: files that studies name."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.validation.__main__ import validation
from policysearch.cli import main
from policysearch.cost.device_file import COLUMNS, device_at, device_text, read_device, read_timings
from policysearch.cost.devices import DEVICES, Accuracy, Device
from policysearch.cost.measured import measured_time
from policysearch.cost.price import price, speedup_over
from policysearch.cost.stacks import stack_named
from policysearch.cost.timings import Timing, Timings
from policysearch.graph import Graph
from policysearch.nn.models import mlp
from policysearch.objective.objective import Objective
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.presets import preset
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.search.price_table import format_table, formats_of
from policysearch.space.model_space import make_space
from policysearch.space.section import SpaceSection
from policysearch.study.cost_section import CostSection
from policysearch.train.step import trace_step
from policysearch.train.tasks import Task
from policysearch.values import InputError

PLAIN = """
name = "mine"
arch = "own"
memory_gib = [8]
peaks = [["float32", {value = 1e12, source = "sheet", mark = "memory"}],
         ["bfloat16", {value = 4e12, source = "me"}]]
bandwidth = {value = 1e11, source = "guess", mark = "unsourced"}
multiprocessors = {value = 4, source = "me"}
alignment = []
"""
KERNELS = """op,format,extents,seconds,cached_seconds
matmul.nt,float32,1x64x64x64,2e-5,1e-5
matmul.nt,bfloat16,1x64x64x64,1e-5,5e-6
add,float32,64x64,3e-6,1e-6
"""
OTHER = '= []\nother = [["{}", {{value = {}, source = "me"}}]]'
ERRORS = ("mean_error", "p90_error", "retest_error")
TWICE = """= []
other = [["issues_per_second", {value = 1e9, source = "me"}],
         ["issues_per_second", {value = 2e9, source = "me"}]]"""
NO_EXTENTS = '[{op = "add", format = "float32", extents = [], seconds = 1, cached_seconds = 1}]'


def wrong(name: str) -> str:
    """Return the accuracy of a device file, one of whose errors is below nothing."""
    given = ", ".join(f"{error} = {-1 if error == name else 0.1}" for error in ERRORS)
    return f"= []\naccuracy = {{{given}, policies = 46}}"


def graphs(policy: str = "bfloat16") -> tuple[Graph, Graph]:
    net = mlp((64, 64, 10))
    graph = trace_step(net, "softmax_cross_entropy", Optimizer("momentum"), 64)
    return apply_policy(graph, preset(policy, net.layer_names)), graph


def timed(**fields: object) -> Device:
    rows = (
        Timing("matmul.nt", "float32", (1, 64, 64, 64), 2e-5, 1e-5),
        Timing("add", "float32", (64, 64), 3e-6, 1e-6),
    )
    row = replace(DEVICES["V100-SXM2"], timings=Timings(rows), cache_bytes=2**20, host="adds")
    return replace(row, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", DEVICES)
def test_every_row_written_as_a_file_reads_back_equal(name: str, tmp_path: Path) -> None:
    path = tmp_path / "row.toml"
    path.write_text(device_text(DEVICES[name]), encoding="utf-8")
    read = read_device(path)
    assert replace(read, name=name) == DEVICES[name]
    assert read.marks == DEVICES[name].marks


def test_timings_and_accuracy_read_back_equal(tmp_path: Path) -> None:
    device = timed(accuracy=Accuracy(0.04, 0.09, 0.02, 138), notes='a "b"\\ \N{FILE FOLDER}')
    (tmp_path / "row.toml").write_text(device_text(device), encoding="utf-8")
    assert replace(read_device(tmp_path / "row.toml"), name=device.name) == device
    assert len(tomllib.loads(device_text(device))["timings"]["rows"]) == 2


def test_a_study_takes_a_device_by_its_file_and_is_priced_on_it(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(PLAIN, encoding="utf-8")
    assert CostSection(str(path), "torch.eager").device == str(path)
    device = device_at(str(path))
    assert device.marks == (
        ("bandwidth", "unsourced", "guess"),
        ("peak float32", "memory", "sheet"),
    )
    policy, float32 = graphs()
    cost = price(policy, float32, str(path), "torch.eager")
    assert cost.device == str(path) and cost.label == "modeled"
    assert device_at(cost.device).memory_gib == (8.0,)


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        ("name = 3", ": Cannot overwrite"),
        ("speed = 3", ": unknown key 'speed'"),
        ('host = "waits"', ".host: 'waits'; expected one of adds, overlaps"),
        ("cache_bytes = -1", ": cache_bytes: -1; expected a number"),
        ("host_seconds = -1.0", ": host_seconds: -1.0; expected a number from 0"),
        ("host_step_seconds = -1.0", ": host_step_seconds: -1.0; expected a number from 0"),
        (f"x = {'[' * 10**5}", ": maximum recursion depth exceeded; expected TOML"),
        (f"timings.rows = {NO_EXTENTS}", ".timings.rows[0].extents: []; expected positive ones"),
        ('[timings]\nrows = [{op = "add"}]', ".timings.rows[0]: missing key 'format'"),
    ],
)
def test_a_fault_in_a_device_file_is_named(line: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(f"{PLAIN}{line}\n", encoding="utf-8")
    with pytest.raises(InputError) as error:
        CostSection(str(path), "torch.eager")
    assert fault in str(error.value) and str(path) in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ('["float32", {', '["tfloat32", {', "peaks: tfloat32, bfloat16; expected float32"),
        ("value = 1e12", "value = -1.0", "peaks float32, FLOP per second: -1.0; expected a number"),
        ("[8]", "[]", "memory_gib: []; expected one size"),
        ("[8]", "[8, 0]", "memory_gib: 0.0; expected a number"),
        ("value = 4,", "value = 0,", "multiprocessors: 0.0; expected a number from 1"),
        (
            "= []",
            OTHER.replace("other", "achieved").format("bfloat16", 3),
            "achieved bfloat16, FLOP",
        ),
        ("value = 1e11", "value = 0.0", "bandwidth, bytes per second: 0.0; expected a number"),
        ("value = 1e11", "value = 3350", "bytes per second: 3350.0; expected a number from 1e+06"),
        ("value = 4e12", "value = 4", "bfloat16, FLOP per second: 4.0; expected a number from"),
        ('"bfloat16"', '"float32"', "peaks: 'float32' is given twice; expected each name once"),
        ('"bfloat16"', '"float8_e5m2"', "peaks: 'float8_e5m2'; expected 'float8'"),
        ("= []", '= [["bfloat16", 0]]', "alignment bfloat16: 0; expected a number from 1"),
        ("= []", '= [["bf16", 8]]', "alignment: unknown format 'bf16'"),
        ("= []", '= [["bfloat16", 8], ["bfloat16", 16]]', "alignment: 'bfloat16' is given twice"),
        ("= []", OTHER.format("issues_per_second", -5), "issues_per_second: -5.0; expected a"),
        ("= []", OTHER.format("issues_per_s", 5e12), "other: 'issues_per_s'; expected one of"),
        ("= []", TWICE, "other: 'issues_per_second' is given twice; expected each name once"),
        *(("= []", wrong(name), f"accuracy {name}: -1.0; expected a number") for name in ERRORS),
    ],
)
def test_a_device_that_cannot_be_is_refused(old: str, new: str, fault: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(PLAIN.replace(old, new), encoding="utf-8")
    with pytest.raises(InputError) as error:
        read_device(path)
    assert fault in str(error.value)


def test_a_missing_device_file_is_named() -> None:
    with pytest.raises(InputError, match=r"^nowhere\.toml: No such file[^:]*$"):
        CostSection("nowhere.toml", "torch.eager")


def test_prices_are_modeled_until_the_machine_has_an_accuracy_and_carry_it_then() -> None:
    policy, float32 = graphs()
    before = price(policy, float32, timed(), "torch.eager")
    assert before.label == "modeled" and before.speedup_high > before.speedup
    eager = stack_named("torch.eager")
    seconds = [measured_time(g, timed(), eager).step_seconds for g in (policy, float32)]
    assert [before.step_seconds, before.float32_step_seconds] == seconds
    known = timed(accuracy=Accuracy(0.04, 0.09, 0.02, 138))
    after = price(policy, float32, known, "torch.eager")
    assert "mean error 4.0% on 138 policies measured there" in after.summary
    assert after.speedup == before.speedup
    assert after.speedup_low == pytest.approx(after.speedup * 0.91)
    assert after.speedup_high == pytest.approx(after.speedup * 1.09)


def test_speedups_over_another_policy_have_the_error_found_there(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(device_text(timed(accuracy=Accuracy(0.04, 0.09, 0.02, 138))), encoding="utf-8")
    costs = [price(*graphs(name), str(path), "torch.eager") for name in ("bfloat16", "float16")]
    over = speedup_over(costs[0], price(*graphs("mindspore.O2"), str(path), "torch.eager"), "O2")
    assert over.low == pytest.approx(over.value * 0.91)


def test_calibrate_reads_kernels_from_a_csv(tmp_path: Path) -> None:
    kernels, made = tmp_path / "kernels.csv", tmp_path / "mine.toml"
    kernels.write_text(KERNELS, encoding="utf-8")
    options = ["--csv", str(kernels), "--memory-gib", "4", "--host", "overlaps"]
    assert main(["calibrate", str(made), *options]) == 0
    device = read_device(made)
    assert dict(device.peaks)["bfloat16"].value == pytest.approx(2 * 64**3 / 5e-6)
    assert device.bandwidth.value == pytest.approx(12 * 64**2 / 3e-6)
    assert (device.memory_gib, device.host) == ((4.0,), "overlaps")
    assert device.timings == read_timings(kernels) and str(kernels) in device.bandwidth.source
    assert price(*graphs(), str(made), "torch.eager").speedup > 1


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", f"columns ; expected {', '.join(COLUMNS)}"),
        (KERNELS.replace("2e-5", "fast"), "line 2: 'matmul.nt,float32,1x64x64x64,fast,1e-5'"),
        (KERNELS.replace("2e-5", "-1"), "line 2: seconds: -1.0; expected a number"),
        (KERNELS.replace("2e-5,1e-5", "2e-5,0"), "line 2: cached_seconds: 0.0; expected a number"),
        (KERNELS.replace("64x64,", "0x64,"), "line 2: extents: [1, 64, 0, 64]"),
        (KERNELS.replace("bfloat16", "b16"), "line 3: unknown format 'b16'"),
        (KERNELS.replace("float32,1x", "bfloat16,1x"), "timings: expected a matmul and an add in"),
        (KERNELS.partition("add")[0], "timings: expected a matmul and an add in float32"),
        (
            KERNELS.replace("matmul.nt", "matmul"),
            "line 2: op: 'matmul'; expected one of linear",
        ),
        (
            KERNELS.replace("matmul.nt", "linear"),
            "timings: add, linear; expected matmul.nt and add",
        ),
        (KERNELS.replace("1x64x64x64", "64x64"), "line 2: extents: [64, 64]; expected batch, rows"),
        (KERNELS.replace("64x64,", f"{'9' * 19}x64,"), "line 2: extents: "),
        (KERNELS.replace("e-6,1e-6", "e2,1e2"), "bandwidth, bytes per second: 163.84; expected"),
    ],
)
def test_a_fault_in_a_csv_is_one_line_and_nothing_is_written(
    text: str, fault: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kernels, made = tmp_path / "kernels.csv", tmp_path / "mine.toml"
    kernels.write_text(text, encoding="utf-8")
    assert main(["calibrate", str(made), "--csv", str(kernels)]) == 2
    said = capsys.readouterr().err
    assert fault in said and said.count("\n") == 1
    assert not made.exists()


def test_calibrate_writes_what_can_be_read_whatever_the_file_is_called(tmp_path: Path) -> None:
    """Also with a character of two halves in JSON, and with a byte that is none."""
    kernels, made = (
        tmp_path / os.fsdecode("\N{FILE FOLDER}".encode() + b"\xff"),
        tmp_path / "m.toml",
    )
    kernels.write_text(KERNELS, encoding="utf-8")
    assert main(["calibrate", str(made), "--csv", str(kernels)]) == 0
    assert read_device(made).bandwidth.source.endswith("/\N{FILE FOLDER}?")


def test_a_product_that_writes_another_format_counts_for_its_operands(tmp_path: Path) -> None:
    kernels, made = tmp_path / "kernels.csv", tmp_path / "mine.toml"
    kernels.write_text(KERNELS.replace("bfloat16", "bfloat16>float32"), encoding="utf-8")
    assert main(["calibrate", str(made), "--csv", str(kernels)]) == 0
    assert [name for name, _ in read_device(made).peaks] == ["bfloat16", "float32"]


@pytest.mark.parametrize("error", [0.0, 0.1, 2.0])
def test_no_speedup_is_below_nothing(error: float) -> None:
    found = Accuracy(error, error, 0.0, 46)
    cost = price(*graphs(), timed(accuracy=found), "torch.eager")
    assert 0.0 <= cost.speedup_low <= cost.speedup <= cost.speedup_high


@pytest.mark.parametrize(("arch", "host"), [("own", "adds"), ("x86", "overlaps")])
def test_a_price_table_of_timed_kernels_has_what_they_take(
    arch: str, host: str, tmp_path: Path
) -> None:
    """On a device that was timed in float32 alone, so that bfloat16 is widened first."""
    path = tmp_path / "mine.toml"
    device = timed(arch=arch, host=host, host_seconds=1e-5)
    path.write_text(device_text(device), encoding="utf-8")
    task = Task(model="mlp", data="digits", widths=(64, 64))
    objective = Objective(task, str(path), "torch.eager")
    space = make_space(SpaceSection(formats=("float32", "bfloat16")), objective.model)
    table = format_table(objective, space, {}, np.random.default_rng(0))
    rows = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 1]])
    prices = [objective.step_price(space.policy(formats_of(space, tuple(row)))) for row in rows]
    assert any(kernel.op == "convert" for kernel in prices[2].time.kernels)
    exact = [price.time.step_seconds for price in prices]
    np.testing.assert_allclose(table.step_seconds(rows), exact, rtol=0.1)
    both = [price.time.kernel_seconds + price.time.launch_seconds for price in prices]
    assert np.allclose(exact, both) == (host == "adds")


@pytest.mark.parametrize(
    ("run", "command"), [(main, ["calibrate", "x.toml"]), (validation, ["--measured"])]
)
def test_without_torch_the_commands_say_so(
    run: Callable[[list[str]], int],
    command: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert run(command) == 2
    assert "torch is not installed; expected policysearch[torch]" in capsys.readouterr().err


def test_calibrate_refuses_what_is_no_device_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["calibrate", "x.json", "--csv", "kernels.csv"]) == 2
    assert "x.json: expected a name that ends in .toml" in capsys.readouterr().err
