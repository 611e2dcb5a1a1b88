"""Modeled memory against published readings: the bars, and every number printed to users."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks.validation import validate_memory as validate_memory_module
from benchmarks.validation.__main__ import validation
from benchmarks.validation.pages.memory_page import memory_validation_page
from benchmarks.validation.published_memory import (
    MemoryRow,
    card_gib,
    memory_setting_of,
    read_memory_rows,
)
from benchmarks.validation.validate_memory import (
    MemoryValidation,
    fragments_of,
    growth_of,
    known_rows,
    reserved_bytes,
    validate_memory,
)
from policysearch.cost.memory import (
    CONTEXT_BYTES,
    FRAGMENTS,
    GIB,
    RESERVED_INTERVAL,
    largest_batch,
    visible_bytes,
)
from policysearch.values import InputError


@pytest.fixture(scope="module")
def found() -> MemoryValidation:
    return validate_memory(known_rows())


@pytest.fixture(scope="module")
def few() -> MemoryValidation:
    """Every ninth row, and the one of largest batches, among themselves: all take half a minute."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(validate_memory_module, "known_rows", few_rows)
        return validate_memory(few_rows())


def few_rows() -> tuple[MemoryRow, ...]:
    return (*known_rows()[1::9], *(row for row in known_rows() if row.largest))


@pytest.fixture
def few_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have memory be fitted to a few rows, where a test is about others."""
    monkeypatch.setattr(validate_memory_module, "known_rows", few_rows)


def test_a_few_networks_are_within_the_bars_by_the_constants_that_are_shipped(
    few: MemoryValidation,
) -> None:
    """As of all below; readings of full cards apart, and live bytes without an allocator's."""
    errors, held, ratios = list[float](), list[bool](), list[float]()
    for row in few.read:
        gib, visible = row.setting.row.gib or (0.0, 0.0), visible_bytes(row.setting.card_gib)
        made = [
            reading.live
            if reading.what == "allocated"
            else reserved_bytes(reading.live, growth_of(reading, FRAGMENTS), visible)
            - CONTEXT_BYTES * (reading.what == "reserved")
            for reading in row.readings
        ]
        ratios.append(made[1] / made[0] / (gib[1] / gib[0]) - 1)
        for seen, own, reading in zip(gib, made, row.readings, strict=True):
            if not reading.full:
                errors.append(own / GIB / seen - 1)
                low, high = RESERVED_INTERVAL
                held += [low <= seen * GIB / own <= high] * (reading.what == "reserved")
    assert len(errors) >= 20 and np.mean(np.abs(errors)) < 0.1
    assert np.mean(held) >= 0.75
    assert np.mean(np.abs(ratios)) <= 0.07


@pytest.mark.slow
def test_peaks_ratios_and_intervals_are_within_the_bars(found: MemoryValidation) -> None:
    """Of readings below nine tenths of the card, each without its family; live bytes apart."""
    assert not found.unbuilt
    errors: dict[str, list[float]] = {"allocated": [], "reserved": []}
    held = []
    for row in found.read:
        for gib, made, r in zip(row.setting.row.gib or (), row.gib, row.readings, strict=True):
            if not r.full:
                errors[r.what].append(made / gib - 1)
                held += [row.reserved.low <= gib / made <= row.reserved.high] * (
                    r.what == "reserved"
                )
    assert all(len(values) >= 60 and np.mean(np.abs(values)) < 0.1 for values in errors.values())
    assert np.mean(held) >= 0.75
    ratios = [row.ratio / (g[1] / g[0]) - 1 for row in found.read if (g := row.setting.row.gib)]
    assert np.mean(np.abs(ratios)) <= 0.07


@pytest.mark.slow
def test_nothing_that_ran_is_called_not_fitting(found: MemoryValidation) -> None:
    assert sum(r.full for row in found.read for r in row.readings) == 16
    assert all(may for row in found.read for may in row.may_fit)


def test_nothing_that_did_not_fit_is_called_fitting(few: MemoryValidation) -> None:
    """A row of largest batches: none above the published one is surely within the card."""
    (row,) = (row for row in few.judged if row.largest)
    assert row.largest is not None
    for (sure, expected, most), batch in zip(row.largest, row.setting.row.batches, strict=True):
        assert 0 < sure <= batch < most and sure <= expected <= most


def test_a_row_is_judged_without_its_family(few: MemoryValidation) -> None:
    """By hand for the family without which the constant is furthest from that of all."""
    readings = [r for row in few.read for r in row.readings]
    assert few.fragments == pytest.approx(fragments_of(readings), rel=1e-5)
    fits = {r.family: fragments_of(readings, r.family) for r in readings}
    family = max(fits, key=lambda name: abs(fits[name] - few.fragments))
    assert abs(fits[family] - few.fragments) > 0.3
    kept = [r for r in readings if r.family != family]
    assert fragments_of(kept) == pytest.approx(fits[family], rel=1e-5)
    (row, *_) = (
        row
        for row in few.read
        if row.setting.family == family and row.readings[0].what == "reserved"
    )
    live, share = row.readings[0].live, row.readings[0].share
    assert row.gib[0] == pytest.approx(live * (1 + fits[family] * share) / GIB)


