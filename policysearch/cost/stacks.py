"""Software stacks as rows: what is fused, how tensors lie, what a launch costs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from policysearch.values import InputError, near_miss, number


@dataclass(frozen=True)
class Stack:
    """How a framework turns the nodes of a step into kernels.

    `layout`: NCHW stacks transpose around a convolution on the matrix unit. `bias_fusion`: the
    bias is added in the epilogue of its product; `epilogue_fusion`: so is other elementwise work.
    `elementwise_fusion`: chains of elementwise ops (and a reduction at their end) are one kernel.
    `cast_fusion`: a cast is done by the kernel before or after it, unless both are matrix
    products. `fused_optimizer`: an update is one kernel over all parameters. `launch_seconds`:
    time of the host per kernel, before `Constants.launch_factor`. `library`: CUDA generation of
    cuBLAS and cuDNN, which decides what runs on the matrix unit. `float32_products` and
    `float32_convolutions`: what the framework makes of float32 on a device that has tfloat32.
    `sources` says where each number and choice comes from.

    `norm_fusion`: batch norm takes the ReLU and the addition behind it along, and its gradient that
    of the ReLU.

    `float32_norms`: layer norm and softmax of published runs are in float32 under mixed precision.

    Raises InputError for a negative `launch_seconds`.
    """

    name: str
    mode: Literal["eager", "compiled"]
    layout: Literal["NCHW", "NHWC"]
    bias_fusion: bool
    epilogue_fusion: bool
    elementwise_fusion: bool
    cast_fusion: bool
    fused_optimizer: bool
    launch_seconds: float
    sources: tuple[tuple[str, str], ...]
    library: int = 12
    float32_products: Literal["float32", "tfloat32"] = "float32"
    float32_convolutions: Literal["float32", "tfloat32"] = "float32"
    norm_fusion: bool = False
    float32_norms: bool = False

    def __post_init__(self) -> None:
        number(f"stack {self.name}: launch_seconds", self.launch_seconds, 0.0)

    def float32_of(self, convolution: bool) -> str:
        """Return what the framework makes of a float32 product or convolution unless told."""
        return self.float32_convolutions if convolution else self.float32_products


STACKS: dict[str, Stack] = {
    row.name: row
    for row in (
        Stack(
            "torch.eager",
            "eager",
            "NCHW",
            bias_fusion=True,
            epilogue_fusion=False,
            elementwise_fusion=False,
            cast_fusion=False,
            fused_optimizer=True,
            launch_seconds=5e-6,
            sources=(
                ("fusion", "addmm and cuDNN take the bias; every other op is its own kernel"),
                ("fused_optimizer", "assumed: fused=True; plain foreach moves more bytes"),
                ("launch_seconds", "assumed; no published value found"),
                ("float32_convolutions", "torch.backends.cudnn.allow_tf32 is on by default"),
            ),
            float32_convolutions="tfloat32",
        ),
        Stack(
            "torch.compile",
            "compiled",
            "NHWC",
            bias_fusion=True,
            epilogue_fusion=False,
            elementwise_fusion=True,
            cast_fusion=True,
            fused_optimizer=True,
            launch_seconds=2e-6,
            sources=(
                ("layout", "inductor turns convolutional nets to channels last"),
                ("fusion", "inductor calls library products and fuses pointwise chains and casts"),
                ("launch_seconds", "assumed; no CUDA graphs"),
                ("float32_convolutions", "torch.backends.cudnn.allow_tf32 is on by default"),
            ),
            float32_convolutions="tfloat32",
        ),
        Stack(
            "mindspore.graph",
            "compiled",
            "NHWC",
            bias_fusion=True,
            epilogue_fusion=True,
            elementwise_fusion=True,
            cast_fusion=True,
            fused_optimizer=True,
            launch_seconds=1e-6,
            sources=(
                ("layout", "assumed: a channel-blocked layout is kept through the step"),
                ("fusion", "assumed: graph kernel fusion on"),
                ("launch_seconds", "assumed; data sinking leaves little to the host"),
            ),
        ),
    )
}


def stack_named(name: str) -> Stack:
    """Return the stack called `name`; InputError with the valid names where there is none."""
    if isinstance(name, str) and name in STACKS:
        return STACKS[name]
    raise InputError(
        f"unknown stack {name!r}; expected one of {', '.join(STACKS)}{near_miss(name, STACKS)}"
    )
