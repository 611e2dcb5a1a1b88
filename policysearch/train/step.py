"""One training step, or one forward pass, of a model as a float32 graph."""

from __future__ import annotations

from collections.abc import Mapping

from policysearch.graph import Graph
from policysearch.nn.model import NEXT, Model, emit_arrays, emit_data
from policysearch.ops.builder import Builder, backward
from policysearch.ops.elementwise import add
from policysearch.ops.source import (
    INVERSE_SCALE,
    LEARNING_RATE,
    LOSS_SCALE,
    STEP_NUMBER,
)
from policysearch.ops.update import all_finite, clip, global_norm, scale_loss, unscale
from policysearch.optimizers.optimizer import Optimizer, emit_states, emit_update
from policysearch.policy.policy import Policy
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.rewrite.rules import RuledModel
from policysearch.train.losses import emit_loss

SCALARS = (LOSS_SCALE, INVERSE_SCALE, LEARNING_RATE, STEP_NUMBER)

SMALLEST_BATCH = 2
"""Examples in a forward pass that is traced to be looked at: of one there is no variance."""


def trace_forward(model: Model, batch_size: int) -> Graph:
    """Return the forward pass of evaluation: sources as in `trace_step`, output "logits"."""
    b = Builder()
    fed = model.emit_inputs(b, batch_size)
    fed |= emit_arrays(b, model.parameters()) | model.emit_statistics(b)
    return b.graph({"logits": model.trace(b, fed, training=False).output})


def trace_step(
    model: Model,
    loss: str,
    optimizer: Optimizer,
    batch_size: int,
    clip_norm: float | None = None,
) -> Graph:
    """Return the whole training step in float32: forward, loss, backward, unscale, check, update.

    Sources: the inputs of the model [batch, ...], TARGETS (see `train.feeding`) and the SCALARS, of
    which the number of the step counts from 1; one parameter per array of the model with its
    optimizer state, one buffer per running statistic. Outputs: "loss",
    "scaled_loss", "logits", "finite" (1.0 or 0.0), the new statistics NEXT + their name, and the
    unscaled gradients "grad:<parameter>" of all that the loss depends on. `clip_norm` scales the
    gradients down to that global norm, after the finite check. InputError for an unknown loss.
    """
    b = Builder()
    inputs = model.emit_inputs(b, batch_size)
    scalars = {name: emit_data(b, name, ()) for name in SCALARS}
    params = emit_arrays(b, model.parameters())
    states = {name: emit_states(b, optimizer, params[name]) for name in _trained(model)}
    traced = model.trace(b, {**inputs, **params, **model.emit_statistics(b)}, training=True)
    with b.scope(layer="loss", role="fprop"):
        root = emit_loss(b, model, loss, traced)
        scaled = b.emit(scale_loss, root, scalars[LOSS_SCALE])
    grads = _gradients(b, root, {name: params[name] for name in states}, scalars)
    with b.scope(role="update"):
        finite = b.emit(all_finite, *grads.values())
    outputs = {"loss": root, "scaled_loss": scaled, "logits": traced.output, "finite": finite}
    outputs |= {NEXT + name: node for name, node in traced.statistics}
    outputs |= {f"grad:{name}": grad for name, grad in grads.items()}
    if clip_norm is not None:
        grads = _clipped(b, grads, clip_norm)
    updates = []
    for name, grad in grads.items():
        with b.scope(role="update", layer=b.nodes[params[name]].layer):
            fed = grad, scalars[LEARNING_RATE], scalars[STEP_NUMBER]
            updates += emit_update(b, optimizer, params[name], states[name], *fed)
    step = b.graph(outputs, updates)
    return model.ruled_step(step) if isinstance(model, RuledModel) else step


def _trained(model: Model) -> list[str]:
    return [spec.name for spec in model.parameters() if spec.trained]


def _gradients(
    b: Builder, root: int, params: Mapping[str, int], scalars: Mapping[str, int]
) -> dict[str, int]:
    """Emit backward and return the unscaled gradients of the parameters `root` depends on."""
    # d(scaled loss)/d(loss) is the scale itself, so backward starts from that source.
    gradient_of = backward(b, root, scalars[LOSS_SCALE], list(params.values()), add)
    grads = {}
    for name, node in params.items():
        if node in gradient_of:
            with b.scope(role="update", layer=b.nodes[node].layer):
                grads[name] = b.emit(unscale, gradient_of[node], scalars[INVERSE_SCALE])
    return grads


def _clipped(b: Builder, grads: Mapping[str, int], clip_norm: float) -> dict[str, int]:
    clipped = {}
    with b.scope(role="update"):
        norm = b.emit(global_norm, *grads.values())
        for name, grad in grads.items():
            layer = b.nodes[grad].layer
            clipped[name] = b.emit(clip, grad, norm, attrs={"limit": clip_norm}, layer=layer)
    return clipped


class Tracing:
    """Traces the float32 step of a recipe, once for each norm that gradients are clipped to."""

    def __init__(self, model: Model, loss: str, optimizer: Optimizer, batch_size: int) -> None:
        self._model, self._recipe = model, (loss, optimizer, batch_size)
        self._float32: dict[float | None, Graph] = {}

    def step_graph(self, policy: Policy) -> Graph:
        """Return one training step under `policy`; InputError where it does not fit the model."""
        policy.check_layers(self._model.layer_names)
        clip_norm = policy.gradient_clip_norm
        if clip_norm not in self._float32:
            self._float32[clip_norm] = trace_step(self._model, *self._recipe, clip_norm)
        return apply_policy(self._float32[clip_norm], policy)
