"""The optimizer of torch that does as a row says."""

from __future__ import annotations

from typing import Any

import torch

from policysearch.optimizers.optimizer import Optimizer
from policysearch.values import InputError

SMALL_RATE = 1e-5
"""A learning rate at which nothing moves far, for steps that are timed."""


def torch_optimizer(
    optimizer: Optimizer, parameters: list[Any], rate: float, fused: bool | None = None
) -> torch.optim.Optimizer:
    """Return torch's optimizer of parameters, or groups of them.

    `fused`: in one kernel, or operation by operation; None leaves it to torch. InputError where
    torch has no such optimizer, or no such kernel of it.
    """
    row = optimizer.in_torch()
    arguments = {"lr": rate, "weight_decay": optimizer.weight_decay, **row.arguments(optimizer)}
    if fused and not row.fused:
        raise InputError(
            f"optimizer_order: 'fused' with {optimizer.kind!r}; expected 'eager', "
            f"torch.optim.{row.name} has no fused kernel"
        )
    if row.fused and fused is not None:
        arguments["fused"] = fused
    optimizer_class: type[torch.optim.Optimizer] = getattr(torch.optim, row.name)
    return optimizer_class(parameters, **arguments)
