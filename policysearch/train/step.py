"""One training step, or one forward pass, of a model as a float32 graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, lru_cache
from typing import Any

from policysearch.graph import Graph
from policysearch.nn.model import NEXT, Model, emit_arrays, emit_data
from policysearch.ops.builder import Builder
from policysearch.ops.source import (
    INVERSE_SCALE,
    LEARNING_RATE,
    LOSS_SCALE,
    STEP_NUMBER,
)
from policysearch.ops.update import all_finite
from policysearch.ops.update import micro_batches as micro_batches_of
from policysearch.optimizers.optimizer import Optimizer, emit_states, emit_update
from policysearch.policy.policy import Policy
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.rewrite.rules import RuledModel
from policysearch.train.gradients import (
    UNCLIPPED,
    Clipping,
    clipped,
    gradients,
    micro_step,
    share_of,
    summed_at_once,
)
from policysearch.train.groups import Group, by_parameter, emit_rates
from policysearch.train.losses import emit_loss

SCALARS = (LOSS_SCALE, INVERSE_SCALE, LEARNING_RATE, STEP_NUMBER)


SMALLEST_BATCH = 2
"""Examples in a forward pass that is traced to be looked at: of one there is no variance."""


def trace_forward(model: Model, batch_size: int, own_loss: bool = False) -> Graph:
    """Return the forward pass of evaluation: sources as in `trace_step`, output "logits".

    With `own_loss` a loss that the model returns itself is the output "loss".
    """
    b = Builder()
    fed = model.emit_inputs(b, batch_size)
    fed |= emit_arrays(b, model.parameters()) | model.emit_statistics(b)
    traced = model.trace(b, fed, training=False)
    losses = {"loss": traced.loss} if own_loss and traced.loss is not None else {}
    return b.graph({"logits": traced.output, **losses})


def trace_step(
    model: Model,
    loss: str,
    optimizer: Optimizer,
    batch_size: int,
    clipping: Clipping = UNCLIPPED,
    groups: Sequence[Group] = (),
    micro_batches: int = 1,
) -> Graph:
    """Return the whole training step in float32: forward, loss, backward, unscale, check, update.

    Sources: the inputs of the model [batch, ...], TARGETS (see `train.feeding`) and the SCALARS, of
    which the number of the step counts from 1; one parameter per array of the model with its
    optimizer state, one buffer per running statistic. Outputs: "loss", "scaled_loss", "logits",
    "finite" (1.0 or 0.0), the new statistics NEXT + their name, and the unscaled gradients
    "grad:<parameter>" of all that the loss depends on, before `clipping`, which the updates read
    and the finite check does not. Parameters of `groups` move by what is their own, or stay. Of
    several `micro_batches` this is the last, added to those before. InputError for an unknown loss.
    """
    b = Builder()
    inputs = model.emit_inputs(b, batch_size)
    scalars = {name: emit_data(b, name, ()) for name in SCALARS}
    params = emit_arrays(b, model.parameters())
    grouped = by_parameter(groups, model.parameters())
    moving = _optimizers_by_name(optimizer, model, grouped)
    states = {name: emit_states(b, by, params[name]) for name, by in moving.items()}
    traced = model.trace(b, {**inputs, **params, **model.emit_statistics(b)}, training=True)
    with b.scope(layer="loss", role="fprop"):
        root = emit_loss(b, model, loss, traced)
        share, scaled = share_of(b, root, micro_batches, scalars[LOSS_SCALE])
    grads = gradients(b, share, {name: params[name] for name in states}, scalars, share != root)
    with b.scope(role="update"):
        finite = b.emit(all_finite, *grads.values())
    outputs = {"loss": root, "scaled_loss": scaled, "logits": traced.output, "finite": finite}
    outputs |= {NEXT + name: node for name, node in traced.statistics}
    outputs |= {f"grad:{name}": grad for name, grad in grads.items()}
    grads = clipped(b, grads, clipping)
    moved = [(name, params[name], states[name], grad) for name, grad in grads.items()]
    step = summed_at_once(b.graph(outputs, _updates(b, moving, moved, scalars, grouped)))
    return model.ruled_step(step) if isinstance(model, RuledModel) else step


def _optimizers_by_name(
    optimizer: Optimizer, model: Model, grouped: Mapping[str, Group]
) -> dict[str, Optimizer]:
    """Return the optimizer of every parameter that is trained."""
    frozen = {name for name, group in grouped.items() if group.frozen}
    names = (s.name for s in model.parameters() if s.trained and s.name not in frozen)
    return {n: grouped[n].moved_by(optimizer) if n in grouped else optimizer for n in names}


def _updates(
    b: Builder,
    moving: Mapping[str, Optimizer],
    moved: Sequence[tuple[str, int, tuple[int, ...], int]],
    scalars: Mapping[str, int],
    grouped: Mapping[str, Group],
) -> list[tuple[int, int]]:
    """Emit the updates of (name, parameter, states, gradient) rows, each as its group has it."""
    rates = {1.0: scalars[LEARNING_RATE], **emit_rates(b, grouped)}
    fed = {by.rule.cycles[1] for by in moving.values() if by.cycled and by.rule.cycles}
    cycled = {name: (emit_data(b, name, ()),) for name in sorted(fed)}
    updates = []
    for name, parameter, states, grad in moved:
        with b.scope(role="update", layer=b.nodes[parameter].layer):
            own, by = grouped.get(name), moving[name]
            numbers = rates[own.rate_factor if own else 1.0], scalars[STEP_NUMBER]
            moves = cycled[by.rule.cycles[1]] if by.cycled and by.rule.cycles else ()
            updates += emit_update(b, by, parameter, states, grad, *numbers, moves)
    return updates


class Tracing:
    """Traces the float32 step of a recipe, once, and puts policies on it.

    The last policy's step is kept: a price and several trainings ask for one policy in turn.
    """

    def __init__(
        self,
        model: Model,
        loss: str,
        optimizer: Optimizer,
        batch_size: int,
        clipping: Clipping = UNCLIPPED,
        groups: Sequence[Group] = (),
        micro_batches: int = 1,
    ) -> None:
        self._model, self._average = model, optimizer.average
        self._recipe = loss, optimizer, batch_size, clipping, groups, micro_batches
        self._last: tuple[Policy, Graph] | None = None

    @cached_property
    def float32(self) -> Graph:
        """One training step in float32."""
        return trace_step(self._model, *self._recipe)

    def step_graph(self, policy: Policy) -> Graph:
        """Return one training step under `policy`; InputError where it does not fit the model."""
        last = self._last
        if last is None or last[0] != policy:
            policy.check_layers(self._model.layer_names)
            step = apply_policy(self.float32, policy)
            self._last = last = policy, self._average.beside(step, self._model.updates_done + 1)
        return last[1]

    def step_graphs(self, policy: Policy) -> tuple[Graph, ...]:
        """Return what the last micro-batch of a step does, and what those before it, if any, do."""
        last = self.step_graph(policy)
        return (last, micro_step(last)) if micro_batches_of(last) > 1 else (last,)


@lru_cache(maxsize=2)
def tracing_of(model: Model, *recipe: Any) -> Tracing:
    """Return the Tracing of a model and a recipe, one for all that train and price them.

    The last two are kept: the net that is trained, and the one that is priced.
    """
    return Tracing(model, *recipe)
