"""A model of PyTorch's caching allocator: what a step's buffers make it reserve.

Sizes and rules are those documented in c10/cuda/CUDACachingAllocator.cpp: blocks of 512 bytes;
up to 1 MiB from segments of 2 MiB, below 10 MiB from segments of 20 MiB, larger ones from segments
of their own in multiples of 2 MiB; the smallest free block that holds a request is split where
enough is left, and free neighbours are joined. Segments are kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from policysearch.cost.memory import lives
from policysearch.graph import Graph

BLOCK = 512
MIB = 2**20
SMALL, SMALL_SEGMENT = MIB, 2 * MIB
LARGE, LARGE_SEGMENT, LARGE_UNIT = 10 * MIB, 20 * MIB, 2 * MIB


@dataclass
class _Allocator:
    reserved: int = 0
    segments: list[list[tuple[int, int, bool]]] = field(default_factory=list)
    """Per segment its blocks in order: (start, bytes, taken)."""

    def take(self, wanted: int) -> tuple[int, int]:
        """Return (segment, start) of a block of at least `wanted` bytes."""
        size = max(BLOCK, -(-wanted // BLOCK) * BLOCK)
        small = size <= SMALL
        free = [
            (block[1], place, index)
            for place, blocks in enumerate(self.segments)
            if (sum(b[1] for b in blocks) == SMALL_SEGMENT) == small
            for index, block in enumerate(blocks)
            if not block[2] and block[1] >= size
        ]
        if not free:
            whole = SMALL_SEGMENT if small else LARGE_SEGMENT
            if size >= LARGE:
                whole = -(-size // LARGE_UNIT) * LARGE_UNIT
            self.reserved += whole
            self.segments.append([(0, whole, False)])
            free = [(whole, len(self.segments) - 1, 0)]
        held, place, index = min(free)
        start = self.segments[place][index][0]
        left = held - size
        split = left >= BLOCK if small else left > SMALL
        blocks = [(start, size, True), (start + size, left, False)]
        self.segments[place][index : index + 1] = blocks if split else [(start, held, True)]
        return place, start

    def give_back(self, place: int, start: int) -> None:
        """Free a block and join it with free neighbours."""
        joined: list[tuple[int, int, bool]] = []
        for at, size, taken in self.segments[place]:
            still = taken and at != start
            if joined and not still and not joined[-1][2]:
                joined[-1] = (joined[-1][0], joined[-1][1] + size, False)
            else:
                joined.append((at, size, still))
        self.segments[place] = joined


def reserved_bytes(graph: Graph, steps: int = 2) -> int:
    """Return what the allocator has reserved after some steps of `graph`."""
    allocator = _Allocator()
    rows = sorted(lives(graph), key=lambda life: (life.first, life.owner.id))
    kept = [row for row in rows if row.owner.op.kind == "source"]
    for row in kept:
        allocator.take(row.bytes)
    passing = [row for row in rows if row.owner.op.kind != "source" and row.bytes]
    for _ in range(steps):
        held: list[tuple[int, tuple[int, int]]] = []
        for row in passing:
            for last, block in [entry for entry in held if entry[0] < row.first]:
                allocator.give_back(*block)
                held.remove((last, block))
            held.append((row.last, allocator.take(row.bytes)))
        for _, block in held:
            allocator.give_back(*block)
    return allocator.reserved
