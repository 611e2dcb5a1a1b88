"""What Megatron-LM calls the linears of a decoder, where layers of a model lie, and other names."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from policysearch.export.te_sizes import Sides, sides_of
from policysearch.nn.model import Model
from policysearch.rewrite.stacks import fits, stacks_of


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split())


QKV, LATENT = "self_attention.linear_qkv", "self_attention.linear_kv_up_proj"
"""Where the second is, attention is latent (MLA): its queries are a linear of their own."""

FUSED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        QKV: _names(
            "q k v q_proj k_proj v_proj qkv qkv_proj c_attn query key value query_key_value Wqkv "
            "wq wk wv to_q to_k to_v q_lin k_lin v_lin attn.in_proj attention.in_proj"
        ),
        "self_attention.linear_proj": _names(
            "o o_proj out_proj wo to_out.0 out_lin attn.c_proj attention.c_proj attn.proj "
            "attention.proj attention.dense self_attention.dense attention.output.dense"
        ),
        "mlp.linear_fc1": _names(
            "fc1 gate_proj up_proj gate_up_proj c_fc w1 w3 fc_in lin1 linear1 wi wi_0 wi_1 "
            "dense_h_to_4h intermediate.dense mlp.0 ffn.0 ff.0 feed_forward.0"
        ),
        "mlp.linear_fc2": _names(
            "fc2 down_proj mlp.c_proj w2 fc_out lin2 linear2 dense_4h_to_h output.dense mlp.wo "
            "mlp.2 ffn.2 ff.2 feed_forward.2 mlp.3 ffn.3 ff.3 feed_forward.3 DenseReluDense.wo"
        ),
        "self_attention.linear_q_down_proj": ("q_a_proj",),
        "self_attention.linear_q_up_proj": ("q_b_proj",),
        "self_attention.linear_kv_down_proj": ("kv_a_proj_with_mqa",),
        LATENT: ("kv_b_proj",),
        "mixer.in_proj": ("mixer.in_proj", "mamba.in_proj"),
        "mixer.out_proj": ("mixer.out_proj", "mamba.out_proj"),
    }
)
"""The module of Megatron-LM by the leaves of a block that become it: fused ones are one module.

They are what nanoGPT, minGPT, Llama, GPT-2, GPT-NeoX, BERT, DistilBERT, T5 and modules of torch
call them, then DeepSeek's latent attention and Mamba's. Of two that fit the longer is meant:
BERT's `attention.output.dense` projects.
"""

LINEARS = ("Linear", "Conv1D", "NonDynamicallyQuantizableLinear")
"""What linears are called: Hugging Face's GPT-2 has its own, and torch's attention too."""

NOT_ADDRESSED = "(not a linear of Transformer Engine)"


@dataclass(frozen=True)
class Place:
    """Where a layer lies: its block, counted from 0 over the whole net, and its module there."""

    block: int
    blocks: int
    module: str

    @property
    def name(self) -> str:
        """The path of the module on the first stage of a pipeline of one."""
        return self.on_stage(1)

    def on_stage(self, stages: int) -> str:
        """Return the path of the module on its stage of several: blocks count from its first."""
        return f"decoder.layers.{self.block % max(1, self.blocks // stages)}.{self.module}"


def places(model: Model) -> dict[str, Place]:
    """Return the layers that a file of Megatron-LM can speak of: linears of one decoder stack."""
    found: dict[str, Place] = {}
    stacks = stacks_of(model.layer_names)
    if len(stacks) != 1:
        return found
    (stack,) = stacks
    for number, block in enumerate(stack.blocks):
        linears = {leaf: x for leaf, x in block.items() if model.layer_types.get(x) in LINEARS}
        modules = {leaf: _module_of(leaf) for leaf in linears}
        latent = LATENT in modules.values()
        for leaf, module in modules.items():
            if module:
                there = "self_attention.linear_q_proj" if latent and module == QKV else module
                found[linears[leaf]] = Place(number, len(stack.blocks), there)
    return found


def _module_of(leaf: str) -> str:
    """Return what Megatron-LM calls a linear of a block, "" for one it has not.

    All routed experts of a block are one module there, a grouped linear.
    """
    named = ((name, module) for module, names in FUSED.items() for name in names)
    fitting = [(len(name), module) for name, module in named if fits(leaf, (name,))]
    module = max(fitting, default=(0, ""))[1]
    experts = re.search(r"(?:^|\.)(?:(shared_experts?)|experts\.\d+)\.", leaf)
    if experts is None or not module.startswith("mlp."):
        return module
    return module.replace("mlp.", "mlp.shared_experts." if experts[1] else "mlp.experts.")


def parts_of(model: Model) -> dict[tuple[int, str], list[str]]:
    """Return the layers that are one module there, by block and module."""
    parts: dict[tuple[int, str], list[str]] = {}
    for layer, place in places(model).items():
        parts.setdefault((place.block, place.module), []).append(layer)
    return parts


def sides_there(model: Model) -> dict[str, Sides | None]:
    """Return the sides that the linear of each layer has there, with those it is fused with."""
    found = {}
    for parts in parts_of(model).values():
        for layer in parts:
            expert = re.search(r"experts\.\d+\.", layer)
            own = (x for x in parts if expert is None or expert[0] in x)
            found[layer] = sides_of(model, *own)
    return found


TORCH = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}
PRECISION = {"bf16": "bf16-mixed", "fp16": "16-mixed", "fp32": "32"}
BRIDGE_NAMES = {"fp8_format": "fp8", "fp4_format": "fp4"}
STATE = ("use_precision_aware_optimizer", "exp_avg_dtype", "exp_avg_sq_dtype")
"""Fields of the optimizer's configuration; all others are of MixedPrecisionConfig."""


