"""The axes of a search: their names, their directions, and which of a policy's costs count."""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal

ObjectiveName = Literal["loss_gap", "speedup", "memory_ratio"]
DIRECTIONS: dict[ObjectiveName, Literal["minimize", "maximize"]] = {
    "loss_gap": "minimize",
    "speedup": "maximize",
    "memory_ratio": "minimize",
}

UNCOUNTED = 0.5
"""Time or memory of every policy where that is no objective."""


def counted(time: float, memory: float, objectives: Collection[str]) -> tuple[float, float]:
    """Return the costs that count: an axis that is no objective is the same for all."""
    return (
        time if "speedup" in objectives else UNCOUNTED,
        memory if "memory_ratio" in objectives else UNCOUNTED,
    )
