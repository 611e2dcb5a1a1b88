"""What a preset is: the formats of every layer, where ops run, and the loss scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from policysearch.graph import Placement
from policysearch.ops.catalogue import FORWARD_OPS, LOSS_OPS, OPS
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.policy import LayerPolicy, RoleRounding
from policysearch.policy.scaling import Scaling

NORMS = ("batch_norm", "layer_norm")
PRODUCTS = ("matmul", "conv2d", "conv_transpose2d", "bias")
WIDE = (
    *("exp", "pow", "rsqrt", "sum"),
    *("log", "logsumexp", "cumsum", "cumprod", "prod", "vector_norm", "interpolate"),
)
"""In float32 by their definition, as the lists of autocast, Apex and MindSpore have it."""

MOVES = tuple(name for name in FORWARD_OPS if OPS[name].kind == "move")
"""Ops that only move values: they keep the format of what they move, as in torch."""

LISTED_OPS = (
    *PRODUCTS,
    *("relu", "tanh", "sigmoid", "gelu", "softmax", "dropout"),
    *("silu", "hardtanh", "leaky_relu", "hardswish", "sqrt"),
    *("add", "subtract", "multiply", "divide", "scale", "shift"),
    *("mean", "where", "masked_fill", "slice", "concatenate", "embedding"),
    *("max_pool", "average_pool", "reshape", "transpose", "broadcast_to"),
    *(*NORMS, "softmax_cross_entropy", "token_cross_entropy", "mean_squared_error"),
)
"""What the frameworks' own lists place, in the order of a policy; `others` speaks of these."""

NO_LOSS_SCALE = LossScale()
NO_SCALING = Scaling()
TO_NEAREST = RoleRounding()


@dataclass(frozen=True)
class Preset:
    """One row: the formats of every layer, where ops run, and the loss scale.

    `low`, `fp32` and `promote` name ops; those of `LISTED_OPS` that they leave out go to the list
    `others`, and any other op where its definition puts it (`Op.placement`). Losses run in float32
    unless named: the frameworks do so where the loss is passed separately. `called` is what its
    framework calls it.
    """

    name: str
    summary: str
    layer: LayerPolicy
    others: Placement
    low: tuple[str, ...] = ()
    fp32: tuple[str, ...] = ()
    promote: tuple[str, ...] = ()
    bias: Literal["fused", "rounded", "fp32"] = "fused"
    casts: Literal["op", "layer"] = "op"
    master_weights: bool = True
    optimizer_state: str = "float32"
    optimizer_order: Literal["fused", "eager"] = "fused"
    gradient_storage: Literal["computed", "param"] = "computed"
    loss_scale: LossScale = NO_LOSS_SCALE
    scaling: Scaling = NO_SCALING
    rounding: RoleRounding = TO_NEAREST
    called: str = ""

    def placement(self, op: str) -> Placement:
        """Return the list `op` is in."""
        if op in self.low:
            return "low"
        if op in self.fp32 or op in LOSS_OPS:
            return "fp32"
        if op in self.promote:
            return "promote"
        return self.others if op in LISTED_OPS or op not in OPS else OPS[op].placement
