"""A moving average of the parameters beside them: what torch calls an EMA `AveragedModel`.

Source: torch 2.13's `torch/optim/swa_utils.py`, `get_ema_multi_avg_fn`. Running statistics are not
averaged (`use_buffers=False`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from policysearch.formats import format_named
from policysearch.graph import Attrs, FloatArray, Graph, Node
from policysearch.ops.optimizers import update_op
from policysearch.ops.source import AVERAGE, STEP_NUMBER, state
from policysearch.values import InputError, number


def _average(inputs: Sequence[FloatArray], attrs: Attrs) -> FloatArray:
    """As `torch._foreach_lerp_`, whose formula changes at a half; the first update is a copy."""
    average, parameter, step = inputs
    if float(step) == attrs["first"]:
        return parameter.copy()
    share = np.float32(1.0 - attrs["decay"])
    apart = parameter - average
    if share < 0.5:
        return average + share * apart
    return parameter - apart * (np.float32(1.0) - share)


averaged_weight = update_op("averaged_weight", _average, 3)
"""average + (1 - decay) * (parameter - average); in the update that is the `first`, parameter."""


@dataclass(frozen=True)
class Average:
    """A moving average of the parameters, kept in format `storage`: none where `decay` is None."""

    decay: float | None = None
    storage: str = "float32"

    def __post_init__(self) -> None:
        if self.decay is not None:
            number("ema_decay", self.decay, 0.0, 1.0)
        try:
            format_named(self.storage)
        except InputError as error:
            raise InputError(f"ema_storage: {error}") from None
        if self.decay is None and self.storage != "float32":
            raise InputError(
                f"ema_storage: {self.storage!r} without ema_decay; expected it with one"
            )

    def beside(self, step: Graph, first: int) -> Graph:
        """Return the step, whose formats are chosen, with an average of each parameter it updates.

        Each is a state, the parameter's name and AVERAGE, that moves to the parameter as it is
        stored. `first` is the number of the first update.
        """
        if self.decay is None:
            return step
        nodes, updates = list(step.nodes), list(step.updates)
        attrs = (("decay", self.decay), ("first", first))
        for old, new in step.updates:
            parameter, moved = step.nodes[old], step.nodes[new]
            if parameter.op.name != "parameter":
                continue
            at = len(nodes)
            nodes += [self._kept(parameter, at), self._average_node(step, moved, at, attrs)]
            updates.append((at, at + 1))
        return replace(step, nodes=tuple(nodes), updates=tuple(updates))

    def _kept(self, parameter: Node, at: int) -> Node:
        name, shape = parameter.name + AVERAGE, (("shape", parameter.shape),)
        return replace(parameter, id=at, op=state, name=name, attrs=shape, format=self.storage)

    def _average_node(
        self, step: Graph, moved: Node, at: int, attrs: tuple[tuple[str, float], ...]
    ) -> Node:
        (count,) = (node.id for node in step.nodes if node.name == STEP_NUMBER)
        return Node(
            id=at + 1,
            op=averaged_weight,
            inputs=(at, moved.id, count),
            shape=moved.shape,
            role="update",
            layer=moved.layer,
            source=averaged_weight.name,
            format=self.storage,
            attrs=attrs,
        )
