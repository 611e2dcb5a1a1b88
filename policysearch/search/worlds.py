"""Ways in which all that is outstanding may come out together, drawn from what is believed.

What is outstanding shares its sensitivities with what is to be asked for. As if it had come out as
expected, many policies asked for at once would all rest on one guess of the level of the gaps; over
draws each of them is judged beside every way that may be.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular

from policysearch.search.hypervolume import Array
from policysearch.search.sensitivity import Belief, Joint, Sensitivity

LEAST_VARIANCE = 1e-10


@dataclass(frozen=True)
class World:
    """One draw: the scaled `gaps` [m] of what is outstanding.

    `belief` is that of other policies then, its weight the share of the world among those drawn.
    """

    gaps: Array
    belief: Belief


def worlds(
    belief: Sensitivity,
    outstanding: NDArray[np.int64],
    rows: NDArray[np.int64],
    draws: int,
    rng: np.random.Generator,
) -> list[World]:
    """Return `draws` worlds: the policies `outstanding` [m, places + modifiers] as drawn.

    In each is what is believed of `rows` [n, places + modifiers]. Sets of hyperparameters are
    drawn from as often as they count, and around each mean in pairs of opposite sign.
    """
    found = belief.joint(outstanding, rows, 0.5 / draws)
    weights = np.array([joint.others.weight for joint in found])
    ends = np.rint(np.cumsum(weights / weights.sum()) * draws).astype(int)
    return [
        world
        for joint, count in zip(found, np.diff(ends, prepend=0).tolist(), strict=True)
        for world in _drawn(joint, count, draws, rng)
    ]


def _drawn(joint: Joint, count: int, draws: int, rng: np.random.Generator) -> list[World]:
    """Return `count` worlds of one set of hyperparameters.

    With L the Cholesky factor of the covariance of what is outstanding, that is its mean plus L z;
    every other mean moves by its covariance over L, times z. Nothing is fitted anew.
    """
    factor = np.linalg.cholesky(joint.covariance)
    half = rng.standard_normal((len(factor), (count + 1) // 2))
    noise = np.concatenate([half, -half], axis=1)[:, :count]
    moves = solve_triangular(factor, joint.across, lower=True)
    gaps, means = joint.mean[:, None] + factor @ noise, joint.others.mean[:, None] + moves.T @ noise
    left = np.sqrt(np.maximum(joint.others.sd**2 - (moves * moves).sum(axis=0), LEAST_VARIANCE))
    return [World(gaps[:, k], Belief(1.0 / draws, means[:, k], left)) for k in range(count)]
