"""Precision levels of the frameworks and uniform formats, as rows.

Sources (docs/presets.md says where they differ): MindSpore 2.10 `mindspore/train/amp.py` and
`train/loss_scale_manager.py`; Apex e13873de `apex/amp/frontend.py`, `apex/amp/lists` and
`apex/amp/scaler.py`; PyTorch 2.13 `aten/src/ATen/autocast_mode.h` (CUDA lists) and
`torch/amp/grad_scaler.py`; Transformer Engine d0067d0d `common/recipe/__init__.py` and, of the
rows of `TE_FACTORIES`, `pytorch/custom_recipes/quantizer_factory_zoo.py`; torchao 36027d82
`float8/config.py`; DeepSeek-V3, arXiv 2412.19437, section 3.3; CANN's ops-nn 1297f177
`quant/dynamic_block_quant/README.md`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from policysearch.formats import FORMATS, Rounding
from policysearch.graph import Placement
from policysearch.ops.catalogue import FORWARD_OPS
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import LayerPolicy, Policy, RoleRounding, uniform_layer
from policysearch.policy.preset_row import (
    LISTED_OPS,
    NO_LOSS_SCALE,
    NORMS,
    PRODUCTS,
    WIDE,
    Preset,
)
from policysearch.policy.products import Operand, Product, Products, Source
from policysearch.policy.scaling import Scaling
from policysearch.values import InputError, one_of


def _like(row: Preset, name: str, summary: str, **changes: Any) -> Preset:
    return dataclasses.replace(row, name=name, summary=summary, **changes)


MINDSPORE_DYNAMIC = LossScale(
    "dynamic", 2.0**24, min_scale=1.0, rule="mindspore.DynamicLossScaleManager"
)
MINDSPORE_FIXED_128 = LossScale("fixed", 128.0, rule="mindspore.FixedLossScaleManager")
APEX_DYNAMIC = LossScale("dynamic", 2.0**16, max_scale=2.0**24, rule="apex")
MEGATRON_DYNAMIC = LossScale(
    "dynamic", 2.0**32, growth_interval=1000, min_scale=1.0, rule="megatron.DynamicGradScaler"
)
DEEPSPEED_DYNAMIC = LossScale(
    "dynamic", 2.0**16, growth_interval=1000, min_scale=1.0, rule="deepspeed.DynamicLossScaler"
)
GRAD_SCALER = LossScale("dynamic", 2.0**16, rule="torch.GradScaler")

_FLOAT32 = LayerPolicy()
_FLOAT16 = uniform_layer("float16")
_FLOAT16_COPY = uniform_layer("float16", param="float16")
_BFLOAT16 = uniform_layer("bfloat16")

TF32 = "torch.tf32"
"""The preset that is float32 as most users of a device with tfloat32 products have it."""

TF32_SWITCHES = {
    "flax": 'jax.config.update("jax_default_matmul_precision", "tensorfloat32")',
    "keras": "tf.config.experimental.enable_tensor_float_32_execution(True)",
    "mindspore": "mindspore.device_context.gpu.op_precision.matmul_allow_tf32(True)",
    "torch": 'torch.set_float32_matmul_precision("high")',
}
"""The line that turns it on, by export target; what builds on torch has torch's."""

