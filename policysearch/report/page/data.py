"""What the page of a study shows, as plain data: for those who draw it themselves."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from policysearch.report.page.sight import Sight
from policysearch.study.results.results import Results
from policysearch.study.results.rows import Row


def page_data(results: Results) -> dict[str, Any]:
    """Return the verdict, what speaks against it, every policy and what made them, as JSON has it.

    What is no number is None: JSON has no NaN.
    """
    sight = Sight(results, "")
    return {
        "study": results.spec.study.name,
        "verdict": results.verdict.as_dict(),
        "against": sight.warnings,
        "pick": sight.pick.number if sight.pick else None,
        "front": [trial.number for trial in results.front],
        "noise_gap": results.noise_gap,
        "matters_gap": _number(results.matters_gap),
        "references": dict(results.reference_speedups),
        "stopped": results.stopped,
        "policies": [_policy(sight, row) for row in sight.rows],
        "failed": [
            {"trial": trial.number, "policy": trial.name, "reason": trial.reason}
            for trial in results.failed
        ],
        "provenance": {
            **asdict(results.provenance),
            "makers": [dict(maker) for maker in results.provenance.makers],
        },
    }


def _policy(sight: Sight, row: Row) -> dict[str, Any]:
    plain = {name: _number(value) for name, value in asdict(row).items()}
    shared = ("verdict", "cannot_rank", "device", "stack", "noise_gap", "matters_gap")
    trial = sight.trial[row.trial]
    formats = {
        name: [layer.compute, layer.grad, layer.param] for name, layer in trial.policy.layers
    }
    return {
        **{name: value for name, value in plain.items() if name not in shared},
        "state": sight.state(row),
        "formats": formats,
    }


def _number(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
