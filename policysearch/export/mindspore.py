"""Export to MindSpore: to_float on every cell, float32 ones too, and its loss scaler."""

from __future__ import annotations

from policysearch.export.levels import Levels, fixed_scale
from policysearch.export.reading import About
from policysearch.policy.loss_scale import LossScale

TEMPLATE = '''\
$head
#
#     net, scaler = apply_policy(net), loss_scaler()  # no scaler where the policy scales nothing
#     def forward(x, y):
#         loss = loss_fn(net(x), y)
#         return (scaler.scale(loss) if scaler else loss), loss
#     step = mindspore.value_and_grad(forward, None, optimizer.parameters, has_aux=True)
#     for x, y in batches:
#         (_, loss), grads = step(x, y)
#         finite = not scaler or bool(amp.all_finite(grads))
#         if scaler:
#             grads = scaler.unscale(grads)
#             scaler.adjust(mindspore.Tensor(finite))
#         if finite:
#             optimizer(grads)
#
# Every cell gets a to_float: a float16 cell before one without fails in GRAPH_MODE and in
# PYNATIVE_MODE (MatMul of float16 and float32). amp.custom_mixed_precision takes classes alone.

import mindspore
from mindspore import amp

# cell: (dtype it computes in, dtype of its parameters)
LAYERS = $layers

# layers that may be functions in the net: they run as the policy says in what they are given
FUNCTIONS = $functions
OTHERWISE = "; make modules of its functions, or strict=False lets them run in what they are given"

LOSS_SCALE = $loss_scale


def apply_policy(net, strict=True):
    """Set to_float on every cell by its name, in place, and return the net.

    A cell that the policy does not know, and that holds none it knows, computes in float32.
    Raises ValueError where a layer with parameters is unknown to the policy, or one of the policy
    is missing, unless not `strict`: a function that is none of FUNCTIONS runs in what it is
    given, not as the policy says.
    """
    missing = sorted({*LAYERS} - {*FUNCTIONS} - {name for name, _ in net.cells_and_names()})
    if strict and missing:
        raise ValueError(f"net: layers {missing} are of the policy and not in it{OTHERWISE}")
    for name, cell in net.cells_and_names():
        own = list(cell.parameters_and_names(expand=False))
        if name not in LAYERS and own:
            raise ValueError(f"net: {name!r} has parameters and is unknown to the policy")
        if name in LAYERS or not list(cell.cells()):
            compute, stored = LAYERS.get(name, ("float32", "float32"))
            cell.to_float(getattr(mindspore, compute))
            for _, parameter in own:
                parameter.set_dtype(getattr(mindspore, stored))
    return net


def loss_scaler():
    """Return the scaler of mindspore.amp (not of mindspore.train.amp)."""
    if LOSS_SCALE["kind"] == "none":
        return None
    if LOSS_SCALE["kind"] == "fixed":
        return amp.StaticLossScaler(LOSS_SCALE["init_scale"])
    return amp.DynamicLossScaler(
        scale_value=LOSS_SCALE["init_scale"],
        scale_factor=int(LOSS_SCALE["growth_factor"]),  # it takes whole numbers alone
        scale_window=LOSS_SCALE["growth_interval"],
    )
'''


def _scale(asked: LossScale) -> LossScale:
    if asked.kind == "dynamic":
        factor = max(1.0, float(round(asked.growth_factor)))
        rule, first = "mindspore.DynamicLossScaler", max(asked.init_scale, 1.0)
        return LossScale("dynamic", first, factor, 1.0 / factor, asked.growth_interval, rule=rule)
    return fixed_scale(asked)


_TARGET = Levels("mindspore", TEMPLATE, ("float32", "float16", "bfloat16"), _scale, bias="rounded")

SUFFIX = ".py"
ABOUT = About(
    "a module to import: apply_policy(net), loss_scaler()",
    "per cell: float32, float16, bfloat16 (not on a CPU), stored so or not; loss scale",
    "mindspore 2.10.0 (run on a CPU, 2026-11)",
    "`verify --target mindspore --python ENV`: losses, scales, dtypes at cells both ways",
)
export, losses, runs = _TARGET.export, _TARGET.losses, _TARGET.runs
offers, read = _TARGET.offers, _TARGET.read
