"""How a search goes, in plain values: what the study file says of it, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

from policysearch.search.fidelity import Fidelity
from policysearch.search.objectives import ObjectiveName


@dataclass(frozen=True)
class Budget:
    """How much a search may spend; each as in `StudySection`.

    `low_fidelity` is what evaluations of low fidelity are called, "" where there are none.
    """

    trials: int
    hours: float | None = None
    low_fidelity: str = ""


@dataclass(frozen=True)
class SearchPlan:
    """What policies are asked with, how many at a time, and until when.

    `sampler` is driven by `seed`; the preset `baseline` is asked for as well. `objectives` span the
    front. `workers` policies are under way at once. `fidelity` is None where every policy is
    trained whole at once. With `probed_seed` float32's run with that seed is probed first.
    """

    sampler: str
    seed: int
    baseline: str | None
    objectives: tuple[ObjectiveName, ...]
    workers: int
    budget: Budget
    fidelity: Fidelity | None = None
    probed_seed: int | None = None
