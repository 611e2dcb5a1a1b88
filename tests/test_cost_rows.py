"""The rows of devices and stacks, and the price of a policy on each of them."""

from __future__ import annotations

import dataclasses
import json
import re
from importlib.resources import files

import pytest

from policysearch.cost.devices import DEVICES, MINIMUM_KERNEL, SOURCES, device_named
from policysearch.cost.price import PolicyCost, interval_on, low_precision_share, price
from policysearch.cost.stacks import STACKS, Stack, stack_named
from policysearch.cost.time import step_time
from policysearch.nn.models import lenet5, mlp
from policysearch.policy.presets import PRESETS
from policysearch.values import InputError, from_plain, to_plain
from tests.cost_steps import WIDE, product, step
from tests.turns import turns

V100, A100 = DEVICES["V100-SXM2"], DEVICES["A100-SXM4-80GB"]
EAGER = STACKS["torch.eager"]


def test_low_precision_is_faster_where_products_dominate() -> None:
    cost = price(step(WIDE, "float16", 8192), step(WIDE, "float32", 8192), V100, EAGER)
    assert 2 < cost.speedup < 125 / 15.7
    low, high = interval_on(V100)
    assert cost.speedup_low == pytest.approx(cost.speedup * low)
    assert cost.speedup_high == pytest.approx(cost.speedup * high)
    assert cost.low_precision_share == 1.0
    assert cost.label == "modeled" and "modeled" in cost.summary and "ms" not in cost.summary
    for shares in (cost.layer_shares, cost.format_shares):
        assert sum(share for _, share in shares) == pytest.approx(1)


def test_the_same_step_has_speedup_one_exactly() -> None:
    graph = step(lenet5(), "float32", 16)
    cost = price(graph, graph, "H100-SXM5", "torch.compile")
    assert (cost.speedup_low, cost.speedup, cost.speedup_high) == (1.0, 1.0, 1.0)
    assert (cost.memory_ratio, cost.cast_share, cost.low_precision_share) == (1.0, 0.0, 0.0)


@pytest.mark.parametrize(("device", "stack", "turn"), turns(DEVICES, [*STACKS], range(12)))
def test_every_preset_has_a_price_that_survives_storage(device: str, stack: str, turn: int) -> None:
    model = mlp((64, 32, 10), "relu")
    float32 = step(model, "float32", 16)
    # Every device and stack prices some of the presets, and every preset is priced on many.
    for name in [*PRESETS][turn::12]:
        cost = price(step(model, name, 16), float32, device, stack)
        assert 0 < cost.speedup_low <= cost.speedup <= cost.speedup_high < 100
        assert from_plain(PolicyCost, json.loads(json.dumps(to_plain(cost))), "cost") == cost


@pytest.mark.parametrize(
    ("device", "format", "runs"),
    [
        ("V100-SXM2", "bfloat16", "float32"),
        ("V100-SXM2", "tfloat32", "float32"),
        ("A100-SXM4-80GB", "bfloat16", "bfloat16"),
        ("A100-SXM4-80GB", "tfloat32", "tfloat32"),
        ("A100-SXM4-80GB", "float8_e4m3fn", "float16"),
        ("A100-SXM4-80GB", "e8m9", "tfloat32"),
        ("H100-SXM5", "float8_e5m2", "float8_e5m2"),
        ("H100-SXM5", "float4_e2m1fn", "float8_e4m3fn"),
        ("B200-SXM", "float4_e2m1fn", "float4_e2m1fn"),
        ("Ascend-910A", "bfloat16", "float32"),
        ("Ascend-910A", "float8_e4m3fn", "float16"),
        ("TPU-v4", "float16", "float32"),
        ("GTX-1080Ti", "float8_e4m3fn", "float16"),
    ],
)
def test_a_format_the_device_lacks_runs_in_the_narrowest_that_holds_it(
    device: str, format: str, runs: str
) -> None:
    assert DEVICES[device].runs_as(format) == runs


def test_emulation_costs_the_conversion_of_both_operands() -> None:
    narrow = step_time(product(2048, 2048, 2048, "bfloat16"), V100, EAGER)
    first, second, run = narrow.kernels
    assert (first.op, second.op, run.op) == ("convert", "convert", "matmul")
    assert first.bytes == second.bytes == 2048**2 * (2 + 4)
    assert run.format == "float32" and run.bytes == 2048**2 * (4 + 4 + 2)
    plain = step_time(product(2048, 2048, 2048, "float32", "float32"), V100, EAGER)
    assert narrow.step_seconds > plain.step_seconds
    assert narrow.cast_seconds == first.seconds + second.seconds


