"""Prices policies of one task."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from itertools import pairwise

from policysearch.cost.gemm import is_convolution
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
from policysearch.policy.parallel import Parallel
from policysearch.policy.policy import Policy
from policysearch.policy.presets import TF32, preset
from policysearch.rewrite.recompute import layers_of_blocks, recomputed
from policysearch.train.step import SMALLEST_BATCH, Tracing, trace_forward
from policysearch.train.tasks import Task
from policysearch.values import number

LARGEST_BATCH = 2**30
"""No step of more examples is priced."""


class Pricing:
    """Prices policies of one task for one device and stack.

    `cost_batch_size` is the batch of the priced step, by default that of the task; in it the blocks
    of `recompute` are computed again in backward (`rewrite.recompute`), in float32 too. `parallel`
    is how float32 is spread over devices; a policy is priced spread as it says itself.
    """

    def __init__(
        self,
        task: Task,
        device: str,
        stack: str,
        cost_batch_size: int | None,
        parallel: Parallel,
        recompute: tuple[str, ...],
    ) -> None:
        self.task = task
        self.parallel = parallel
        self.device, self.stack = device_and_stack(device, stack)
        self.cost_batch_size = task.batch_size if cost_batch_size is None else cost_batch_size
        number("batch of the priced step", self.cost_batch_size, 1, LARGEST_BATCH)
        self.recompute = recompute
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
        batch = policy.parallel.batch(self.cost_batch_size)
        if batch not in self._tracings:
            self._tracings[batch] = self.task.tracing(self.model, batch)
        return self.recomputed(self._tracings[batch].step_graph(policy))

    def recomputed(self, graph: Graph) -> Graph:
        """Return a step of the model in which its blocks are computed again in backward."""
        return recomputed(graph, layers_of_blocks(self.model.layer_names, self.recompute))

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


def default_float32(objective: Pricing) -> Policy:
    """Return what the stack makes of float32 unless told otherwise: some products in tfloat32.

    The layers without such products, all of them where the device lacks tfloat32, compute in
    float32.
    """
    gemms = [n for n in trace_forward(objective.model, SMALLEST_BATCH).nodes if n.op.kind == "gemm"]
    narrow = {n.layer for n in gemms if objective.stack.float32_of(is_convolution(n)) == "tfloat32"}
    if "tfloat32" not in objective.device.formats:
        narrow = set()
    strict = {name: row for name, row in objective.float32.layers if name not in narrow}
    return preset(TF32, objective.model.layer_names).with_layers(strict, "default float32")
