"""What published methods measure of each decision before any training, on float32's own run."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from benchmarks.search.gradient_errors import moments, seen_under
from benchmarks.search.probes import probe_steps, probed_policies
from policysearch.formats import format_named
from policysearch.objective.objective import Objective
from policysearch.policy.policy import Policy
from policysearch.policy.presets import preset
from policysearch.rounding.rounder import quantise
from policysearch.search.hypervolume import Array
from policysearch.space.encoding import Encoding
from policysearch.space.space import Space
from policysearch.train.paired_run import Gradients, Moment


def scores(
    objective: Objective,
    space: Space,
    effective: Encoding,
    seed: int,
    steps: Sequence[int] | None = None,
) -> dict[str, Array]:
    """Return "loss" and "fisher" of each decision, in the order of `counted`; NaN for none.

    At these `steps` of float32's run, by default those of `probe_steps`.

    "loss" is the mean square by which it alone changes the loss of a batch (arXiv 2505.13060 has
    its first order), "fisher" the sum over its parameters of the squared gradient times the squared
    rounding of the parameter.
    """
    task, model = objective.task, objective.model
    steps = probe_steps(task.steps) if steps is None else steps
    met = moments(task, seed, steps, dataset=objective.dataset, model=model)
    exact = seen_under(task, preset("float32", model.layer_names), seed, met, model)
    loss, fisher = {}, {}
    for pair, policy in probed_policies(space, effective).items():
        low = seen_under(task, policy, seed, met, model)
        loss[pair] = np.mean([(a - b) ** 2 for (a, _), (b, _) in zip(low, exact, strict=True)])
        parts = zip(met, exact, strict=True)
        fisher[pair] = np.mean([_fisher(policy, moment, grads) for moment, (_, grads) in parts])
    counted = effective.decisions.counted()
    return {
        name: np.array([found.get(pair, np.nan) for pair in counted], dtype=float)
        for name, found in (("loss", loss), ("fisher", fisher))
    }


def _fisher(policy: Policy, moment: Moment, gradients: Gradients) -> float:
    found = 0.0
    for layer, formats in policy.layers:
        for name, value in moment.params.items():
            grad = gradients.get(f"grad:{name}")
            if name.rpartition(".")[0] == layer and grad is not None:
                moved = quantise(value, format_named(formats.compute)) - value
                found += float(np.sum((grad * moved) ** 2))
    return found
