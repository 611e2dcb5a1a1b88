"""How far apart a net is as it is trained and as it samples: log-probabilities under two policies.

Reinforcement learning trains a net in one precision and samples from it in another; what that does
begins with the gap of the log-probabilities of the same tokens under the same weights (arXiv
2510.26788). It needs no sampling: labels that the net has not learned from are tokens as good.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from policysearch.data.datasets import Dataset
from policysearch.emulator.compile import compile_graph
from policysearch.graph import FloatArray
from policysearch.layout import in_storage_order
from policysearch.nn.model import Model
from policysearch.policy.policy import Policy
from policysearch.train.evaluation import Evaluation, evaluation
from policysearch.train.losses import loss_of
from policysearch.train.tasks import Task
from policysearch.train.training import train
from policysearch.train.user_code import Metric
from policysearch.values import InputError

LIKELIHOODS = ("softmax_cross_entropy", "token_cross_entropy")
"""Losses that are minus the log-probability of a label."""

SHARES = (0.25, 0.5, 1.0)


@dataclass(frozen=True)
class Mismatch:
    """Log-probabilities of validation labels as sampled minus as trained, after `step` steps.

    In nats: the mean of their absolute values, the largest, and the mean (a bias). `loss` is the
    mean of minus those as trained.
    """

    step: int
    mean: float
    largest: float
    bias: float
    loss: float


@dataclass(frozen=True, eq=False)
class Trained:
    """A model with the weights that it has after `step` steps of a training of `task`."""

    task: Task
    model: Model
    dataset: Dataset
    seed: int
    step: int
    weights: Mapping[str, FloatArray]

    def evaluation(self, policy: Policy, metric: Metric | None = None) -> Evaluation:
        """Return what the model makes of the validation part under `policy`, in its phase then."""
        return evaluation(
            self.model,
            policy.at_step(self.step - 1),
            self.dataset.validation,
            self.task.batch_size,
            partial(compile_graph, sources=self.weights, seed=self.seed),
            seed=self.seed,
            loss=self.task.loss,
            metric=metric,
        )

    def mismatch(self, policy: Policy, sampler: Policy) -> Mismatch:
        """Return how far the sampler is from the model as `policy` has it, with these weights."""
        trained, sampled = (self.log_probabilities(each) for each in (policy, sampler))
        apart = sampled - trained
        far = np.abs(apart)
        numbers = map(float, (far.mean(), far.max(), apart.mean(), -trained.mean()))
        return Mismatch(self.step, *numbers)

    def log_probabilities(self, policy: Policy) -> NDArray[np.float64]:
        """Return those of the validation labels under `policy`, in nats, [labels].

        They are of the logits in float64, as samplers take them in float32: neither rounds them.
        """
        losses = self.evaluation(policy).losses
        if losses is None:
            raise InputError("task.loss: no losses of single labels; expected classes as labels")
        return -losses


def trained_along(
    task: Task,
    policy: Policy,
    seed: int,
    shares: Sequence[float] = SHARES,
    samplers: Sequence[Policy] = (),
) -> Iterator[Trained]:
    """Yield the model with its weights at these shares of a training under `policy`.

    InputError where the loss of the task is no likelihood of labels, where one of the policies is
    for other layers, or where the training diverges.
    """
    dataset = task.load_dataset()
    model = task.build_model(dataset)
    if loss_of(model, task.loss) not in LIKELIHOODS:
        known = ", ".join(LIKELIHOODS)
        raise InputError(f"task.loss: {task.loss!r}; expected a likelihood of labels: {known}")
    for each in (policy, *samplers):
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
            weights = {name: in_storage_order(array) for name, array in run.params.items()}
            yield Trained(task, model, dataset, seed, until, weights)


def mismatches(
    task: Task, policy: Policy, sampler: Policy, seed: int, shares: Sequence[float] = SHARES
) -> Iterator[Mismatch]:
    """Yield the mismatch at these shares of a training under `policy`, sampled under `sampler`.

    InputError as in `trained_along`.
    """
    for row in trained_along(task, policy, seed, shares, (sampler,)):
        yield row.mismatch(policy, sampler)
