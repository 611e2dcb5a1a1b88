"""Export to CANN: `modify_mixlist`, the operator types that a mixed precision mode lowers."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from policysearch.export.op_lists import OpLists
from policysearch.export.reading import About, Given, Reading, json_object
from policysearch.nn.model import Model
from policysearch.policy.loss_scale import LossScale
from policysearch.policy.presets import preset
from policysearch.values import one_of

ACTIONS = ("to-add", "to-remove")

TEMPLATE = '''\
$head
#
#     python THIS_FILE > mixlist.json     # for modify_mixlist of ATC, AOE or the adapters
#
# It counts beside precision_mode_v2 = PRECISION_MODE alone. Types that are in no list here stay
# where the chip has them; "to-remove" would have to name the list that a type is in already.

import json

$tables

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
    "operator types of the Ascend IR",
    "torch.autocast.float16",
    NAMES,
    ("float32", "float16", "bfloat16"),
    _scale,
)

SUFFIX = ".py"
ABOUT = About(
    "a module whose output is the JSON of modify_mixlist; such JSON is read too",
    "one low dtype of the run; which operator types it lowers, keeps in float32, or lets follow",
    "Ascend IR and modify_mixlist (their manual, 2026-08)",
    "read back (policysearch inspect)",
)
export, losses, runs, offers = _TARGET.export, _TARGET.losses, _TARGET.runs, _TARGET.offers

LISTS = {"white-list": "low_precision_ops", "black-list": "fp32_ops", "gray-list": "promote_ops"}


def read(text: str, model: Model, where: str) -> Reading:
    """Return what such a file, or the JSON of modify_mixlist itself, gives the layers of `model`.

    The JSON says no dtype: its run is taken to be in mixed_float16.
    """
    if not text.lstrip().startswith("{"):
        return _TARGET.read(text, model, where)
    data = json_object(re.sub(r"//.*", "", text), where)
    base = preset(_TARGET.base, model.layer_names)
    placed = {op: name for name in LISTS.values() for op in getattr(base, name)}
    unknown, away = [], []
    for key, rows in data.items():
        for action, types in dict(rows).items():  # type: ignore[call-overload]
            one_of(f"{where}: {one_of(f'{where}: list', key, LISTS)}", action, ACTIONS)
            ops = {x: next((op for op in NAMES if x in _types(op)), "") for x in types}
            unknown += [x for x in types if not ops[x]]
            to = LISTS[key] if action == ACTIONS[0] else "promote_ops"
            if action == ACTIONS[1]:
                known = [x for x in types if ops[x]]
                away += [f"{x}: {key}, {action}" for x in known if placed[ops[x]] != LISTS[key]]
            placed |= {op: to for op in ops.values() if op}
    lists: Any = {name: tuple(op for op in placed if placed[op] == name) for name in LISTS.values()}
    given = tuple(Given(x, x, "modify_mixlist", row) for x, row in base.layers)
    policy = replace(base, name=f"imported from {where}", **lists)
    traps = ["no dtype in the lists: precision_mode_v2 says it; read as mixed_float16"]
    traps += [f"{x}: refused where the type is not on that list of the chip" for x in away]
    traps += [f"{x}: no op here has this type; not read" for x in unknown]
    return Reading(policy, given, (), tuple(traps))


def _types(op: str) -> tuple[str, ...]:
    """Return the operator types of an op, those of other versions of the chip's library too."""
    types = NAMES[op]
    return (*types, *(re.sub(r"(V2|D)$", "", each) for each in types))
