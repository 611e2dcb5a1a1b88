"""The steps of one task under any policy; what no policy changes is traced once."""

from __future__ import annotations

from policysearch.graph import Graph
from policysearch.nn.model import Model
from policysearch.policy.policy import Policy
from policysearch.rewrite.policy_pass import apply_policy
from policysearch.train.step import trace_step
from policysearch.train.tasks import Task


class Tracing:
    """Traces the float32 step of a task, once for each norm that gradients are clipped to."""

    def __init__(self, task: Task, model: Model, batch_size: int) -> None:
        self._task, self._model, self._batch_size = task, model, batch_size
        self._float32: dict[float | None, Graph] = {}

    def step_graph(self, policy: Policy) -> Graph:
        """Return one training step under `policy`; InputError where it does not fit the model."""
        policy.check_layers(self._model.layer_names)
        clip_norm = policy.gradient_clip_norm
        if clip_norm not in self._float32:
            task, optimizer = self._task, self._task.build_optimizer()
            self._float32[clip_norm] = trace_step(
                self._model, task.loss, optimizer, self._batch_size, clip_norm
            )
        return apply_policy(self._float32[clip_norm], policy)
