"""The emulator's own trainings, with its initial values as they are and jittered.

Values on the grid of a narrow format take no jitter so small: it is rounded away. Where parameters
are stored in one, products are summed in another order besides, as another kernel would.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from policysearch.data.datasets import Dataset
from policysearch.graph import FloatArray
from policysearch.nn.model import Model
from policysearch.policy.policy import Policy
from policysearch.train.feeding import batch_order, initial_parameters
from policysearch.train.run import Run
from policysearch.train.tasks import Task
from policysearch.train.trainer import Trainer
from policysearch.train.training import train

Array = NDArray[Any]

JITTER = 1e-7
"""Share by which the initial parameters are moved, to see how far that alone moves the losses."""
JITTER_OF_PRODUCTS = 1e-5
"""The same where an update multiplies in bfloat16: a bit of a gradient that sums in another order
turn decides there, not their last bits, and this turns as many, some in a thousand."""
DRAWS = 8
"""How often they are moved: of a chaotic training one draw tells little, by a factor of ten.

Rounding that differs no more than JITTER does is beyond all n draws once in n + 1 trainings, and
beyond twice the largest more seldom. The number was set after fewer draws had been looked at.
"""

CHUNKS = (8, 12, 16, 24, 32, 48, 64, 96)
"""How many products a draw sums at once, where parameters are stored below float32.

In single steps from given values, where results are below float32, too.
"""
SUMS = "e8m20"
"""What it rounds such sums to: that turns some results of 16 bits in a thousand, as kernels do."""


@dataclass(frozen=True, eq=False)
class Reference:
    """What the training in the target is compared with.

    `run` is the emulator's training; where that has other loss scales or skips than the target
    has, and one of the draws has the target's to the end, it goes on from step `followed_from` as
    that draw does (else the number of steps). `gaps` [steps] are the largest of the draws to it,
    each up to its first step with another scale or skip: `partings` [DRAWS], the number of steps
    where there is none.
    """

    run: Run
    followed_from: int
    gaps: Array
    partings: Array
    jitter: float = JITTER


def jitter_of(task: Task, model: Model) -> float:
    """Return by how much initial values are moved, as a share of them."""
    rule = task.build_optimizer().rule
    multiplies = any(rule.of(spec.shape).products(spec.shape) for spec in model.parameters())
    return JITTER_OF_PRODUCTS if multiplies else JITTER


def summed_otherwise(policy: Policy, draw: int) -> Policy:
    """Return the policy whose sums have the order of a draw, and SUMS; itself if all is float32.

    It does what it did but for the last bits of its products.
    """
    if all(row.output == "float32" == policy.stored(name) for name, row in policy.layers):
        return policy
    order = f"chunked:{CHUNKS[draw % len(CHUNKS)]}:{SUMS}"
    return policy.with_layers(
        {n: replace(x, accumulator=order) for n, x in policy.layers if x.accumulator == "float32"}
    )


def initials(model: Model, seed: int, jitter: float) -> Iterator[dict[str, FloatArray]]:
    """Yield the initial values of the seed, then the same under DRAWS draws of the jitter."""
    initial = initial_parameters(model, seed)
    yield initial
    for draw in range(DRAWS):
        rng = np.random.default_rng([seed, 2, draw])
        yield {
            name: (value * (1.0 + jitter * rng.standard_normal(value.shape))).astype(np.float32)
            for name, value in initial.items()
        }


def reference_of(
    run: Run, moved: Sequence[Run], scales: Array, skipped: Array, jitter: float = JITTER
) -> Reference:
    """Return what a training with these scales and skips [steps] is compared with."""
    steps = len(scales)
    # A gradient at the edge of overflow overflows in one of two trainings that are as good. From
    # there they have other scales and cannot be compared, but a draw that went the other way can.
    apart = parting(run, scales, skipped)
    alike = [other for other in moved if parting(other, scales, skipped) == steps]
    if apart < len(run.losses) and alike:
        run = _joint_run(run, alike[0], apart)
    else:
        apart = steps
    partings = [parting(run, other.scales, other.skipped) for other in moved]
    gaps_of = [_gaps_up_to(run, *pair) for pair in zip(moved, partings, strict=True)]
    return Reference(run, apart, np.max(gaps_of, axis=0), np.array(partings), jitter)


def _joint_run(first: Run, then: Run, step: int) -> Run:
    """Return the first run up to a step, and the other from there on."""
    return replace(
        then,
        losses=np.concatenate([first.losses[:step], then.losses[step:]]),
        scales=np.concatenate([first.scales[:step], then.scales[step:]]),
        skipped=np.concatenate([first.skipped[:step], then.skipped[step:]]),
    )


def parting(run: Run, scales: Array, skipped: Array) -> int:
    """Return the first step with another scale or skip, the number of steps if there is none."""
    count = min(len(scales), len(run.scales))
    same = (scales[:count] == run.scales[:count]) & (skipped[:count] == run.skipped[:count])
    return count if same.all() else int(np.argmin(same))


def _gaps_up_to(run: Run, other: Run, step: int) -> Array:
    """Return the gaps of all steps of `run`, 0 from `step` on."""
    return np.pad(gaps(run.losses[:step], other.losses[:step]), (0, len(run.losses) - step))


def gaps(ours: Array, theirs: Array) -> Array:
    """Return |ours - theirs|, 0 where both are not finite."""
    with np.errstate(invalid="ignore"):
        apart = np.abs(ours - theirs)
    both = ~np.isfinite(ours) & ~np.isfinite(theirs)
    return np.where(both, 0.0, np.where(np.isnan(apart), math.inf, apart))


BORDER = 0.01
"""A gradient this near to overflow may overflow in one of the two and not in the other."""


Tell = Callable[[str], None]
"""Is told before each training which it is."""
STAGES = DRAWS + 5
"""Trainings that a verdict takes at most, single steps counted as one."""


def silent(what: str) -> None:
    """Tell nobody."""


def emulator_runs(
    task: Task, policy: Policy, model: Model, dataset: Dataset, seed: int, progress: Tell = silent
) -> Iterator[Run]:
    """Yield the emulator's training, and those of its values moved; `progress` is told of each."""
    order = batch_order(task, dataset, seed)
    wide = all(policy.stored(name) == "float32" for name, _ in policy.layers)
    for draw, initial in enumerate(initials(model, seed, jitter_of(task, model)), -1):
        given = policy if wide or draw < 0 else summed_otherwise(policy, draw)
        progress("the emulator" if draw < 0 else "the emulator, its values moved")
        yield train(
            task, given, seed, dataset=dataset, model=model, initial=initial, batch_indices=order
        )


def is_borderline(
    task: Task, policy: Policy, model: Model, dataset: Dataset, seed: int, at: int
) -> bool:
    """Whether a loss scale BORDER higher or lower decides if step `at` has finite gradients."""
    trainer = Trainer(model, task, policy, seed)
    trainer.load(initial_parameters(model, seed))
    inputs, labels = dataset.train
    order = batch_order(task, dataset, seed)
    with threadpool_limits(1):
        for indices in order[:at]:
            trainer.step([array[indices] for array in inputs], labels[indices])
        batch = [array[order[at]] for array in inputs], labels[order[at]]
        scale = trainer.scale_state.scale
        finite, before = list[bool](), trainer.moving()
        for share in (1.0 - BORDER, 1.0 + BORDER):
            step, _ = trainer.forward_backward(False, *batch, scale * share)
            finite.append(bool(step.value("finite") == 1.0))
            trainer.put_back(before)
    return finite[0] != finite[1]
