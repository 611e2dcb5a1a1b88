"""What a network of the catalogue is."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.validation.layers.layers import Layers

Build = Callable[[Layers, int, int], None]
"""Adds the layers of a step of (batch, sequence length)."""


@dataclass(frozen=True)
class Network:
    """A published training: its layers, and what its recipe does in some frameworks.

    `family` is left out as a whole when constants are fitted to judge it. `length` is the
    sequence length where a row gives none, `longest` that of the longest batch where lengths vary:
    memory is of that. `data_bytes`: of a data set that lies on the device. The rest names
    memory is of that. `data_bytes`: of a data set that lies on the device. The rest names
    frameworks ("torch", "tensorflow"): `channels_last`: those whose mixed run is NHWC with fused
    norms while its baseline is not; `compiled`: those that run it with XLA, `compiled_mixed`: those
    that do under mixed precision alone; `fused_update` and `unfused_update`: those whose baseline
    fuses the update as the mixed run does, and those whose mixed run does not either.
    """

    name: str
    family: str
    build: Build
    length: int = 0
    longest: int = 0
    data_bytes: float = 0.0
    channels_last: tuple[str, ...] = ()
    compiled: tuple[str, ...] = ()
    compiled_mixed: tuple[str, ...] = ()
    fused_update: tuple[str, ...] = ()
    unfused_update: tuple[str, ...] = ()


def images(build: Callable[[Layers, int], None]) -> Build:
    """Return the builder of a network without sequences."""
    return lambda step, batch, length: build(step, batch)


def spelled_alike(name: str) -> str:
    """Return letters and digits, parted where two numbers meet."""
    apart = re.sub(r"(?<=\d)[^a-z0-9]+(?=\d)", "-", name.lower())
    return re.sub(r"[^a-z0-9-]|(?<!\d)-|-(?!\d)", "", apart)
