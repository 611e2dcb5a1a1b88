"""Export to Apex for Ascend: O1 with functions registered as half, float or promoted."""

from __future__ import annotations

from policysearch.export.levels import fixed_scale
from policysearch.export.op_lists import OpLists
from policysearch.export.reading import About
from policysearch.policy.loss_scale import LossScale

TEMPLATE = '''\
$head
#
#     from apex import amp
#     model, optimizer = initialize(amp, model, optimizer)
#     with amp.scale_loss(loss, optimizer) as scaled: scaled.backward()
#
# amp patches functions by name, for all layers alike; what it patches has to be registered before
# amp.initialize, and nothing is with another opt_level than O1.

import importlib

$tables


def initialize(amp, model, optimizer):
    """Register the functions and return amp.initialize(model, optimizer), O0 where all is float32.

    Raises ValueError where torch has no function of a name.
    """
    if "float16" not in LAYERS.values():
        return amp.initialize(model, optimizer, opt_level="O0")
    for register, table in (
        (amp.register_half_function, LOW),
        (amp.register_float_function, WIDE),
        (amp.register_promote_function, PROMOTE),
    ):
        for name in (name for names in table.values() for name in names):
            module, _, function = name.rpartition(".")
            register(found(module, function), function)
    return amp.initialize(model, optimizer, opt_level="O1", **options())


def found(module, function):
    place = importlib.import_module(module)
    if not hasattr(place, function):
        raise ValueError(f"{module}.{function}: not there; expected a function of torch")
    return place


def options():
    """Return the options of the loss scale; a static one never looks for an overflow."""
    if LOSS_SCALE["kind"] == "none":
        return {"loss_scale": 1.0}
    if LOSS_SCALE["kind"] == "fixed":
        return {"loss_scale": LOSS_SCALE["init_scale"]}
    bounds = {"min_loss_scale": LOSS_SCALE["min_scale"], "max_loss_scale": LOSS_SCALE["max_scale"]}
    first = {"dynamic_init_scale": LOSS_SCALE["init_scale"]}  # of Ascend's Apex alone
    return {"loss_scale": "dynamic", **first, **bounds}
'''

ALIKE = (
    "relu tanh sigmoid gelu silu softplus softmax log_softmax layer_norm batch_norm dropout prelu "
    "elu leaky_relu hardtanh hardswish hardsigmoid mish glu embedding conv2d conv3d "
    "conv_transpose2d conv_transpose3d"
)
"""Ops that torch.nn.functional has by the same name."""

PLAIN = "exp expm1 log log2 log10 log1p rsqrt sqrt pow sum mean prod cumsum cumprod cos sin tan"
"""Ops that torch has by the same name."""

NAMES = {
    "matmul": ("torch.nn.functional.linear", "torch.matmul", "torch.mm", "torch.bmm"),
    **{op: (f"torch.nn.functional.{op}",) for op in ALIKE.split()},
    **{op: (f"torch.{op}",) for op in PLAIN.split()},
    "concatenate": ("torch.cat", "torch.stack"),
    "add": ("torch.add",),
    "multiply": ("torch.mul",),
    "divide": ("torch.div",),
}


def _scale(asked: LossScale) -> LossScale:
    if asked.kind != "dynamic":
        return fixed_scale(asked)
    highest = 2.0**24 if asked.max_scale is None else asked.max_scale
    lowest = asked.min_scale
    first = min(asked.init_scale, highest)
    return LossScale("dynamic", first, 2.0, 0.5, 2000, lowest, highest, rule="apex")


_TARGET = OpLists(
    "apex", TEMPLATE, "functions of torch", "apex.O1", NAMES, ("float32", "float16"), _scale
)

SUFFIX = ".py"
ABOUT = About(
    "a module to import: initialize(amp, model, optimizer)",
    "float16 or float32 of the whole run; which functions are half, float or promoted; loss scale",
    "Apex e13873de, Ascend 49a7994 (read, 2026-08)",
    "a stand-in for amp in the tests: what is registered, and that torch has it",
)
export, losses, runs = _TARGET.export, _TARGET.losses, _TARGET.runs
offers, read = _TARGET.offers, _TARGET.read
