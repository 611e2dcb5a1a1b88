"""Export to flax nnx: dtype and param_dtype set on every module, and jmp's loss scale."""

from __future__ import annotations

from policysearch.export.levels import Levels, fixed_scale
from policysearch.export.reading import About
from policysearch.policy.loss_scale import LossScale

TEMPLATE = '''\
$head
#
#     apply_policy(model)              # an nnx module; linen takes dtype in its constructor
#     scale = loss_scale()             # of jmp, None where the policy scales nothing

import jax.numpy as jnp
from flax import nnx

# module: (dtype it computes in, dtype of its parameters)
LAYERS = $layers

# layers that may be functions in the net: they run as the policy says in what they are given
FUNCTIONS = $functions
OTHERWISE = "; make modules of its functions, or strict=False lets them run in what they are given"

LOSS_SCALE = $loss_scale


def apply_policy(model, strict=True):
    """Set dtype on every module of the policy, cast what is stored, and return the model.

    Raises ValueError where a module with parameters is unknown to the policy, or has no dtype, or
    one of the policy is missing, unless not `strict`: a function that is none of FUNCTIONS runs
    in what it is given, not as the policy says.
    """
    done = set()
    for path, module in nnx.iter_modules(model):
        name = ".".join(map(str, path))
        held = [x for x in vars(module).values() if isinstance(x, nnx.Param)]
        if name not in LAYERS:
            if held:
                raise ValueError(f"model: {name!r} has parameters and is unknown to the policy")
            continue
        compute, stored = LAYERS[name]
        if held and not hasattr(module, "dtype"):
            raise ValueError(f"model: {type(module).__name__} {name!r} has no dtype to set")
        module.dtype = jnp.dtype(compute)
        for parameter in held:
            parameter.value = parameter.value.astype(stored)
        done.add(name)
    missing = [name for name in LAYERS if name not in {*done, *FUNCTIONS}]
    if strict and missing:
        raise ValueError(f"model: layers {missing} are of the policy and not in it{OTHERWISE}")
    return model


def loss_scale():
    """Return jmp's loss scale; do not map it over a tree, which resets its floor."""
    import jmp

    if LOSS_SCALE["kind"] == "none":
        return None
    if LOSS_SCALE["kind"] == "fixed":
        return jmp.StaticLossScale(jnp.float32(LOSS_SCALE["init_scale"]))
    return jmp.DynamicLossScale(
        jnp.float32(LOSS_SCALE["init_scale"]),
        period=LOSS_SCALE["growth_interval"],
        factor=LOSS_SCALE["growth_factor"],
        min_loss_scale=jnp.float32(LOSS_SCALE["min_scale"]),
    )
'''


def _scale(asked: LossScale) -> LossScale:
    if asked.kind == "dynamic":
        factor = max(1.0, min(asked.growth_factor, 2.0**16))
        lowest = 1.0 if asked.min_scale is None else asked.min_scale
        first = max(asked.init_scale, lowest, 1.0)
        return LossScale(
            "dynamic",
            first,
            factor,
            1.0 / factor,
            asked.growth_interval,
            lowest,
            rule="jmp.DynamicLossScale",
        )
    return fixed_scale(asked)


_TARGET = Levels("flax", TEMPLATE, ("float32", "float16", "bfloat16"), _scale, bias="rounded")

SUFFIX = ".py"
ABOUT = About(
    "a module to import: apply_policy(model), loss_scale()",
    "per module: float32, float16, bfloat16, and whether its parameters are stored so; loss scale",
    "flax 0.12.8, jmp 0.0.4 (run on a CPU, 2026-11)",
    "`verify --target flax --python ENV`; products of the jaxpr and losses in the tests",
)
export, losses, runs = _TARGET.export, _TARGET.losses, _TARGET.runs
offers, read = _TARGET.offers, _TARGET.read
