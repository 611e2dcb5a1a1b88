"""What float32's own run says of each decision before any training under it."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
from numpy.typing import NDArray

from policysearch.objective.objective import Objective
from policysearch.objective.rounding_errors import LayerErrors, rounding_errors
from policysearch.policy.policy import Policy
from policysearch.space.encoding import PER_LAYER, Encoding
from policysearch.space.space import Space

AT = (0.0, 0.125, 0.25, 0.5)
"""Where along the run decisions are probed, as shares of its steps."""

SHARED = ("master_weights", "accumulator", "scaling")
"""Decided for all layers, and part of what a layer's format does."""

MOST = 32
"""Policies probed at each of these steps; a decision that is in none of them has no probe."""

COLUMNS = ("loss", "lost")
"""What is told of each decision."""

Array = NDArray[np.float64]


def probe_steps(steps: int) -> list[int]:
    """Return the steps of a run of so many that are probed."""
    return sorted({int(steps * share) for share in AT})


def probed_policies(space: Space) -> list[tuple[Policy, dict[str, object]]]:
    """Return policies that decide the same for all layers, with their parameters.

    Each format with all that is shared, and then each other decision of layers beside each format.
    """
    choices, groups = space.choices(), [group.name for group in space.groups]
    first = {n: "fp32" if n.startswith("op.") else values[0] for n, values in choices.items()}
    kinds = {
        kind: list(dict.fromkeys(v for g in groups for v in choices.get(f"{kind}.{g}", ())))
        for kind in PER_LAYER
    }
    shared = {name: choices[name] for name in SHARED if name in choices}
    found: dict[str, tuple[Policy, dict[str, object]]] = {}
    for kind, values in kinds.items():
        others = [{}] if kind == "format" else [{kind: value} for value in values[1:]]
        for format, other, *rest in product(kinds["format"], others, *shared.values()):
            params = first | dict(zip(shared, rest, strict=True))
            for name, value in ({"format": format} | other).items():
                params |= {n: value for g in groups if value in choices.get(n := f"{name}.{g}", ())}
            policy = space.policy(params)
            found.setdefault(policy.digest, (policy, params))
    return list(found.values())[:MOST]


def probes(objective: Objective, space: Space, encoding: Encoding, seed: int) -> Array:
    """Return what float32's run with `seed` says of each decision: [decisions, 2].

    In the order of `Decisions.counted`, the logarithms of `LayerErrors`: what rounding does to the
    loss, and to updates of what is stored. NaN where it does nothing, gives nothing finite, or was
    not probed. It takes `probe_cost` trainings.
    """
    policies = probed_policies(space)
    given = [policy for policy, _ in policies]
    errors = rounding_errors(objective, given, seed, probe_steps(objective.task.steps))
    layers = {group.name: group.layers for group in space.groups}
    counted = {pair: i for i, pair in enumerate(encoding.decisions.counted())}
    found = np.full((len(counted), len(COLUMNS)), np.nan)
    for (_, params), by_layer in zip(policies, errors, strict=True):
        for place, option in enumerate(encoding.row(params)[: len(encoding.places)]):
            _, _, group = encoding.places[place].partition(".")
            at = counted.get((place, option))
            if at is not None and group in layers and np.isnan(found[at]).all():
                each = [by_layer.get(layer, LayerErrors()) for layer in layers[group]]
                found[at] = [_log(sum(getattr(e, name) for e in each)) for name in COLUMNS]
    return found


def _log(value: float) -> float:
    return math.log(value) if 0.0 < value < math.inf else math.nan


def probe_cost(space: Space, steps: int) -> float:
    """Return what probing takes in trainings of `steps`: float32's run and a pass each."""
    passes = len(probed_policies(space)) * len(probe_steps(steps))
    return (max(probe_steps(steps)) + 2 + passes) / steps
