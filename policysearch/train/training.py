"""A training from its first step to its last, or to where it is stopped and gone on from."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from policysearch.data.datasets import Dataset
from policysearch.graph import FloatArray
from policysearch.nn.model import Model
from policysearch.policy.policy import Policy
from policysearch.rounding.rounder import Fast
from policysearch.train.checkpoint import Taken, read_checkpoint, training_digest, write_checkpoint
from policysearch.train.divergence import has_diverged
from policysearch.train.feeding import batch_order, initial_parameters
from policysearch.train.loss_scale import gave_up
from policysearch.train.run import Run, tail_of
from policysearch.train.tasks import Task
from policysearch.train.trainer import Trainer

Progress = Callable[[int, float], None]
"""Called after every step with the number of steps done and the loss."""


def train(
    task: Task,
    policy: Policy,
    seed: int,
    *,
    dataset: Dataset,
    model: Model | None = None,
    jitter: float = 0.0,
    progress: Progress | None = None,
    initial: Mapping[str, FloatArray] | None = None,
    batch_indices: NDArray[np.int64] | None = None,
    fast: Fast | None = None,
    until: int | None = None,
    checkpoint: Path | None = None,
    records: bool = True,
) -> Run:
    """Train `task` under `policy` on `dataset` and return what came of it.

    The seed fixes initial parameters and batches, whatever the policy, so runs with one seed are
    paired. `model` replaces the task's own; `initial` parameters and `batch_indices`
    [steps, batch_size] into the training part replay a given run. `fast` as in `check_fast`. The
    run is stopped after `until` of the steps; `checkpoint` is the file that it is then kept in, and
    gone on from to the same bits, until it has ended. What it loses is counted only if it
    `records`, which changes no bit. InputError where the policy does not fit the model.
    """
    model = task.build_model(dataset) if model is None else model
    trainer = Trainer(model, task, policy, seed, fast, records=records)
    initial = initial_parameters(model, seed, jitter) if initial is None else initial
    trainer.load(initial)
    if batch_indices is None:
        batch_indices = batch_order(task, dataset, seed)
    stop = min(until or task.steps, task.steps)
    named = task, model, dataset, policy, seed, initial, batch_indices
    of = training_digest(*named) if checkpoint else ""
    taken = _resume(trainer, checkpoint, of, stop)
    resumed_at = len(taken)
    with threadpool_limits(1):
        diverged = _take_steps(trainer, dataset, batch_indices[:stop], taken, progress)
        _keep(checkpoint, trainer, of, taken, diverged or stop == task.steps)
        return _run(trainer, dataset, taken, diverged, resumed_at, stop / task.steps)


def _resume(trainer: Trainer, path: Path | None, of: str, stop: int) -> Taken:
    """Let the trainer go on from its checkpoint, if there is one; return the steps it has."""
    checkpoint = read_checkpoint(path, of) if path else None
    if checkpoint is None or len(checkpoint.taken) > stop:
        return []
    trainer.restore(checkpoint)
    return list(checkpoint.taken)


def _keep(path: Path | None, trainer: Trainer, of: str, taken: Taken, ended: bool) -> None:
    if path and ended:
        path.unlink(missing_ok=True)
    elif path:
        write_checkpoint(path, trainer.checkpoint(of, taken))


def _take_steps(
    trainer: Trainer,
    dataset: Dataset,
    batch_indices: NDArray[np.int64],
    taken: Taken,
    progress: Progress | None,
) -> bool:
    """Take the steps that are not `taken` yet; return whether the run diverged in the last."""
    losses = [loss for loss, _, _ in taken]
    skipped = [skip for _, _, skip in taken]
    for indices in batch_indices[len(taken) :]:
        taken.append(trainer.step(*dataset.batch(indices)))
        losses.append(taken[-1][0])
        skipped.append(taken[-1][2])
        if progress is not None:
            progress(len(taken), losses[-1])
        ended = gave_up(trainer.policy.loss_scale, trainer.scale_state)
        if ended or has_diverged(losses, skipped):
            return True
    return False


def _run(
    trainer: Trainer,
    dataset: Dataset,
    taken: Taken,
    diverged: bool,
    resumed_at: int,
    share: float,
) -> Run:
    losses, scales, skipped = zip(*taken, strict=True)
    found, seen = trainer.evaluate(*dataset.validation), trainer.observations
    tail = math.inf if diverged else tail_of(losses, trainer.task.tail_steps, share)
    return Run(
        losses=np.array(losses, np.float64),
        scales=np.array(scales, np.float64),
        skipped=np.array(skipped, np.bool_),
        tail_loss=tail,
        validation_accuracy=found.accuracy,
        validation_gain=found.below_constant(dataset),
        validation_loss=found.mean_loss,
        loss_unit=found.unit,
        metric=found.metric,
        diverged=tail == math.inf,
        diverged_at=len(taken) - 1 if tail == math.inf else None,
        overflows=seen.probe.overflow_counts(),
        underflows=seen.probe.underflow_counts(),
        swamped=seen.watch.swamped(),
        lost=seen.lost(),
        origins=seen.origins.rows,
        params=trainer.params(),
        fast=trainer.fast,
        resumed_at=resumed_at,
    )
