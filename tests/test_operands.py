"""What `explain` says each product reads, against the sources of the recipes, read by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from policysearch.export import qwix
from policysearch.nn.models import mlp, transformer
from policysearch.policy.presets import layer_presets, preset
from policysearch.report.operands import OperandRow, operand_table, operands_of
from tests.scaled_steps import step_of

NET = mlp((64, 48, 32, 10), activation="tanh")
E8M0 = "E8M0, rounded up"
TWO = "float8_e4m3fn and a float32 one"
CHOSEN = "float8_e4m3fn, to 4 or 6, and a float32 one"
POWER = "float32, a power of two"

KINDS: dict[str, tuple[str, ...]] = {
    # format, block, scale, rounding, transform
    "bf16": ("bfloat16", "-", "-", "*", "-"),
    "mx": ("float8_e4m3fn", "1 x 32", E8M0, "nearest_even", "-"),
    "ocp": ("float8_e4m3fn", "1 x 32", "E8M0, rounded down", "nearest_even", "-"),
    "e4m3": ("float8_e4m3fn", "tensor", "float32", "nearest_even", "-"),
    "e5m2": ("float8_e5m2", "tensor", "float32", "nearest_even", "-"),
    "e4m3 late": ("float8_e4m3fn", "tensor", "float32, delayed", "nearest_even", "-"),
    "e5m2 late": ("float8_e5m2", "tensor", "float32, delayed", "nearest_even", "-"),
    "whole": ("float8_e4m3fn", "tensor", POWER, "nearest_even", "-"),
    "row": ("float8_e4m3fn", "row", POWER, "nearest_even", "-"),
    "128": ("float8_e4m3fn", "1 x 128", POWER, "nearest_even", "-"),
    "128 sq": ("float8_e4m3fn", "128 x 128", POWER, "nearest_even", "-"),
    "ds": ("float8_e4m3fn", "1 x 128", "float32", "nearest_even", "-"),
    "ds sq": ("float8_e4m3fn", "128 x 128", "float32", "nearest_even", "-"),
    "int8": ("int8", "1 x 128", "float32", "nearest_even", "-"),
    "int8 sq": ("int8", "128 x 128", "float32", "nearest_even", "-"),
    "hif8": ("hifloat8", "1 x 128", "float32", "nearest_even", "-"),
    "hif8 sq": ("hifloat8", "128 x 128", "float32", "nearest_even", "-"),
    "nv": ("float4_e2m1fn", "1 x 16", TWO, "nearest_even", "-"),
    "nv sq": ("float4_e2m1fn", "16 x 16", TWO, "nearest_even", "-"),
    "nv row": ("float4_e2m1fn", "1 x 16", f"{TWO} per row", "nearest_even", "-"),
    "46": ("float4_e2m1fn", "1 x 16", CHOSEN, "nearest_even", "-"),
    "46 sq": ("float4_e2m1fn", "16 x 16", CHOSEN, "nearest_even", "-"),
    "nv sr": ("float4_e2m1fn", "1 x 16", TWO, "stochastic", "-"),
    "nv rht": ("float4_e2m1fn", "1 x 16", TWO, "nearest_even", "Hadamard 16"),
    "nv sr rht": ("float4_e2m1fn", "1 x 16", TWO, "stochastic", "Hadamard 16"),
}

# fprop (input, weight), dgrad (gradient, weight), wgrad (gradient, input); "<" is the forward copy.
COPY = "copy: "


def _read() -> dict[str, list[list[str]]]:
    """Return the table of docs/lab/presets.md: what the products of each preset read, in words.

    fprop (input, weight), dgrad (gradient, weight), wgrad (gradient, input).
    """
    text = (Path(__file__).parents[1] / "docs" / "lab" / "presets.md").read_text("utf-8")
    rows = re.findall(r"^\| `([\w.]+)` \|(?:[^|\n]*)\|(.+)\|[^|\n]+\|$", text, re.MULTILINE)
    return {name: [cell.strip().split(", ") for cell in cells.split("|")] for name, cells in rows}


READ = _read()
TENSORS = {"fprop": ("input", "weight"), "dgrad": ("gradient", "weight")}


def expected(name: str) -> list[tuple[str, ...]]:
    found = []
    for role, words in zip(("fprop", "dgrad", "wgrad"), READ[name], strict=True):
        tensors = TENSORS.get(role, ("gradient", "input"))
        for tensor, word in zip(tensors, words, strict=True):
            source = "forward copy" if word.startswith(COPY) else "tensor"
            kind = KINDS[word.removeprefix(COPY)]
            found.append((role, tensor, source, *kind))
    return found


def as_said(row: OperandRow) -> tuple[str, ...]:
    source = row.source.partition(",")[0]
    rounding = "*" if row.format == "bfloat16" else row.rounding
    said = (row.product, row.tensor, source, row.format)
    return (*said, row.block, row.scale, rounding, row.transform)


@pytest.mark.parametrize("name", layer_presets())
def test_every_operand_of_every_product_is_what_the_source_does(name: str) -> None:
    rows = operands_of(step_of(NET, preset(name, NET.layer_names)))
    found = [as_said(row) for row in rows if row.layers == "fc2"]
    assert sorted(found) == sorted(expected(name)) and len(found) == 6
    sums = {row.accumulator for row in rows}
    assert sums == {"chunked:128:float32" if name == "deepseek.v3" else "float32"}


def test_a_shifted_gradient_takes_the_scale_of_the_copy_it_meets() -> None:
    step = step_of(NET, qwix.runs(preset("float8", NET.layer_names), NET))
    rows = [row for row in operands_of(step) if row.layers == "fc2"]
    found = {(row.tensor, row.transform) for row in rows}
    assert found == {("gradient", "scale of the other"), ("weight", "-"), ("input", "-")}
    reads = {n.role: {*n.inputs} for n in step.nodes if n.op.kind == "gemm" and n.layer == "fc2"}
    assert [len(reads["fprop"] & reads[role]) for role in ("dgrad", "wgrad")] == [1, 1]


def test_layers_that_read_the_same_share_their_rows() -> None:
    net = transformer((4, 8), 3, 8, (16, 16, 16, 16, 16), 2)
    table = operand_table(step_of(net, preset("te.mxfp8", net.layer_names)))
    assert any(" more " in line for line in table)
    single = operand_table(step_of(net, preset("float32", net.layer_names)))
    assert {line.split()[-1] for line in single[1:]} == {"float32"}
    assert not any("copy" in line or "E8M0" in line for line in single)


def test_a_matrix_product_of_attention_reads_no_weight() -> None:
    net = transformer((4, 8), 3, 8, (16, 16), 2)
    rows = operands_of(step_of(net, preset("te.current", net.layer_names)))
    attention = [row for row in rows if row.layers.endswith("attention") or "attn" in row.layers]
    alone = [row for row in attention if row.product == "fprop" and row.tensor == "input"]
    assert alone and {row.block for row in alone} == {"tensor"}
