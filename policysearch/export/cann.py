"""Export to CANN: `modify_mixlist`, the operator types that a mixed precision mode lowers."""

from __future__ import annotations

from policysearch.export.op_lists import OpLists
from policysearch.export.reading import About
from policysearch.policy.loss_scale import LossScale

TEMPLATE = '''\
$head
#
#     python THIS_FILE > mixlist.json     # for modify_mixlist of ATC, AOE or the adapters
#
# It counts beside precision_mode_v2 = PRECISION_MODE alone. Types that are in no list here stay
# where the chip has them; "to-remove" would have to name the list that a type is in already.

import json

# layer: the one dtype of all of them
LAYERS = $layers

# op: operator types of the Ascend IR that are lowered, stay in float32, or follow what they read
LOW = $low
WIDE = $wide
PROMOTE = $promote

LOSS_SCALE = $loss_scale  # the training script has to set it up

PRECISION_MODE = ["origin", *(f"mixed_{x}" for x in LAYERS.values() if x != "float32")][-1]


def mixlist():
    """Return the lists as modify_mixlist takes them."""
    tables = {"white-list": LOW, "black-list": WIDE, "gray-list": PROMOTE}
    types = {key: [x for names in rows.values() for x in names] for key, rows in tables.items()}
    return {key: {"to-add": sorted(names), "to-remove": []} for key, names in types.items()}


if __name__ == "__main__":
    print(json.dumps(mixlist(), indent=2))
'''

NAMES = {
    "matmul": ("MatMulV2", "BatchMatMulV2"),
    "conv2d": ("Conv2D", "Conv2DBackpropInputD", "Conv2DBackpropFilterD"),
    "conv3d": ("Conv3D", "Conv3DBackpropInputD", "Conv3DBackpropFilterD"),
    "bias": ("BiasAdd", "BiasAddGrad"),
    "softmax": ("SoftmaxV2", "SoftmaxGrad"),
    "log_softmax": ("LogSoftmaxV2", "LogSoftmaxGrad"),
    "layer_norm": ("LayerNorm", "LayerNormGrad"),
    "softmax_cross_entropy": ("SoftmaxCrossEntropyWithLogits",),
    "relu": ("Relu", "ReluGrad"),
    "tanh": ("Tanh", "TanhGrad"),
    "sigmoid": ("Sigmoid", "SigmoidGrad"),
    "gelu": ("Gelu", "GeluGrad"),
    "softplus": ("Softplus", "SoftplusGrad"),
    "max_pool": ("MaxPool", "MaxPoolGrad"),
    "average_pool": ("AvgPool", "AvgPoolGrad"),
    "add": ("Add",),
    "subtract": ("Sub",),
    "multiply": ("Mul",),
    "divide": ("RealDiv",),
    "exp": ("Exp",),
    "log": ("Log",),
    "sqrt": ("Sqrt",),
    "rsqrt": ("Rsqrt",),
    "pow": ("Pow",),
    "sum": ("ReduceSumD",),
    "mean": ("ReduceMeanD",),
}
"""Operator types of the Ascend IR by op, backward ones too: lists speak of types alone."""


def _scale(asked: LossScale) -> LossScale:
    return asked  # of the script, which no list says


_TARGET = OpLists(
    "cann",
    TEMPLATE,
    "torch.autocast.float16",
    NAMES,
    ("float32", "float16", "bfloat16"),
    _scale,
)

SUFFIX = ".py"
ABOUT = About(
    "a module whose output is the JSON of modify_mixlist",
    "one low dtype of the run; which operator types it lowers, keeps in float32, or lets follow",
    "Ascend IR and modify_mixlist (their manual, 2026-08)",
    "read back (policysearch inspect)",
)
export, losses, runs = _TARGET.export, _TARGET.losses, _TARGET.runs
offers, read = _TARGET.offers, _TARGET.read
