"""The `[cost]` section of a study file: where, and as which net, the step is priced."""

from __future__ import annotations

from dataclasses import dataclass

from policysearch.cost.device_file import device_at, is_device_file
from policysearch.cost.devices import device_named
from policysearch.cost.stacks import STACKS
from policysearch.objective.priced_net import PricedNet
from policysearch.policy.policy import LayerPolicy
from policysearch.policy.presets import TE_FACTORIES, TF32, layer_named, layer_presets
from policysearch.policy.products import is_narrow
from policysearch.values import number, one_of

INSIDE = ("mx", "mx_rceil", "nvfp4")
"""Recipes whose block scales the instruction applies; such instructions came with float4."""


@dataclass(frozen=True)
class CostSection:
    """The `device` and software `stack` the step is priced on.

    A device that ends in ".toml" is a file of your own, as `policysearch calibrate` writes it.
    `batch_size` is the batch of the priced step. One that is not that of the training must come
    with a `batch_size_reason`, which every view shows: the gap is then measured at one batch and
    the speed modeled at another. `recompute` names blocks of layers whose activations are not kept
    but computed again in the backward pass, in float32 too: a layer, what stands before a dot in
    the names of several ("block1"), or all from one to another ("conv1..relu1"). It saves memory
    and takes time in the priced step; training and files of exporters are as without. `net` says
    what the net that is priced has other than the one that is trained: its sizes, or a function.
    """

    device: str
    stack: str
    batch_size: int | None = None
    batch_size_reason: str = ""
    recompute: tuple[str, ...] = ()
    net: PricedNet | None = None

    def __post_init__(self) -> None:
        if is_device_file(self.device):
            device_at(self.device)
        else:
            device_named(self.device, "device")
        one_of("stack", self.stack, STACKS)
        if self.batch_size is not None:
            number("batch_size", self.batch_size, 1, 2**24)

    @property
    def rivals(self) -> tuple[str, ...]:
        """The presets that one switch of the device gives: TF32 where it has such products."""
        return (TF32,) if "tfloat32" in device_at(self.device).formats else ()

    @property
    def recipes(self) -> tuple[str, ...]:
        """The presets of narrow operands whose products the device has.

        Compositions that Transformer Engine ships as examples are left to be named.
        """
        there = device_at(self.device).formats
        examples = {row.name for row in TE_FACTORIES}
        return tuple(
            name
            for name in layer_presets()
            if name not in examples and _multiplies(there, layer_named(name))
        )


def _multiplies(there: tuple[str, ...], layer: LayerPolicy) -> bool:
    narrow = set(filter(is_narrow, layer.operand_formats))
    inside = layer.scaling is not None and layer.scaling.recipe in INSIDE
    return narrow <= {*there} and ("float4_e2m1fn" in there or not inside)
