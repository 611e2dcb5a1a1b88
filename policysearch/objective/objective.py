"""Trains policies of one task, and prices them."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np

from policysearch.cost.device_file import device_at
from policysearch.cost.price import PolicyCost, StepPrice, compare, over_phases, step_price
from policysearch.cost.stacks import stack_named
from policysearch.data.datasets import Dataset
from policysearch.data.shared import shared
from policysearch.graph import Graph
from policysearch.nn.model import Model
from policysearch.objective.score import Measurement, Score, curve_of, score
from policysearch.policy.parallel import Parallel
from policysearch.policy.policy import Policy, stretched
from policysearch.policy.presets import preset
from policysearch.rewrite.recompute import layers_of_blocks, recomputed
from policysearch.rounding.rounder import Fast, check_fast
from policysearch.train.loss_scale import scale_changes
from policysearch.train.run import Run
from policysearch.train.tasks import Task, Tracing
from policysearch.train.training import train
from policysearch.values import number

JITTER = 1e-6
"""Relative change of the initial parameters: float32's loss moves by it as far as noise does.

That is the smallest gap that means anything, for it is far below any format's rounding."""

LARGEST_BATCH = 2**30
"""No step of more examples is priced."""


class Objective:
    """Trains policies of one task and prices them for one device and stack.

    `cost_batch_size` is the batch of the priced step, by default that of the task; in it the blocks
    of `recompute` are computed again in backward (`cost.recompute`), in float32 too. `fast` is how
    it trains; it changes no result. `parallel` is how float32 is spread over devices, beside which
    every policy is priced, spread as it says itself.
    """

    def __init__(
        self,
        task: Task,
        device: str,
        stack: str,
        cost_batch_size: int | None = None,
        fast: Fast | None = None,
        parallel: Parallel = Parallel(),
        recompute: tuple[str, ...] = (),
    ) -> None:
        self.task = task
        self.parallel = parallel
        self.fast = check_fast(fast)
        self.device = device_at(device)
        self.stack = stack_named(stack)
        self.cost_batch_size = task.batch_size if cost_batch_size is None else cost_batch_size
        number("batch of the priced step", self.cost_batch_size, 1, LARGEST_BATCH)
        self.recompute = recompute
        self._baselines: dict[int, Measurement] = {}
        self._tracings: dict[int, Tracing] = {}
        self._prices: dict[str, PolicyCost] = {}
        self._narrower: dict[float, Objective] = {}

    @cached_property
    def dataset(self) -> Dataset:
        """The task's data, loaded once."""
        return self.task.load_dataset()

    def shared_task(self) -> Task:
        """Return the task for processes that are started with it, which share its data.

        Where the system cannot share, each of them loads what it can load for itself.
        """
        with suppress(OSError):
            self.dataset = shared(self.dataset)
            return replace(self.task, data=self.dataset)
        return self.task

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
            self._tracings[batch] = Tracing(self.task, self.model, batch)
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

    def measure(
        self,
        policy: Policy,
        seed: int,
        jitter: float = 0.0,
        steps: int | None = None,
        until: int | None = None,
        checkpoint: Path | None = None,
        width: float = 1.0,
    ) -> Measurement:
        """Train under `policy` and return what was seen; equal arguments give equal results.

        `steps` other than the task's stretch or shorten the whole recipe, its tail included, and
        the policy's phases and scheduled loss scale with it. `until` and `checkpoint` as in
        `train.training.train`. `width` below 1 trains the net of `narrower` instead.
        """
        if width != 1.0:
            return self.narrower(width).measure(policy, seed, jitter, steps, until, checkpoint)
        if steps is not None:
            policy = stretched(policy, steps / self.task.steps)
        task = self.task if steps is None else self.task.with_steps(steps)
        run = train(
            task,
            policy,
            seed,
            dataset=self.dataset,
            model=self.model,
            jitter=jitter,
            fast=self.fast,
            until=until,
            checkpoint=checkpoint,
        )
        return _measurement(run, task, policy)

    def narrower(self, width: float) -> Objective:
        """Return the same for a net of `width` of the widths, made once; see `Task.narrower`."""
        if width not in self._narrower:
            task = replace(self.task.narrower(width), data=self.dataset)
            where = self.device.name, self.stack.name, self.cost_batch_size
            self._narrower[width] = Objective(task, *where, self.fast)
        return self._narrower[width]

    def baseline(self, seed: int) -> Measurement:
        """Return the float32 run with `seed`, trained once."""
        if seed not in self._baselines:
            self._baselines[seed] = self.measure(self.float32, seed)
        return self._baselines[seed]

    def evaluate(self, policy: Policy, seed: int) -> Score:
        """Return the score of `policy` with one training seed."""
        return score(self.measure(policy, seed), self.baseline(seed), self.price(policy))


def _measurement(run: Run, task: Task, policy: Policy) -> Measurement:
    return Measurement(
        tail_loss=float(run.tail_loss) if np.isfinite(run.tail_loss) else None,
        validation_accuracy=run.validation_accuracy,
        diverged_at=run.diverged_at,
        skipped_steps=int(np.count_nonzero(run.skipped)),
        overflows=tuple((str(layer), int(count)) for layer, count in run.overflows),
        underflows=tuple((str(layer), int(count)) for layer, count in run.underflows),
        curve=curve_of(run.losses, task.steps, task.tail_steps),
        fast=run.fast,
        swamped=run.swamped,
        lost=run.lost,
        scales=scale_changes(policy.loss_scale, run.scales),
        skips=tuple(int(step) for step in np.flatnonzero(run.skipped)),
        first_loss=float(run.losses[0]) if np.isfinite(run.losses[:1]).all() else None,
        resumed_at=run.resumed_at,
    )
