"""The page of `python -m benchmarks.validation --ranks`: speedups on several devices over one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.validation.ranks import Ranks

BAR = 0.05
"""How far off a ratio may be to count as right."""


def ranks_page(rows: Sequence[Ranks], left: Mapping[str, Sequence[str]]) -> str:
    """Return the page as text: every row, the errors, and what was left out with the reason."""
    lines = [f"{'row':>5} {'model':24} {'device':16} devices  published modeled   error"]
    lines += [
        f"{row.id:>5} {row.model[:24]:24} {row.hardware[:16]:16} {row.devices:7}  "
        f"{row.ratio:9.3f} {row.modeled:7.3f} {row.error:+7.1%}"
        for row in rows
    ]
    for reason, ids in left.items():
        lines += ["", f"left out, {reason}: {', '.join(ids)}"]
    lines += ["", "speedup on so many devices over the speedup on one, modeled beside published:"]
    for devices in sorted({row.devices for row in rows}):
        errors = np.abs([row.error for row in rows if row.devices == devices])
        within = int((errors <= BAR).sum())
        lines.append(
            f"{devices} devices: {len(errors)} rows, mean error {errors.mean():.1%}, at most "
            f"{errors.max():.1%}, {within} within {BAR:.0%}"
        )
    return "\n".join([*lines, *(["no row of several devices could be built"] * (not rows))])
