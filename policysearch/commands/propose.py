"""`propose`: a loss-scale schedule and phase points, learned from the float32 run of a study."""

from __future__ import annotations

import argparse
from pathlib import Path

from policysearch import api
from policysearch.commands.shared import Commands
from policysearch.formats import format_named
from policysearch.policy.policy import uniform_layer
from policysearch.space.decided.base import SAME
from policysearch.space.decided.loss_scales import shares_of
from policysearch.study.questions.propose import largest_gradients, noise_ratio, schedule_for
from policysearch.study.specification import StudySpec, objective_of


def add_propose(commands: Commands) -> None:
    """Add `propose`."""
    propose = commands.add_parser(
        "propose", help="a loss-scale schedule and phase points that the float32 run suggests"
    )
    propose.add_argument("study", type=Path, metavar="STUDY.toml")
    propose.set_defaults(run=_propose)


def _propose(options: argparse.Namespace) -> None:
    spec = api.load_study(options.study)
    objective = objective_of(spec)
    seed = min(spec.study.seeds)
    largest = largest_gradients(objective, seed)
    print(f"# The float32 run of {spec.study.name}, seed {seed}, {spec.task.steps} steps.")
    below = _gradient_formats(spec)
    if not below:
        print("# No gradients below float32 are searched: there is nothing to propose.")
    for name in below:
        print(f"# Gradients in {name}: up to 2 to the powers that keep the largest below overflow.")
        schedule = schedule_for(largest, name)
        print(f'scale_schedules = ["{schedule}"]')
        scale = 2.0 ** min(power for _, power in shares_of(schedule))
        found = noise_ratio(objective, name, seed, scale)
        low, last = min(found.means), found.means[-1]
        print(f"# Gradient over its rounding noise in {name}: {low:.3g} at least, {last:.3g} last.")
        if found.sinks_at is None:
            print("# It never sinks below the square root of 3: no phase point is proposed.")
        else:
            print(f"phase_points = [{max(1, found.sinks_at) / spec.task.steps:.3g}]")


def _gradient_formats(spec: StudySpec) -> list[str]:
    """Return the formats below float32 that gradients can take in a study, widest first."""
    grads = [name for name in spec.space.grad_formats if name != SAME]
    if SAME in spec.space.grad_formats:
        grads += [uniform_layer(name).grad for name in spec.space.formats]
    below = dict.fromkeys(name for name in grads if format_named(name).bits < 32)
    return sorted(below, key=lambda name: -format_named(name).bits)
