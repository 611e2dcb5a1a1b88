"""Where a step's modeled cost goes: sums, and promised gains priced again."""

from __future__ import annotations

import dataclasses
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from policysearch.cli import main
from policysearch.cost.memory import (
    CONTEXT_BYTES,
    GIB,
    NEEDED,
    largest_batch,
    live_by_kind,
    process_bytes,
    visible_bytes,
)
from policysearch.cost.price import step_price
from policysearch.objective.objective import Objective
from policysearch.policy.parallel import Parallel
from policysearch.policy.policy import LayerPolicy, Phase
from policysearch.policy.presets import preset
from policysearch.report.causes import Changes, narrower, wider
from policysearch.report.profile_page import largest_batches, largest_lines, memory_at, profile_page
from policysearch.report.step_cost import default_float32, default_line
from policysearch.train.tasks import Task

FOUR = Parallel(4)
PRESETS = ("float32", "torch.autocast.float16", "apex.O3", "te.delayed")


@pytest.fixture(scope="module", params=["mlp", "transformer"])
def objective(request: pytest.FixtureRequest) -> Objective:
    widths = {"mlp": (2048, 2048), "transformer": ()}[request.param]
    task = Task(model=request.param, data="digits", widths=widths)
    return Objective(task, "A100-SXM4-40GB", "torch.eager", 4096)


@pytest.fixture(scope="module", params=PRESETS)
def changes(request: pytest.FixtureRequest, objective: Objective) -> Changes:
    return Changes(objective, preset(request.param, objective.model.layer_names))


def test_shares_sum_to_one(changes: Changes) -> None:
    time = changes.price.time
    for shares in (time.layer_shares, time.format_shares):
        assert sum(share for _, share in shares) == pytest.approx(1.0)
    layers = changes.layers()
    assert layers and all(0 <= row.cast_share < row.share < 1 for row in layers)
    assert sum(row.share for row in layers) <= 1 + 1e-12


def test_a_change_gains_what_it_promises(objective: Objective, changes: Changes) -> None:
    causes = changes.causes(changes.layers())
    assert [c.speedup for c in causes] == sorted((c.speedup for c in causes), reverse=True)
    before = objective.price(changes.policy)
    for cause in causes:
        assert cause.policy.digest != changes.policy.digest
        after = objective.price(cause.policy)
        assert after.step_seconds < before.step_seconds
        assert cause.speedup == pytest.approx(before.step_seconds / after.step_seconds)
        assert cause.memory_ratio == pytest.approx(after.peak_bytes / before.peak_bytes)


def test_a_float32_step_could_be_faster(objective: Objective) -> None:
    changes = Changes(objective, preset("float32", objective.model.layer_names))
    layers = changes.layers()
    assert all(row.wider is None and row.narrower is not None for row in layers)
    assert any(c.what.endswith("in bfloat16") for c in changes.causes(layers))


def test_launches_that_bind_are_told() -> None:
    task = Task(model="mlp", data="digits", widths=(16, 16))
    small = Objective(task, "A100-SXM4-40GB", "torch.eager", 1)
    changes = Changes(small, preset("float32", small.model.layer_names))
    assert changes.price.time.host_bound
    free = dataclasses.replace(small.stack, launch_seconds=0.0)
    after = step_price(changes.graph, small.device, free).time.step_seconds
    assert changes.without_launches == changes.price.time.step_seconds / after > 1.1
    assert "if the host launched in no time" in profile_page(small, changes)


@pytest.mark.parametrize("devices", [1, 2, 4])
def test_what_is_live_on_one_device_adds_up_to_its_peak(devices: int) -> None:
    task = Task(model="mlp", data="digits", widths=(512, 512))
    net = Objective(task, "A100-SXM4-40GB", "torch.eager", 64, parallel=Parallel(devices))
    policy = preset("bfloat16", net.model.layer_names)
    changes = Changes(net, dataclasses.replace(policy, parallel=net.parallel))
    live = [sum(kinds.values()) for _, kinds in changes.live()]
    assert max(live) == changes.price.memory.peak_bytes


