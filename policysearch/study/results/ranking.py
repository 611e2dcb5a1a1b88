"""Whether a recipe can rank policies: how far gaps stray, beside what float32 itself learns."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np

from policysearch.nn.model import Model
from policysearch.search.fidelity import ranks
from policysearch.study.results.learning import Learned as Learned
from policysearch.study.results.noise import MOST_SEEDS, Interval
from policysearch.train.tasks import Task
from policysearch.train.user_code import is_user_code

RESOLUTION = 10.0
"""An effect is claimed from this many times the noise floor on."""

WANTED_SHARE = 0.01
"""A gap of this share of float32's loss drop must be told for a verdict; see docs/noise.md."""

FEWEST = 8
"""Fewer policies with a spread do not speak for the recipe."""

ERRORS = 2.0
"""So many standard errors are what a mean gap may be off by, over many policies."""

KINKED = ("relu",)
"""Activations with a kink: a change of the last bit there becomes one of the gradient."""


def cannot_rank(
    learned: Learned | None,
    noise_gap: float | None,
    intervals: Sequence[Interval | None],
    task: Task,
    seeds: int,
    share: float = WANTED_SHARE,
) -> str:
    """Say why the recipe cannot rank policies, and what to change; "" where it can, or unknown.

    It can where float32 learns, ten times the noise floor is within `share` of float32's drop, and
    at least half of the policies with a spread are told from float32 or known to lie within that.
    """
    if learned is None or learned.fault:
        return learned.fault if learned else ""
    unit = "" if learned.unit == "loss" else f" {learned.unit}"
    wanted, drop = share * learned.drop, f"{learned.drop:.2g}{unit} float32 learns"
    if RESOLUTION * (noise_gap or 0.0) > wanted:
        moved = RESOLUTION * (noise_gap or 0.0) / learned.drop
        return _said(
            f"float32's initial weights jittered by 1e-6 move its loss by {noise_gap:.1e}"
            f"{unit}, and ten times that is {moved:.1%} of the {drop} "
            f"(at most {share:.0%})",
            _calmer(task),
        )
    known = [i for i in intervals if i is not None and i.error > 0.0]
    lost = [i for i in known if undecided(i, wanted)]
    if len(known) < FEWEST or 2 * len(lost) <= len(known):
        return ""
    # The error of a mean falls as one over the root of the number of seeds: so many more bring the
    # median error of the undecided down to what is wanted.
    error = sorted(interval.error for interval in lost)[len(lost) // 2]
    more = math.ceil(seeds * (ERRORS * error / wanted) ** 2)
    return _said(
        f"over the seeds, {len(lost)} of {len(known)} policies are neither told from float32 nor "
        f"known to be within {share:.0%} of the {drop}",
        f"study.seeds: {more} instead of {seeds}" if more <= MOST_SEEDS else _calmer(task),
    )


def _said(why: str, change: str) -> str:
    return f"this recipe cannot rank policies: {why}; change: {change}"


def _calmer(task: Task) -> str:
    smooth = f", or a smooth task.activation as tanh (now {task.activation})"
    smooth *= task.activation in KINKED
    if isinstance(task.model, Model) or is_user_code(task.model):
        smooth = ", or smooth activations in your net, as tanh or GELU for ReLU"
    return f"a lower task.learning_rate (now {task.learning_rate:g}){smooth}"


def undecided(interval: Interval, wanted: float) -> bool:
    """Whether a mean gap is neither told from zero nor known to within `wanted` nats."""
    off = ERRORS * interval.error
    return off > wanted and off > abs(interval.mean)


def split_half(gaps: Sequence[Sequence[float]]) -> float | None:
    """Return the rank correlation of policies between halves of the seeds, mean over all halvings.

    `gaps`: per policy its gap per seed. None for a single seed, or fewer than three policies.
    """
    table = np.array(gaps, dtype=float)
    if table.ndim != 2 or len(table) < 3 or table.shape[1] < 2:
        return None
    seeds = range(table.shape[1])
    correlations = []
    for half in itertools.combinations(seeds, table.shape[1] // 2):
        rest = [seed for seed in seeds if seed not in half]
        correlations.append(
            rank_correlation(table[:, list(half)].mean(axis=1), table[:, rest].mean(axis=1))
        )
    return math.fsum(correlations) / len(correlations)


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Return Spearman's rank correlation; 0 where either is constant."""
    first, second = ranks(a), ranks(b)
    if np.ptp(first) == 0.0 or np.ptp(second) == 0.0:
        return 0.0
    return float(np.corrcoef(first, second)[0, 1])


def matters_gap(share: float, learned: Learned | None, noise_gap: float | None) -> float:
    """Return the least loss gap that matters, in nats: a share of what float32 learns.

    Never below what noise leaves to be told, and that where it is not known what float32 learns.
    """
    drop = max(0.0, learned.drop) if learned else 0.0
    return max(share * drop, RESOLUTION * (noise_gap or 0.0))
