"""The trainer: takes the steps of a training and keeps what is worth knowing of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np

from policysearch.emulator.arena import Arena
from policysearch.emulator.compile import Step, compile_graph
from policysearch.nn.model import NEXT, Model
from policysearch.policy.policy import Policy
from policysearch.rounding.rounder import Fast, check_fast
from policysearch.train.checkpoint import VERSION, Checkpoint, State, Taken
from policysearch.train.evaluation import Evaluation, evaluation
from policysearch.train.feeding import (
    KEPT,
    Array,
    as_stored,
    averaged,
    begin_averages,
    check_initial,
    feed_constants,
    feed_inputs,
    feed_masks,
    feed_rates,
    feed_scalars,
    feed_state,
    micro_batches,
)
from policysearch.train.loss_scale import initial_state, next_state, skips_update
from policysearch.train.observations import Observations, Past, observed_graph
from policysearch.train.origin import Where
from policysearch.train.tasks import Task

PROBE_INTERVAL = 20
"""Steps between those whose roundings are all observed: observing them takes time."""


class Trainer:
    """One training in progress: parameters, optimizer state, loss scale, compiled steps.

    A phase of the policy is compiled when it begins, twice: with every rounding observed, and
    without. The two take turns in one arena, and so do the phases; all share parameters and state.
    Unless it `records` nothing is observed. `graphs` gives the steps of a policy, the task's own if
    nothing else is said.
    """

    def __init__(
        self,
        model: Model,
        task: Task,
        policy: Policy,
        seed: int,
        fast: Fast | None = None,
        *,
        records: bool = True,
        graphs: Callable[[Policy], tuple[Any, ...]] | None = None,
    ) -> None:
        self.model, self.task, self.policy, self.seed = model, task, policy, seed
        self.fast = check_fast(fast)
        self.scale_state = initial_state(policy.loss_scale)
        self.updates_done = self.step_index = 0
        self.observations, self.records = Observations(), records
        self.arena = Arena()
        self._step_graphs = graphs or task.tracing(model, task.batch_size).step_graphs
        self._compiled: dict[tuple[bool, bool], Step] = {}
        self._shared: dict[str, Array] = {}
        self._sums: list[Array] = []
        self.phase = policy.at_step(0)
        self._enter(self.phase)

    def _enter(self, phase: Policy) -> None:
        """Take `phase` as the policy in force; what is kept moves to the formats it keeps it in."""
        if not self._compiled or phase != self.phase:
            self._compile(phase)
        self.phase, executable = phase, self._compiled[False, True]
        for node in executable.graph.nodes:
            if node.op.name in KEPT:
                array = self._shared.setdefault(node.name, executable.arrays[node.name])
                array[...] = as_stored(node, array)

    def _compile(self, phase: Policy) -> None:
        """Compile the steps of `phase` in the place of those of the phase before."""
        self._compiled.clear()
        self.observations.begin_phase()
        statistics = (NEXT + spec.name for spec in self.model.statistics())
        graphs = self._graphs = self._step_graphs(phase)
        wanted = ("loss", *statistics)
        sources = self._shared
        looks = (True, False) if self.records else (False,)
        for observed, last in product(looks, (True, False)[: len(graphs)]):
            graph = graphs[0].wanting("finite", *wanted) if last else graphs[1].wanting(*wanted)
            # the one that needs more of the arena comes first
            self._compiled[observed, last] = step = compile_graph(
                observed_graph(graph) if observed and last else graph,
                seed=self.seed,
                fast=self.fast,
                sources=sources,
                observer=self.observations.probe if observed else None,
                arena=self.arena,
            )
            sources = step.arrays
        sums = (node.name for node in graphs[0].nodes if node.op.name == "gradient_buffer")
        self._sums = [step.arrays[name] for name in sums]
        feed_constants(step, self.model)

    def load(self, params: Mapping[str, Array]) -> None:
        """Write the initial arrays (logical, by name), rounded to where they are kept.

        The optimizer goes on from the state that the model starts with.
        """
        specs = (*self.model.parameters(), *self.model.statistics())
        check_initial(specs, params)
        for spec in specs:
            self._shared[spec.name][...] = params[spec.name]
        feed_state(self._shared, self.model)
        begin_averages(self._shared, self.model)
        self.updates_done = self.model.updates_done
        self._enter(self.phase)

    def checkpoint(self, of: str, taken: Taken) -> Checkpoint:
        """Return all that the steps after those `taken` depend on, of the training `of`."""
        seen = self.observations.so_far
        state = State(of, VERSION, self.updates_done, self.scale_state, seen)
        arrays = {name: np.array(array, order="C") for name, array in self._shared.items()}
        return Checkpoint(state, list(taken), arrays)

    def restore(self, checkpoint: Checkpoint) -> None:
        """Go on after the steps of a checkpoint of the same training.

        Arrays are made by every phase in its turn, as they were: each lays out what it adds.
        """
        self.step_index = len(checkpoint.taken)
        first_steps = {phase.first_step for phase in self.policy.phases}
        for first in sorted(step for step in first_steps if 0 < step < self.step_index):
            self._enter(self.policy.at_step(first))
        for name, array in self._shared.items():
            array[...] = checkpoint.arrays[name]
        state = checkpoint.state
        self.updates_done, self.scale_state = state.updates_done, state.scale
        self.observations.restore(state.seen)

    def params(self) -> dict[str, Array]:
        """Return copies of the parameters and running statistics as they are kept now."""
        specs = (*self.model.parameters(), *self.model.statistics())
        names = [spec.name for spec in specs]
        return {name: np.array(self._shared[name], order="C") for name in names}

    def step(self, inputs: Sequence[Array], labels: Array) -> tuple[float, float, bool]:
        """Take one step on a batch; return its loss, its loss scale and whether it was skipped.

        The running statistics of the forward pass move in a skipped step too, as in torch.
        """
        if any(phase.first_step == self.step_index for phase in self.policy.phases):
            self._enter(self.policy.at_step(self.step_index))
        config, scale = self.policy.loss_scale, self.scale_state.scale
        probed = self.records and self.step_index % PROBE_INTERVAL == 0
        before = self.moving() if self.records else {}
        if self.records and self.observations.is_due:
            self._look_back()
            self.observations.keep(self._shared)
        executable, loss = self.forward_backward(probed, inputs, labels, scale)
        finite = config.kind == "none" or bool(executable.value("finite") == 1.0)
        look = not finite and not probed and self.records
        if look and self.observations.repeats(self.step_index):
            # What overflowed where is counted in steps that are not finite too. The forward and
            # backward pass can be run again, then with its roundings observed.
            self.put_back(before)
            executable, loss = self.forward_backward(True, inputs, labels, scale)
        skipped = skips_update(config, finite)
        taken = Past(self.step_index, self.updates_done, inputs, labels, scale, skipped)
        if not skipped:
            self._apply_updates(executable, probed)
            self.updates_done += 1
        if not np.isfinite(loss):  # behind the update: a trace takes steps where its values are
            self._trace("loss", taken)
        elif not finite:
            self._trace("gradients", taken)
        if self.records:
            self.observations.went_by(taken)
        if self.records and self.step_index == self.task.steps - 1:
            self._look_back()
        self.scale_state = next_state(config, self.scale_state, finite, self.step_index)
        self.step_index += 1
        return loss, scale, skipped

    def _apply_updates(self, executable: Step, probed: bool) -> None:
        watch = self.observations.watch
        if probed:
            watch.before(executable)
        executable.apply_updates()
        if probed:
            rate = self.task.rate_at(self.step_index)
            # An update is proportional to the rate, so that what is lost at the smallest rate of
            # the schedule can be told from an update at the present one.
            factor = self.task.smallest_rate / rate if rate else 1.0
            watch.after(executable, self.step_index, factor)

    def _parameters(self) -> list[Array]:
        return [self._shared[spec.name] for spec in self.model.parameters()]

    def _trace(self, found: Where, step: Past) -> None:
        """Note where the first failure of a step began that has gone through its gradients."""
        if self.records and self.observations.wants(found, step.skipped):
            now = self._array_copies()
            if self._again():
                self._trace_failure(found, step)
            self.put_back(now)

    def _look_back(self) -> None:
        """Note where a parameter became not finite in the steps that were taken since some."""
        if self.observations.is_broken(self._parameters()):
            now = self._array_copies()
            self._again()
            self.put_back(now)

    def _again(self) -> bool:
        """Take the past steps again; False at the first whose update was not finite, noted."""
        seen, now = self.observations, (self.step_index, self.updates_done)
        self.put_back(seen.kept)
        for step in seen.past:
            before = self._array_copies()
            self.step_index, self.updates_done = step.index, step.updates_done
            executable, _ = self.forward_backward(False, step.inputs, step.labels, step.scale)
            if not step.skipped:
                executable.apply_updates()
                if seen.is_broken(self._parameters()):
                    self.put_back(before)
                    self._trace_failure("update", step)
                    seen.ended = True
                    break
        self.step_index, self.updates_done = now
        return not seen.ended

    def _trace_failure(self, found: Where, step: Past) -> None:
        """Take a step from what it began with, every value kept, and note where it failed."""
        seen, count = self.observations, self.task.accumulation_steps
        for array in self._sums:
            array[...] = 0.0
        running = self._compiled[False, True]
        for place, batch in enumerate(micro_batches(step.inputs, step.labels, count)):
            last = place == count - 1
            tracer = seen.tracer(last, self._graphs[not last], self.seed, running)
            self._run(tracer.step, place + step.index * count, *batch, step.scale)
            if seen.origins.add(tracer.traced(), step.index, found, step.skipped):
                break
            if not last:
                tracer.step.apply_updates()
            for spec in self.model.statistics():
                self._shared[spec.name][...] = tracer.step.value(NEXT + spec.name)

    def _array_copies(self) -> dict[str, Array]:
        return {name: array.copy(order="K") for name, array in self._shared.items()}

    def moving(self) -> dict[str, Array]:
        """Return copies of what `forward_backward` moves: statistics, and the states of scales."""
        moved = {spec.name for spec in self.model.statistics()}
        for step in [step for (_, last), step in self._compiled.items() if not last]:
            moved |= {step.graph.nodes[old].name for old, _ in step.graph.updates}
        return {name: self._shared[name].copy(order="K") for name in moved & self._shared.keys()}

    def put_back(self, before: Mapping[str, Array]) -> None:
        """Let what `forward_backward` has moved be as it was."""
        for name, array in before.items():
            self._shared[name][...] = array

    def forward_backward(
        self, observed: bool, inputs: Sequence[Array], labels: Array, scale: float
    ) -> tuple[Step, float]:
        """Run the micro-batches of a step, all but the update; return the last, and their loss."""
        count, losses = self.task.accumulation_steps, list[float]()
        for array in self._sums:
            array[...] = 0.0
        for place, batch in enumerate(micro_batches(inputs, labels, count)):
            last = place == count - 1
            executable = self._compiled[observed, last]
            self._run(executable, place + self.step_index * count, *batch, scale)
            losses.append(float(executable.value("loss")))
            if not last:
                executable.apply_updates()
            for spec in self.model.statistics():
                self._shared[spec.name][...] = executable.value(NEXT + spec.name)
        return executable, sum(losses) / count

    def _run(
        self,
        executable: Step,
        number: int,
        inputs: Sequence[Array],
        labels: Array,
        scale: float,
    ) -> None:
        """Run one micro-batch, the `number`-th of the training."""
        # The counter of stochastic rounding: the same bits whichever executable takes the step.
        executable.step_index, self.observations.probe.step = number, self.step_index
        feed_inputs(executable, self.model, inputs, labels)
        feed_masks(executable, self.seed, number)
        # Adam's bias correction counts updates, not steps, as in torch.
        updates, momentum = self.updates_done + 1, self.task.momentum_at(self.step_index)
        feed_scalars(executable, scale, self.task.rate_at(self.step_index), updates, momentum)
        if self.task.groups:
            feed_rates(executable, partial(self.task.rate_at, self.step_index))
        executable.forward_backward()

    def accuracy(self, inputs: Sequence[Array], labels: Array) -> float | None:
        """Return the share of labels that the policy in force gets right, IGNORED ones left out.

        None where there are no classes to get right.
        """
        return self.evaluate(inputs, labels).accuracy

    def evaluate(self, inputs: Sequence[Array], labels: Array) -> Evaluation:
        """Return what the model makes of these examples under the policy in force.

        The model runs as in evaluation. A row of logits that is not finite counts as wrong.
        Averages take the place of parameters where the task validates with them.
        """
        arrays = self._shared
        if self.task.ema_validates:
            arrays = averaged(self._compiled[False, True], arrays)
        compiled = partial(compile_graph, seed=self.seed, fast=self.fast, sources=arrays)
        return evaluation(
            self.model,
            self.phase,
            (inputs, labels),
            self.task.batch_size,
            partial(compiled, arena=self.arena),
            seed=self.seed,
            loss=self.task.loss,
            metric=self.task.measured if self.task.metric else None,
        )
