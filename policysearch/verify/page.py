"""A verdict as text."""

from __future__ import annotations

import numpy as np

from policysearch.policy.policy import LayerPolicy
from policysearch.policy.products import is_narrow
from policysearch.train.divergence import tail_mean
from policysearch.values import NO_LAYER
from policysearch.verify.jittered_runs import BORDER, DRAWS
from policysearch.verify.verdict import EARLY_STEPS, Verdict

SHOWN = 10
"""So many steps are listed, evenly spread, and all whose scale or skip differs."""


def verdict_page(verdict: Verdict) -> str:
    """Return losses side by side, scales, skips, dtypes, the final gap, and what came of it."""
    blocks = [_steps(verdict), _dtypes(verdict), _summary(verdict)]
    return "\n\n".join("\n".join(block) for block in blocks)


def _steps(verdict: Verdict) -> list[str]:
    here, count = verdict.here, len(verdict.losses)
    parted = np.flatnonzero(verdict.scales != here.scales)[:SHOWN]
    spread = np.linspace(0, count - 1, min(count, SHOWN)).astype(int)
    rows = [f"{'step':>4}  {'emulator':>12}  {verdict.target:>12}  {'apart':>8}  loss scale"]
    for step in sorted({*map(int, spread), *map(int, parted)}):
        ours, theirs = here.scales[step], verdict.scales[step]
        scale = f"{ours:g}" if ours == theirs else f"{ours:g} here, {theirs:g} there"
        skipped = ", skipped" if verdict.skipped[step] else ""
        rows.append(
            f"{step:>4}  {here.losses[step]:>12.7f}  {verdict.losses[step]:>12.7f}  "
            f"{verdict.gaps[step]:>8.1e}  {scale}{skipped}"
        )
    return rows


def _dtypes(verdict: Verdict) -> list[str]:
    asked = dict(verdict.policy.layers)
    rows = []
    for name, dtype in verdict.dtypes.items():
        narrow = name in asked and is_narrow(asked[name].compute)
        read = f", of operands in {asked[name].compute}" if narrow else ""
        rows.append(f"{name or NO_LAYER}: {dtype}{read}")
    return [f"results in {verdict.target}:", *(f"  {row}" for row in rows)]


def _summary(verdict: Verdict) -> list[str]:
    here, count = verdict.here, len(verdict.losses)
    gaps = verdict.gaps[: verdict.compared]
    tail = max(1, count // 4)
    final = tail_mean(list(verdict.losses[-tail:])) - tail_mean(list(here.losses[-tail:]))
    keys = "the same" if verdict.same_keys else "OTHER"
    lines = [
        f"skipped steps: {int(here.skipped.sum())} here, {int(verdict.skipped.sum())} there",
        f"state_dict: {keys} {verdict.state_keys} keys as without the policy",
        f"losses apart: {gaps[:EARLY_STEPS].max(initial=0.0):.1e} to step {EARLY_STEPS}, "
        f"{gaps.max(initial=0.0):.1e} to step {len(gaps)}; "
        f"allowed {verdict.allowed[0]:.1e} and {verdict.allowed[-1]:.1e}",
        f"the emulator itself: {verdict.own_gap:.1e}, its initial values moved by "
        f"{verdict.own.jitter:g} (the largest of {DRAWS} draws{_until(verdict)})",
        f"final gap, mean of {tail} steps: {final:+.1e} +- {verdict.own_gap:.1e}",
    ]
    if verdict.own.followed_from < count:
        alike = int(np.sum(verdict.own.partings == count))
        lines.append(
            f"from step {verdict.own.followed_from} on compared with the emulator's training of "
            f"values so moved: with those as they are it has other loss scales, {alike} of the "
            f"{DRAWS} draws have those of {verdict.target}"
        )
    if verdict.borderline:
        lines.append(
            f"from step {verdict.compared} on the loss scales differ: a gradient of step "
            f"{verdict.compared - 1} is within {BORDER:.0%} of overflow; not compared further"
        )
    if (forced := verdict.forced) is not None:
        lines += [f"as the emulator's own trainings: {line}" for line in verdict.chaotic]
        lines.append(
            f"each step from {verdict.target}'s values: losses {forced.losses.max():.1e} apart "
            f"(jittered {forced.own_losses.max():.1e}); {forced.farther:.0%} of the moves of "
            f"{len(forced.names)} parameters are further apart than jittered ones; this decides"
        )
    lines += [f"{verdict.target} does otherwise: {line}" for line in verdict.unlike]
    outcome = [f"FAIL: {line}" for line in verdict.faults]
    outcome += [f"next: {_next_step(verdict)}"] if outcome else []
    outcome += [f"undecided: {line}" for line in verdict.undecided]
    return [*lines, *(outcome or ["pass"])]


def _next_step(verdict: Verdict) -> str:
    """Return what is to be done about a verdict that fails."""
    if verdict.edits:
        return "write the file anew with `export`; it is not what is exported of its policy"
    if any("scaled_dot_product_attention" in line for line in verdict.unlike):
        return 'give the study attention = "flash" under [task], which trains what torch runs'
    if all(row == LayerPolicy() for _, row in verdict.policy.layers):
        return "the net was imported otherwise than torch runs it, whatever the policy: report it"
    return (
        "verify preset:float32 on the same study; if that fails too, the net was imported "
        "otherwise than torch runs it; if it passes, verify the policy again with --float32 LAYER, "
        "for each layer in turn, those named above first"
    )


def _until(verdict: Verdict) -> str:
    """Say which draws were not looked at to the end."""
    partings = verdict.own.partings
    parted = partings[partings < len(verdict.losses)]
    if not len(parted):
        return ""
    return f"; {len(parted)} only until their loss scales differ, the first from step {min(parted)}"
