"""Trains policies of one task, and prices them."""

from __future__ import annotations

import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from policysearch.data.shared import shared
from policysearch.objective.priced_net import PricedNet
from policysearch.objective.pricing import Pricing
from policysearch.objective.score import Measurement, Score, measurement_of, score
from policysearch.policy.parallel import Parallel
from policysearch.policy.policy import Policy, stretched
from policysearch.rounding.rounder import Fast, check_fast, is_on_torch
from policysearch.train.constant import Constant, constant_of
from policysearch.train.losses import loss_of
from policysearch.train.tasks import Task
from policysearch.train.training import train

JITTER = 1e-6
"""Relative change of the initial parameters: float32's loss moves by it as far as noise does.

That is the smallest gap that means anything, for it is far below any format's rounding."""


class Objective(Pricing):
    """Trains policies of one task, and prices them for one device and stack as `Pricing` does.

    `fast` is how it trains; of those in FASTS none changes a result. Whether torch is there is
    asked where it trains.
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
        net: PricedNet | None = None,
    ) -> None:
        self.fast = fast if is_on_torch(fast) else check_fast(fast)
        super().__init__(task, device, stack, cost_batch_size, parallel, recompute, net)
        self._baselines: dict[int, Measurement] = {}
        self._narrower: dict[float, Objective] = {}

    def shared_task(self) -> Task:
        """Return the task for processes that are started with it, which share its data.

        Where the system cannot share, each of them loads what it can load for itself.
        """
        with suppress(OSError):
            self.dataset = shared(self.dataset)
            return replace(self.task, data=self.dataset)
        return self.task

    @property
    def constant(self) -> Constant | None:
        """What the best predictor that ignores its inputs gets of the task's data, if known."""
        outputs = self.task.outputs_of(self.model)
        return constant_of(self.dataset, loss_of(self.model, self.task.loss), outputs)

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
        started = time.perf_counter()
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
            records=not jitter,  # only the loss of such a run is asked for
        )
        seconds = round(time.perf_counter() - started, 3)
        return replace(measurement_of(run, task, policy), wall_seconds=seconds)

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
