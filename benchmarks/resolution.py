"""What the cost model can tell between two policies of one graph, in speed and in memory.

    python -m benchmarks.resolution studies/mlp-digits.toml studies/lenet5-digits.toml

Speed: the constants that the model assumes are redrawn, all at once and each within what was seen
of it (RANGES), and the policies priced anew. Errors that two policies share cancel in this; what is
left can reverse their order. Memory: the buffers of the step are given to a model of PyTorch's
caching allocator, at batches that need memory, and what it reserves compared with the modeled
peak. A difference is told where the order of at most 5 % of such pairs is reversed, at that
difference and at every larger one. Exits with 1 where the resolutions of `policysearch.cost.price`
are smaller than what is found.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.allocator import reserved_bytes
from benchmarks.coverage import drawn
from policysearch.cost.devices import Device, Sourced
from policysearch.cost.memory import step_memory
from policysearch.cost.price import MODEL_RESOLUTION
from policysearch.cost.roofline import FITTED, KINDS, Constants
from policysearch.cost.time import step_time
from policysearch.graph import Graph
from policysearch.objective.objective import Objective
from policysearch.policy.policy import Policy
from policysearch.study.specification import StudySpec, load_spec, objective_of

DRAWS = 60
MOST_REVERSED = 0.05
DIFFERENCES = tuple(0.0025 * 1.25**step for step in range(22))
"""Relative differences that are tried, 0.25 % to 27 %; a bin reaches from each to its double."""

FEWEST_PAIRS = 20
PEAKS_GIB = (0.5, 1.0, 2.0, 4.0, 8.0)
"""Memory is looked at with the batches that take float32 to these peaks: small steps fit anyway."""

ACHIEVED = "achieved"

RANGES: dict[str, tuple[float, float]] = {
    "bandwidth_share": (0.95, 1.05),
    "plain_share": (0.95, 1.05),
    ACHIEVED: (0.85, 1.15),
    "convolution_share": (0.9, 1.1),
    "pipeline_depth": (0.7, 1.4),
    **{kind: (0.8, 1.25) for kind in KINDS},
    "winograd_gain": (0.9, 1.1),
    "launch_factor": (0.9, 1.1),
    "kernel_seconds": (0.5, 2.0),
}
"""Multiples of the fitted constants, wider than they move when a family of networks is left out of
the fit; half to double of what is assumed. What products achieve is drawn for each format by
itself, for formats achieve different shares."""

Pair = tuple[float, bool]
"""How far two policies differ by the model, relatively, and whether their order was reversed."""


def redrawn(device: Device, rng: np.random.Generator) -> tuple[Device, Constants]:
    """Return device and constants as they might be as well."""

    def within(name: str) -> float:
        low, high = RANGES[name]
        return float(np.exp(rng.uniform(math.log(low), math.log(high))))

    shares = {name: within(ACHIEVED) for name, _ in device.peaks}
    scaled = replace(
        device,
        peaks=tuple((name, _times(peak, shares[name])) for name, peak in device.peaks),
        achieved=tuple((name, _times(rate, shares[name])) for name, rate in device.achieved),
    )
    redraw = [name for name in RANGES if name != ACHIEVED]
    changes = {name: getattr(FITTED, name) * within(name) for name in redraw}
    return scaled, replace(FITTED, **changes)


def _times(number: Sourced, factor: float) -> Sourced:
    return replace(number, value=number.value * factor)


def speed_pairs(objective: Objective, graphs: Sequence[Graph]) -> list[Pair]:
    """Return every two policies' difference in modeled speed, once per draw of the constants."""
    device, stack = objective.device, objective.stack
    plain = [step_time(graph, device, stack).step_seconds for graph in graphs]
    rng = np.random.default_rng(0)
    found = []
    for _ in range(DRAWS):
        drawn_device, constants = redrawn(device, rng)
        times = [step_time(g, drawn_device, stack, constants).step_seconds for g in graphs]
        found += _pairs(plain, times)
    return found


def memory_pairs(objective: Objective, policies: Sequence[Policy]) -> list[Pair]:
    """Return every two policies' difference in modeled peak, once per batch."""
    found = []
    plain = step_memory(objective.step_graph(objective.float32)).peak_bytes
    for peak in PEAKS_GIB:
        batch = max(1, round(objective.cost_batch_size * peak * 2**30 / plain))
        tracing = objective.task.tracing(objective.model, batch)
        graphs = [tracing.step_graph(policy) for policy in policies]
        peaks = [float(step_memory(graph).peak_bytes) for graph in graphs]
        found += _pairs(peaks, [float(reserved_bytes(graph)) for graph in graphs])
    return found


def _pairs(plain: Sequence[float], changed: Sequence[float]) -> list[Pair]:
    return [
        (abs(math.log(plain[i] / plain[j])), (plain[i] < plain[j]) != (changed[i] < changed[j]))
        for i, j in itertools.combinations(range(len(plain)), 2)
        if plain[i] != plain[j]
    ]


def resolution(pairs: Sequence[Pair]) -> float:
    """Return the least difference from which on at most MOST_REVERSED of the pairs reverse."""
    told = DIFFERENCES[-1]
    for least in reversed(DIFFERENCES):
        bin = [flipped for size, flipped in pairs if least <= size < 2 * least]
        if len(bin) >= FEWEST_PAIRS and sum(bin) > MOST_REVERSED * len(bin):
            break
        told = least
    return told


def pairs_of(spec: StudySpec) -> dict[str, list[Pair]]:
    """Return the pairs of one study's policies by axis."""
    objective = objective_of(spec)
    policies = [objective.float32, *drawn(spec, objective)]
    graphs = [objective.step_graph(policy) for policy in policies]
    return {
        "speedup": speed_pairs(objective, graphs),
        "memory_ratio": memory_pairs(objective, policies),
    }


def report(axis: str, pairs: Sequence[Pair]) -> bool:
    """Print how often pairs are reversed; return whether the resolution in use is large enough."""
    found, used = resolution(pairs), MODEL_RESOLUTION[axis]
    print(f"{axis}: told apart from {found:.1%} on; in use {used:.0%}")
    for low, high in itertools.pairwise((0.0, *DIFFERENCES[::4], math.inf)):
        bin = [flipped for size, flipped in pairs if low <= size < high]
        if bin:
            share = sum(bin) / len(bin)
            print(f"  {low:6.2%} to {high:6.2%}: {share:6.1%} of {len(bin)} pairs reversed")
    return found <= used


def main() -> int:
    """Print every axis; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("studies", nargs="+", type=Path)
    every = [pairs_of(load_spec(path)) for path in parser.parse_args().studies]
    good = [
        report(axis, [pair for one in every for pair in one[axis]]) for axis in MODEL_RESOLUTION
    ]
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
