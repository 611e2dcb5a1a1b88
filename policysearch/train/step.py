"""One training step, or one forward pass, of a model as a float32 graph."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

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
from policysearch.ops.update import all_finite, clip, clip_value, global_norm, scale_loss, unscale
from policysearch.optimizers.optimizer import Optimizer, emit_states, emit_update
from policysearch.policy.policy import Policy
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.rewrite.rules import RuledModel
from policysearch.train.losses import emit_loss
from policysearch.values import InputError, number

SCALARS = (LOSS_SCALE, INVERSE_SCALE, LEARNING_RATE, STEP_NUMBER)


@dataclass(frozen=True)
class Clipping:
    """What gradients are clipped to after they are unscaled: a global `norm` or a largest `value`.

    They are torch.nn.utils.clip_grad_norm_ and clip_grad_value_. Raises InputError for a limit
    below 1e-30, and for both.
    """

    norm: float | None = None
    value: float | None = None

    def __post_init__(self) -> None:
        for name, limit in (("clip_norm", self.norm), ("clip_value", self.value)):
            if limit is not None:
                number(name, limit, 1e-30, 1e30)
        if self.norm is not None and self.value is not None:
            raise InputError(f"clip_norm: {self.norm:g} with clip_value; expected one of them")

    @property
    def in_torch(self) -> str:
        """What a training loop in torch has to do, in words; "" where nothing is clipped."""
        limit = self.value if self.norm is None else self.norm
        kind = "value" if self.norm is None else "norm"
        call = f"torch.nn.utils.clip_grad_{kind}_(module.parameters(), {limit!r})"
        said = f"the recipe clips gradients: {call} after scaler.unscale_(optimizer)"
        return "" if limit is None else said


UNCLIPPED = Clipping()

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
    clipping: Clipping = UNCLIPPED,
) -> Graph:
    """Return the whole training step in float32: forward, loss, backward, unscale, check, update.

    Sources: the inputs of the model [batch, ...], TARGETS (see `train.feeding`) and the SCALARS, of
    which the number of the step counts from 1; one parameter per array of the model with its
    optimizer state, one buffer per running statistic. Outputs: "loss",
    "scaled_loss", "logits", "finite" (1.0 or 0.0), the new statistics NEXT + their name, and the
    unscaled gradients "grad:<parameter>" of all that the loss depends on, before `clipping`, which
    the updates read and the finite check does not. InputError for an unknown loss.
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
    grads = _clipped(b, grads, clipping)
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


def _clipped(b: Builder, grads: Mapping[str, int], clipping: Clipping) -> dict[str, int]:
    clipped = dict(grads)
    with b.scope(role="update"):
        norm = () if clipping.norm is None else (b.emit(global_norm, *grads.values()),)
        for name, grad in grads.items():
            layer = b.nodes[grad].layer
            if clipping.norm is not None:
                limit = {"limit": clipping.norm}
                clipped[name] = b.emit(clip, grad, *norm, attrs=limit, layer=layer)
            elif clipping.value is not None:
                limit = {"limit": clipping.value}
                clipped[name] = b.emit(clip_value, grad, attrs=limit, layer=layer)
    return clipped


class Tracing:
    """Traces the float32 step of a recipe, once, and puts policies on it."""

    def __init__(
        self,
        model: Model,
        loss: str,
        optimizer: Optimizer,
        batch_size: int,
        clipping: Clipping = UNCLIPPED,
    ) -> None:
        self._model, self._recipe = model, (loss, optimizer, batch_size, clipping)

    @cached_property
    def float32(self) -> Graph:
        """The training step in float32."""
        return trace_step(self._model, *self._recipe)

    def step_graph(self, policy: Policy) -> Graph:
        """Return one training step under `policy`; InputError where it does not fit the model."""
        policy.check_layers(self._model.layer_names)
        return apply_policy(self.float32, policy)
