"""The same exported file on a device, on a CPU and in the emulator."""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np

from benchmarks.exported.cases import Case
from policysearch.verify.jittered_runs import gaps
from policysearch.verify.verdict import EARLY_STEPS, Verdict, trained_in_torch, verify


def agreement(case: Case, place: str, steps: int) -> dict[str, Any]:
    """Return how far the losses of a case are apart, and what `verify` finds; errors as text."""
    name = {"net": case.net, "policy": case.policy}
    try:
        return name | _compared(case, place, steps)
    except Exception as error:  # one case must not end the others
        return name | {"error": f"{error}", "trace": traceback.format_exc()[-1500:]}


def _compared(case: Case, place: str, steps: int) -> dict[str, Any]:
    task = case.task()
    model = task.build_model(task.load_dataset())
    policy = case.made(model.layer_names)
    verdict = verify(policy, task, steps=steps, place=place)
    found = trained_in_torch(policy, task.with_steps(steps), model, 0, "cpu")
    losses, scales, skipped = (np.array(x, np.float64) for x in zip(*found["steps"], strict=True))
    return {
        "digest": policy.digest[:12],
        "faults": list(verdict.faults),
        "undecided": list(verdict.undecided),
        "allowed": [EARLY_STEPS, verdict.allowed[0], verdict.allowed[-1]],
        "place_emulator": _largest(verdict.losses, verdict.here.losses, verdict.compared),
        "place_cpu": _largest(verdict.losses, losses, steps),
        "cpu_emulator": _largest(losses, verdict.here.losses, steps),
        "own_gap": verdict.own_gap,
        "first_loss": verdict.losses[0],
        "last_loss": verdict.losses[-1],
        "compared": verdict.compared,
        "borderline": verdict.borderline,
        "scales": _runs(verdict),
        "scales_differ_from_cpu_at": _first(verdict.scales != scales),
        "skips_differ_from_cpu_at": _first(verdict.skipped != skipped),
        "other_dtypes": {
            layer: [verdict.dtypes[layer], dtype]
            for layer, dtype in found["dtypes"].items()
            if verdict.dtypes[layer] != dtype
        },
        "checked_layers": len(verdict.formats),
    }


def _largest(ours: Any, theirs: Any, steps: int) -> list[float]:
    """Return the largest gap of the early steps and of all."""
    found = gaps(ours, theirs)[:steps]
    return [float(part.max(initial=0.0)) for part in (found[:EARLY_STEPS], found)]


def _first(differ: Any) -> int | None:
    where = np.flatnonzero(differ)
    return int(where[0]) if len(where) else None


def _runs(verdict: Verdict) -> str:
    """Return the loss scale of the first and last step, and how many steps were skipped."""
    first, last = verdict.scales[[0, -1]]
    return f"{first:g} to {last:g}, {int(verdict.skipped.sum())} skipped"
