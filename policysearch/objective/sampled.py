"""How far apart a net is as it is trained and as it samples: log-probabilities under two policies.

Reinforcement learning trains a net in one precision and samples from it in another; what that does
begins with the gap of the log-probabilities of the same tokens under the same weights (arXiv
2510.26788). It needs no sampling: labels that the net has not learned from are tokens as good.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from policysearch.data.datasets import Dataset
from policysearch.graph import FloatArray
from policysearch.nn.model import Model
from policysearch.policy.policy import Policy
from policysearch.rounding.rounder import check_fast
from policysearch.train.evaluation import evaluation
from policysearch.train.losses import loss_of
from policysearch.train.tasks import Task
from policysearch.train.training import train
from policysearch.values import InputError

LIKELIHOODS = ("softmax_cross_entropy", "token_cross_entropy")
"""Losses that are minus the log-probability of a label."""

SHARES = (0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Mismatch:
    """Log-probabilities of validation labels as sampled minus as trained, after `step` steps.

    In nats: the mean of their absolute values, the largest, and the mean (a bias).
    """

    step: int
    mean: float
    largest: float
    bias: float


def mismatches(
    task: Task, policy: Policy, sampler: Policy, seed: int, shares: Sequence[float] = SHARES
) -> Iterator[Mismatch]:
    """Yield the mismatch at these shares of a training under `policy`, sampled under `sampler`.

    InputError where the loss of the task is no likelihood of labels, or the training diverges.
    """
    dataset = task.load_dataset()
    model = task.build_model(dataset)
    if loss_of(model, task.loss) not in LIKELIHOODS:
        known = ", ".join(LIKELIHOODS)
        raise InputError(f"task.loss: {task.loss!r}; expected a likelihood of labels: {known}")
    for each in (policy, sampler):
        each.check_layers(model.layer_names)
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder) / "checkpoint"
        for share in shares:
            until = max(1, round(share * task.steps))
            run = train(
                task, policy, seed, dataset=dataset, model=model, until=until, checkpoint=kept
            )
            if run.diverged:
                raise InputError(f"policy {policy.name!r}: diverges; expected one that trains")
            trained, sampled = (
                _log_probabilities(model, dataset, task, each.at_step(until - 1), run.params, seed)
                for each in (policy, sampler)
            )
            apart = sampled - trained
            yield Mismatch(
                until,
                float(np.mean(np.abs(apart))),
                float(np.max(np.abs(apart))),
                float(np.mean(apart)),
            )


def _log_probabilities(
    model: Model,
    dataset: Dataset,
    task: Task,
    policy: Policy,
    params: dict[str, FloatArray],
    seed: int,
) -> NDArray[np.float64]:
    found = evaluation(
        model,
        policy,
        params,
        dataset.validation,
        task.batch_size,
        loss=task.loss,
        seed=seed,
        fast=check_fast(None),
    )
    if found.losses is None:
        raise InputError("task.loss: no losses of single labels; expected classes as labels")
    return -found.losses
