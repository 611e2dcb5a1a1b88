"""What a process reserves for live bytes, and whether that fits a card.

    reserved = live * growth + context, at most what a process can have of the card

A caching allocator holds more than lives: rounding, fragments, work space of libraries, buffers of
earlier batches of other lengths. `growth` is fitted to published readings
(`benchmarks/validation/validate_memory.py`), of which each family of networks is judged without
its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

GIB = 2**30

VISIBLE_SHARE = 0.985
"""Of a card's nominal GiB what a process can have: 16160 of 16384 MiB on V100, 11019 of 11264 on
RTX 2080 Ti, 40536 of 40960 on A100."""

CONTEXT_BYTES = 0.8 * GIB
"""Of a process with its libraries' kernels loaded; assumed for CUDA 10, no row tells it alone."""

LARGEST_BATCH = 2**24
"""No larger batch is tried."""


@dataclass(frozen=True)
class Growth:
    """Reserved over live bytes: expected, and bounds of what was seen of held-out networks."""

    low: float
    expected: float
    high: float


GROWTH = Growth(1.175, 1.275, 1.643)
"""`python -m benchmarks.validation --memory` prints it."""


def visible_bytes(card_gib: float) -> float:
    """Return what a process can have of a card of so many GiB."""
    return VISIBLE_SHARE * card_gib * GIB


def wanted_bytes(live: float, growth: float) -> float:
    """Return what a process takes where the card sets no bound."""
    return live * growth + CONTEXT_BYTES


def reserved_bytes(live: float, growth: float, visible: float) -> float:
    """Return what a process holds: the allocator gives back what it caches before it fails."""
    return min(visible, wanted_bytes(live, growth))


def largest_batch(live_at: Callable[[int], float], growth: float, visible: float) -> int:
    """Return the largest batch that fits where memory grows with the batch; 0 if none does.

    `live_at` gives the live bytes at a batch. Between the last batch that fits and the first that
    does not it is taken for straight, and asked where that line meets what there is.
    """
    room = (visible - CONTEXT_BYTES) / growth
    low, held, high = 0, 0.0, 1
    while (needed := live_at(high)) <= room and high < LARGEST_BATCH:
        low, held, high = high, needed, 8 * high
    if needed <= room:
        return high
    while high - low > 1:
        straight = low + int((high - low) * (room - held) / (needed - held))
        middle = min(max(straight, low + 1), high - 1)
        if (here := live_at(middle)) <= room:
            if live_at(middle + 1) > room:
                return middle
            low, held = middle, here
        else:
            high, needed = middle, here
    return low