_MINDSPORE_O1 = Preset(
    "mindspore.O1",
    "convolution, dense and relu in float16, the rest in float32",
    _FLOAT16,
    others="fp32",
    low=(*PRODUCTS, "relu"),
)
_MINDSPORE_O2 = Preset(
    "mindspore.O2",
    "all but normalisation in float16, float32 parameters, dynamic scale from 2^24",
    _FLOAT16,
    others="low",
    low=WIDE,
    fp32=NORMS,
    loss_scale=MINDSPORE_DYNAMIC,
)
_MINDSPORE_O3 = Preset(
    "mindspore.O3",
    "all in float16, float32 parameters, no loss scale",
    _FLOAT16,
    others="low",
    low=WIDE,
)
_AUTOCAST = Preset(
    "torch.autocast.float16",
    "CUDA lists of torch.autocast in float16 with GradScaler",
    _FLOAT16,
    others="promote",
    low=PRODUCTS,
    fp32=("softmax", "layer_norm"),
    loss_scale=GRAD_SCALER,
)
_UNIFORM = Preset(
    "bfloat16",
    "every layer bfloat16, normalisation and softmax in float32, no loss scale",
    _BFLOAT16,
    others="low",
    fp32=(*NORMS, "softmax"),
)
_FLOAT8 = Preset(
    "float8",
    "float8_e4m3fn operands, float8_e5m2 gradients, current scaling, bfloat16 results",
    uniform_layer("float8_e4m3fn"),
    others="promote",
    low=PRODUCTS,
    fp32=(*NORMS, "softmax"),
    scaling=Scaling("current"),
)
_E4M3_ONLY = dataclasses.replace(_FLOAT8.layer, grad="float8_e4m3fn")
_E2M1 = uniform_layer("float4_e2m1fn")
_MXFP8 = Scaling("mx_rceil")
_TURNED = Scaling("nvfp4", hadamard=True)
_ROW_SCALED = Scaling("nvfp4", tensor="rows")
_POWERS = Scaling("rowwise", power_of_two=True)
_COPIES: tuple[Source, Source] = ("forward", "forward")


def _operand(layer: LayerPolicy, scaling: Scaling, source: Source = "tensor") -> Operand:
    return Operand(layer.compute, source, scaling)


def _backward(layer: LayerPolicy, scaling: Scaling, weight: Source, input: Source) -> Products:
    """Return gradient products of operands as `layer` has them, under another recipe."""
    grad = _operand(layer, scaling)
    return Products(
        dgrad=Product(grad, _operand(layer, scaling, weight)),
        wgrad=Product(grad, _operand(layer, scaling, input)),
    )


TE_FACTORIES = (
    _like(
        _FLOAT8,
        "te.high_precision_fwd_mxfp8_bwd",
        "bfloat16 forward, gradient products as te.mxfp8",
        layer=LayerPolicy("bfloat16", "bfloat16", "float8_e4m3fn", "bfloat16"),
        scaling=_MXFP8,
    ),
    _like(
        _FLOAT8,
        "te.mxfp8_fwd_nvfp4_bwd",
        "te.mxfp8 forward, gradient products in float4_e2m1fn, weights from the dequantised copy",
        layer=dataclasses.replace(
            _E4M3_ONLY, products=_backward(_E2M1, _TURNED, "forward", "tensor")
        ),
        scaling=_MXFP8,
    ),
    _like(
        _FLOAT8,
        "te.nvfp4_1d_weight",
        "te.nvfp4 with weights in rows of 16, those of dgrad from the dequantised copy",
        layer=dataclasses.replace(
            _E2M1,
            products=Products(
                dgrad=Product(Operand("float4_e2m1fn"), Operand("float4_e2m1fn", "forward"))
            ),
        ),
        scaling=_TURNED,
    ),
    _like(
        _FLOAT8,
        "te.mxfp8_fwd_high_precision_bwd",
        "te.mxfp8 forward, gradient products in bfloat16 of the dequantised copies",
        layer=LayerPolicy("float8_e4m3fn", "bfloat16", "bfloat16", "bfloat16", backward="forward"),
        scaling=_MXFP8,
    ),
    _like(
        _FLOAT8,
        "te.nvfp4_row_scaled_fwd_mxfp8_bwd",
        "row-scaled float4_e2m1fn forward, gradient products as te.mxfp8 of dequantised copies; "
        "there for the experts of a mixture alone (composer2)",
        layer=dataclasses.replace(_E2M1, products=_backward(_E4M3_ONLY, _MXFP8, *_COPIES)),
        scaling=_ROW_SCALED,
    ),
    _like(
        _FLOAT8,
        "te.nvfp4_row_scaled_fwd_high_precision_bwd",
        "row-scaled float4_e2m1fn forward, gradient products in bfloat16 of the dequantised copies",
        layer=LayerPolicy("float4_e2m1fn", "bfloat16", "bfloat16", "bfloat16", backward="forward"),
        scaling=_ROW_SCALED,
    ),
)
"""Compositions of Transformer Engine for linears; `nvfp4_linear_fp8_dpa` is `te.nvfp4` and a rule
for the layers of attention (docs/presets.md).
"""

