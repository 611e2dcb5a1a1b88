"""What the float32 run of a study suggests for its file, as lines of TOML with the reasons.

Every line is one of TOML: what is said beside the keys is a comment.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from policysearch.formats import format_named
from policysearch.objective.objective import Objective
from policysearch.policy.presets import layer_named
from policysearch.space.decided.base import SAME
from policysearch.space.decided.loss_scales import shares_of
from policysearch.study.questions.propose import largest_gradients, noise_ratio, schedule_for
from policysearch.study.specification import StudySpec, objective_of


def proposal(spec: StudySpec) -> Iterator[str]:
    """Yield a loss-scale schedule and phase points for each format of gradients, line by line.

    float32 is trained once for them. InputError where that run diverges.
    """
    objective = objective_of(spec)
    seed = min(spec.study.seeds)
    largest = largest_gradients(objective, seed)
    yield f"# The float32 run of {spec.study.name}, seed {seed}, {spec.task.steps} steps."
    below = gradient_formats(spec)
    if not below:
        yield "# No gradients below float32 are searched: there is nothing to propose."
    for name in below:
        yield from _of_format(spec, objective, name, largest)


def _of_format(
    spec: StudySpec, objective: Objective, name: str, largest: NDArray[np.float64]
) -> Iterator[str]:
    """Yield what gradients in one format ask for, from the largest ones in every step."""
    yield f"# Gradients in {name}: up to 2 to the powers that keep the largest below overflow."
    schedule = schedule_for(largest, name)
    yield f'scale_schedules = ["{schedule}"]'
    scale = 2.0 ** min(power for _, power in shares_of(schedule))
    ratio = noise_ratio(objective, name, min(spec.study.seeds), scale)
    low, last = min(ratio.means), ratio.means[-1]
    yield f"# Gradient over its rounding noise in {name}: {low:.3g} at least, {last:.3g} last."
    if ratio.sinks_at is None:
        yield "# It never sinks below the square root of 3: no phase point is proposed."
    else:
        yield f"phase_points = [{max(1, ratio.sinks_at) / spec.task.steps:.3g}]"


def gradient_formats(spec: StudySpec) -> list[str]:
    """Return the formats below float32 that gradients can take in a study, widest first."""
    grads = [name for name in spec.space.grad_formats if name != SAME]
    if SAME in spec.space.grad_formats:
        grads += [layer_named(name).grad for name in spec.space.formats]
    below = dict.fromkeys(name for name in grads if format_named(name).bits < 32)
    return sorted(below, key=lambda name: -format_named(name).bits)
