"""Prices policies of one task."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from itertools import pairwise

from policysearch.cost.price import (
    PolicyCost,
    StepPrice,
    compare,
    device_and_stack,
    over_phases,
    step_price,
)
from policysearch.data.datasets import Dataset
from policysearch.graph import Graph
from policysearch.nn.model import Model
from policysearch.objective.priced_net import PricedNet, for_priced, priced_groups, stand_ins
from policysearch.policy.parallel import Parallel
from policysearch.policy.policy import Policy
from policysearch.policy.presets import preset
from policysearch.rewrite.recompute import layers_of_blocks, recomputed
from policysearch.train.step import Tracing
from policysearch.train.tasks import Task
from policysearch.values import InputError, number

LARGEST_BATCH = 2**30
"""No step of more examples is priced."""


class Pricing:
    """Prices policies of one task for one device and stack.

    `cost_batch_size` is the batch of the priced step, of each of its micro-batches where the task
    has several, by default that of the task; in it the blocks
    of `recompute` are computed again in backward (`rewrite.recompute`), in float32 too. `parallel`
    is how float32 is spread over devices; a policy is priced spread as it says itself. With a
    `net` the step is that of another net, whose layers have the formats of those that are trained.
    """

    def __init__(
        self,
        task: Task,
        device: str,
        stack: str,
        cost_batch_size: int | None,
        parallel: Parallel,
        recompute: tuple[str, ...],
        net: PricedNet | None = None,
    ) -> None:
        self.task = task
        self.parallel = parallel
        self.device, self.stack = device_and_stack(device, stack)
        self.cost_batch_size = task.batch_size if cost_batch_size is None else cost_batch_size
        number("batch of the priced step", self.cost_batch_size, 1, LARGEST_BATCH)
        self.recompute = recompute
        self.net = net
        self._tracings: dict[int, Tracing] = {}
        self._prices: dict[str, PolicyCost] = {}

    @cached_property
    def dataset(self) -> Dataset:
        """The task's data, loaded once."""
        return self.task.load_dataset()

    @cached_property
    def model(self) -> Model:
        """The task's model for its data."""
        return self.task.build_model(self.dataset)

    @cached_property
    def priced_task(self) -> Task:
        """The task of the net that is priced, its parameter groups those of the counterparts."""
        if self.net is None:
            return self.task
        groups = priced_groups(self.task.groups, self.priced_model, self.model, self._stand_ins)
        return replace(self._ungrouped_task, groups=groups)

    @cached_property
    def _ungrouped_task(self) -> Task:
        assert self.net is not None
        return self.net.task(self.task, self.dataset)

    @cached_property
    def priced_model(self) -> Model:
        """The net that is priced; InputError where it cannot be made."""
        if self.net is None:
            return self.model
        try:
            return self._ungrouped_task.untrained_model(self._ungrouped_task.load_dataset())
        except InputError as error:
            raise InputError(f"cost.net: {error}") from None

    @cached_property
    def _stand_ins(self) -> dict[str, str]:
        return {} if self.net is None else stand_ins(self.priced_model, self.model)

    def trained_layer(self, name: str) -> str:
        """Return the layer of the trained net that a priced layer has its formats from."""
        return self._stand_ins.get(name, name)

    @cached_property
    def float32(self) -> Policy:
        """The policy every other is compared with."""
        return preset("float32", self.model.layer_names)

    @cached_property
    def float32_price(self) -> StepPrice:
        """The modeled step under float32, made once."""
        return self.step_price(replace(self.float32, parallel=self.parallel))

    def check_price(self) -> None:
        """Raise InputError where float32 has no price: that is a mistake of the study."""
        _ = self.float32_price

    def step_graph(self, policy: Policy) -> Graph:
        """Return the priced step under `policy`, every cast a node, on the batch of one group."""
        return self.graph_at(policy, policy.parallel.batch(self.cost_batch_size))

    def graph_at(self, policy: Policy, batch: int) -> Graph:
        """Return the same step on another batch; the blocks of `recompute` are computed again."""
        if batch not in self._tracings:
            self._tracings[batch] = self.priced_task.tracing(self.priced_model, batch)
        if self.net is not None:
            policy.check_layers(self.model.layer_names)
            policy = for_priced(policy, self._stand_ins)
        blocks = layers_of_blocks(self.priced_model.layer_names, self.recompute)
        return recomputed(self._tracings[batch].step_graph(policy), blocks)

    def price(self, policy: Policy) -> PolicyCost:
        """Return the modeled cost of a step, the mean one over its phases; nothing is trained.

        Equal policies are priced once: a search asks when it weighs one and when it records it.
        """
        digest = policy.digest
        if digest not in self._prices:
            self._prices[digest] = self._price(policy)
        return self._prices[digest]

    def _price(self, policy: Policy) -> PolicyCost:
        starts = [0, *self.phase_starts(policy)]
        lengths = [end - start for start, end in pairwise([*starts, self.task.steps])]
        costs = [self._step_cost(policy.at_step(start)) for start in starts]
        return over_phases(list(zip(lengths, costs, strict=True)))

    def phase_starts(self, policy: Policy) -> tuple[int, ...]:
        """Return the first steps of the policy's phases that the run comes to."""
        firsts = (phase.first_step for phase in policy.phases)
        return tuple(first for first in firsts if first < self.task.steps)

    def _step_cost(self, policy: Policy) -> PolicyCost:
        graph = self.step_graph(policy)
        spread = step_price(graph, self.device, self.stack, policy)
        return compare(graph, spread, self.float32_price)

    def step_price(self, policy: Policy) -> StepPrice:
        """Return the modeled first step kernel by kernel, and its memory part by part."""
        return step_price(self.step_graph(policy), self.device, self.stack, policy)
