"""The optimizer of torch that does as a row says, and what the emulator draws for its updates."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from policysearch.emulator.nodes import draws
from policysearch.graph import Node, size
from policysearch.layout import empty, stored_flat
from policysearch.nn.model import NEXT, Model
from policysearch.optimizers.optimizer import Optimizer
from policysearch.policy.policy import Policy
from policysearch.rounding.grid import KEY_SPAN, MASK64, mix64, span_key
from policysearch.rounding.stochastic import draws_of
from policysearch.train.tasks import Task
from policysearch.values import InputError

SMALL_RATE = 1e-5
"""A learning rate at which nothing moves far, for steps that are timed."""


def torch_optimizer(
    optimizer: Optimizer, parameters: list[Any], rate: float, fused: bool | None = None
) -> torch.optim.Optimizer:
    """Return torch's optimizer of parameters, or groups of them.

    `fused`: in one kernel, or operation by operation; None leaves it to torch. InputError where
    torch has no such optimizer, or no such kernel of it.
    """
    row = optimizer.in_torch()
    arguments = {"lr": rate, "weight_decay": optimizer.weight_decay, **row.arguments(optimizer)}
    if fused and not row.fused:
        raise InputError(
            f"optimizer_order: 'fused' with {optimizer.kind!r}; expected 'eager', "
            f"torch.optim.{row.name} has no fused kernel"
        )
    if row.fused and fused is not None:
        arguments["fused"] = fused
    optimizer_class: type[torch.optim.Optimizer] = getattr(torch.optim, row.name)
    return optimizer_class(parameters, **arguments)


DROPPED_BITS = 16
"""Of a float32 number that becomes a bfloat16 one; a draw of 32 bits is used from the top."""


class EmulatedDraws:
    """What the emulator draws for new values of `tensors`, parameters by name, and of their state.

    With the same random bits a training in torch can be compared step by step, as with masks of
    dropout.
    """

    def __init__(
        self,
        task: Task,
        model: Model,
        policy: Policy,
        seed: int,
        tensors: Mapping[str, torch.Tensor],
    ) -> None:
        statistics = (NEXT + spec.name for spec in model.statistics())
        whole = task.tracing(model, task.batch_size).step_graphs(policy)[0]
        graph = whole.wanting("finite", "loss", *statistics)
        self._seed, self._count = mix64(seed & MASK64), task.accumulation_steps
        self._new = {graph.nodes[old].name: graph.nodes[new] for old, new in graph.updates}
        self._names = {id(tensor): name for name, tensor in tensors.items()}
        self._states = task.build_optimizer().rule.states
        self.begin(0)

    def begin(self, step: int) -> None:
        """Draw for the update of a step from now on."""
        # the last micro-batch of a step makes its update
        self._number = (step + 1) * self._count - 1

    def __call__(self, values: Any, parameter: Any, place: int | None) -> torch.Tensor:
        """Return the bits for a new parameter (`place` None) or one of its states, int32."""
        name = self._names[id(parameter)]
        node = self._new[name if place is None else f"{name}.{self._states[place]}"]
        return torch.from_numpy(self._drawn(node).astype(np.int32)).to(values.device)

    def _drawn(self, node: Node) -> Any:
        """Return what the elements of a node draw, in their logical order, at most 2^16 - 1."""
        counter, total = draws(node, self._number) & MASK64, size(node.shape)
        flat = np.concatenate(
            [
                draws_of(
                    span_key(self._seed, counter, span), min(KEY_SPAN, total - span * KEY_SPAN)
                )
                for span in range(-(-total // KEY_SPAN))
            ]
        )
        array = empty(node.shape)  # exact in float32: sixteen bits
        stored_flat(array)[...] = flat >> np.uint32(DROPPED_BITS)
        return array