@pytest.mark.parametrize(
    ("side", "published"), [(2048, 3.228), (4096, 3.731), (8192, 3.745), (10240, 3.776)]
)
def test_the_cube_of_ascend_910b_multiplies_float32(side: int, published: float) -> None:
    """Squares in bfloat16 over float32 on a 910B2: zzc0721/torch-performance-test-data issue 109.

    At 1024 the published ratio is 2.16 and the modeled one 3.5: it is not within 30 %.
    """
    device = DEVICES["Ascend-910B2"]
    wide, narrow = (
        step_time(product(side, side, side, name, name), device, EAGER).step_seconds
        for name in ("float32", "bfloat16")
    )
    assert wide / narrow == pytest.approx(published, rel=0.3)


def test_float32_is_of_the_plain_units_but_where_a_row_has_theirs_apart() -> None:
    """910A has one vector rate for both, so that nothing of it is a matrix unit's."""
    cubes = {row.name for row in DEVICES.values() if row.on_matrix_unit("float32")}
    assert cubes == {"Ascend-910B2", "Ascend-910C", "Gaudi-3"}
    device = DEVICES["Ascend-910B2"]
    assert device.plain_peak == device.peak("float32_vector") < device.peak("float32")
    assert V100.plain_peak == V100.peak("float32") and V100.on_matrix_unit("float16")
    wide = product(2048, 2048, 2048, "float32", "float32")
    peaks = tuple(row for row in device.peaks if row[0] != "float32_vector")
    one = dataclasses.replace(device, peaks=peaks)
    # without the vector unit's own number float32 would be bound by its instructions
    ratio = step_time(wide, one, EAGER).step_seconds / step_time(wide, device, EAGER).step_seconds
    assert 3 < ratio < 6


def test_both_float8_formats_multiply_directly() -> None:
    graph = product(64, 64, 64, "float8_e4m3fn")
    left, right = graph.nodes[0], dataclasses.replace(graph.nodes[1], format="float8_e5m2")
    formats = frozenset([left.format, right.format])
    assert DEVICES["H100-SXM5"].product_format(formats).startswith("float8")
    assert A100.product_format(formats) == "float16"


def test_low_precision_share_counts_operands() -> None:
    assert low_precision_share(product(8, 8, 8, "float16")) == 1.0
    assert low_precision_share(product(8, 8, 8, "float32", "float16")) == 0.0


def test_every_number_of_every_device_has_a_source() -> None:
    table = json.loads((files("policysearch.cost") / "hardware.json").read_text(encoding="utf-8"))
    assert len(DEVICES) == len(table["devices"])
    for device in DEVICES.values():
        numbers = [device.bandwidth, device.multiprocessors]
        numbers += [row for _, row in (*device.peaks, *device.achieved, *device.other)]
        assert all(row.source and row.value > 0 for row in numbers)
        assert device.peak("float32") > 0 and device.memory_bytes > 0
        assert device.issue_rate >= device.plain_peak / 2 or device.arch == "davinci"
    assert "wp" in SOURCES


def test_marks_are_shown() -> None:
    marks = {(name, mark) for name, mark, _ in DEVICES["Ascend-910A"].marks}
    assert {("peak float32", "unsourced"), ("bandwidth", "unsourced")} <= marks
    assert ("issues_per_second", "memory") in {(n, m) for n, m, _ in A100.marks}
    assert "bandwidth" not in {n for n, _, _ in A100.marks}
    every = {(d.name, name): mark for d in DEVICES.values() for name, mark, _ in d.marks}
    numbers = [row for d in DEVICES.values() for row in d.numbers]
    assert (len(numbers), sum(mark == "memory" for mark in every.values())) == (432, 125)
    # the words of a source and its mark say the same
    for device in DEVICES.values():
        for name, row in device.numbers:
            words = re.findall(r"\w+", row.source)
            assert "UNSOURCED" not in words or row.mark == "unsourced", (device.name, name)
            assert not {"wp", "lanes"} & {*words} or row.mark, (device.name, name)


@pytest.mark.parametrize("stack", STACKS.values(), ids=STACKS)
def test_every_stack_says_where_its_numbers_come_from(stack: Stack) -> None:
    assert "launch_seconds" in dict(stack.sources)


def test_unknown_names_are_refused_with_the_valid_ones() -> None:
    with pytest.raises(InputError, match=r"unknown device 'A1000'; expected one that "):
        device_named("A1000")
    with pytest.raises(InputError, match=r"unknown stack 'jax'; expected one of torch\.eager, "):
        stack_named("jax")
    assert MINIMUM_KERNEL.value == 2e-6
