"""What Megatron-LM calls the linears of a decoder, where layers of a model lie, and other names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from policysearch.nn.model import Model
from policysearch.rewrite.stacks import fits, stacks_of

FUSED: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "self_attention.linear_qkv": ("q", "k", "v", "q_proj", "k_proj", "v_proj", "qkv"),
        "self_attention.linear_proj": ("o", "o_proj", "out_proj", "attention.c_proj"),
        "mlp.linear_fc1": ("fc1", "gate_proj", "up_proj", "c_fc", "w1", "w3"),
        "mlp.linear_fc2": ("fc2", "down_proj", "mlp.c_proj", "w2"),
    }
)
"""The module of Megatron-LM by the leaves of a block that become it: fused ones are one module."""

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
        for leaf, layer in block.items():
            if model.layer_types.get(layer) != "Linear":
                continue
            for module, leaves in FUSED.items():
                if fits(leaf, leaves):
                    found[layer] = Place(number, len(stack.blocks), module)
    return found


def parts_of(model: Model) -> dict[tuple[int, str], list[str]]:
    """Return the layers that are one module there, by block and module."""
    parts: dict[tuple[int, str], list[str]] = {}
    for layer, place in places(model).items():
        parts.setdefault((place.block, place.module), []).append(layer)
    return parts


TORCH = {"bf16": "torch.bfloat16", "fp16": "torch.float16", "fp32": "torch.float32"}
BRIDGE_NAMES = {"fp8_format": "fp8", "fp4_format": "fp4"}
STATE = ("use_precision_aware_optimizer", "exp_avg_dtype", "exp_avg_sq_dtype")
"""Fields of the optimizer's configuration; all others are of MixedPrecisionConfig."""


def settings_of(flags: str) -> Iterator[str]:
    """Yield a line for each object of Megatron-Bridge that has settings of these flags.

    As of src/megatron/bridge/training/mixed_precision.py at 05097809 (read 2026-11).

    `fp8_param_gather` stays false: with it layers that are overridden to bfloat16 would be stored
    quantised.
    """
    told = dict(_fields(flags))
    run = [f"{name}={value}" for name, value in told.items() if name not in STATE]
    state = [f"{name}={value}" for name, value in told.items() if name in STATE]
    yield f"mixed_precision = MixedPrecisionConfig({', '.join(run)})"
    if state:
        yield f"optimizer = OptimizerConfig(..., {', '.join(state)})"
    yield "model.quant_recipe = load_quantization_recipe(THIS_FILE)"


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
