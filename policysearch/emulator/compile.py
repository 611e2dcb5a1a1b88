"""A graph made ready to run: by the fast paths that are there, or by the reference."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from policysearch.emulator.arena import Arena
from policysearch.emulator.nodes import Observer
from policysearch.emulator.reference import Reference
from policysearch.graph import FloatArray, Graph
from policysearch.rounding.rounder import Fast, check_fast, is_on_torch

try:
    from policysearch.emulator.executable import Executable
except ImportError:
    Executable = None  # type: ignore[assignment,misc]


class Step(Protocol):
    """A step ready to run: write the sources in `arrays`, run, read outputs.

    `arrays` maps source names to logical float32 arrays that stay in place for ever. `fast` says
    what runs. `step_index` counts the steps begun; it keys stochastic rounding.
    """

    graph: Graph
    step_index: int
    arrays: dict[str, FloatArray]
    fast: Fast

    def forward_backward(self) -> None:
        """Run all that the outputs need: forward, loss, and backward as far as they wait for it."""

    def apply_updates(self) -> None:
        """Finish the step of the last `forward_backward`: new parameters and optimizer state."""

    def value(self, name: str) -> FloatArray:
        """Return the array of the output called `name`, valid until the next run."""
        ...


def compile_graph(
    graph: Graph,
    *,
    seed: int = 0,
    fast: Fast | None = None,
    sources: Mapping[str, FloatArray] | None = None,
    observer: Observer | None = None,
    arena: Arena | None = None,
) -> Step:
    """Return `graph` ready to run.

    `fast` as in `check_fast`; the bits are the same. `sources` shares arrays of another step
    (parameters, state). `observer` sees every rounding. Steps with one `arena` have their values
    in the same memory, so those of one are lost as soon as another runs.
    """
    fast = check_fast(fast)
    if is_on_torch(fast):
        from policysearch.emulator.torch_step import TorchStep  # torch takes a second to load

        return TorchStep(graph, seed, fast, sources or {}, observer)
    if fast == "off" or Executable is None:
        return Reference(graph, seed, sources or {}, observer)
    return Executable(
        graph, seed=seed, fast=fast, sources=sources or {}, observer=observer, arena=arena
    )
