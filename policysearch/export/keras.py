"""Export to Keras 3: a dtype policy set on every layer, which holds however the model was built."""

from __future__ import annotations

from policysearch.export.levels import Levels, fixed_scale
from policysearch.export.reading import About
from policysearch.policy.loss_scale import LossScale

TEMPLATE = '''\
$head
#
#     import keras
#     apply_policy(model)                       # before compile, and before the first fit
#     model.compile(optimizer=scaled(keras.optimizers.SGD(0.1)), ...)
#
# A DTypePolicyMap is not used: its paths depend on how a model is built, and a path that matches
# nothing says nothing. Layers without variables and without a build (Activation, ReLU, pooling of
# functional models) are set as well.

import keras

# layer: (dtype it computes in, dtype of its variables)
LAYERS = $layers

# layers that may be functions in the net: they run as the policy says in what they are given
FUNCTIONS = $functions
OTHERWISE = "; make modules of its functions, or strict=False lets them run in what they are given"

LOSS_SCALE = $loss_scale


def apply_policy(model, strict=True):
    """Set the dtype policy of every layer by its name, in place, and return the model.

    Raises ValueError where a layer with variables is unknown to the policy, or one of the policy
    is missing, unless not `strict`: a function that is none of FUNCTIONS runs in what it is
    given, not as the policy says.
    """
    layers = {layer.name: layer for layer in model._flatten_layers(include_self=False)}
    owners = [name for name, layer in layers.items() if layer.weights and not layer._layers]
    strangers = [name for name in owners if name not in LAYERS]
    missing = [name for name in LAYERS if name not in {*layers, *FUNCTIONS}]
    if strict and (strangers or missing):
        where = "unknown to the policy" if strangers else f"of the policy and not in it{OTHERWISE}"
        raise ValueError(f"model: layers {strangers or missing} are {where}")
    for name, (compute, stored) in LAYERS.items():
        if name in layers:
            mixed = compute if compute == stored else f"mixed_{compute}"
            layers[name].dtype_policy = keras.DTypePolicy(mixed)
    return model


def scaled(optimizer):
    """Return the optimizer with the loss scale of the policy; compile adds none by itself."""
    if LOSS_SCALE["kind"] == "none":
        return optimizer
    if LOSS_SCALE["kind"] == "fixed":
        optimizer.loss_scale_factor = LOSS_SCALE["init_scale"]
        return optimizer
    return keras.optimizers.LossScaleOptimizer(
        optimizer,
        initial_scale=LOSS_SCALE["init_scale"],
        dynamic_growth_steps=LOSS_SCALE["growth_interval"],
    )
'''


def _scale(asked: LossScale) -> LossScale:
    if asked.kind == "dynamic":
        rule = "keras.LossScaleOptimizer"
        return LossScale(
            "dynamic", asked.init_scale, growth_interval=asked.growth_interval, rule=rule
        )
    return fixed_scale(asked)


_TARGET = Levels("keras", TEMPLATE, ("float32", "float16", "bfloat16"), _scale, bias="rounded")

SUFFIX = ".py"
ABOUT = About(
    "a module to import: apply_policy(model), scaled(optimizer)",
    "per layer: float32, float16, bfloat16, and whether its variables are stored so; loss scale",
    "keras 3.15.1 with jax 0.10.2 (run on a CPU, 2026-11)",
    "`verify --target keras --python ENV`; products of the jaxpr and losses in the tests",
)
export, losses, runs = _TARGET.export, _TARGET.losses, _TARGET.runs
offers, read = _TARGET.offers, _TARGET.read
