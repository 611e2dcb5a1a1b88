"""The learning-rate schedule of a task, as torch's and Hugging Face's own schedulers."""

from __future__ import annotations

from typing import Any

import torch

from policysearch.train.tasks import Task


def torch_schedule(optimizer: Any, task: Task) -> Any:
    """Return the scheduler of the task; of an "hf." kind, that of transformers."""
    row, of = task.schedule, torch.optim.lr_scheduler
    if row.kind.startswith("hf."):
        return hugging_face_schedule(optimizer, task)
    period = row.period_steps or max(task.steps - row.warmup_steps, 1)
    least = row.least_rate or row.final_factor * task.learning_rate
    ends, peak = row.momenta or (0.95, 0.85)
    after = {
        "constant": lambda: of.ConstantLR(optimizer, 1.0),
        "step": lambda: of.StepLR(optimizer, row.period_steps, row.factor),
        "multistep": lambda: of.MultiStepLR(optimizer, row.milestones, row.factor),
        "exponential": lambda: of.ExponentialLR(optimizer, row.factor),
        "linear": lambda: of.LinearLR(optimizer, 1.0, row.final_factor, period),
        "polynomial": lambda: of.PolynomialLR(optimizer, period, row.power),
        "cosine": lambda: of.CosineAnnealingLR(optimizer, period, least),
        "cosine_restarts": lambda: of.CosineAnnealingWarmRestarts(
            optimizer, period, row.period_factor, least
        ),
        "one_cycle": lambda: of.OneCycleLR(
            optimizer,
            task.learning_rate,
            total_steps=task.steps,
            pct_start=row.peak_share,
            anneal_strategy={"cosine": "cos", "linear": "linear"}[row.shape],
            cycle_momentum=bool(row.momenta),
            max_momentum=ends,
            base_momentum=peak,
            div_factor=row.start_divisor,
            final_div_factor=row.end_divisor,
            three_phase=row.three_phase,
        ),
    }[row.kind]()
    if not row.warmup_steps:
        return after
    return of.SequentialLR(optimizer, [_warmup(optimizer, task), after], [row.warmup_steps])


def _warmup(optimizer: Any, task: Task) -> Any:
    row, of = task.schedule, torch.optim.lr_scheduler
    if row.warmup_factor == 0.0:  # LinearLR refuses it.
        return of.LambdaLR(optimizer, lambda step: step / row.warmup_steps)
    return of.LinearLR(optimizer, row.warmup_factor, 1.0, row.warmup_steps)


def hugging_face_schedule(optimizer: Any, task: Task) -> Any:
    """Return the scheduler as Hugging Face's Trainer makes it, of what its arguments are called."""
    from transformers import get_scheduler

    row = task.schedule
    own: dict[str, dict[str, Any]] = {
        "hf.cosine_with_min_lr": {"min_lr_rate": row.final_factor},
        "hf.polynomial": {"power": row.power, "lr_end": row.final_factor * task.learning_rate},
        "hf.inverse_sqrt": {"timescale": row.period_steps or None},
        "hf.warmup_stable_decay": {
            "num_decay_steps": row.decay_steps,
            "decay_type": row.shape,
            "min_lr_ratio": row.final_factor,
        },
    }
    given = own.get(row.kind, {}) | ({} if row.cycles is None else {"num_cycles": row.cycles})
    return get_scheduler(
        row.kind.removeprefix("hf."), optimizer, row.warmup_steps, task.steps, given
    )
