"""What `explain` says each product reads, against the sources of the recipes, read by hand."""

from __future__ import annotations

import pytest

from policysearch.nn.models import mlp, transformer
from policysearch.policy.presets import layer_presets, preset
from policysearch.report.operands import OperandRow, operand_table, operands_of
from tests.scaled_steps import step_of

NET = mlp((64, 48, 32, 10), activation="tanh")
E8M0 = "E8M0, rounded up"
TWO = "float8_e4m3fn and a float32 one"
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
    "nv": ("float4_e2m1fn", "1 x 16", TWO, "nearest_even", "-"),
    "nv sq": ("float4_e2m1fn", "16 x 16", TWO, "nearest_even", "-"),
    "nv row": ("float4_e2m1fn", "1 x 16", f"{TWO} per row", "nearest_even", "-"),
    "nv sr": ("float4_e2m1fn", "1 x 16", TWO, "stochastic", "-"),
    "nv rht": ("float4_e2m1fn", "1 x 16", TWO, "nearest_even", "Hadamard 16"),
    "nv sr rht": ("float4_e2m1fn", "1 x 16", TWO, "stochastic", "Hadamard 16"),
}

# fprop (input, weight), dgrad (gradient, weight), wgrad (gradient, input); "<" is the forward copy.
READ = {
    # torchao float8/config.py: Float8LinearConfig() and from_recipe_name
    "float8": "e4m3 e4m3 | e5m2 e4m3 | e5m2 e4m3",
    "torchao.tensorwise": "e4m3 e4m3 | e5m2 e4m3 | e5m2 e4m3",
    "torchao.rowwise": "row row | row row | row row",
    "torchao.rowwise_with_gw_hp": "row row | row whole | bf16 bf16",
    # Transformer Engine common/recipe/__init__.py
    "te.current": "e4m3 e4m3 | e5m2 e4m3 | e5m2 e4m3",
    "te.delayed": "e4m3_late e4m3_late | e5m2_late e4m3_late | e5m2_late e4m3_late",
    "te.mxfp8": "mx mx | mx mx | mx mx",
    "te.nvfp4": "nv nv_sq | nv_sr nv_sq | nv_sr_rht nv_rht",
    "te.float8_block": "128 128_sq | 128 128_sq | 128 128",
    # OCP Microscaling Formats v1.0; DeepSeek-V3, section 3.3
    "ocp.mxfp8": "ocp ocp | ocp ocp | ocp ocp",
    "deepseek.v3": "ds ds_sq | ds ds_sq | ds ds",
    # Transformer Engine custom_recipes/quantizer_factory_zoo.py
    "te.high_precision_fwd_mxfp8_bwd": "bf16 bf16 | mx mx | mx mx",
    "te.mxfp8_fwd_nvfp4_bwd": "mx mx | nv_sr <nv | nv_sr_rht nv_rht",
    "te.nvfp4_1d_weight": "nv nv | nv_sr <nv | nv_sr_rht nv_rht",
    "te.mxfp8_fwd_high_precision_bwd": "mx mx | bf16 <bf16 | bf16 <bf16",
    "te.nvfp4_row_scaled_fwd_mxfp8_bwd": "nv_row nv | mx <mx | mx <mx",
    "te.nvfp4_row_scaled_fwd_high_precision_bwd": "nv_row nv | bf16 <bf16 | bf16 <bf16",
}
TENSORS = {"fprop": ("input", "weight"), "dgrad": ("gradient", "weight")}


def expected(name: str) -> list[tuple[str, ...]]:
    found = []
    products = zip(("fprop", "dgrad", "wgrad"), READ[name].split(" | "), strict=True)
    for role, product in products:
        tensors = TENSORS.get(role, ("gradient", "input"))
        for tensor, word in zip(tensors, product.split(), strict=True):
            source = "forward copy" if word.startswith("<") else "tensor"
            kind = KINDS[word.removeprefix("<").replace("_", " ")]
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
