"""What a training needs of the machine's memory, looked at before anything is created."""

from __future__ import annotations

import math
import os

from policysearch.nn.model import Model
from policysearch.values import InputError

COPIES_PER_PARAMETER = 8
"""Parameter, gradient, two moments, their low-precision copies and scratch; float32 each."""

BYTES_PER_STEP = 128
"""Loss, scale and skip flag of a step, as Python and numpy keep them."""


def needed_bytes(model: Model, steps: int, batch_size: int) -> int:
    """Return about how many bytes a training holds at least: parameters, batches, records."""
    parameters = sum(math.prod(spec.shape) for spec in model.parameters())
    indices = steps * batch_size * 8
    return parameters * 4 * COPIES_PER_PARAMETER + 2 * indices + steps * BYTES_PER_STEP


def machine_bytes() -> int | None:
    """Return the machine's memory in bytes; None where the system does not say."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def check_memory(where: str, needed: int) -> None:
    """Raise InputError if `needed` bytes are more than the machine has."""
    there = machine_bytes()
    if there is not None and needed > there:
        raise InputError(
            f"{where}: needs about {needed / 2**30:.3g} GiB of memory; "
            f"expected at most the {there / 2**30:.3g} GiB of this machine"
        )