def settings_of(flags: str) -> Iterator[str]:
    """Yield a line for each object of Megatron-Bridge, and of NeMo 2, with settings of these flags.

    As of src/megatron/bridge/training/mixed_precision.py at 05097809 and, in NeMo,
    nemo/lightning/pytorch/plugins/mixed_precision.py (both read 2026-11).

    `fp8_param_gather` is false: with it layers that are overridden to bfloat16 would be stored
    quantised.
    """
    told = dict(_fields(flags))
    run = {name: value for name, value in told.items() if name not in STATE}
    state = {name: value for name, value in told.items() if name in STATE}
    recipe = "quant_recipe = load_quantization_recipe(THIS_FILE)"
    yield f"Megatron-Bridge: mixed_precision = MixedPrecisionConfig({_said(run)})"
    if state:
        yield f"Megatron-Bridge and NeMo: optimizer = OptimizerConfig(..., {_said(state)})"
    yield f"Megatron-Bridge: model.{recipe}"
    if any(name.startswith("fp4") for name in run):
        yield "NeMo 2: its plugin has no fp4"
        return
    yield f"NeMo 2: plugins = MegatronMixedPrecision({_said(dict(_in_nemo(run)))})"
    yield f"NeMo 2: model.config.{recipe}"


def _said(settings: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def _in_nemo(run: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the settings of a run as the plugin of NeMo 2 calls them."""
    for name, value in run.items():
        if name in PRECISION:
            yield "precision", repr(PRECISION[name])
        elif name == "hysteresis" or "loss_scale" in name:
            yield f"fp16_{name}", value
        else:
            yield name, value
            if name == "fp8":
                yield "fp8_param_gather", "False"


def _fields(flags: str) -> Iterator[tuple[str, str]]:
    """Yield the name and value of each setting, as Python has them."""
    words = [word.split() for word in flags.split("--") if word.strip()]
    dtype = next((name for name, *_ in words if name in ("bf16", "fp16")), "fp32")
    yield dtype, "True"
    yield "params_dtype", TORCH[dtype]
    yield "pipeline_dtype", TORCH[dtype]
    for flag, *value in words:
        name = flag.replace("-", "_")
        if flag == "grad-reduce-in-bf16":
            yield "grad_reduce_in_fp32", "False"
        elif name.endswith("_dtype"):
            yield name, TORCH[value[0]]
        elif name.startswith(("fp8_", "fp4_")):
            yield BRIDGE_NAMES.get(name, name), repr(value[0])
        elif flag != dtype:
            yield name, value[0] if value else "True"
