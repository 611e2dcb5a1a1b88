"""A policy over a longer or shorter run than the one it was made for."""

from __future__ import annotations

from dataclasses import replace

from policysearch.policy.policy import Policy


def stretched(policy: Policy, factor: float) -> Policy:
    """Return the policy for a run of `factor` times the steps: its steps are shares of the run.

    Phases and a scheduled loss scale move with the run, as the learning rate does. Where several
    fall on one step, the last holds. A growth interval counts steps of any run, and stays.
    """
    phases = {max(1, round(p.first_step * factor)): p.layers for p in policy.phases}
    schedule = {round(step * factor): scale for step, scale in policy.loss_scale.schedule}
    return replace(
        policy,
        phases=tuple(
            replace(policy.phases[0], first_step=step, layers=layers)
            for step, layers in phases.items()
        ),
        loss_scale=replace(policy.loss_scale, schedule=tuple(schedule.items())),
    )
