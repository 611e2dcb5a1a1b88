"""What float32's own run says of each decision before any training under it.

A decision is probed by the error of the gradients that it alone makes, at a few steps of float32's
run: what it costs is learned from trainings, which decision costs more than another is guessed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np

from benchmarks.search.gradient_errors import gradient_errors
from policysearch.objective.objective import Objective
from policysearch.policy.policy import Policy
from policysearch.search.hypervolume import Array
from policysearch.space.decided.base import Params
from policysearch.space.encoding import Encoding
from policysearch.space.space import Space

AT = (0.0, 0.125, 0.25, 0.5)
"""Where along the run decisions are probed, as shares of its steps."""


def probe_steps(steps: int) -> list[int]:
    """Return the steps of a run of so many that are probed."""
    return sorted({int(steps * share) for share in AT})


def probed_policies(space: Space, effective: Encoding) -> dict[tuple[int, int], Policy]:
    """Return by (place, option) a policy in which that decision alone is not float32's.

    Only what a group of layers decides by its format is probed, with where its parameters are
    stored, its scaling and its accumulator; nothing in a space without float32.
    """
    choices, counted = space.choices(), set(effective.decisions.counted())
    if "float32" not in space.section.formats:
        return {}
    shared = [n for n in ("master_weights", "accumulator", "scaling") if n in choices]
    first = {n: "fp32" if n.startswith("op.") else values[0] for n, values in choices.items()}
    plain = first | {f"format.{group.name}": "float32" for group in space.groups}
    found: dict[tuple[int, int], Policy] = {}
    every = product(space.groups, space.section.formats, *(choices[n] for n in shared))
    for group, name, *values in every:
        params = plain | dict(zip(shared, values, strict=True))
        without = effective.row(_known(params, choices))
        params = _known(params | {f"format.{group.name}": name}, choices)
        row = effective.row(params)
        pairs = enumerate(zip(row, without, strict=True))
        made = [(i, a) for i, (a, b) in pairs if a != b and (i, a) in counted]
        if len(made) == 1:
            found.setdefault(made[0], space.policy(params))
    return found


def _known(params: Params, choices: Params) -> Params:
    return {name: value for name, value in params.items() if name in choices}


def probes(
    objective: Objective,
    space: Space,
    effective: Encoding,
    seed: int,
    steps: Sequence[int] | None = None,
) -> Array:
    """Return the logarithm of each decision's gradient error, in the order of `counted`.

    At these `steps` of float32's run, by default those of `probe_steps`.

    NaN for what is not probed or gives no finite gradient. It takes `probe_cost` trainings, and
    the steps of float32's run up to the last that is probed.
    """
    policies = probed_policies(space, effective)
    task = objective.task
    errors = gradient_errors(
        task,
        list(policies.values()),
        seed,
        probe_steps(task.steps) if steps is None else steps,
        dataset=objective.dataset,
        model=objective.model,
    )
    energies = dict(zip(policies, errors.tolist(), strict=True))
    found = [energies.get(pair, np.nan) for pair in effective.decisions.counted()]
    with np.errstate(divide="ignore"):
        logs = np.log(np.array(found, dtype=float))
    return np.where(np.isfinite(logs), logs, np.nan)


def probe_cost(space: Space, effective: Encoding, steps: int) -> float:
    """Return what probing takes in trainings of `steps`: a forward and a backward pass each."""
    return len(probed_policies(space, effective)) * len(probe_steps(steps)) / steps
