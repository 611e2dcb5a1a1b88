"""The optimizer of torch that does as a row says, and what the emulator draws for its updates."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from policysearch.emulator.nodes import draws
from policysearch.graph import Node, size
from policysearch.layout import empty, stored_flat
from policysearch.nn.model import NEXT, Model
from policysearch.optimizers.optimizer import Optimizer, Rule
from policysearch.policy.policy import Policy
from policysearch.rounding.grid import KEY_SPAN, MASK64, mix64, span_key
from policysearch.rounding.stochastic import draws_of
from policysearch.train.groups import Group
from policysearch.train.tasks import Task
from policysearch.values import InputError

SMALL_RATE = 1e-5
"""A learning rate at which nothing moves far, for steps that are timed."""


def torch_optimizer(
    optimizer: Optimizer, parameters: list[Any], rate: float, fused: bool | None = None
) -> torch.optim.Optimizer:
    """Return torch's optimizer of parameters, or groups of them; two where it takes two, as one.

    `fused`: in one kernel, or operation by operation; None leaves it to torch. InputError where
    torch has no such optimizer, or no such kernel of it.
    """
    first = optimizer.in_torch()
    if fused and not first.fused:
        raise InputError(
            f"optimizer_order: 'fused' with {optimizer.kind!r}; expected 'eager', "
            f"torch.optim.{first.name} has no fused kernel"
        )
    made = []
    for part in optimizer.rule.parts:
        own = list(_taken(optimizer, part, parameters))
        row = part.torch
        assert row is not None, part.name
        if not own:
            continue
        arguments = {"lr": rate, "weight_decay": optimizer.weight_decay, **row.arguments(optimizer)}
        if row.fused and fused is not None:
            arguments["fused"] = fused
        of_torch: type[torch.optim.Optimizer] = getattr(torch.optim, row.name)
        made.append(of_torch(own, **arguments))
    return made[0] if len(made) == 1 else SideBySide(made)


def _taken(optimizer: Optimizer, part: Rule, parameters: list[Any]) -> Iterator[Any]:
    """Yield the parameters, or groups of them, that a part of the row moves."""
    for given in parameters:
        group = given if isinstance(given, dict) else {"params": [given]}
        own = [p for p in group["params"] if optimizer.rule.of(tuple(p.shape)) is part]
        if own:
            yield {**group, "params": own} if isinstance(given, dict) else given


class SideBySide(torch.optim.Optimizer):
    """Optimizers that step together, each on those of its groups that are in `param_groups`.

    Groups and states are theirs: a rate that a scheduler writes is read by the one it is for.
    """

    def __init__(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        self._each = [(one, list(one.param_groups)) for one in optimizers]
        super().__init__([dict(group) for _, own in self._each for group in own], {})
        self.param_groups = [group for _, own in self._each for group in own]
        for one in optimizers:
            self.state.update(one.state)
            one.state = self.state

    def step(self, closure: Any = None) -> None:
        """Let each take its step."""
        for one, own in self._each:
            one.param_groups = [x for x in own if any(x is group for group in self.param_groups)]
            one.step()
            one.param_groups = own


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
        grouped: Mapping[str, Group],
    ) -> None:
        statistics = (NEXT + spec.name for spec in model.statistics())
        whole = task.tracing(model, task.batch_size).step_graphs(policy)[0]
        graph = whole.wanting("finite", "loss", *statistics)
        self._seed, self._count = mix64(seed & MASK64), task.accumulation_steps
        self._new = {graph.nodes[old].name: graph.nodes[new] for old, new in graph.updates}
        self._names = {id(tensor): name for name, tensor in tensors.items()}
        of_task = task.build_optimizer()
        moving = {name: group.moved_by(of_task) for name, group in grouped.items()}
        self._states = {
            name: [*moving.get(name, of_task).rule.kept(tuple(tensor.shape))]
            for name, tensor in tensors.items()
        }
        self.begin(0)

    def begin(self, step: int) -> None:
        """Draw for the update of a step from now on."""
        # the last micro-batch of a step makes its update
        self._number = (step + 1) * self._count - 1

    def __call__(self, values: Any, parameter: Any, place: int | None) -> torch.Tensor:
        """Return the bits for a new parameter (`place` None) or one of its states, int32."""
        name = self._names[id(parameter)]
        node = self._new[name if place is None else f"{name}.{self._states[name][place]}"]
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
