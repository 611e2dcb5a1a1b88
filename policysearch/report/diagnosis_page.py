"""A diagnosis as text: verdict, cause, chain, the changes that were weighed, and the repair."""

from __future__ import annotations

import math
from collections.abc import Sequence

from policysearch.diagnose.diagnosis import Diagnoser, Diagnosis, Tried
from policysearch.objective.objective import Objective
from policysearch.policy.policy import Policy, to_data
from policysearch.report.lost import chain_table
from policysearch.report.text import aligned

SHOWN = 12
"""So many changes are shown: those that were trained, and the next in order."""

LEGEND = (
    "error left: of the gradient and the loss against float32's, at moments of its run, untrained",
    "low work left: the share of what ran below float32 that still does",
)
"""What the columns of the table of changes say."""


def diagnosed(
    objective: Objective, policy: Policy, seeds: Sequence[int], budget: int, target: str | None
) -> str:
    """Return that page of a policy, which is trained here, with at most `budget` changes of it."""
    diagnoser = Diagnoser(objective, sorted(seeds), budget, target=target)
    return diagnosis_page(diagnoser.diagnose(policy), policy)


def diagnosis_page(found: Diagnosis, policy: Policy) -> str:
    """Return all that a diagnosis of `policy` says."""
    blocks = [
        [f"verdict: {verdict_words(found)}"],
        _cause(found),
        _chain(found),
        _table(found.tried),
        _left_out(found),
        _repair(found, policy),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block)


def verdict_words(found: Diagnosis) -> str:
    """Return the verdict in one line."""
    if found.verdict == "none":
        return f"none: loss gap {found.gap:+.2g}, a failure from {found.matters:.2g} on"
    if found.repair is not None:
        several = f"{found.trained} changes trained"
        trained = several if found.trained > 1 else "the first change that was trained"
        return f"repaired by {found.repair.what} ({trained})"
    return f"{found.verdict}: {found.why}"


def _gap(gap: float) -> str:
    return "diverged" if math.isinf(gap) else f"{gap:+.2g}"


def _cause(found: Diagnosis) -> list[str]:
    if found.verdict == "none" or found.cause.kind == "none":
        return []
    cause = found.cause
    line = f"{cause.line}: " if cause.line else ""
    gap = "the loss diverged" if math.isinf(found.gap) else f"loss gap {found.gap:+.2g}"
    return [
        f"cause: {line}{cause.kind}, {cause.place}",
        cause.words,
        f"{gap}; a failure from {found.matters:.2g} on, jitter of float32 makes {found.noise:.2g}",
    ]


def _chain(found: Diagnosis) -> list[str]:
    if not found.cause.chain:
        return []
    return chain_table(found.cause.chain)


def _table(tried: Sequence[Tried]) -> list[str]:
    if not tried:
        return []
    chosen = [row for row in tried if row.gaps]
    others = [row for row in tried if not row.gaps and math.isfinite(row.error)]
    first = [*chosen, *others[: max(0, SHOWN - len(chosen))]]
    shown = [row for row in tried if row.repair.apart or row in first]
    titles = ("change", "error left", "low work left", "modeled speed", "memory", "trained gap")
    rows = [
        (
            row.repair.what,
            f"{row.error:.2g}",
            f"{row.left:.0%}",
            f"{row.speedup:.3f}",
            f"{row.memory_ratio:.3f}",
            _gaps(row.gaps),
        )
        for row in shown
    ]
    more = len(tried) - len(shown)
    unseen = [f"{more} more changes, not shown"] if more else []
    return [*aligned([titles, *rows]), *unseen, *LEGEND]


def _left_out(found: Diagnosis) -> list[str]:
    """Return the first that the target would undo and why, and how many more there are."""
    if not found.left_out:
        return []
    first, more = found.left_out[0], len(found.left_out) - 1
    others = f", and {more} more" if more else ""
    return [f"left out, for the target undoes it: {first.what} ({first.why}){others}"]


def _gaps(gaps: Sequence[float]) -> str:
    """Return the mean gap and its range over the seeds."""
    if not gaps:
        return "-"
    if len(gaps) == 1 or math.isinf(max(gaps)):
        return _gap(max(gaps))
    return f"{math.fsum(gaps) / len(gaps):+.2g}, {min(gaps):+.2g} to {max(gaps):+.2g}"


def _repair(found: Diagnosis, policy: Policy) -> list[str]:
    """Return what the repair changes, field by field, as the policy file says it.

    What the target does with the failing policy as well is no change, though files differ in it.
    """
    if found.repair is None:
        return []
    old, new = to_data(found.repair.was or policy), to_data(found.repair.policy)
    lines = [f"repair: {found.repair.what}"]
    for key, value in new.items():
        if value == old[key] or key == "name":
            continue
        if key == "layers":
            changed = [name for name in value if value[name] != old[key][name]]
            lines += [f"  layers.{name or chr(34) * 2}: {_short(value[name])}" for name in changed]
        elif key.endswith("_ops"):
            lines += [f"  {key}: add {op}" for op in value if op not in old[key]]
            lines += [f"  {key}: take out {op}" for op in old[key] if op not in value]
        else:
            lines.append(f"  {key}: {_short(value)}")
    if found.repair.was not in (None, policy):
        lines.append("  all else in its file is what the target does with your policy as well")
    return lines


def _short(value: object) -> str:
    if not isinstance(value, dict):
        return str(value)
    return ", ".join(f"{key} {item}" for key, item in value.items() if item is not None)
