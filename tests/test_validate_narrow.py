"""8-bit and smaller formats over bfloat16: published rows, and orders that must come out."""

from __future__ import annotations

import dataclasses
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from policysearch.cli import main
from policysearch.cost.layers import Layers
from policysearch.cost.precision import Precision
from policysearch.cost.published_narrow import (
    BFLOAT16,
    NarrowRow,
    is_eight_bit,
    narrow_speedup,
    read_narrow_rows,
)
from policysearch.cost.scalings import SCALINGS, product_rate, scaling_named
from policysearch.cost.stacks import STACKS
from policysearch.values import InputError


@pytest.fixture(scope="module")
def modeled() -> list[tuple[NarrowRow, float]]:
    found = []
    for row in read_narrow_rows():
        try:
            found.append((row, narrow_speedup(row)))
        except InputError:
            continue
    return [pair for pair in found if is_eight_bit(pair[0])]


def test_eight_bit_rows_are_within_the_bars(modeled: list[tuple[NarrowRow, float]]) -> None:
    whole = [abs(m - r.speedup) for r, m in modeled if r.kind == "end-to-end"]
    parts = [abs(m - r.speedup) for r, m in modeled if r.kind in ("layer", "gemm")]
    assert (len(whole), len(parts)) == (79, 32)
    assert np.mean(whole) <= 0.10 and np.mean(parts) <= 0.15


@pytest.mark.parametrize(
    ("hardware", "parallelism", "most", "sizes"),
    [
        ("RTX PRO 6000", "single GPU", 0.07, 5),
        ("RTX PRO 6000", "DP=8 (llmq, flags may shard)", 0.07, 5),
        ("L40S", "single GPU", 0.07, 4),  # 14B runs from the host's memory there
        ("RTX 4090", "single GPU", 0.10, 5),
    ],
)
def test_larger_decoders_gain_more(
    modeled: list[tuple[NarrowRow, float]],
    hardware: str,
    parallelism: str,
    most: float,
    sizes: int,
) -> None:
    where = (hardware, parallelism)
    rows = [(r, m) for r, m in modeled if (r.hardware, r.parallelism) == where][:sizes]
    assert len(rows) == sizes and all("Qwen2.5" in row.model for row, _ in rows)
    assert all(small < large for (_, small), (_, large) in pairwise(rows))
    assert all(abs(m - r.speedup) <= most for r, m in rows)


def test_rows_that_are_slower_for_a_named_cause(modeled: list[tuple[NarrowRow, float]]) -> None:
    """Casts that nothing compiles, rows with tensor parallelism, all layers of a narrow net."""
    slower = {r.id: m for r, m in modeled if r.speedup < 1}
    assert {"90", "91", "111", "112", "113"} <= slower.keys()
    assert all(slower[id] < 1 for id in ("90", "91", "111", "112", "113"))


def plain(row: NarrowRow, recipe: str) -> float:
    changed = dataclasses.replace(row, recipe=recipe, formats=("bf16", "fp8"))
    return narrow_speedup(changed)


def test_recipes_come_in_the_published_order(modeled: list[tuple[NarrowRow, float]]) -> None:
    """Delayed before current before block (H200); tensors before MX before rows (B200)."""
    products = next(r for r, _ in modeled if r.id == "92")
    assert plain(products, "delayed") > plain(products, "current") > plain(products, "block") > 1
    llama = next(r for r, _ in modeled if r.id == "48")
    assert plain(llama, "mx") > plain(llama, "row") and plain(llama, "tensorwise") > 1.1


def test_longer_sequences_gain_less(modeled: list[tuple[NarrowRow, float]]) -> None:
    rows = {r.length: m for r, m in modeled if r.model == "MPT-3b"}
    lengths = sorted(rows)
    assert lengths == [512, 2048, 8192, 32768]
    assert all(rows[short] > rows[long] for short, long in pairwise(lengths))


def test_quantising_is_passes_over_memory() -> None:
    """Current scaling moves 6 bytes an activation or gradient and 8 a weight (torchao)."""
    step = Layers(
        STACKS["torch.compile"], dataclasses.replace(BFLOAT16, scaling=SCALINGS["current"])
    )
    step.linear(512, 256, 128, bias=False)
    passes = [work.bytes for work in step.works if work.product is None]
    assert passes == [6 * 512 * 128, 6 * 512 * 256, 8 * 256 * 128]
    products = [work for work in step.works if work.product]
    assert {work.flops for work in products} == {2 * 512 * 256 * 128}
    assert products[0].bytes == 512 * 256 + 256 * 128 + 2 * 512 * 128
    later = Precision("bfloat16", "bfloat16", "bfloat16", False, True, SCALINGS["current"], 4)
    step = Layers(STACKS["torch.compile"], later)
    step.linear(512, 256, 128, bias=False)
    assert [work.bytes for work in step.works if work.product is None][2] == 2 * 256 * 128


def test_rates_are_those_of_the_recipes() -> None:
    assert product_rate("bfloat16", blocks=False) == 1.0
    assert product_rate("float8_e4m3fn", blocks=False) == SCALINGS["current"].rate < 1
    assert product_rate("float8_e5m2", blocks=True) == SCALINGS["mx"].rate
    assert product_rate("float4_e2m1fn", blocks=True) == SCALINGS["nvfp4"].rate
    with pytest.raises(InputError, match="unknown scaling recipe 'octonions'"):
        scaling_named("octonions")


def test_the_command_ends_with_the_error(
    capsys: pytest.CaptureFixture[str], modeled: list[tuple[NarrowRow, float]], tmp_path: Path
) -> None:
    assert main(["validate-cost", "--narrow"]) == 0
    lines = capsys.readouterr().out.rstrip().split("\n")
    error = np.mean([abs(m - r.speedup) for r, m in modeled])
    assert lines[-1] == f"mean absolute error {error:.3f}"
    assert any("shapes are not given" in line for line in lines)
    assert main(["validate-cost", "--narrow", "--anchor", "x.json"]) == 2
    path = tmp_path / "rows.json"
    path.write_text(json.dumps([{"kind": "gemm"}]), encoding="utf-8")
    assert main(["validate-cost", "--narrow", "--rows", str(path)]) == 2
    assert capsys.readouterr().err.endswith("rows.json: row 0: no 'model'\n")