def test_readings_of_full_cards_fit_nothing(few: MemoryValidation) -> None:
    readings = [r for row in few.read for r in row.readings]
    grown = [replace(r, bytes=2 * r.bytes) if r.full else r for r in readings]
    assert fragments_of(grown) == fragments_of(readings)
    assert fragments_of([replace(r, full=False) for r in grown]) != fragments_of(readings)


@pytest.mark.slow
def test_policies_are_priced_with_what_is_printed(found: MemoryValidation) -> None:
    assert pytest.approx(found.fragments, abs=2e-3) == FRAGMENTS
    assert pytest.approx(tuple(found.interval), abs=2e-3) == RESERVED_INTERVAL


@pytest.mark.slow
def test_the_command_prints_every_row(
    capsys: pytest.CaptureFixture[str], found: MemoryValidation
) -> None:
    assert validation(["--memory"]) == 0
    lines = capsys.readouterr().out.rstrip().split("\n")
    assert lines == memory_validation_page(found).split("\n")
    assert [line.split()[0] for line in lines[3:11]] == [row.id for row in read_memory_rows()[:8]]
    assert any("largest batch: float32 11" in line for line in lines)
    assert lines[-1].startswith("mean error of the ratio ")


GOOD = {
    "model": "resnet50",
    "framework": "PyTorch 2.5",
    "hardware": "RTX-2080Ti",
    "mode": "AMP-BF16",
    "batch_baseline": 64,
    "batch_mixed": 64,
    "memory_baseline_gib": 7.0,
    "memory_mixed_gib": 4.5,
}


@pytest.mark.usefixtures("few_known")
def test_rows_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What cannot be built is named with the reason, other kinds are left out."""
    bad = (
        ("memory_mixed_gib", None),
        ("model", "resnet49"),
        ("mode", "int8"),
        ("hardware", "Abacus"),
        ("batch_mixed", 0),
    )
    rows = [GOOD, *({**GOOD, key: value} for key, value in bad), {"kind": "update"}]
    path = tmp_path / "rows.json"
    path.write_text(json.dumps(rows), encoding="utf-8")
    assert validation(["--memory", "--rows", str(path)]) == 0
    page = capsys.readouterr().out
    assert page.count("resnet50") == 5 and "no memory, and its metric" in page
    assert "unknown network 'resnet49'" in page
    assert "unknown mode 'int8'" in page and "unknown device 'Abacus'" in page
    assert "a batch of 0" in page and "update" not in page


@pytest.mark.usefixtures("few_known")
def test_what_was_read_decides_what_is_modeled(tmp_path: Path) -> None:
    """Live bytes alone where torch's own count was read, and no context where the allocator's."""
    metrics = ("max_memory_allocated", "max_memory_reserved", "nvidia-smi (reserved + context)", "")
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{**GOOD, "metric": metric} for metric in metrics]), "utf-8")
    judged = validate_memory(read_memory_rows(path)).judged
    assert [r.setting.row.read for r in judged] == ["allocated", "reserved", "process", "process"]
    allocated, reserved, process, default = (row.gib[0] for row in judged)
    assert allocated == judged[0].live[0] / GIB < reserved
    assert process - reserved == pytest.approx(CONTEXT_BYTES / GIB) and process == default


@pytest.mark.parametrize("missing", ["model", "batch_mixed"])
def test_a_row_without_a_field_is_one_line(tmp_path: Path, missing: str) -> None:
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{k: v for k, v in GOOD.items() if k != missing}]), "utf-8")
    with pytest.raises(InputError, match=r"rows\.json: row 0: no "):
        read_memory_rows(path)


def test_cards_are_as_large_as_their_labels_say() -> None:
    assert [card_gib(x) for x in ("V100-SXM2-16GB", "V100-32GB", "RTX-2080Ti")] == [16, 32, 11]
    setting = memory_setting_of(read_memory_rows()[0])
    assert setting.card_gib == 16 and setting.trainings[0].length == 50


def test_reserved_memory_ends_at_what_the_card_has() -> None:
    visible = visible_bytes(16)
    assert reserved_bytes(GIB, 1.5, visible) == 1.5 * GIB + CONTEXT_BYTES
    assert reserved_bytes(15 * GIB, 1.5, visible) == visible < 16 * GIB


@pytest.mark.parametrize("most", [0, 1, 2, 7, 100, 4097])
def test_the_largest_batch_is_the_last_that_fits(most: int) -> None:
    """Memory of 1 MiB for a sample: brute force would stop at `most`."""
    visible = (most + 0.5) * 2**20 * 1.25 + CONTEXT_BYTES
    assert largest_batch(lambda batch: batch * 2**20, 1.25, visible) == most