PRESETS: dict[str, Preset] = {
    row.name: row
    for row in (
        Preset("float32", "everything in float32", _FLOAT32, others="low", low=WIDE),
        Preset("mindspore.O0", "everything in float32", _FLOAT32, others="low", low=WIDE),
        Preset(
            TF32,
            'products take tfloat32 operands (float32_matmul_precision "high"), all else float32',
            LayerPolicy(compute="tfloat32", grad="tfloat32"),
            others="fp32",
            low=PRODUCTS,
        ),
        _MINDSPORE_O1,
        _MINDSPORE_O2,
        _MINDSPORE_O3,
        Preset(
            "mindspore.auto",
            "lists per primitive: products in float16, bias added in float32, no loss scale",
            _FLOAT16,
            others="promote",
            low=PRODUCTS[:-1],
            fp32=("softmax", *NORMS),
            bias="fp32",
        ),
        Preset("apex.O0", "everything in float32", _FLOAT32, others="low", low=WIDE),
        Preset(
            "apex.O1",
            "patched functions: products in float16, dynamic scale from 2^16",
            _FLOAT16,
            called="opt_level O1",
            others="promote",
            low=PRODUCTS,
            fp32=("softmax", "gelu", "layer_norm"),
            loss_scale=APEX_DYNAMIC,
        ),
        Preset(
            "apex.O2",
            "float16 model but batch norm, float32 masters, dynamic scale from 2^16",
            _FLOAT16_COPY,
            called="opt_level O2",
            others="low",
            low=WIDE,
            fp32=("batch_norm",),
            loss_scale=APEX_DYNAMIC,
        ),
        Preset(
            "apex.O3",
            "float16 model and optimizer, no masters, scale 1",
            _FLOAT16_COPY,
            called="opt_level O3",
            others="low",
            low=WIDE,
            master_weights=False,
            optimizer_state="float16",
            optimizer_order="eager",
        ),
        _AUTOCAST,
        _like(
            _AUTOCAST,
            "torch.autocast.bfloat16",
            "CUDA lists of torch.autocast in bfloat16, no loss scale",
            layer=_BFLOAT16,
            loss_scale=NO_LOSS_SCALE,
        ),
        _UNIFORM,
        _like(
            _UNIFORM,
            "float16",
            "every layer float16, normalisation and softmax in float32, GradScaler",
            layer=_FLOAT16,
            loss_scale=GRAD_SCALER,
        ),
        _like(
            _UNIFORM,
            "bfloat16.stochastic",
            "parameters and state in bfloat16 without masters, updates rounded by chance (torchao)",
            called="torchao _AdamW(bf16_stochastic_round=True)",
            layer=uniform_layer("bfloat16", param="bfloat16"),
            master_weights=False,
            optimizer_state="bfloat16",
            gradient_storage="param",
            rounding=RoleRounding(update=Rounding("stochastic")),
        ),
        _like(
            _UNIFORM,
            "megatron.fp16",
            "float16 model, float32 masters, scale from 2^32 that spares a first overflow",
            called="--fp16",
            layer=_FLOAT16_COPY,
            loss_scale=MEGATRON_DYNAMIC,
        ),
        _like(
            _UNIFORM,
            "deepspeed.fp16",
            "float16 model, float32 masters, scale from 2^16 that spares a first overflow",
            called="fp16.enabled",
            layer=_FLOAT16_COPY,
            loss_scale=DEEPSPEED_DYNAMIC,
        ),
        _FLOAT8,
        _like(
            _FLOAT8,
            "te.delayed",
            "float8 with the amax of the last 1024 steps (Transformer Engine)",
            called="DelayedScaling()",
            scaling=Scaling("delayed", margin=0, history=1024, amax="max"),
        ),
        _like(
            _FLOAT8,
            "te.current",
            "float8, current scaling (Transformer Engine)",
            called="Float8CurrentScaling()",
        ),
        _like(
            _FLOAT8,
            "te.mxfp8",
            "float8_e4m3fn throughout, blocks of 32 with E8M0 scales rounded up",
            called="MXFP8BlockScaling()",
            layer=_E4M3_ONLY,
            scaling=_MXFP8,
        ),
        _like(
            _FLOAT8,
            "ocp.mxfp8",
            "float8_e4m3fn throughout, blocks of 32 with E8M0 scales rounded down",
            layer=_E4M3_ONLY,
            scaling=Scaling("mx"),
        ),
        _like(
            _FLOAT8,
            "te.nvfp4",
            "float4_e2m1fn, blocks of 16 (16 x 16 of weights) with float8_e4m3fn scales, "
            "stochastic gradients, a Hadamard transform before wgrad",
            called="NVFP4BlockScaling()",
            layer=_E2M1,
            scaling=Scaling("nvfp4", weights="squares", hadamard=True),
        ),
        _like(
            _FLOAT8,
            "te.nvfp4_4over6",
            "te.nvfp4 whose blocks reach up to 4 or 6, whichever loses less, and no transform",
            called='NVFP4BlockScaling(disable_rht=True, nvfp4_4over6="all")',
            layer=_E2M1,
            scaling=Scaling("nvfp4", weights="squares", four_over_six=True),
        ),
        _like(
            _FLOAT8,
            "torchao.tensorwise",
            "float8, a current scale per tensor",
            called="recipe tensorwise",
            bias="rounded",
        ),
        _like(
            _FLOAT8,
            "torchao.rowwise",
            "float8_e4m3fn throughout, a power-of-two scale per row",
            called="recipe rowwise",
            layer=_E4M3_ONLY,
            bias="rounded",
            scaling=_POWERS,
        ),
        _like(
            _FLOAT8,
            "torchao.rowwise_with_gw_hp",
            "torchao.rowwise with wgrad in bfloat16, and one scale for the weight of dgrad",
            called="recipe rowwise_with_gw_hp",
            layer=dataclasses.replace(
                _E4M3_ONLY,
                products=Products(
                    dgrad=Product(
                        Operand("float8_e4m3fn"),
                        _operand(_E4M3_ONLY, Scaling("current", power_of_two=True)),
                    ),
                    wgrad=Product(Operand("bfloat16"), Operand("bfloat16")),
                ),
            ),
            bias="rounded",
            scaling=_POWERS,
        ),
        _like(
            _FLOAT8,
            "te.float8_block",
            "float8_e4m3fn throughout, blocks of 128 (128 x 128 of weights), power-of-two scales",
            called="Float8BlockScaling()",
            layer=_E4M3_ONLY,
            scaling=Scaling("blocks", power_of_two=True, weights="squares"),
        ),
        _like(
            _FLOAT8,
            "deepseek.v3",
            "te.float8_block with float32 scales, sums promoted every 128, moments in bfloat16",
            layer=dataclasses.replace(_E4M3_ONLY, accumulator="chunked:128:float32"),
            optimizer_state="bfloat16",
            scaling=Scaling("blocks", weights="squares"),
        ),
        _like(
            _FLOAT8,
            "cann.int8_block",
            "int8 throughout, blocks of 128 (128 x 128 of weights), float32 scales",
            called="npu_dynamic_block_quant, dst_type int8",
            layer=uniform_layer("int8"),
            scaling=Scaling("blocks", weights="squares"),
        ),
        _like(
            _FLOAT8,
            "cann.hifloat8_block",
            "hifloat8 in such blocks, their largest value at 15, where hifloat8 is still finest",
            called="npu_dynamic_block_quant, dst_type hifloat8",
            layer=uniform_layer("hifloat8"),
            scaling=Scaling("blocks", weights="squares", top=15.0),
        ),
        *TE_FACTORIES,
        *(
            _like(
                row,
                f"{row.name}.fixed128",
                f"{row.name} with the fixed loss scale 128",
                loss_scale=MINDSPORE_FIXED_128,
            )
            for row in (_MINDSPORE_O2, _MINDSPORE_O1)
        ),
        _like(
            _MINDSPORE_O1,
            "mindspore.O1.dynamic",
            "mindspore.O1 with the dynamic loss scale from 2^24",
            loss_scale=MINDSPORE_DYNAMIC,
        ),
        *(
            _like(row, f"{row.name}.pynative", f"{row.name} in PYNATIVE_MODE", bias="rounded")
            for row in (_MINDSPORE_O1, _MINDSPORE_O2, _MINDSPORE_O3)
        ),
        *(
            _like(row, f"{row.name}.graph", f"{row.name} in GRAPH_MODE", casts="layer")
            for row in (_MINDSPORE_O2, _MINDSPORE_O3)
        ),
    )
}


