"""Timing on a machine that is shared: rounds in random order, caches evicted, quartiles."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch

Call = Callable[[], object]

EVICTING_CACHES = 4
"""A pass over so many times the private cache leaves nothing else in it."""

WAITING_CYCLES = 200_000
"""About a tenth of a millisecond of a GPU."""

CACHE_SIZE = Path("/sys/devices/system/cpu/cpu0/cache/index2/size")

QUARTILE = 0.25
"""Of repeated timings the lower quartile counts: what disturbs a run makes it longer alone."""


class Clock:
    """Seconds of calls on a CPU, its time in this process alone, or on a CUDA device by events."""

    def __init__(self, place: torch.device) -> None:
        self.place = place
        self._cuda = place.type == "cuda"
        self._scratch = torch.zeros(EVICTING_CACHES * cache_bytes(place) // 4, device=place)

    def evict(self) -> None:
        """Fill the private cache with what no kernel reads."""
        self._scratch.add_(1)

    def seconds(self, call: Call, calls: int = 1) -> float:
        """Return the seconds of one of `calls` calls in a row."""
        if self._cuda:
            return self._cuda_seconds(call, calls)
        # the time of the process, not of the wall: what else runs on the machine is left out
        start = time.process_time()
        for _ in range(calls):
            result = call()
        taken = time.process_time() - start
        del result
        return taken / calls

    def _cuda_seconds(self, call: Call, calls: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # the device waits while the host launches the calls, and leaves the caches as they are
        torch.cuda._sleep(WAITING_CYCLES)
        start.record()
        for _ in range(calls):
            call()
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end)) / 1e3 / calls

    def host_seconds(self, call: Call, calls: int = 100) -> float:
        """Return the seconds the host takes for a call that it does not wait for."""
        # No wait at the end: what is timed is how long the host is busy until it can go on. The
        # calls must not fill the device's queue, or the host would wait after all.
        call()
        if self._cuda:
            torch.cuda.synchronize(self.place)
        start = time.process_time()
        for _ in range(calls):
            call()
        return (time.process_time() - start) / calls


def cache_bytes(place: torch.device) -> int:
    """Return the bytes of the cache that no other core shares; of a GPU those of its last one.

    2**20 where the system does not say.
    """
    if place.type == "cuda":
        return int(torch.cuda.get_device_properties(place).L2_cache_size)
    try:
        return 1024 * int(CACHE_SIZE.read_text().strip().removesuffix("K"))
    except (OSError, ValueError):
        return 2**20


@contextmanager
def one_thread() -> Iterator[None]:
    """Run torch on one thread and without garbage collection, and restore both."""
    threads, collects = torch.get_num_threads(), gc.isenabled()
    torch.set_num_threads(1)
    gc.disable()
    try:
        yield
    finally:
        torch.set_num_threads(threads)
        if collects:
            gc.enable()


def quartile(seconds: list[float]) -> float:
    """Return the lower quartile of repeated timings."""
    return float(np.quantile(seconds, QUARTILE))