def test_float32_as_the_stack_runs_it_has_convolutions_in_tfloat32() -> None:
    task = Task(model="resnet", data="digits", widths=(64, 128))
    net = Objective(task, "A100-SXM4-40GB", "torch.compile", 4096)
    given = dict(default_float32(net).layers)
    convolutions = {name for name in given if "conv" in name or "downsample.0" in name}
    assert {name for name, row in given.items() if row.compute == "tfloat32"} == convolutions
    kernels = net.step_price(default_float32(net)).time.kernels
    formats = {k.op: k.format for k in kernels if k.op.startswith("conv") or k.op == "matmul"}
    assert formats.pop("matmul") == "float32" and set(formats.values()) == {"tfloat32"}
    cost = net.price(preset("float16", net.model.layer_names))
    over = net.price(default_float32(net)).step_seconds / cost.step_seconds
    strict = net.float32_price.time.step_seconds / cost.step_seconds
    assert 1 < over < strict
    assert f"\n{over:.2f}x (" in profile_page(net, Changes(net, preset("float16", [*given])))


@pytest.mark.parametrize(
    ("model", "device", "stack"),
    [
        ("resnet", "V100-SXM2", "torch.compile"),
        ("resnet", "A100-SXM4-40GB", "mindspore.graph"),
        ("mlp", "A100-SXM4-40GB", "torch.compile"),
    ],
)
def test_float32_stays_strict_without_tfloat32(model: str, device: str, stack: str) -> None:
    net = Objective(Task(model=model, data="digits"), device, stack)
    assert {row.compute for _, row in default_float32(net).layers} == {"float32"}
    cost = net.price(preset("float16", net.model.layer_names))
    assert default_line(net, cost).endswith("runs it unless told is strict float32")


def test_memory_by_kind_has_the_peak_and_its_parts(changes: Changes) -> None:
    moments = live_by_kind(changes.graph)
    totals = [sum(live.values()) for _, live in moments]
    memory = changes.price.memory
    assert max(totals) == memory.peak_bytes
    held = moments[int(np.argmax(totals))][1]
    assert held["activation"] == memory.activation_bytes > 0
    assert held["parameter"] == memory.parameter_bytes
    assert held["master"] == memory.master_bytes
    assert memory.parameter_bytes + memory.master_bytes > 0