def layer_presets() -> tuple[str, ...]:
    """Return the presets that say narrow operands and their recipe: a layer can be as in one."""
    return tuple(name for name, row in PRESETS.items() if row.scaling.recipe != "none")


def name_elsewhere(row: Preset) -> str:
    """Return what its framework calls a preset, "-" where it has no framework."""
    factory = f"{row.name.partition('.')[2]}_factory" if row in TE_FACTORIES else ""
    return row.called or factory or "-"


def layer_named(name: str, *, param: str = "float32", accumulator: str = "float32") -> LayerPolicy:
    """Return a layer that computes in format `name`, or as the preset `name` with its recipe.

    InputError for what is neither a format nor one of `layer_presets`.
    """
    row = PRESETS.get(name)
    if row is None or row.scaling.recipe == "none" or name in FORMATS:
        try:
            return uniform_layer(name, param=param, accumulator=accumulator)
        except InputError as error:
            known = ", ".join(layer_presets())
            raise InputError(f"{error}; or a preset of narrow operands: {known}") from None
    summed = accumulator if row.layer.accumulator == "float32" else row.layer.accumulator
    fields = {"param": param, "accumulator": summed, "scaling": row.scaling}
    return dataclasses.replace(row.layer, **fields)  # type: ignore[arg-type]


def preset(name: str, layers: Sequence[str], ops: Mapping[str, Placement] | None = None) -> Policy:
    """Return preset `name` as a policy of these layers, complete for every op there is.

    `ops` places further ops, by name, that no file defines. InputError for an unknown preset.
    """
    row = PRESETS[one_of("preset", name, PRESETS)]
    named = {op: row.placement(op) for op in (*LISTED_OPS, *FORWARD_OPS)}
    placed: dict[str, Placement] = {**(ops or {}), **named}
    owned, known = ({f.name for f in dataclasses.fields(kind)} for kind in (Preset, Policy))
    return Policy(
        name=name,
        layers=tuple((layer, row.layer) for layer in layers),
        low_precision_ops=tuple(op for op, place in placed.items() if place == "low"),
        fp32_ops=tuple(op for op, place in placed.items() if place == "fp32"),
        promote_ops=tuple(op for op, place in placed.items() if place == "promote"),
        **{key: getattr(row, key) for key in owned & known - {"name"}},
    )
