"""What Megatron-LM calls the linears of a decoder, and where the layers of a model lie there."""

from __future__ import annotations

from collections.abc import Mapping
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
