"""Modeled memory against published readings: the bars, and every number printed to users."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks.validation.__main__ import validation
from benchmarks.validation.pages.memory_page import memory_validation_page
from benchmarks.validation.published_memory import card_gib, memory_setting_of, read_memory_rows
from benchmarks.validation.validate_memory import MemoryValidation, reserved_bytes, validate_memory
from policysearch.cost.memory import CONTEXT_BYTES, GIB, GROWTH, largest_batch, visible_bytes
from policysearch.values import InputError


@pytest.fixture(scope="module")
def found() -> MemoryValidation:
    return validate_memory(read_memory_rows())


def test_ratio_and_peak_are_within_the_bars(found: MemoryValidation) -> None:
    read = [(row, row.setting.row.gib) for row in found.read]
    assert len(read) == 8 and not found.unbuilt
    ratios = [abs(row.ratio / (gib[1] / gib[0]) - 1) for row, gib in read if gib]
    peaks = [abs(m / t - 1) for row, gib in read if gib for m, t in zip(row.gib, gib, strict=True)]
    assert np.mean(ratios) <= 0.10 and np.mean(peaks) <= 0.15


def test_nothing_that_did_not_fit_is_called_fitting(found: MemoryValidation) -> None:
    """A row of largest batches: none above the published one is surely within the card."""
    (row,) = (row for row in found.judged if row.largest)
    assert row.largest is not None
    for (sure, expected, most), batch in zip(row.largest, row.setting.row.batches, strict=True):
        assert 0 < sure <= batch and sure <= expected <= most


def test_mixed_precision_comes_out_larger_where_it_was(found: MemoryValidation) -> None:
    larger = [r for r in found.read if r.setting.row.gib and np.diff(r.setting.row.gib)[0] > 0]
    assert len(larger) == 3 and all(row.live_ratio > 1 for row in larger)
    # both trainings of the other one are modeled to fill the card
    assert [row.ratio > 1 for row in larger] == [False, True, True]


def test_a_row_is_judged_without_its_family(found: MemoryValidation) -> None:
    """By hand for resnet: the growth is the median of the medians of the other families."""
    others: dict[str, list[float]] = {}
    for row in found.read:
        for gib, live in zip(row.setting.row.gib or (), row.live, strict=True):
            growth = (gib * GIB - CONTEXT_BYTES) / live
            others.setdefault(row.setting.family, []).append(growth)
    resnet = next(row for row in found.read if row.setting.family == "resnet")
    medians = [np.median(v) for family, v in others.items() if family != "resnet"]
    assert resnet.growth.expected == pytest.approx(np.median(medians))
    assert resnet.growth.high == max(max(v) for f, v in others.items() if f != "resnet")


def test_policies_are_priced_with_the_growth_that_is_printed(found: MemoryValidation) -> None:
    for name in ("low", "expected", "high"):
        assert getattr(GROWTH, name) == pytest.approx(getattr(found.growth, name), abs=2e-3)


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