def test_the_largest_batch_fits_and_the_next_does_not(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Surely is by the upper bound of what is reserved, the other by the expected."""
    task = Task(model="mlp", data="digits", widths=(4096, 4096))
    small = Objective(task, "V100-SXM2", "torch.eager", 64)
    policy, device = preset("torch.autocast.float16", small.model.layer_names), small.device
    sure, expected = largest_batches(small, policy)
    visible = visible_bytes(device.memory_bytes / GIB)
    assert 1 < sure < expected
    for batch, holds in ((sure, True), (sure + 1, False)):
        assert memory_at(small, policy, batch).fits(device) == holds
    for batch, holds in ((expected, True), (expected + 1, False)):
        live = memory_at(small, policy, batch).peak_bytes
        assert (process_bytes(live, NEEDED.expected) <= visible) == holds
    where = ["--model", "mlp", "--device", device.name, "--largest-batch"]
    assert main(["profile", "preset:torch.autocast.float16", *where]) == 0
    last = capsys.readouterr().out.rstrip().split("\n")[-3:]
    assert last[0] == "largest batch that fits on V100-SXM2" and "surely" in last[1]
    tiny = Objective(Task(model="mlp", data="digits"), "B200-SXM", "torch.eager", 64)
    told = largest_lines(tiny, tiny.float32)[1]
    assert told == "float32: at least 16777216 surely, at least 16777216 expected"
    each = Objective(Task(model="mlp", data="digits"), "B200-SXM", "torch.eager", 64, parallel=FOUR)
    told = largest_lines(each, replace(each.float32, parallel=FOUR))[1]
    assert told.startswith("float32: at least 67108864 surely, at least 67108864 expected, over")


@pytest.mark.parametrize("top", [3, 40, 2000])
def test_a_largest_batch_is_that_of_trying_all(top: int) -> None:
    """However memory grows: by steps that are nothing alike, and with little room at all."""
    rng = np.random.default_rng(top)
    for _ in range(20):
        live = np.cumsum(rng.integers(1, top, 4096)) * GIB / 100
        for room in rng.uniform(0.0, live[300], 5):
            most = int(np.flatnonzero(live <= room).max(initial=0))
            visible = 2.0 * room * (1 + 1e-12) + CONTEXT_BYTES
            assert largest_batch(live.tolist().__getitem__, 2.0, visible) == most


@pytest.mark.parametrize(("zero", "recompute"), [(0, ("fc1..fc3", "fc4..fc7")), (3, ())])
def test_the_largest_batch_of_several_devices_is_that_of_all(
    zero: int, recompute: tuple[str, ...]
) -> None:
    """By the memory that the step is priced with at that batch."""
    task = Task(model="mlp", data="digits", widths=(512,) * 6, optimizer="adam")
    parallel = Parallel(8, tensor=2, zero=zero)
    made = partial(
        Objective, task, "V100-SXM2", "torch.eager", parallel=parallel, recompute=recompute
    )
    spread = made(64)
    low = preset("bfloat16", spread.model.layer_names)
    policy = replace(low, parallel=parallel, all_reduce="bfloat16")
    sure, expected = largest_batches(spread, policy)
    assert sure % 4 == expected % 4 == 0
    for batch, holds in ((sure, True), (sure + 4, False)):
        assert made(batch).price(policy).fits == holds
    visible = visible_bytes(spread.device.memory_bytes / GIB)
    for batch, holds in ((expected, True), (expected + 4, False)):
        live = made(batch).price(policy).peak_bytes
        assert (process_bytes(live, NEEDED.expected) <= visible) == holds
    over = f", over {parallel.summary}"
    wide = largest_batches(spread, replace(spread.float32, parallel=parallel))
    assert largest_lines(spread, policy)[1:] == [
        f"{policy.name}: {sure} surely, {expected} expected{over}",
        f"float32: {wide[0]} surely, {wide[1]} expected{over}",
    ]


def test_a_profile_says_that_it_is_of_the_first_phase() -> None:
    """The largest batch is that of all phases, as what `fits` is."""
    task = Task(model="mlp", data="digits", widths=(512, 512), steps=40, tail_steps=9)
    made = Objective(task, "A100-SXM4-40GB", "torch.compile", 4096)
    low = preset("bfloat16", made.model.layer_names)
    wide = tuple((name, LayerPolicy()) for name, _ in low.layers)
    policy = replace(low, phases=(Phase(10, wide), Phase(40, low.layers)))
    page = profile_page(made, Changes(made, policy)).splitlines()
    assert page[1].startswith("2 phases: kernels, and what is live, are those of the first, until")
    assert page[2] == f"all phases: {made.price(policy).summary}"
    assert made.price(policy).speedup < 0.9 * made.price(low).speedup
    at = [memory_at(made, each, 4096).peak_bytes for each in (policy, low, made.float32)]
    assert at[0] == at[2] > at[1] and at[0] == made.price(policy).peak_bytes
    assert "phases" not in profile_page(made, Changes(made, low))


@pytest.mark.parametrize(
    ("format", "wide", "narrow"),
    [
        ("float32", None, "bfloat16"),
        ("tfloat32", "float32", "bfloat16"),
        ("bfloat16", "float32", "float8_e4m3fn"),
        ("float16", "float32", "float8_e4m3fn"),
        ("float8_e4m3fn", "bfloat16", None),
        ("float4_e2m1fn", "bfloat16", None),
    ],
)
def test_one_step_wider_and_narrower(format: str, wide: str | None, narrow: str | None) -> None:
    assert (wider(format), narrower(format)) == (wide, narrow)


def test_the_command_prints_and_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "profile.png"
    given = ["profile", "preset:torch.autocast.float16", "--model", "mlp", "--batch", "512"]
    assert main([*given, "--device", "L4", "--out", str(out)]) == 0
    page = capsys.readouterr().out
    assert "torch.autocast.float16 on mlp, batch 512" in page and "modeled on L4" in page
    for title in ("one narrower", "longest kernels", "live MiB at", "of it casts"):
        assert title in page
    assert out.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--batch", "0"], "batch of the priced step: 0; expected a number from 1"),
        (["--batch", str(10**400)], "batch of the priced step: 1000"),
        (["--device", "L5"], "'L5'; expected"),
        (["--stack", "torch"], "'torch'; expected"),
    ],
)
def test_mistakes_are_one_line(
    given: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["profile", "preset:float32", "--model", "mlp", *given]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
